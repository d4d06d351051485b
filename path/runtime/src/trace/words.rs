//! Describes the result of a packet's processing as text.

use crate::report::TxTotals;
use abi::names::Named;
use vif::{InterfaceCounters, VifDrop};

/// Snapshot of the counters of a place on the path. The difference of two snapshots describes the
/// packets that passed between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropSnapshot {
    taken: u64,
    /// Dropped packets by reason: name, meaning, number.
    dropped: Vec<(&'static str, &'static str, u64)>,
}

impl DropSnapshot {
    /// Takes the snapshot of a device.
    #[must_use]
    pub fn of_device(given: &TxTotals) -> Self {
        Self {
            taken: given.sent,
            dropped: vec![
                ("device_full", "The device has no room.", given.full),
                (
                    "device_fault",
                    "Its memory is no longer accessible.",
                    given.fault,
                ),
                (
                    "device_refused",
                    "The device rejects it: too long, or an offload that the device lacks.",
                    given.refused,
                ),
            ],
        }
    }

    /// Takes the snapshot of a guest, from the driver domain's counters.
    #[must_use]
    pub fn of_guest(counters: &InterfaceCounters, not_connected: u64) -> Self {
        let absent = (
            "not_connected",
            "The guest is not connected.",
            not_connected,
        );
        Self::of(counters.to_guest, counters.to_guest_drops.iter()).with_reasons([absent])
    }

    /// Takes the snapshot of the driver domain, from a guest's counters.
    #[must_use]
    pub fn of_driver(counters: &InterfaceCounters) -> Self {
        Self::of(counters.from_guest, counters.from_guest_drops.iter())
    }

    fn of(taken: u64, drops: impl Iterator<Item = (VifDrop, u64)>) -> Self {
        let taken = Self {
            taken,
            ..Self::default()
        };
        taken.with_counts(drops)
    }

    /// Adds further drop reasons with their current numbers.
    #[must_use]
    pub fn with_counts(self, drops: impl Iterator<Item = (impl Named, u64)>) -> Self {
        self.with_reasons(drops.map(|(reason, count)| (reason.name(), reason.meaning(), count)))
    }

    /// Adds further drop reasons, each with its name, meaning and current number.
    #[must_use]
    pub fn with_reasons(
        mut self,
        dropped: impl IntoIterator<Item = (&'static str, &'static str, u64)>,
    ) -> Self {
        self.dropped.extend(dropped);
        self
    }

    /// Returns why a packet was dropped since `earlier`, or `None` if no packet was dropped.
    #[must_use]
    pub fn dropped_since(&self, earlier: &Self) -> Option<String> {
        let reasons: Vec<String> = self.drops_since(earlier).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    fn drops_since(&self, earlier: &Self) -> impl Iterator<Item = String> {
        let pairs = self.dropped.iter().zip(&earlier.dropped);
        pairs
            .filter(|((.., now), (.., before))| now > before)
            .map(|((name, meaning, _), _)| described(name, meaning))
    }

    /// Describes the result since `earlier` for one packet, which may have been segmented.
    #[must_use]
    pub fn since(&self, earlier: &Self, place: &str) -> String {
        let mut parts = Vec::new();
        match self.taken.saturating_sub(earlier.taken) {
            0 => {}
            1 => parts.push(format!("{place} accepted it")),
            n => parts.push(format!("{place} accepted it, split into {n}")),
        }
        parts.extend(self.drops_since(earlier));
        if parts.is_empty() {
            return format!("{place} has not accepted it yet");
        }
        parts.join("; ")
    }
}

fn described(name: &str, meaning: &str) -> String {
    format!("dropped, {name}: {}", meaning.trim_end_matches('.'))
}

/// Describes a drop and its reason.
#[must_use]
pub fn dropped(reason: impl Named) -> String {
    described(reason.name(), reason.meaning())
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::bridge::DropReason;

    #[test]
    fn drops_are_described_by_changed_counters() {
        let mut counters = InterfaceCounters::default();
        counters.to_guest_drops.add(VifDrop::NoRequest, 7);
        let unfit = [("fault", "Its memory is no longer accessible.", 0)];
        let drop_snapshot = |counters: &InterfaceCounters, absent| {
            DropSnapshot::of_guest(counters, absent).with_reasons(unfit)
        };
        let before = drop_snapshot(&counters, 0);
        assert_eq!(before.since(&before, "web"), "web has not accepted it yet");
        counters.to_guest = 1;
        assert_eq!(
            drop_snapshot(&counters, 0).since(&before, "web"),
            "web accepted it"
        );
        counters.to_guest = 44;
        counters.to_guest_drops.count(VifDrop::NoRequest);
        assert_eq!(
            drop_snapshot(&counters, 0).since(&before, "web"),
            "web accepted it, split into 44; \
             dropped, no_request: The guest has posted too few buffers"
        );
        assert_eq!(
            drop_snapshot(&InterfaceCounters::default(), 1)
                .since(&drop_snapshot(&InterfaceCounters::default(), 0), "web"),
            "dropped, not_connected: The guest is not connected"
        );
        let full = TxTotals {
            full: 1,
            ..TxTotals::default()
        };
        assert_eq!(
            DropSnapshot::of_device(&full)
                .since(&DropSnapshot::of_device(&TxTotals::default()), "wire"),
            "dropped, device_full: The device has no room"
        );
        assert_eq!(
            dropped(DropReason::ForgedSource),
            "dropped, forged_source: From a guest: the source MAC is not one of the guest's"
        );
    }
}
