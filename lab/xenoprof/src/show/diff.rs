//! The command `prof diff A B`: compares point A with point B, like the paper's tables 1 and 2.

use super::sums::{COARSE, COARSE_NOTE, Sums};
use super::text::shortened;
use crate::attribute::rules::Rules;
use crate::attribute::{Attribution, Classing};
use crate::model::Session;
use figures::report::Figure;
use figures::stats::Verdict;
use figures::table::table;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const PLAN: &str = "prof";

/// Distribution of one point's time.
#[derive(Clone, Debug, Default)]
struct Point {
    classes: BTreeMap<String, f64>,
    functions: BTreeMap<String, f64>,
    left_out: Vec<String>,
    coarse: bool,
}

impl Point {
    /// Computes the shares of the exact time of one domain, or of all domains that count. Omits a
    /// domain without usable samples, and names it.
    fn new(session: &Session, found: &Attribution, only: Option<&str>) -> Self {
        let mut point = Self {
            coarse: !session.head.tier.is_fine(),
            ..Self::default()
        };
        let all = Sums::of(session, found);
        let wanted = all.iter().filter(|sums| match only {
            Some(name) => sums.domain.name == name,
            None => sums.counts(),
        });
        let mut used = Vec::new();
        for sums in wanted {
            match sums.refusal() {
                Some(why) => point.left_out.push(format!("{}: {why}", sums.domain.name)),
                None => used.push(sums),
            }
        }
        let time = |sums: &Sums<'_>| sums.cycles.unwrap_or(0.0);
        let total: f64 = used.iter().map(|sums| time(sums)).sum();
        for sums in used {
            let weight = time(sums) / total.max(1.0);
            for (class, count) in found.classes.iter().zip(&sums.part.classes) {
                *point.classes.entry(class.clone()).or_default() += sums.share(*count) * weight;
            }
            for ((_, function), count) in &sums.part.symbols {
                *point.functions.entry(function.clone()).or_default() +=
                    sums.share(*count) * weight;
            }
        }
        point
    }
}

/// A function and its shares at A and B; `None`: no samples.
type Row<'a> = (&'a str, Option<f64>, Option<f64>);

/// Two points.
#[derive(Debug)]
pub struct Diff {
    classes: Vec<String>,
    a: Point,
    b: Point,
}

impl Diff {
    /// Compares one domain, or all domains that count, in two sessions.
    #[must_use]
    pub fn new(
        a: &Session,
        b: &Session,
        rules: &Rules,
        classing: Classing,
        domain: Option<&str>,
    ) -> Self {
        let point = |session| {
            let found = Attribution::new(session, rules, classing);
            Point::new(session, &found, domain)
        };
        Self {
            classes: rules.classes().to_vec(),
            a: point(a),
            b: point(b),
        }
    }

    fn coarse(&self) -> bool {
        self.a.coarse || self.b.coarse
    }

    /// Returns whether a difference is below the instrument's resolution.
    fn unresolved(&self, difference: f64) -> bool {
        self.coarse() && difference.abs() < COARSE
    }

