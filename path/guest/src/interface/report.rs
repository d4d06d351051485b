//! Counters of an interface.

use super::Interface;
use runtime::lro::Sums;
use runtime::report::{self, TxTotals};
use serde_json::{Value, json};
use vif::InterfaceCounters;
use vif::netfront::{PageRecycling, Tracking};

impl Interface {
    /// Returns the interface's number; with several queues, the numbers of interface and queue,
    /// separated by a dot.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the results of the frames sent to the endpoint.
    #[must_use]
    pub fn tx_totals(&self) -> TxTotals {
        self.device.tx_totals
    }

    /// Returns the number of frames dropped because they exceed the endpoint's MTU.
    #[must_use]
    pub fn too_long(&self) -> u64 {
        self.device.too_long
    }

    /// Returns the numbers of ICMP errors to their senders: generated, and suppressed by the limit.
    #[must_use]
    pub fn too_big(&self) -> (u64, u64) {
        (self.device.too_big.sent, self.device.too_big.limited)
    }

    /// Returns the counters of all its connections.
    #[must_use]
    pub fn counters(&self) -> InterfaceCounters {
        self.link.counters()
    }

    /// Returns the page recycling counters of all its connections.
    #[must_use]
    pub fn recycling(&self) -> PageRecycling {
        self.link.recycling()
    }

    /// Returns the counters of grants of pages outside the pool, of all its connections.
    #[must_use]
    pub fn tracking(&self) -> Tracking {
        self.link.tracking()
    }

    /// Adds the counters of large receive offload to `sums`.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.to_guest.lro.add_to(sums);
    }

    /// Returns the counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        json!({
            "state": self.connection.state,
            "trouble": self.connection.last_error,
            "counters": report::counters(&self.counters()),
            "endpoint": report::device(&self.tx_totals(), self.device.endpoint.counters()),
            "lro": self.to_guest.lro.stat(),
            "pool": self.pool_stat(),
            "file": self.file_stat(),
        })
    }

    /// Returns the state of a file's pages; null if the interface has no file.
    fn file_stat(&self) -> Value {
        if !self.memory.has_file() {
            return Value::Null;
        }
        let (granted, entries) = self.link.tracked_pages();
        let tracking = self.tracking();
        json!({
            "entries": entries,
            "granted": granted,
            "granted_anew": tracking.granted,
            "reused": tracking.reused,
            "revoked": tracking.revoked,
            "held_back": tracking.failed_revocations,
            "refused": tracking.refused,
            "copied": tracking.copied,
        })
    }

    /// Returns the number of granted pages of receive buffers, and the page recycling counters of
    /// all connections.
    fn pool_stat(&self) -> Value {
        let (granted, pages) = self.link.rx_pages();
        let recycling = self.recycling();
        json!({
            "pages": pages,
            "granted": granted,
            "granted_anew": recycling.granted,
            "revoked": recycling.revoked,
            "held_back": recycling.failed_revocations,
            "refused": recycling.refused,
            "buffers_posted": recycling.posted,
        })
    }
}
