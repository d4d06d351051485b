//! What became of a packet, in words.

use crate::report::Given;
use net::bridge::DropReason;
use vif::{Counters, Drop};

/// What became of the packets given to one place so far; the difference of two is what became of
/// those in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    taken: u64,
    /// By reason: how many were dropped, and why.
    dropped: Vec<(&'static str, &'static str, u64)>,
}

impl Fate {
    /// Of a device.
    #[must_use]
    pub fn of_device(given: &Given) -> Self {
        Self {
            taken: given.sent,
            dropped: vec![
                ("device_full", "The device has no room.", given.full),
                (
                    "device_fault",
                    "Its memory is not there any more.",
                    given.fault,
                ),
                (
                    "device_refused",
                    "The device refuses it: too long, or an offload that it lacks.",
                    given.refused,
                ),
            ],
        }
    }

    /// Of a guest, as the driver domain sees it.
    #[must_use]
    pub fn of_guest(counters: &Counters, not_connected: u64) -> Self {
        let mut fate = Self::of(counters.to_guest, counters.to_guest_drops.iter());
        let absent = (
            "not_connected",
            "The guest is not connected.",
            not_connected,
        );
        fate.dropped.push(absent);
        fate
    }

    /// Of the driver domain, as a guest sees it.
    #[must_use]
    pub fn of_driver(counters: &Counters) -> Self {
        Self::of(counters.from_guest, counters.from_guest_drops.iter())
    }

    fn of(taken: u64, drops: impl Iterator<Item = (Drop, u64)>) -> Self {
        Self {
            taken,
            dropped: drops
                .map(|(reason, n)| (reason.name(), reason.meaning(), n))
                .collect(),
        }
    }

    /// The same, with further reasons why frames were dropped: name, meaning, how many so far.
    #[must_use]
    pub fn with(
        mut self,
        dropped: impl IntoIterator<Item = (&'static str, &'static str, u64)>,
    ) -> Self {
        self.dropped.extend(dropped);
        self
    }

    /// Why one packet was dropped since `earlier`; none: it was not.
    #[must_use]
    pub fn dropped_since(&self, earlier: &Self) -> Option<String> {
        let reasons: Vec<String> = self.drops_since(earlier).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    fn drops_since(&self, earlier: &Self) -> impl Iterator<Item = String> {
        let pairs = self.dropped.iter().zip(&earlier.dropped);
        pairs
            .filter(|((.., now), (.., before))| now > before)
            .map(|((name, meaning, _), _)| dropped(name, meaning))
    }

    /// What became since `earlier` of one packet, which may have been cut into several.
    #[must_use]
    pub fn since(&self, earlier: &Self, place: &str) -> String {
        let mut parts = Vec::new();
        match self.taken.saturating_sub(earlier.taken) {
            0 => {}
            1 => parts.push(format!("{place} took it")),
            n => parts.push(format!("{place} took it, cut into {n}")),
        }
        parts.extend(self.drops_since(earlier));
        if parts.is_empty() {
            return format!("{place} has not taken it yet");
        }
        parts.join("; ")
    }
}

/// A drop and its reason.
#[must_use]
pub fn dropped(name: &str, meaning: &str) -> String {
    format!("dropped, {name}: {}", meaning.trim_end_matches('.'))
}

/// A drop by the bridge.
#[must_use]
pub fn dropped_by_bridge(reason: DropReason) -> String {
    dropped(reason.name(), reason.meaning())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fate_is_told_by_what_changed() {
        let mut counters = Counters::default();
        counters.to_guest_drops.add(Drop::NoRequest, 7);
        let unfit = [("fault", "Its memory is not there any more.", 0)];
        let fate = |counters: &Counters, absent| Fate::of_guest(counters, absent).with(unfit);
        let before = fate(&counters, 0);
        assert_eq!(before.since(&before, "web"), "web has not taken it yet");
        counters.to_guest = 1;
        assert_eq!(fate(&counters, 0).since(&before, "web"), "web took it");
        counters.to_guest = 44;
        counters.to_guest_drops.count(Drop::NoRequest);
        assert_eq!(
            fate(&counters, 0).since(&before, "web"),
            "web took it, cut into 44; dropped, no_request: The guest has posted too few buffers"
        );
        assert_eq!(
            fate(&Counters::default(), 1).since(&fate(&Counters::default(), 0), "web"),
            "dropped, not_connected: The guest is not connected"
        );
        let full = Given {
            full: 1,
            ..Given::default()
        };
        assert_eq!(
            Fate::of_device(&full).since(&Fate::of_device(&Given::default()), "wire"),
            "dropped, device_full: The device has no room"
        );
        assert_eq!(
            dropped_by_bridge(DropReason::ForgedSource),
            "dropped, forged_source: From a guest: its source is not one of the guest's MACs"
        );
    }
}
