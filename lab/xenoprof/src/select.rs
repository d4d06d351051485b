//! A part of a session: the samples of an event, of some threads, of some of the time, or of a
//! class.

use crate::attribute::rules::Rules;
use crate::attribute::{Classing, stacks_of_class};
use crate::model::{Sample, Session};
use crate::unit::Unit;
use figures::{Failure, clean};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of threads that an error names.
const NAMED_MAX: usize = 20;
const NS_PER_S: f64 = 1e9;

/// The part of a session that a command shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// Names or ids of threads; empty: all threads.
    pub threads: Vec<String>,
    /// The time, or `None` for all of the session.
    pub time: Option<TimeRange>,
    /// The event, or `None` for all events.
    pub event: Option<String>,
}

/// A part of a session's time. It contains its start, but not its end.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeRange {
    /// Start, nanoseconds since the session's start.
    from_ns: u64,
    /// End, nanoseconds since the session's start.
    to_ns: u64,
    /// The range as the user wrote it.
    text: String,
}

impl std::str::FromStr for TimeRange {
    type Err = String;

    /// Parses `START,STOP`, in seconds since the session's start. Either may be omitted.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected START,STOP in seconds, such as `1.5,2`, `1.5,` or `,2`".to_owned();
        let (from, to) = text.split_once(',').ok_or_else(wrong)?;
        let ns = |word: &str, default: u64| match word.trim() {
            "" => Ok(default),
            word => match word.parse::<f64>() {
                Ok(s) if s >= 0.0 && s.is_finite() => Ok((s * NS_PER_S).round() as u64),
                _ => Err(wrong()),
            },
        };
        let (from_ns, to_ns) = (ns(from, 0)?, ns(to, u64::MAX)?);
        match from_ns < to_ns {
            true => Ok(Self {
                from_ns,
                to_ns,
                text: text.to_owned(),
            }),
            false => Err("the start is not before the stop".to_owned()),
        }
    }
}

