//! The netfront of the present connection, and what those before it have counted.

use super::memory::Memory;
use vif::Counters;
use vif::netfront::{Netfront, Tracking, Turnover};

/// What exists while an interface is connected, and until its grants have ended.
#[derive(Default)]
pub(super) struct Link {
    netfront: Option<Netfront>,
    /// Whether the netfront is of a connection that has ended and only waits for its grants.
    closing: bool,
    /// What netfronts before this one have counted.
    past: Counters,
    /// What their pools have done.
    past_turnover: Turnover,
    /// What was granted outside of them.
    past_tracking: Tracking,
}

impl Link {
    pub(super) fn set(&mut self, netfront: Netfront) {
        self.netfront = Some(netfront);
    }

    /// The netfront, also while it closes.
    pub(super) fn netfront(&mut self) -> Option<&mut Netfront> {
        self.netfront.as_mut()
    }

    /// The netfront, if frames flow over a connection that is `connected`.
    #[inline]
    pub(super) fn open(&mut self, connected: bool) -> Option<&mut Netfront> {
        let open = connected && !self.closing;
        self.netfront.as_mut().filter(|_| open)
    }

    /// From now on the netfront only waits for its grants.
    pub(super) fn close(&mut self) {
        self.closing = self.netfront.is_some();
    }

    /// Frees a netfront that is closing, if no grant of it is in use any more; whether nothing is
    /// left of a connection that has ended.
    pub(super) fn free_if_drained(&mut self, memory: &mut Memory) -> bool {
        if self.closing
            && let Some(netfront) = &mut self.netfront
            && memory.granted(|granter| netfront.close(granter)).is_ok()
        {
            self.past += *netfront.counters();
            self.past_turnover += *netfront.turnover();
            self.past_tracking += netfront.tracking();
            self.netfront = None;
            self.closing = false;
            memory.end();
        }
        self.netfront.is_none()
    }

    /// What was counted on all connections.
    pub(super) fn counters(&self) -> Counters {
        let mut counters = self.past;
        if let Some(netfront) = &self.netfront {
            counters += *netfront.counters();
        }
        counters
    }

    /// What came into the pool of receive buffers and left it, on all connections.
    pub(super) fn turnover(&self) -> Turnover {
        let mut turnover = self.past_turnover;
        if let Some(netfront) = &self.netfront {
            turnover += *netfront.turnover();
        }
        turnover
    }

    /// What was granted outside the pools, on all connections.
    pub(super) fn tracking(&self) -> Tracking {
        let mut tracking = self.past_tracking;
        if let Some(netfront) = &self.netfront {
            tracking += netfront.tracking();
        }
        tracking
    }

    /// Pages outside the pool that are granted now, and entries for them.
    pub(super) fn tracked_pages(&self) -> (usize, usize) {
        let netfront = self.netfront.as_ref();
        netfront.map_or((0, 0), Netfront::tracked_pages)
    }

    /// Pages of receive buffers: those that are granted now, and all.
    pub(super) fn rx_pages(&self) -> (usize, usize) {
        self.netfront.as_ref().map_or((0, 0), Netfront::rx_pages)
    }
}
