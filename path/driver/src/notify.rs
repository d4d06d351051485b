//! Publishes the rings of guests, and notifies sleeping guests.

use crate::nics::NicPort;
use crate::switch::Switch;
use crate::vifs::VifPort;
use nic::moderation::Wake;
use runtime::ledger::Hop;
use std::sync::atomic::{Ordering, fence};

/// Notifies guests, with interrupt moderation.
#[derive(Debug)]
pub struct GuestNotifier {
    /// Minimum interval between notifications while a NIC has more frames.
    period_ns: u64,
    last_notify_ns: u64,
}

impl GuestNotifier {
    /// Creates a notifier that notifies at most once per `period_ns` while a NIC has more frames.
    #[must_use]
    pub fn new(period_ns: u64) -> Self {
        Self {
            period_ns,
            last_notify_ns: 0,
        }
    }

    /// Publishes the rings of all dirty ports, and notifies their guests in this turn or a later
    /// one.
    pub fn publish(&mut self, switch: &mut Switch, now_ns: u64) {
        let before = switch.ledger.enter(Hop::Ring);
        let mut published = false;
        for &port in switch.dirty.ports() {
            if let Some(vif) = switch.ports.vif_mut(port) {
                published |= vif.publish();
            }
        }
        // A published port whose notification is postponed stays dirty.
        if !published {
            switch.dirty.clear();
        } else if !self.may_wait(switch, now_ns) {
            self.last_notify_ns = now_ns;
            // One fence for all rings, between publishing the indices and reading the guests' event
            // indices.
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

    /// Returns whether notifications may wait until a NIC's further frames have been delivered.
    fn may_wait(&self, switch: &mut Switch, now_ns: u64) -> bool {
        let has_more = |(_, nic): (usize, &NicPort)| nic.wake(now_ns) == Wake::Now;
        now_ns.saturating_sub(self.last_notify_ns) < self.period_ns
            && switch.ports.nics().any(has_more)
            && !switch.ports.vifs_mut().any(VifPort::is_short_of_buffers)
    }
}
