//! The command `prof diff A B`: compares point A with point B, like the paper's tables 1 and 2.

use super::cells::shortened;
use super::sums::{COARSE_NOTE, COARSE_SHARE, Denominator, DomainSums};
use super::windows;
use crate::attribute::rules::Rules;
use crate::attribute::{Attribution, Classing};
use crate::model::{Sample, Session};
use figures::report::{Figure, number};
use figures::stats::{CONFIDENCE, ComparisonVerdict};
use figures::table::table;
use figures::{Failure, clean};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const PLAN: &str = "prof";
/// Note on a difference whose interval contains 0.
const SCATTER_NOTE: &str = "the difference is smaller than its 95 % interval";

/// Distribution of one point's time over classes and functions, and its cycles by packet.
#[derive(Clone, Debug, Default)]
struct Point {
    classes: BTreeMap<String, f64>,
    functions: BTreeMap<String, f64>,
    /// Cycles per packet of each domain.
    per_packet: BTreeMap<String, f64>,
    /// The reason for having no cycles per packet.
    refusal: Option<String>,
    coarse: bool,
    /// Parts of the session, for intervals.
    windows: Vec<Self>,
}

impl Point {
    /// Computes the cycles per packet of the domains in `both`, and the shares of those with a
    /// weight.
    fn new(
        session: &Session,
        found: &Attribution,
        all: &[DomainSums<'_>],
        both: &BTreeSet<&str>,
        weights: &Weights<'_>,
    ) -> Self {
        let denominator = Denominator::of(session);
        let mut point = Self {
            coarse: !session.head.tier.is_fine(),
            refusal: denominator.packets.as_ref().err().cloned(),
            ..Self::default()
        };
        let is_in_both = |sums: &&DomainSums<'_>| both.contains(sums.domain.name.as_str());
        for sums in all.iter().filter(is_in_both) {
            if let (Some(cycles), Some(packets)) = (sums.cycles, denominator.packets()) {
                let name = sums.domain.name.clone();
                point.per_packet.insert(name, cycles / packets);
            }
        }
        for sums in all {
            let Some(weight) = weights.get(sums.domain.name.as_str()) else {
                continue;
            };
            for (class, count) in found.classes.iter().zip(&sums.part.classes) {
                *point.classes.entry(class.clone()).or_default() += *count as f64 * weight;
            }
            for ((_, function), count) in &sums.part.symbols {
                *point.functions.entry(function.clone()).or_default() += *count as f64 * weight;
            }
        }
        point
    }
}

/// For each used domain, the share of the exact time of all used domains that one of its samples
/// represents.
type Weights<'a> = BTreeMap<&'a str, f64>;

fn weights<'a>(all: &[DomainSums<'a>], used: &BTreeSet<&str>) -> Weights<'a> {
    let time = |sums: &DomainSums<'_>| sums.weight.unwrap_or(0.0);
    let is_used = |sums: &&DomainSums<'_>| used.contains(sums.domain.name.as_str());
    let total: f64 = all.iter().filter(is_used).map(time).sum();
    let weight = |sums: &DomainSums<'a>| {
        let of_domain = time(sums) / total.max(1.0);
        (sums.domain.name.as_str(), of_domain * sums.share(1))
    };
    all.iter().filter(is_used).map(weight).collect()
}

impl Point {
    /// Adds the windows of the session. Their samples have the weights of the whole session, so
    /// that the mean of the windows is the point's share.
    fn cut(
        mut self,
        session: &Session,
        rules: &Rules,
        classing: Classing,
        weights: &Weights<'_>,
    ) -> Self {
        let is_used = |sample: &Sample| {
            let domain = session.domains.get(session.domain_of(sample));
            domain.is_some_and(|domain| weights.contains_key(domain.name.as_str()))
        };
        let weights: Weights<'_> = weights
            .iter()
            .map(|(name, weight)| (*name, weight * windows::WINDOWS as f64))
            .collect();
        let mut window = Session {
            samples: Vec::new(),
            ..session.clone()
        };
        for samples in windows::cut(session, is_used) {
            window.samples = samples;
            let found = Attribution::new(&window, rules, classing);
            let all = DomainSums::of(&window, &found);
            let point = Self::new(&window, &found, &all, &BTreeSet::new(), &weights);
            self.windows.push(point);
        }
        self
    }

    fn share(&self, part: PartOfTime<'_>) -> Option<f64> {
        match part {
            PartOfTime::Class(class) => self.classes.get(class),
            PartOfTime::Function(function) => self.functions.get(function),
        }
        .copied()
    }
}

/// A part of the time.
#[derive(Clone, Copy)]
enum PartOfTime<'a> {
    Class(&'a str),
    Function(&'a str),
}

/// A function and its shares at A and B; `None`: no samples.
type Row<'a> = (&'a str, Option<f64>, Option<f64>);

fn find<'a, 'b>(all: &'a [DomainSums<'b>], name: &str) -> Option<&'a DomainSums<'b>> {
    all.iter().find(|sums| sums.domain.name == name)
}

