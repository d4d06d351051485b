//! The netfront of the current connection, and the counters of earlier ones.

use super::memory::InterfaceMemory;
use vif::InterfaceCounters;
use vif::netfront::{Netfront, PageRecycling, Tracking};

/// The link of an interface. Its netfront exists while the interface is connected, and after that
/// until all grants have ended.
#[derive(Default)]
pub(super) struct NetfrontLink {
    netfront: Option<Netfront>,
    /// Whether the connection has ended and the netfront only waits for its grants.
    closing: bool,
    /// Counters of earlier netfronts.
    past: InterfaceCounters,
    /// Page recycling counters of their pools.
    past_recycling: PageRecycling,
    /// Counters of their grants of outside pages.
    past_tracking: Tracking,
}

impl NetfrontLink {
    pub(super) fn set(&mut self, netfront: Netfront) {
        self.netfront = Some(netfront);
    }

    /// Returns the netfront, even while it closes.
    pub(super) fn netfront(&mut self) -> Option<&mut Netfront> {
        self.netfront.as_mut()
    }

    /// Returns the netfront if `connected`.
    #[inline]
    pub(super) fn connected_netfront(&mut self, connected: bool) -> Option<&mut Netfront> {
        let open = connected && !self.closing;
        self.netfront.as_mut().filter(|_| open)
    }

    /// Marks the netfront as closing. From now on it only waits for its grants to end.
    pub(super) fn close(&mut self) {
        self.closing = self.netfront.is_some();
    }

    /// Frees a closing netfront if none of its grants is in use. Returns whether nothing remains of
    /// an ended connection.
    pub(super) fn free_if_drained(&mut self, memory: &mut InterfaceMemory) -> bool {
        if self.closing
            && let Some(netfront) = &mut self.netfront
            && memory
                .with_granter(|granter| netfront.close(granter))
                .is_ok()
        {
            self.past += *netfront.counters();
            self.past_recycling += *netfront.recycling();
            self.past_tracking += netfront.tracking();
            self.netfront = None;
            self.closing = false;
            memory.end();
        }
        self.netfront.is_none()
    }

    /// Returns the counters of all connections.
    pub(super) fn counters(&self) -> InterfaceCounters {
        let mut counters = self.past;
        if let Some(netfront) = &self.netfront {
            counters += *netfront.counters();
        }
        counters
    }

    /// Returns the page recycling counters of all connections.
    pub(super) fn recycling(&self) -> PageRecycling {
        let mut recycling = self.past_recycling;
        if let Some(netfront) = &self.netfront {
            recycling += *netfront.recycling();
        }
        recycling
    }

    /// Returns the counters of grants outside the pools, of all connections.
    pub(super) fn tracking(&self) -> Tracking {
        let mut tracking = self.past_tracking;
        if let Some(netfront) = &self.netfront {
            tracking += netfront.tracking();
        }
        tracking
    }

    /// Returns the number of granted pages outside the pool, and the number of entries for them.
    pub(super) fn tracked_pages(&self) -> (usize, usize) {
        let netfront = self.netfront.as_ref();
        netfront.map_or((0, 0), Netfront::tracked_pages)
    }

    /// Returns the number of granted pages of receive buffers, and the number of all pages of
    /// receive buffers.
    pub(super) fn rx_pages(&self) -> (usize, usize) {
        self.netfront.as_ref().map_or((0, 0), Netfront::rx_pages)
    }
}