    /// Returns the functions of both points, largest difference first.
    fn functions(&self) -> Vec<Row<'_>> {
        let names: BTreeSet<&String> = self
            .a
            .functions
            .keys()
            .chain(self.b.functions.keys())
            .collect();
        let mut rows: Vec<Row<'_>> = names
            .into_iter()
            .map(|name| {
                let of = |point: &Point| point.functions.get(name).copied();
                (name.as_str(), of(&self.a), of(&self.b))
            })
            .collect();
        let size = |row: &Row<'_>| (row.2.unwrap_or(0.0) - row.1.unwrap_or(0.0)).abs();
        rows.sort_by(|x, y| size(y).total_cmp(&size(x)).then(x.0.cmp(y.0)));
        rows
    }

    /// Returns tables of the classes, and of the `most` functions that differ most.
    #[must_use]
    pub fn text(&self, most: usize) -> String {
        let header = ["", "A", "B", "B - A", ""];
        let row = |name: &str, a: Option<f64>, b: Option<f64>| {
            let shown = |share: Option<f64>| match share {
                Some(share) => format!("{:.2}", share * 100.0),
                None => "absent".to_owned(),
            };
            let difference = b.unwrap_or(0.0) - a.unwrap_or(0.0);
            let mark = if self.unresolved(difference) { "?" } else { "" };
            vec![
                shortened(name),
                shown(a),
                shown(b),
                format!("{:+.2}", difference * 100.0),
                mark.to_owned(),
            ]
        };
        let of = |point: &Point, class: &String| point.classes.get(class).copied();
        let classes: Vec<Vec<String>> = self
            .classes
            .iter()
            .map(|class| row(class, of(&self.a, class), of(&self.b, class)))
            .collect();
        let all = self.functions();
        let mut functions: Vec<Vec<String>> = all
            .iter()
            .take(most)
            .map(|(name, a, b)| row(name, *a, *b))
            .collect();
        let rest = |pick: fn(&Row<'_>) -> Option<f64>| {
            Some(all.iter().skip(most).filter_map(pick).sum::<f64>())
        };
        functions.push(row("other functions", rest(|r| r.1), rest(|r| r.2)));
        let mut out = format!(
            "By class, % of the time\n{}\n\nBy function, % of the time\n{}\n",
            table(&header, &classes),
            table(&header, &functions)
        );
        if self.coarse() {
            let _infallible = writeln!(out, "\n?: {COARSE_NOTE}.");
        }
        for (name, point) in [("A", &self.a), ("B", &self.b)] {
            for why in &point.left_out {
                let _infallible = writeln!(out, "{name}: without {why}");
            }
        }
        out
    }

    /// Returns the comparison as figures of the configurations `A`, `B` and `B-A`.
    #[must_use]
    pub fn figures(&self, most: usize) -> Vec<Figure> {
        let mut figures = Vec::new();
        let classes = self.classes.iter().map(|class| {
            let of = |point: &Point| point.classes.get(class).copied();
            (format!("class.{class}"), of(&self.a), of(&self.b))
        });
        let functions = self
            .functions()
            .into_iter()
            .take(most)
            .map(|(name, a, b)| (format!("function.{name}"), a, b));
        for (name, a, b) in classes.chain(functions) {
            for (config, share) in [("A", a), ("B", b)] {
                let metric = format!("share.{name}");
                figures.push(Figure::single(PLAN, config, &metric, share.unwrap_or(0.0)));
            }
            let difference = b.unwrap_or(0.0) - a.unwrap_or(0.0);
            let metric = format!("difference.{name}");
            let mut figure = Figure::single(PLAN, "B-A", &metric, difference);
            if self.unresolved(difference) {
                figure.verdict = Some(Verdict::Unresolved);
                figure.note = Some(COARSE_NOTE.to_owned());
            }
            figures.push(figure);
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Tier;
    use crate::testing::session;

    /// Returns point B, in which another function than in A uses the time of the copy.
    fn slow() -> Session {
        let mut session = session();
        session.frames[1].symbol = "tcp_collapse".to_owned();
        session
    }

    fn diff(a: &Session, b: &Session) -> Diff {
        Diff::new(a, b, &Rules::thesis(), Classing::Nearest, Some("driver"))
    }

    #[test]
    fn the_largest_difference_is_first() {
        let text = diff(&session(), &slow()).text(2);
        let functions: Vec<&str> = text
            .split("By function")
            .nth(1)
            .unwrap()
            .lines()
            .skip(3)
            .collect();
        assert!(functions[0].contains("shmem::engine::copy"), "{text}");
        assert!(functions[0].contains("60.00") && functions[0].contains("absent"));
        assert!(functions[1].contains("tcp_collapse") && functions[1].contains("+60.00"));
        assert!(functions[2].contains("other functions") && functions[2].contains("40.00"));
    }

    #[test]
    fn small_differences_are_unresolved_without_nmi() {
        let mut b = session();
        let last = b.samples.iter().rposition(|sample| sample.3 == 1).unwrap();
        b.samples[last].3 = 4;
        let verdict = |a: &Session, b: &Session| {
            let figures = diff(a, b).figures(0);
            let copy = figures
                .into_iter()
                .find(|f| f.metric == "difference.class.copy")
                .unwrap();
            assert!((copy.value.unwrap() + 0.01).abs() < 1e-9);
            copy.verdict
        };
        assert_eq!(verdict(&session(), &b), Some(Verdict::Unresolved));
        let mut a = session();
        a.head.tier = Tier::PmuNmi;
        b.head.tier = Tier::PmuNmi;
        assert_eq!(verdict(&a, &b), None);
    }

    #[test]
    fn domains_without_usable_samples_are_omitted() {
        let mut b = session();
        b.domains[0].cpu_ns = Some(1);
        let text = diff(&session(), &b).text(3);
        assert!(
            text.contains("B: without driver: samples account for"),
            "{text}"
        );
    }
}