/// Two points.
#[derive(Debug)]
pub struct Diff {
    /// The whole that shares divide.
    whole: String,
    classes: Vec<String>,
    a: Point,
    b: Point,
    /// Domains that the comparison leaves out at both points, with the reason.
    left_out: Vec<String>,
    /// Domains whose samples and exact time differ, with the reason.
    doubts: Vec<String>,
}

/// Returns the reason for not comparing the functions of a domain, if there is one.
fn left_out(name: &str, points: [Option<&DomainSums<'_>>; 2]) -> Option<String> {
    let [Some(a), Some(b)] = points else {
        let point = if points[0].is_none() { "A" } else { "B" };
        return Some(format!("{name}: it is not in {point}"));
    };
    let refused = |point: &str, sums: &DomainSums<'_>| {
        let why = sums.refusal()?;
        Some(format!("{name}: in {point} {why}"))
    };
    refused("A", a).or_else(|| refused("B", b))
}

/// Checks that the first events of two sessions can be compared: they are the same, or measure
/// time.
///
/// # Errors
/// Returns an error with both events.
pub fn comparable(a: &Session, b: &Session) -> anyhow::Result<()> {
    if a.head.event == b.head.event || (a.head.is_time() && b.head.is_time()) {
        return Ok(());
    }
    let [a, b] = [a, b].map(|session| clean::line(&session.head.event));
    let what = format!("A has {a} and B has {b}: choose an event of both with --event");
    Err(Failure::Usage(what).into())
}