impl Selection {
    /// Returns whether this is the whole session.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.is_whole() && self.event.is_none()
    }

    /// Returns whether it has the samples of all threads and of all the time.
    const fn is_whole(&self) -> bool {
        self.threads.is_empty() && self.time.is_none()
    }

    /// Returns the selection as keys of a figure's configuration.
    #[must_use]
    pub fn keys(&self) -> BTreeMap<String, String> {
        let threads = (!self.threads.is_empty()).then(|| self.threads.join("+"));
        let time = self.time.as_ref().map(|time| time.text.replace(',', "-"));
        let keys = [
            ("thread", threads),
            ("time", time),
            ("event", self.event.clone()),
        ];
        keys.into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect()
    }

    /// Reduces a session to the selected samples. The times in it are relative to the selection's
    /// start. A domain keeps the part of its exact CPU time that corresponds to its share of
    /// selected samples of the first event that measures time. Packets, hop ledgers and lost
    /// samples are known only of whole sessions, so the part has none.
    ///
    /// # Errors
    /// Returns an error if no thread has one of the names, the session ended before the part's
    /// start, the session lacks the event, or the part has no samples.
    pub fn apply(&self, mut session: Session) -> anyhow::Result<Session> {
        let event = self.event.as_deref().map(|name| session.event(name));
        let event = event.transpose().map_err(Failure::Usage)?;
        if !self.is_whole() {
            self.reduce(&mut session)?;
        }
        let Some(number) = event else {
            return Ok(session);
        };
        let session = session.of_event(number).into_owned();
        if !self.is_whole() && session.samples.is_empty() {
            let event = clean::line(&session.head.event).into_owned();
            return Err(Failure::Usage(format!("the part has no samples of {event}")).into());
        }
        Ok(session)
    }

    /// Reduces a session to the selected threads and time.
    fn reduce(&self, session: &mut Session) -> anyhow::Result<()> {
        let is_selected = self.threads_of(session)?;
        let (from_ns, to_ns) = self.bounds(session.head.ran_ns)?;
        reduce(session, &self.text([from_ns, to_ns]), |sample| {
            let keeps = (from_ns..to_ns).contains(&sample.0) && is_selected(sample);
            sample.0 = sample.0.saturating_sub(from_ns);
            keeps
        })?;
        session.markers.retain_mut(|marker| {
            let overlaps = marker.from_ns < to_ns && marker.to_ns >= from_ns;
            marker.from_ns = marker.from_ns.max(from_ns).saturating_sub(from_ns);
            marker.to_ns = marker.to_ns.min(to_ns).saturating_sub(from_ns);
            overlaps
        });
        let head = &mut session.head;
        head.started_raw_ns = head.started_raw_ns.saturating_add(from_ns);
        head.started_unix_ns = head.started_unix_ns.saturating_add(from_ns);
        head.ran_ns = to_ns.saturating_sub(from_ns);
        Ok(())
    }

    /// Returns the start and the end of the time in a session that lasted `ran_ns`.
    fn bounds(&self, ran_ns: u64) -> anyhow::Result<(u64, u64)> {
        let Some(time) = &self.time else {
            return Ok((0, ran_ns));
        };
        if time.from_ns >= ran_ns {
            let [from, ran] = [time.from_ns, ran_ns].map(|ns| ns as f64 / NS_PER_S);
            let what = format!("no samples from {from:.3} s on: the session has only {ran:.3} s");
            return Err(Failure::Usage(what).into());
        }
        Ok((time.from_ns, time.to_ns.min(ran_ns)))
    }

    /// Returns a function that returns whether a sample's thread is selected.
    fn threads_of(&self, session: &Session) -> anyhow::Result<impl Fn(&Sample) -> bool + use<>> {
        let mut selected = vec![self.threads.is_empty(); session.threads.len()];
        for wanted in &self.threads {
            let mut is_known = false;
            for (thread, selected) in session.threads.iter().zip(&mut selected) {
                if thread.name == *wanted || thread.tid.to_string() == *wanted {
                    *selected = true;
                    is_known = true;
                }
            }
            if !is_known {
                return Err(Failure::Usage(unknown(session, wanted)).into());
            }
        }
        Ok(move |sample: &Sample| selected.get(sample.2 as usize).copied().unwrap_or(false))
    }

    /// Returns the selection in words. `bounds` are the start and the end of its time.
    fn text(&self, bounds: [u64; 2]) -> String {
        let threads = match self.threads.as_slice() {
            [] => None,
            [one] => Some(format!("thread {one}")),
            several => Some(format!("threads {}", several.join(", "))),
        };
        let time = self.time.as_ref().map(|_| {
            let [from, to] = bounds.map(|ns| ns as f64 / NS_PER_S);
            format!("{from:.3} s to {to:.3} s")
        });
        let parts: Vec<String> = threads.into_iter().chain(time).collect();
        clean::line(&parts.join(", ")).into_owned()
    }
}

/// Reduces a session to the samples of a class, as [`Selection::apply`] reduces it.
///
/// # Errors
/// Returns an error if no class has this name, or it has no samples.
pub fn of_class(
    mut session: Session,
    rules: &Rules,
    classing: Classing,
    class: &str,
) -> anyhow::Result<Session> {
    let Some(index) = rules.classes().iter().position(|name| name == class) else {
        let (class, known) = (clean::line(class), rules.classes().join(", "));
        return Err(Failure::Usage(format!("no class `{class}`; classes: {known}")).into());
    };
    let stacks = stacks_of_class(&session, rules, classing, index);
    reduce(&mut session, &format!("class {class}"), |sample| {
        stacks.contains(&(sample.2, sample.3))
    })?;
    Ok(session)
}

