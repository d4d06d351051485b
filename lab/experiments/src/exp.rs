//! The command `exp`: the registry of studies, and the run of a study.

use crate::html::Flames;
use crate::plan::Adjustment;
use crate::studies::attach::{self, AttachPlan};
use crate::studies::base::papers::{self, Papers};
use crate::studies::base::{self, Base};
use crate::studies::egress::{self, EgressPlan};
use crate::studies::overhead::{self, Overhead};
use crate::studies::receive_buffer::{self, ReceiveBuffer};
use crate::studies::restart::{self, Restart};
use crate::studies::uplink::{self, UplinkPlan};
use crate::studies::{Open, Study, StudyOutcome};
use anyhow::Context as _;
use figures::repeat::{self, Repeated};
use figures::{Failure, csv, interrupt, plot, report};
use std::path::{Path, PathBuf};

/// An embedded study.
struct Embedded {
    name: &'static str,
    /// Text of the plan.
    text: &'static str,
    open: Open,
}

/// Studies whose plans differ in form from those of [`base`].
const OTHER_STUDIES: [Embedded; 7] = [
    Embedded {
        name: attach::NAME,
        text: attach::TEXT,
        open: AttachPlan::open,
    },
    Embedded {
        name: egress::NAME,
        text: egress::TEXT,
        open: EgressPlan::open,
    },
    Embedded {
        name: papers::NAME,
        text: papers::TEXT,
        open: Papers::open,
    },
    Embedded {
        name: overhead::NAME,
        text: overhead::TEXT,
        open: Overhead::open,
    },
    Embedded {
        name: receive_buffer::NAME,
        text: receive_buffer::TEXT,
        open: ReceiveBuffer::open,
    },
    Embedded {
        name: restart::NAME,
        text: restart::TEXT,
        open: Restart::open,
    },
    Embedded {
        name: uplink::NAME,
        text: uplink::TEXT,
        open: UplinkPlan::open,
    },
];

/// Returns all studies.
fn studies() -> impl Iterator<Item = Embedded> {
    let of_one_form = base::PLANS.map(|(name, text)| Embedded {
        name,
        text,
        open: Base::open,
    });
    of_one_form.into_iter().chain(OTHER_STUDIES)
}

/// Returns the names of all plans.
#[must_use]
pub fn names() -> Vec<&'static str> {
    studies().map(|study| study.name).collect()
}

/// Opens the study of this name, and applies command-line options.
fn find(name: &str, by: &Adjustment) -> Result<Box<dyn Study>, Failure> {
    if name.ends_with(".toml") {
        return of_file(name, by);
    }
    let Some(study) = studies().find(|study| study.name == name) else {
        let known = names().join(", ");
        return Err(Failure::Usage(format!(
            "no plan `{name}`; known plans: {known}; or pass a plan file, NAME.toml"
        )));
    };
    (study.open)(study.text, by)
}

/// Opens a user's plan file, which has the form of `base`.
fn of_file(path: &str, by: &Adjustment) -> Result<Box<dyn Study>, Failure> {
    let wrong = |why: String| Failure::Usage(format!("{path}: {why}"));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    Base::open(&text, by).map_err(|error| wrong(error.to_string()))
}

/// Options of the command.
#[derive(Clone, Debug, Default)]
pub struct ExpArgs {
    /// The plan: a name, or a file that ends in `.toml`.
    pub plan: String,
    /// Print JSON lines instead of tables.
    pub json: bool,
    /// Changes to the plan.
    pub adjustment: Adjustment,
    /// Folder to store the data and plots in.
    pub out: Option<PathBuf>,
}

/// Runs a plan, and stores and prints its figures.
///
/// # Errors
/// A returned [`Failure`] has an exit status; see [`figures::exit_code`].
pub fn run(args: &ExpArgs) -> anyhow::Result<()> {
    interrupt::watch();
    let study = find(&args.plan, &args.adjustment)?;
    let mut ran = study.run(args.out.as_deref())?;
    let before = args
        .out
        .as_deref()
        .and_then(|folder| beside_before(folder, &*study, &mut ran));
    let (provenance, figures) = (&ran.provenance, &ran.figures);
    if let Some(folder) = &args.out {
        report::save(folder, study.name(), provenance, figures)?;
        csv::save(folder, study.name(), figures)?;
        plot::save(folder, study.name(), figures)?;
        if let Some(page) = study.page(&ran, &Flames::of(folder))? {
            let path = folder.join(format!("{}.html", study.name()));
            std::fs::write(&path, page).with_context(|| path.display().to_string())?;
            eprintln!("{}", path.display());
        }
    }
    if args.json {
        return report::print_json(provenance, figures);
    }
    println!("{}: {}\n", study.name(), study.about());
    println!("{}\n", provenance.text());
    println!("{}\n", study.tables(figures).trim_end());
    print!("{}", report::missing(figures));
    println!("{}", report::covered(figures));
    if let Some((repeated, commit)) = before {
        println!("{repeated}. The previous run was of commit {commit}.");
    }
    Ok(())
}

/// Compares the ratios with those of an earlier run in the folder, if that run had the same plan,
/// length and kind of processor. Marks ratios that differ, and returns the commit of the earlier
/// run.
fn beside_before(
    folder: &Path,
    study: &dyn Study,
    ran: &mut StudyOutcome,
) -> Option<(Repeated, String)> {
    let (from, before) = report::load(folder, study.name()).ok()?;
    let same = from.get("quick")?.as_bool()? == ran.provenance.quick
        && from.get("cpu")?.as_str()? == ran.provenance.cpu;
    let repeated = same.then(|| repeat::mark(&mut ran.figures, &before))??;
    Some((repeated, from.get("commit")?.as_str()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use figures::provenance::Provenance;
    use figures::report::Figure;
    use figures::stats::Estimate;

    #[test]
    fn every_study_is_found_by_the_name_in_its_plan() {
        for name in names() {
            let study = find(name, &Adjustment::default()).unwrap();
            assert_eq!(study.name(), name);
        }
    }

    #[test]
    fn an_unknown_name_is_a_usage_error() {
        let error = find("bsae", &Adjustment::default()).err().unwrap();
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn runs_of_the_same_kind_are_compared() {
        let folder = tempfile::tempdir().unwrap();
        let study = find("oi", &Adjustment::default()).unwrap();
        let outcome = |quick, lo, hi| {
            let (value, n) = ((lo + hi) / 2.0, 9);
            let estimate = Estimate { value, lo, hi, n };
            StudyOutcome {
                provenance: Provenance::collect("here".to_owned(), quick),
                figures: vec![Figure::new(
                    "oi",
                    "oi-da",
                    "quotient.oi-lro.throughput",
                    estimate,
                )],
            }
        };
        let first = outcome(false, 1.0, 1.2);
        let again = |mut ran| beside_before(folder.path(), &*study, &mut ran);
        assert_eq!(again(outcome(false, 1.0, 1.2)), None, "no earlier run");
        report::save(folder.path(), "oi", &first.provenance, &first.figures).unwrap();
        let overlap = |lo, hi| again(outcome(false, lo, hi)).unwrap().0.overlap;
        assert_eq!((overlap(1.1, 1.3), overlap(1.3, 1.4)), (1, 0));
        let (_, commit) = again(outcome(false, 1.1, 1.3)).unwrap();
        assert_eq!(commit, first.provenance.commit);
        assert_eq!(
            again(outcome(true, 1.1, 1.3)),
            None,
            "a short one and a long one"
        );
    }
}
