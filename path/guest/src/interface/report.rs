//! What an interface counts.

use super::Interface;
use runtime::lro::Sums;
use runtime::report::{self, Given};
use serde_json::{Value, json};
use vif::Counters;
use vif::netfront::{Tracking, Turnover};

impl Interface {
    /// Its number; with several queues, those of interface and queue with a dot between.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What became of the frames given to the endpoint.
    #[must_use]
    pub fn given(&self) -> Given {
        self.device.given
    }

    /// What was counted on all its connections.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.link.counters()
    }

    /// What came into the pool of receive buffers and left it, on all connections.
    #[must_use]
    pub fn turnover(&self) -> Turnover {
        self.link.turnover()
    }

    /// What was granted of pages outside the pool, on all connections.
    #[must_use]
    pub fn tracking(&self) -> Tracking {
        self.link.tracking()
    }

    /// Adds what large receive offload has counted.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.to_guest.lro.add_to(sums);
    }

    /// Counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        json!({
            "state": self.connection.state,
            "trouble": self.connection.trouble,
            "counters": report::counters(&self.counters()),
            "endpoint": report::device(&self.given(), self.device.endpoint.counters()),
            "lro": self.to_guest.lro.stat(),
            "pool": self.pool_stat(),
            "file": self.file_stat(),
        })
    }

    /// The pages of a file that frames lie in; null: there is none.
    fn file_stat(&self) -> Value {
        if !self.memory.has_file() {
            return Value::Null;
        }
        let (granted, entries) = self.link.tracked_pages();
        let tracking = self.tracking();
        json!({
            "entries": entries,
            "granted": granted,
            "granted_anew": tracking.entered,
            "reused": tracking.reused,
            "revoked": tracking.left,
            "held_back": tracking.held_back,
            "refused": tracking.refused,
            "copied": tracking.copied,
        })
    }

    /// The pages of receive buffers: how many are granted now, and what came and went on all
    /// connections.
    fn pool_stat(&self) -> Value {
        let (granted, pages) = self.link.rx_pages();
        let turnover = self.turnover();
        json!({
            "pages": pages,
            "granted": granted,
            "granted_anew": turnover.entered,
            "revoked": turnover.left,
            "held_back": turnover.held_back,
            "refused": turnover.refused,
            "buffers_posted": turnover.posted,
        })
    }
}
