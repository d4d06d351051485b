//! The plan `papers`: runs the plans of all papers and combines them into one page.

use super::{Base, PLANS};
use crate::html::{self, Flames};
use crate::papers::Paper;
use crate::plan::Adjustment;
use crate::studies::{Study, StudyOutcome};
use figures::Failure;
use figures::report::{self, Figure};
use serde::Deserialize;
use std::path::Path;

/// Plan name.
pub const NAME: &str = "papers";
/// Text of the plan.
pub const TEXT: &str = include_str!("../../../plans/papers.toml");

/// The study.
#[derive(Debug)]
pub struct Papers {
    file: PapersPlan,
    parts: Vec<Base>,
}

/// Contents of the plan file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PapersPlan {
    name: String,
    about: String,
    /// Names of the plans to run.
    plan: Vec<String>,
}

impl Papers {
    /// Opens the plan in `text`.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the plan is invalid before or after `by` is applied.
    pub fn open(text: &str, by: &Adjustment) -> Result<Box<dyn Study>, Failure> {
        let file: PapersPlan =
            toml::from_str(text).map_err(|error| Failure::Usage(error.to_string()))?;
        let (mut parts, mut without) = (Vec::new(), None);
        for name in &file.plan {
            let text = PLANS.iter().find(|(known, _)| known == name);
            let text = text
                .ok_or_else(|| Failure::Usage(format!("no plan `{name}`")))?
                .1;
            match Base::of(text, by) {
                Ok(part) => parts.push(part),
                // A column filter may match columns of one plan and none of another.
                Err(error) if by.only.is_some() => without = Some(error),
                Err(error) => return Err(error),
            }
        }
        match without {
            Some(error) if parts.is_empty() => Err(error),
            _ => Ok(Box::new(Self { file, parts })),
        }
    }

    fn own<'a>(part: &Base, figures: &'a [Figure]) -> Vec<&'a Figure> {
        figures.iter().filter(|f| f.plan == part.name()).collect()
    }
}

impl Study for Papers {
    fn name(&self) -> &str {
        &self.file.name
    }

    fn about(&self) -> &str {
        &self.file.about
    }

    fn run(&self, folder: Option<&Path>) -> anyhow::Result<StudyOutcome> {
        // A finished run has saved its figures under the name of the whole plan. The parts in its
        // folder belong to that run and must not be resumed.
        let whole = |folder: &&Path| folder.join(format!("{}.jsonl", self.file.name)).exists();
        let broken_off = folder.filter(|folder| !whole(folder));
        let mut all: Option<StudyOutcome> = None;
        for (at, part) in self.parts.iter().enumerate() {
            let left: f64 = self
                .parts
                .iter()
                .skip(at)
                .map(|part| part.0.seconds())
                .sum();
            eprintln!(
                "{}, {} of {}, about {:.0} minutes left",
                part.name(),
                at + 1,
                self.parts.len(),
                (left / 60.0).ceil()
            );
            let ran = match broken_off.and_then(|folder| part.saved_outcome(folder)) {
                Some(kept) => kept,
                None => part.run(folder)?,
            };
            if let Some(folder) = folder {
                report::save(folder, part.name(), &ran.provenance, &ran.figures)?;
            }
            match &mut all {
                None => all = Some(ran),
                Some(all) => {
                    // The page counts as a quick run if any of its parts does.
                    all.provenance.quick |= ran.provenance.quick;
                    all.figures.extend(ran.figures);
                }
            }
        }
        all.ok_or_else(|| Failure::Usage("no plan".to_owned()).into())
    }

    fn tables(&self, figures: &[Figure]) -> String {
        let table = |part: &Base| {
            let own: Vec<Figure> = Self::own(part, figures).into_iter().cloned().collect();
            format!("{}: {}\n\n{}", part.name(), part.about(), part.tables(&own))
        };
        self.parts.iter().map(table).collect()
    }

    fn page(&self, ran: &StudyOutcome, flames: &Flames) -> anyhow::Result<Option<String>> {
        let mut parts = Vec::new();
        for part in &self.parts {
            let own: Vec<Figure> = Self::own(part, &ran.figures).into_iter().cloned().collect();
            let name = part.0.paper.as_deref().unwrap_or_default();
            let reproduced = super::reproduced(&part.0);
            parts.push((Paper::find(name)?, reproduced, own, part.0.full.window_s));
        }
        let parts: Vec<html::PaperPart<'_>> = parts
            .iter()
            .map(|(paper, reproduced, figures, window_s)| html::PaperPart {
                paper,
                reproduced,
                figures,
                window_s: *window_s,
            })
            .collect();
        Ok(Some(html::page(&ran.provenance, &parts, flames)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use figures::provenance::Provenance;

    fn nothing() -> StudyOutcome {
        StudyOutcome {
            provenance: Provenance::collect("here".to_owned(), false),
            figures: Vec::new(),
        }
    }

    #[test]
    fn an_interrupted_run_resumes() {
        let folder = tempfile::tempdir().unwrap();
        let by = Adjustment {
            only: Some("oi-xen".to_owned()),
            ..Adjustment::default()
        };
        let part = Base::of(PLANS.iter().find(|(name, _)| *name == "oi").unwrap().1, &by).unwrap();
        let keep = |n, config| {
            let (value, lo, hi) = (2.0, 1.0, 3.0);
            let estimate = figures::stats::Estimate { value, lo, hi, n };
            let figures = [Figure::new("oi", config, "throughput", estimate)];
            let provenance = part.provenance(&crate::idle_cores::possible());
            report::save(folder.path(), "oi", &provenance, &figures).unwrap();
            part.saved_outcome(folder.path())
        };
        assert!(
            part.saved_outcome(folder.path()).is_none(),
            "the folder has no saved run"
        );
        assert_eq!(keep(9, "oi-xen").unwrap().figures.len(), 1);
        assert!(keep(3, "oi-xen").is_none(), "another number of rounds");
        assert!(keep(9, "oi-da").is_none(), "other columns");
    }

    #[test]
    fn one_paper_can_be_run_alone() {
        let only = |part: &str| {
            let by = Adjustment {
                only: Some(part.to_owned()),
                ..Adjustment::default()
            };
            Papers::open(TEXT, &by).map(|study| study.page(&nothing(), &Flames::default()))
        };
        let page = only("oi-bo").unwrap().unwrap().unwrap();
        assert!(page.contains("id=\"oi\"") && !page.contains("id=\"ram\""));
        assert_eq!(only("nobody").err().unwrap().exit_code(), 2);
        let all = Papers::open(TEXT, &Adjustment::default()).unwrap();
        let page = all.page(&nothing(), &Flames::default()).unwrap().unwrap();
        // 44 tables and figures, and four lists of open questions.
        assert_eq!(page.matches("<h3 id=").count(), 44 + 4);
    }
}