impl Diff {
    /// Compares the first events of one domain, or of all domains that count, in two sessions that
    /// are [`comparable`].
    #[must_use]
    pub fn new(
        a: &Session,
        b: &Session,
        rules: &Rules,
        classing: Classing,
        domain: Option<&str>,
    ) -> Self {
        let (a, b) = (&*a.of_event(0), &*b.of_event(0));
        let found = [a, b].map(|session| Attribution::new(session, rules, classing));
        let [of_a, of_b] = [(a, &found[0]), (b, &found[1])].map(|(session, found)| {
            let mut all = DomainSums::of(session, found);
            all.retain(|sums| match domain {
                Some(name) => sums.domain.name == name,
                None => sums.counts(),
            });
            all
        });
        let names = |all: &'_ [DomainSums<'_>]| -> BTreeSet<String> {
            all.iter().map(|sums| sums.domain.name.clone()).collect()
        };
        let (in_a, in_b) = (names(&of_a), names(&of_b));
        let both: BTreeSet<&str> = in_a.intersection(&in_b).map(String::as_str).collect();
        let (mut used, mut reasons) = (BTreeSet::new(), Vec::new());
        for name in in_a.union(&in_b) {
            let of = |all| find(all, name);
            match left_out(name, [of(&of_a), of(&of_b)]) {
                Some(why) => reasons.push(why),
                None => drop(used.insert(name.as_str())),
            }
        }
        let mut doubts = Vec::new();
        for (point, all) in [("A", &of_a), ("B", &of_b)] {
            for sums in all {
                let name = sums.domain.name.as_str();
                let why = sums.unreliable_because();
                if let Some(why) = why.filter(|_| used.contains(name)) {
                    doubts.push(format!("{name} in {point}: {why}"));
                }
            }
        }
        let point = |session: &Session, found: &Attribution, all: &[DomainSums<'_>]| {
            let weights = weights(all, &used);
            let point = Point::new(session, found, all, &both, &weights);
            point.cut(session, rules, classing, &weights)
        };
        Self {
            whole: b.head.whole().to_owned(),
            classes: rules.classes().to_vec(),
            a: point(a, &found[0], &of_a),
            b: point(b, &found[1], &of_b),
            left_out: reasons,
            doubts,
        }
    }

    /// Returns the cycles per packet of each domain, and of all, at both points.
    fn per_packet(&self) -> Vec<(&str, [f64; 2])> {
        let of_both = self.a.per_packet.iter().filter_map(|(name, a)| {
            let b = self.b.per_packet.get(name)?;
            Some((name.as_str(), [*a, *b]))
        });
        let mut rows: Vec<_> = of_both.collect();
        if rows.len() > 1 {
            let sum = |at: usize| rows.iter().filter_map(|(_, pair)| pair.get(at)).sum();
            let total = [sum(0), sum(1)];
            rows.push(("total", total));
        }
        rows
    }

    fn coarse(&self) -> bool {
        self.a.coarse || self.b.coarse
    }

    /// Returns why a difference is not significant, if it is not.
    fn unresolved(&self, difference: f64, half_width: Option<f64>) -> Option<&'static str> {
        if self.coarse() && difference.abs() < COARSE_SHARE {
            return Some(COARSE_NOTE);
        }
        let is_in = half_width.is_some_and(|half| difference.abs() < half);
        is_in.then_some(SCATTER_NOTE)
    }

    /// Returns half of the 95 % interval of a difference, if both points have windows.
    fn half_width(&self, part: PartOfTime<'_>) -> Option<f64> {
        let [a, b] = [&self.a, &self.b].map(|point| {
            let share = |window: &Point| window.share(part).unwrap_or(0.0);
            point.windows.iter().map(share).collect::<Vec<f64>>()
        });
        windows::half_width(&a, &b)
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
        let header = ["", "A", "B", "B - A", "±", ""];
        let mut notes = BTreeSet::new();
        let mut row = |name: &str, part: Option<PartOfTime<'_>>, a: Option<f64>, b: Option<f64>| {
            let shown = |share: Option<f64>| match share {
                Some(share) => format!("{:.2}", share * 100.0),
                None => "absent".to_owned(),
            };
            let difference = b.unwrap_or(0.0) - a.unwrap_or(0.0);
            let half = part.and_then(|part| self.half_width(part));
            let note = self.unresolved(difference, half);
            notes.extend(note);
            let mark = note.map_or("", |_| "?");
            vec![
                shortened(name),
                shown(a),
                shown(b),
                format!("{:+.2}", difference * 100.0),
                half.map_or_else(String::new, |half| format!("{:.2}", half * 100.0)),
                mark.to_owned(),
            ]
        };
        let of = |point: &Point, class: &String| point.classes.get(class).copied();
        let classes: Vec<Vec<String>> = self
            .classes
            .iter()
            .map(|class| {
                let part = Some(PartOfTime::Class(class));
                row(class, part, of(&self.a, class), of(&self.b, class))
            })
            .collect();
        let all = self.functions();
        let mut functions: Vec<Vec<String>> = all
            .iter()
            .take(most)
            .map(|(name, a, b)| row(name, Some(PartOfTime::Function(name)), *a, *b))
            .collect();
        let rest = |pick: fn(&Row<'_>) -> Option<f64>| {
            Some(all.iter().skip(most).filter_map(pick).sum::<f64>())
        };
        functions.push(row("other functions", None, rest(|r| r.1), rest(|r| r.2)));
        let mut out = self.per_packet_text();
        let whole = &self.whole;
        let _infallible = write!(
            out,
            "By class, % of the {whole}\n{}\n\nBy function, % of the {whole}\n{}\n",
            table(&header, &classes),
            table(&header, &functions)
        );
        for note in notes {
            let _infallible = writeln!(out, "?: {note}.");
        }
        match self.a.windows.is_empty() || self.b.windows.is_empty() {
            true => out.push_str("no intervals: a session has too few samples\n"),
            false => {
                let _infallible =
                    writeln!(out, "±: 95 % interval, from 10 windows of each session");
            }
        }
        for why in &self.doubts {
            let _infallible = writeln!(out, "? {why}");
        }
        for why in &self.left_out {
            let _infallible = writeln!(out, "without {why}");
        }
        out
    }

    fn per_packet_text(&self) -> String {
        let refusals = [("A", &self.a), ("B", &self.b)].map(|(name, point)| {
            let why = point.refusal.as_ref()?;
            Some(format!("cycles/packet: refused: in {name} {why}\n\n"))
        });
        if let Some(why) = refusals.into_iter().flatten().next() {
            return why;
        }
        let row = |(name, [a, b]): &(&str, [f64; 2])| {
            let ratio = format!("{:.2}", b / a.max(1e-9));
            vec![
                (*name).to_owned(),
                number(*a),
                number(*b),
                number(b - a),
                ratio,
            ]
        };
        let rows: Vec<Vec<String>> = self.per_packet().iter().map(row).collect();
        let header = ["", "A", "B", "B - A", "B ÷ A"];
        format!("By domain, cycles/packet\n{}\n\n", table(&header, &rows))
    }

    /// Returns the comparison as figures of the configurations `A`, `B` and `B-A`.
    #[must_use]
    pub fn figures(&self, most: usize) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (name, [a, b]) in self.per_packet() {
            let metric = format!("cycles_per_packet.{name}");
            for (config, value) in [("A", a), ("B", b), ("B-A", b - a)] {
                figures.push(Figure::single(PLAN, config, &metric, value));
            }
        }
        let classes = self.classes.iter().map(|class| {
            let of = |point: &Point| point.classes.get(class).copied();
            let part = PartOfTime::Class(class);
            (format!("class.{class}"), part, of(&self.a), of(&self.b))
        });
        let functions = self
            .functions()
            .into_iter()
            .take(most)
            .map(|(name, a, b)| (format!("function.{name}"), PartOfTime::Function(name), a, b));
        for (name, part, a, b) in classes.chain(functions) {
            for (config, share) in [("A", a), ("B", b)] {
                let metric = format!("share.{name}");
                figures.push(Figure::single(PLAN, config, &metric, share.unwrap_or(0.0)));
            }
            let difference = b.unwrap_or(0.0) - a.unwrap_or(0.0);
            let metric = format!("difference.{name}");
            let mut figure = Figure::single(PLAN, "B-A", &metric, difference);
            let half = self.half_width(part);
            if let Some(half) = half {
                figure.lo = Some(difference - half);
                figure.hi = Some(difference + half);
                figure.covers = Some(CONFIDENCE);
            }
            if let Some(why) = self.unresolved(difference, half) {
                figure.verdict = Some(ComparisonVerdict::Unresolved);
                figure.note = Some(why.to_owned());
            }
            figures.push(figure);
        }
        figures
    }
}

#[cfg(test)]
mod tests;
