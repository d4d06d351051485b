//! Events of the domains, from the changes of their counters and processes.

use crate::model::{Marker, MarkerKind};
use abi::machine::Audit;
use serde_json::Value;
use std::collections::BTreeMap;

/// Maximum number of names in a change. Domains choose the names.
const NAMES_MAX: usize = 64;
/// Maximum length of such a name, bytes.
const NAME_MAX: usize = 64;

/// Counters whose increases are events of this kind.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    kind: MarkerKind,
    counts: BTreeMap<String, u64>,
}

/// Increases of counters between two readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    kind: MarkerKind,
    /// Times of the readings (`CLOCK_MONOTONIC_RAW`, nanoseconds).
    between: [u64; 2],
    counts: BTreeMap<String, u64>,
}

/// The replacement of a domain's process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restarted {
    /// The process that exited.
    before: u32,
    /// Time at which the new process was seen first.
    pub(super) seen_ns: u64,
    /// Duration of the outage, once it is over.
    pub(super) outage_ns: Option<u64>,
}

impl Default for Counters {
    /// Returns the counters of a domain that has dropped nothing.
    fn default() -> Self {
        Self {
            kind: MarkerKind::Drops,
            counts: BTreeMap::new(),
        }
    }
}

impl Counters {
    /// Parses a domain's answer. The domain can send anything, so malformed values count as 0.
    pub(super) fn of_domain(stat: &Value) -> Self {
        let drops = stat["drops"].as_object().into_iter().flatten();
        let drop = |(reason, count): (&String, &Value)| Some((reason.clone(), count.as_u64()?));
        let drops = drops.filter(|(reason, _)| reason.len() <= NAME_MAX);
        Self {
            kind: MarkerKind::Drops,
            counts: drops.take(NAMES_MAX).filter_map(drop).collect(),
        }
    }

    /// Returns the grants of a machine.
    pub(super) fn of_grants(audit: &Audit) -> Self {
        let counts = [
            ("granted", audit.created),
            ("revoked", audit.revoked),
            ("forced", audit.forced),
        ];
        Self {
            kind: MarkerKind::Grants,
            counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
        }
    }

    /// Returns the increases since an earlier reading, if there are any.
    pub(super) fn since(&self, before: &Self, between: [u64; 2]) -> Option<Change> {
        let grown = |(name, count): (&String, &u64)| {
            let before = before.counts.get(name).copied().unwrap_or(0);
            let more = count.checked_sub(before).filter(|more| *more > 0)?;
            Some((name.clone(), more))
        };
        let counts: BTreeMap<String, u64> = self.counts.iter().filter_map(grown).collect();
        (!counts.is_empty()).then_some(Change {
            kind: self.kind,
            between,
            counts,
        })
    }
}

impl Change {
    /// Returns the marker of a domain in a session with this start.
    pub(super) fn marker(&self, domain: u32, start_ns: u64) -> Marker {
        let [from_ns, to_ns] = self.between.map(|ns| ns.saturating_sub(start_ns));
        Marker {
            domain,
            kind: self.kind,
            from_ns,
            to_ns,
            counts: self.counts.clone(),
        }
    }
}

impl Restarted {
    pub(super) const fn new(before: u32, seen_ns: u64) -> Self {
        Self {
            before,
            seen_ns,
            outage_ns: None,
        }
    }

    /// Returns the marker of a domain in a session with this start. `exits` has the ends of
    /// processes, if the kernel has reported them.
    pub(super) fn marker(&self, domain: u32, start_ns: u64, exits: &BTreeMap<u32, u64>) -> Marker {
        let outage_ns = self.outage_ns.unwrap_or(0);
        let guess = self.seen_ns.saturating_sub(outage_ns);
        let from_ns = exits.get(&self.before).copied().unwrap_or(guess);
        let to_ns = match self.outage_ns {
            Some(outage_ns) => from_ns.saturating_add(outage_ns),
            None => self.seen_ns.max(from_ns),
        };
        Marker {
            domain,
            kind: MarkerKind::Restart,
            from_ns: from_ns.saturating_sub(start_ns),
            to_ns: to_ns.saturating_sub(start_ns),
            counts: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn increases_of_counters_are_changes() {
        let stat = |dropped: u64| {
            let drops = json!({"no_request": dropped, "too_long": 3, "bad": "x"});
            Counters::of_domain(&json!({ "drops": drops }))
        };
        assert_eq!(stat(5).since(&stat(5), [10, 20]), None);
        let change = stat(9).since(&stat(5), [10, 20]).unwrap();
        let marker = change.marker(3, 5);
        let expected = Marker {
            domain: 3,
            kind: MarkerKind::Drops,
            from_ns: 5,
            to_ns: 15,
            counts: [("no_request".to_owned(), 4)].into(),
        };
        assert_eq!(marker, expected);
        assert_eq!(
            stat(1).since(&stat(5), [10, 20]),
            None,
            "of another process"
        );
        let audit = |created| {
            Counters::of_grants(&Audit {
                domains: Vec::new(),
                leaked: 0,
                created,
                revoked: 7,
                forced: 1,
            })
        };
        let change = audit(393).since(&audit(300), [10, 20]).unwrap();
        assert_eq!(change.marker(0, 0).kind, MarkerKind::Grants);
        assert_eq!(change.counts, [("granted".to_owned(), 93)].into());
    }

    #[test]
    fn arbitrary_counters_are_bounded() {
        let nothing = Counters::of_domain(&json!(null));
        let malformed = Counters::of_domain(&json!({"drops": 3}));
        assert_eq!(malformed.since(&nothing, [0, 1]), None);
        let mut drops = serde_json::Map::new();
        for number in 0..1000 {
            drops.insert(format!("reason{number}"), json!(1));
        }
        drops.insert("x".repeat(NAME_MAX + 1), json!(1));
        let found = Counters::of_domain(&json!({ "drops": drops }));
        assert_eq!(found.counts.len(), NAMES_MAX);
        assert!(found.counts.keys().all(|name| name.len() <= NAME_MAX));
    }

    #[test]
    fn restart_marker_spans_exit_to_end_of_outage() {
        let mut restarted = Restarted::new(7, 5_000);
        let exits = BTreeMap::from([(7, 4_000)]);
        let times = |restarted: &Restarted, exits| {
            let marker = restarted.marker(0, 1_000, exits);
            (marker.from_ns, marker.to_ns)
        };
        assert_eq!(times(&restarted, &exits), (3_000, 4_000), "not over yet");
        restarted.outage_ns = Some(2_500);
        assert_eq!(times(&restarted, &exits), (3_000, 5_500));
        assert_eq!(times(&restarted, &BTreeMap::new()), (1_500, 4_000));
    }
}
