//! Guests are shown what was done for them, and those that sleep are notified.

use crate::nics::NicPort;
use crate::switch::Switch;
use crate::vifs::VifPort;
use nic::moderation::Wake;
use runtime::ledger::Hop;
use std::sync::atomic::{Ordering, fence};

/// When guests are notified: interrupt moderation towards them.
#[derive(Debug)]
pub struct Notifier {
    /// While a NIC has more, guests are notified of what came at most this often.
    period_ns: u64,
    last_notify_ns: u64,
}

impl Notifier {
    /// While a NIC has more, guests are notified once in `period_ns` at most.
    #[must_use]
    pub fn new(period_ns: u64) -> Self {
        Self {
            period_ns,
            last_notify_ns: 0,
        }
    }

    /// Publishes the rings of all dirty ports. Then notifies their guests, now or in a later turn.
    pub fn publish(&mut self, switch: &mut Switch, now_ns: u64) {
        let before = switch.ledger.enter(Hop::Ring);
        let mut published = false;
        for &port in switch.dirty.ports() {
            if let Some(vif) = switch.ports.vif_mut(port) {
                published |= vif.publish();
            }
        }
        // A port that was published and is notified later stays dirty.
        if !published {
            switch.dirty.clear();
        } else if !self.may_wait(switch, now_ns) {
            self.last_notify_ns = now_ns;
            // One for all rings: between publishing the indices and reading who wants to know.
            fence(Ordering::SeqCst);
            for &port in switch.dirty.ports() {
                if let Some(vif) = switch.ports.vif_mut(port) {
                    vif.notify();
                }
            }
            switch.dirty.clear();
        }
        switch.ledger.enter(before);
    }

    /// Whether guests may be notified a little later, of what else a NIC has for them too.
    fn may_wait(&self, switch: &mut Switch, now_ns: u64) -> bool {
        let has_more = |(_, nic): (usize, &NicPort)| nic.wake(now_ns) == Wake::Now;
        now_ns.saturating_sub(self.last_notify_ns) < self.period_ns
            && switch.ports.nics().any(has_more)
            && !switch.ports.vifs_mut().any(VifPort::is_short)
    }
}
