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
    let time = |sums: &DomainSums<'_>| sums.cycles.unwrap_or(0.0);
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
        let _infallible = write!(
            out,
            "By class, % of the time\n{}\n\nBy function, % of the time\n{}\n",
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
mod tests {
    use super::*;
    use crate::model::Tier;
    use crate::testing::session;

    /// Returns point B, in which a different function than in A uses the time of the copy.
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
        assert_eq!(verdict(&session(), &b), Some(ComparisonVerdict::Unresolved));
        let mut a = session();
        a.head.tier = Tier::PmuNmi;
        b.head.tier = Tier::PmuNmi;
        assert_eq!(verdict(&a, &b), None);
    }

    #[test]
    fn differences_of_long_sessions_have_intervals() {
        let long = |n: u32| {
            let mut session = session();
            session.head.tier = Tier::PmuNmi;
            let samples = session.samples.clone();
            session.samples = samples.repeat(6);
            session.domains[0].cpu_ns = Some(600_000_000);
            // In every second window, some copies count as time of the network.
            let width_ns = session.head.ran_ns / 10;
            let copies = session.samples.iter_mut().filter(|sample| sample.3 == 1);
            for (at, sample) in copies.enumerate() {
                let is_even = (sample.0 / width_ns).is_multiple_of(2);
                sample.3 = if is_even && at as u32 % 10 < n { 4 } else { 1 };
            }
            session
        };
        let copy = |a: u32, b: u32| {
            let figures = diff(&long(a), &long(b)).figures(0);
            let of = |f: &Figure| f.metric == "difference.class.copy";
            figures.into_iter().find(of).unwrap()
        };
        let same = copy(3, 3);
        assert!(
            same.lo.unwrap() < -0.01 && same.hi.unwrap() > 0.01,
            "{same:?}"
        );
        assert_eq!(same.verdict, Some(ComparisonVerdict::Unresolved));
        let other = copy(0, 9);
        assert!(
            other.hi.unwrap() < 0.0 && other.verdict.is_none(),
            "{other:?}"
        );
        assert!(diff(&long(0), &long(9)).text(1).contains("95 % interval"));
        // The legend contains exactly the notes to which a mark refers.
        let notes = |diff: Diff| {
            let text = diff.text(1);
            [SCATTER_NOTE, COARSE_NOTE].map(|note| text.contains(&format!("?: {note}.")))
        };
        assert_eq!(notes(diff(&long(3), &long(3))), [true, false]);
        let mut coarse = long(3);
        coarse.head.tier = Tier::default();
        assert_eq!(notes(diff(&coarse, &coarse)), [false, true]);
    }

    #[test]
    fn the_mean_of_windows_is_the_share() {
        let mut session = session();
        session.samples = session.samples.repeat(6);
        session.domains[0].cpu_ns = Some(500_000_000);
        let half_ns = session.head.ran_ns / 2;
        // Most of the copies are in the first half, so that windows differ in size.
        let mut number = 0;
        session.samples.retain(|sample| {
            number += 1;
            sample.3 != 1 || sample.0 < half_ns || number % 3 == 0
        });
        // The guest runs in the second half only.
        session.threads[1].domain = 2;
        session.domains[2].cpu_ns = Some(350_000_000);
        session.samples.retain(|s| s.2 != 1 || s.0 > half_ns);
        let diff = Diff::new(
            &session,
            &session,
            &Rules::thesis(),
            Classing::Nearest,
            None,
        );
        assert!(diff.left_out.is_empty(), "{diff:?}");
        assert_eq!(diff.a.windows.len(), windows::WINDOWS);
        for (class, share) in &diff.a.classes {
            let of = |window: &Point| window.classes.get(class).unwrap_or(&0.0) / 10.0;
            let mean: f64 = diff.a.windows.iter().map(of).sum();
            assert!((mean - share).abs() < 1e-9, "{class}: {mean} {share}");
        }
    }

    #[test]
    fn domains_without_usable_samples_are_left_out() {
        let mut b = session();
        b.domains[0].cpu_ns = Some(1);
        let diff = diff(&session(), &b);
        let text = diff.text(3);
        assert!(
            text.contains("without driver: in B samples account for"),
            "{text}"
        );
        assert!(diff.functions().is_empty(), "{text}");
    }

    #[test]
    fn a_domain_of_one_point_is_left_out_of_both() {
        let mut b = session();
        b.domains[2].name = "other guest".to_owned();
        let diff = Diff::new(&session(), &b, &Rules::thesis(), Classing::Nearest, None);
        let text = diff.text(3);
        assert!(text.contains("without guest: it is not in B"), "{text}");
        assert!(
            text.contains("without other guest: it is not in A"),
            "{text}"
        );
        let domains: Vec<&str> = diff.per_packet().iter().map(|row| row.0).collect();
        assert_eq!(domains, ["driver"]);
    }

    #[test]
    fn cycles_per_packet_are_compared_by_domain() {
        let mut b = session();
        b.domains[0].cpu_ns = Some(110_000_000);
        let diff = Diff::new(&session(), &b, &Rules::thesis(), Classing::Nearest, None);
        let text = diff.text(3);
        assert!(
            text.contains("By domain, cycles/packet") && text.contains("1.10"),
            "{text}"
        );
        let figures = diff.figures(0);
        let of = |config: &str, domain: &str| {
            let metric = format!("cycles_per_packet.{domain}");
            let found = figures
                .iter()
                .find(|f| f.config == config && f.metric == metric);
            found.unwrap().value.unwrap()
        };
        assert!((of("B-A", "driver") - 0.23e5).abs() < 1.0);
        assert!((of("A", "total") - 3.45e5).abs() < 1.0);
        b.domains[0].traffic = None;
        let diff = Diff::new(&session(), &b, &Rules::thesis(), Classing::Nearest, None);
        let refused = "cycles/packet: refused: in B the driver domain's packets are unknown";
        assert!(diff.text(3).contains(refused));
    }
}