/// Keeps the samples for which `keeps` returns true. `what` describes them.
fn reduce(
    session: &mut Session,
    what: &str,
    keeps: impl FnMut(&mut Sample) -> bool,
) -> anyhow::Result<()> {
    let clock = session
        .head
        .events()
        .position(|of| of.unit() != Unit::Occurrences);
    let before = by_domain(session, clock);
    session.samples.retain_mut(keeps);
    if session.samples.is_empty() {
        return Err(Failure::Usage(format!("no samples of {what}")).into());
    }
    let after = by_domain(session, clock);
    for (index, domain) in session.domains.iter_mut().enumerate() {
        let of = |counts: &BTreeMap<usize, u64>| counts.get(&index).copied().unwrap_or(0);
        let part = |ns: u64| {
            let ns = u128::from(ns) * u128::from(of(&after)) / u128::from(of(&before).max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        domain.cpu_ns = domain.cpu_ns.map(part).filter(|_| clock.is_some());
        domain.agent_ns = None;
        domain.ledger = None;
        domain.traffic = None;
        domain.buffer = None;
    }
    session.losses.clear();
    session.head.notes.push(match clock {
        Some(_) => format!(
            "only {what}: CPU time is the part of each domain's exact time that corresponds to its \
             share of samples; packets, the hop ledger and lost samples are known only of the \
             whole session"
        ),
        None => format!(
            "only {what}: CPU time, packets, the hop ledger and lost samples are known only of \
             the whole session"
        ),
    });
    Ok(())
}

/// Returns the number of an event's samples of each domain.
fn by_domain(session: &Session, event: Option<usize>) -> BTreeMap<usize, u64> {
    let mut counts = BTreeMap::new();
    let is_it = |sample: &&Sample| event == Some(sample.4 as usize);
    for sample in session.samples.iter().filter(is_it) {
        *counts.entry(session.domain_of(sample)).or_default() += 1;
    }
    counts
}

/// Returns the error for an unknown thread, which lists the known ones.
fn unknown(session: &Session, wanted: &str) -> String {
    let names: BTreeSet<&str> = session.threads.iter().map(|t| t.name.as_str()).collect();
    let named = names.iter().copied().filter(|name| !name.is_empty());
    let mut known: Vec<&str> = named.take(NAMED_MAX + 1).collect();
    if known.len() > NAMED_MAX {
        known.truncate(NAMED_MAX);
        known.push("…");
    }
    format!(
        "no thread has the name or the id `{}`; sampled threads: {}",
        clean::line(wanted),
        known.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::functions_of;
    use crate::model::Thread;
    use crate::testing::{session, with_page_faults};

    fn part(threads: &[&str], time: Option<&str>) -> anyhow::Result<Session> {
        let selection = Selection {
            threads: threads.iter().map(|name| (*name).to_owned()).collect(),
            time: time.map(|text| text.parse().unwrap()),
            event: None,
        };
        selection.apply(session())
    }

    #[test]
    fn a_time_keeps_its_samples_and_their_share_of_cpu_time() {
        let part = part(&[], Some("0.05,0.1")).unwrap();
        assert_eq!(part.samples.len(), 50);
        let times: Vec<u64> = part.samples.iter().map(|sample| sample.0).collect();
        assert_eq!((times[0], times[49]), (0, 49_000_000));
        // A quarter of the driver domain's samples; the guest has none.
        let cpu_ns: Vec<_> = part.domains.iter().map(|domain| domain.cpu_ns).collect();
        assert_eq!(cpu_ns, [Some(25_000_000), Some(0), Some(0)]);
        assert_eq!(
            (part.head.ran_ns, part.head.started_raw_ns),
            (50_000_000, 50_000_000)
        );
        assert!(part.losses.is_empty() && part.domains[0].ledger.is_none());
        assert!(part.domains[0].traffic.is_none() && part.markers.is_empty());
        assert!(part.head.notes[0].starts_with("only 0.050 s to 0.100 s: "));
    }

    #[test]
    fn markers_are_cut_to_the_time() {
        let part = part(&[], Some("0.02,")).unwrap();
        let times = part
            .markers
            .iter()
            .map(|marker| (marker.from_ns, marker.to_ns));
        assert_eq!(times.collect::<Vec<_>>(), [(0, 10_000_000); 3]);
        assert_eq!(part.head.ran_ns, 180_000_000);
    }

    #[test]
    fn an_event_is_selected_by_its_name() {
        let of = |name: &str, time: Option<&str>| {
            let selection = Selection {
                event: Some(name.to_owned()),
                time: time.map(|text| text.parse().unwrap()),
                ..Selection::default()
            };
            selection.apply(with_page_faults())
        };
        assert_eq!(of("cpu-clock", None).unwrap(), session());
        let faults = of("page-faults", Some("0.05,0.1")).unwrap();
        assert_eq!(faults.samples.len(), 50);
        // A quarter of the clock's samples.
        assert_eq!(faults.domains[0].cpu_ns, Some(25_000_000));
        for (name, time, part) in [
            ("faults", None, "sampled events: cpu-clock, page-faults"),
            ("page-faults", Some("0.15,"), "no samples of page-faults"),
        ] {
            let error = of(name, time).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let mut only = with_page_faults().of_event(1).into_owned();
        reduce(&mut only, "x", |sample| sample.0 > 0).unwrap();
        assert_eq!(only.domains[0].cpu_ns, None);
        assert!(only.head.notes[0].starts_with("only x: CPU time, packets"));
    }

    #[test]
    fn threads_are_selected_by_name_or_id() {
        for wanted in ["driver", "5"] {
            let part = part(&[wanted], None).unwrap();
            assert_eq!(part.samples.len(), 100, "{wanted}");
            assert_eq!(part.domains[0].cpu_ns, Some(100_000_000));
        }
        assert_eq!(part(&["driver", "idle"], None).unwrap().samples.len(), 200);
        let error = part(&["vhost"], None).unwrap_err().to_string();
        assert_eq!(
            error,
            "no thread has the name or the id `vhost`; sampled threads: driver, idle"
        );
        let error = part(&["idle"], Some("0.001,0.002")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no samples of thread idle, 0.001 s to 0.002 s"
        );
    }

    #[test]
    fn a_time_after_the_sessions_end_is_an_error() {
        for (time, from) in [("9,", "9.000"), ("0.2,1", "0.200")] {
            let error = part(&["driver"], Some(time)).unwrap_err().to_string();
            let expected = format!("no samples from {from} s on: the session has only 0.200 s");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn an_error_says_whether_it_omits_names() {
        let mut session = session();
        let any = session.threads[0].clone();
        for count in [NAMED_MAX, NAMED_MAX + 1] {
            let named = |n: usize| Thread {
                name: format!("t{n}"),
                ..any.clone()
            };
            session.threads = (0..count).map(named).collect();
            let error = unknown(&session, "x");
            assert_eq!(error.ends_with(", …"), count > NAMED_MAX, "{error}");
            assert_eq!(error.matches(", ").count(), count - 1, "{error}");
        }
    }

    #[test]
    fn a_class_has_its_part_of_the_time() {
        let rules = Rules::thesis();
        let of = |class| of_class(session(), &rules, Classing::Nearest, class);
        let copy = of("copy").unwrap();
        assert_eq!(copy.samples.len(), 60);
        assert_eq!(copy.domains[0].cpu_ns, Some(60_000_000));
        assert!(copy.head.notes[0].starts_with("only class copy: "));
        for sample in &copy.samples {
            let innermost = functions_of(&copy, sample.3).next();
            assert_eq!(innermost.unwrap().symbol, "shmem::engine::copy");
        }
        let error = of("copies").unwrap_err().to_string();
        assert!(
            error.starts_with("no class `copies`; classes: xen, copy, "),
            "{error}"
        );
        let error = of("netfront").unwrap_err().to_string();
        assert_eq!(error, "no samples of class netfront");
    }

    #[test]
    fn the_whole_session_is_unchanged() {
        assert_eq!(part(&[], None).unwrap(), session());
    }

    #[test]
    fn ranges_are_validated() {
        for text in ["1", "a,2", "2,1", "1,1", "-1,2", "nan,2", "inf,", ""] {
            assert!(text.parse::<TimeRange>().is_err(), "{text}");
        }
        let keys = |threads: &[&str], time: &str| {
            Selection {
                threads: threads.iter().map(|name| (*name).to_owned()).collect(),
                time: time.parse().ok(),
                event: None,
            }
            .keys()
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            keys(&["a", "7"], "1.5,2"),
            [pair("thread", "a+7"), pair("time", "1.5-2")].into()
        );
        assert!(keys(&[], "").is_empty());
    }
}
