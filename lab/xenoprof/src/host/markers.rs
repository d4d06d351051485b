//! Events of the domains, from the changes of their counters and processes.

use crate::model::{Marker, MarkerKind};
use serde_json::Value;
use std::collections::BTreeMap;

/// Maximum names in a change. Domains choose them.
const NAMES_MAX: usize = 64;
/// Maximum length of such a name, bytes.
const NAME_MAX: usize = 64;

/// Counters whose changes are events.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    drops: BTreeMap<String, u64>,
    grants: BTreeMap<String, u64>,
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
    /// The process that ended.
    before: u32,
    /// Time at which the new process was seen first.
    pub(super) seen_ns: u64,
    /// Duration of the outage, once it is over.
    pub(super) outage_ns: Option<u64>,
}

impl Counters {
    /// Parses a domain's answer. The domain can send anything, so malformed values count as 0.
    pub(super) fn of(stat: &Value) -> Self {
        let drops = stat["drops"].as_object().into_iter().flatten();
        let drop = |(reason, count): (&String, &Value)| Some((reason.clone(), count.as_u64()?));
        let count = |of: &str, name: &str| stat[of][name].as_u64().unwrap_or(0);
        let granted = count("pool", "granted_anew").saturating_add(count("file", "granted_anew"));
        let grants = [("granted", granted), ("revoked", count("pool", "revoked"))];
        Self {
            drops: drops
                .filter(|(reason, _)| reason.len() <= NAME_MAX)
                .take(NAMES_MAX)
                .filter_map(drop)
                .collect(),
            grants: grants.map(|(name, count)| (name.to_owned(), count)).into(),
        }
    }

    /// Returns the changes since an earlier reading.
    pub(super) fn since(&self, before: &Self, between: [u64; 2]) -> Vec<Change> {
        let all = [
            (MarkerKind::Drops, &self.drops, &before.drops),
            (MarkerKind::Grants, &self.grants, &before.grants),
        ];
        let change = |(kind, now, before): (_, &BTreeMap<String, u64>, &BTreeMap<String, u64>)| {
            let grown = |(name, count): (&String, &u64)| {
                let before = before.get(name).copied().unwrap_or(0);
                let more = count.checked_sub(before).filter(|more| *more > 0)?;
                Some((name.clone(), more))
            };
            let counts: BTreeMap<String, u64> = now.iter().filter_map(grown).collect();
            (!counts.is_empty()).then_some(Change {
                kind,
                between,
                counts,
            })
        };
        all.into_iter().filter_map(change).collect()
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
        let stat = |dropped: u64, granted: u64| {
            Counters::of(&json!({
                "drops": {"no_request": dropped, "too_long": 3, "bad": "x"},
                "pool": {"granted_anew": granted, "revoked": 2},
                "file": {"granted_anew": 1},
            }))
        };
        assert_eq!(stat(5, 7).since(&stat(5, 7), [10, 20]), []);
        let changes = stat(9, 8).since(&stat(5, 7), [10, 20]);
        let counts = |name: &str, count| BTreeMap::from([(name.to_owned(), count)]);
        let expected = [
            (MarkerKind::Drops, counts("no_request", 4)),
            (MarkerKind::Grants, counts("granted", 1)),
        ];
        let expected = expected.map(|(kind, counts)| Change {
            kind,
            between: [10, 20],
            counts,
        });
        assert_eq!(changes, expected);
        let marker = changes[0].marker(3, 5);
        assert_eq!((marker.domain, marker.from_ns, marker.to_ns), (3, 5, 15));
        assert_eq!(
            stat(1, 1).since(&stat(5, 7), [10, 20]),
            [],
            "of another process"
        );
    }

    #[test]
    fn arbitrary_counters_are_bounded() {
        for stat in [json!(null), json!({"drops": 3, "pool": [], "file": "x"})] {
            assert_eq!(Counters::of(&stat).since(&Counters::default(), [0, 1]), []);
        }
        let mut drops = serde_json::Map::new();
        for number in 0..1000 {
            drops.insert(format!("reason{number}"), json!(1));
        }
        drops.insert("x".repeat(NAME_MAX + 1), json!(1));
        let found = Counters::of(&json!({ "drops": drops }));
        assert_eq!(found.drops.len(), NAMES_MAX);
        assert!(found.drops.keys().all(|name| name.len() <= NAME_MAX));
    }

    #[test]
    fn a_restart_lasts_from_the_exit_to_the_end_of_the_outage() {
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
