//! Counters as JSON: the parts that the driver and guest domains share.

use nic::TxReport;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use vif::{DropCounts, InterfaceCounters, VifDrop};

/// Results of the frames sent to a device since the start: [`TxReport`]s in 64 bits, which do not
/// wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxTotals {
    /// Frames sent.
    pub sent: u64,
    /// Bytes in the sent frames.
    pub bytes: u64,
    /// Frames dropped because the device's queue was full.
    pub full: u64,
    /// Frames dropped because their memory was no longer accessible.
    pub fault: u64,
    /// Frames dropped because the device rejected them.
    pub refused: u64,
}

impl TxTotals {
    /// Adds the results of a batch.
    pub fn add(&mut self, batch: &TxReport) {
        self.sent += u64::from(batch.sent);
        self.bytes += batch.bytes;
        self.full += u64::from(batch.full);
        self.fault += u64::from(batch.fault);
        self.refused += u64::from(batch.refused);
    }
}

/// Returns bytes as text, two digits each.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// Returns a virtual interface's counters.
#[must_use]
pub fn counters(counters: &InterfaceCounters) -> Value {
    json!({
        "from_guest_packets": counters.from_guest,
        "from_guest_bytes": counters.from_guest_bytes,
        "to_guest_packets": counters.to_guest,
        "to_guest_bytes": counters.to_guest_bytes,
        "meta_requests": counters.meta_requests,
        "notifications": counters.notifications,
        "from_guest_drops": by_reason(&counters.from_guest_drops),
        "to_guest_drops": by_reason(&counters.to_guest_drops),
    })
}

/// Returns a device's counters: results of the frames sent to it, and its own counters.
#[must_use]
pub fn device(given: &TxTotals, own: Vec<(&'static str, u64)>) -> Value {
    let mut all = Map::new();
    all.insert("tx_packets".into(), given.sent.into());
    all.insert("tx_bytes".into(), given.bytes.into());
    all.insert("tx_full".into(), given.full.into());
    all.insert("tx_fault".into(), given.fault.into());
    all.insert("tx_refused".into(), given.refused.into());
    all.extend(
        own.into_iter()
            .map(|(name, count)| (name.to_owned(), count.into())),
    );
    Value::Object(all)
}

/// Drops by reason, including zeros, summed over all interfaces and devices of a layer. Each layer
/// uses different names for its reasons.
#[derive(Debug, Default)]
pub struct DropTable(Map<String, Value>);

impl DropTable {
    /// Adds drops for one reason.
    pub fn add(&mut self, reason: &str, count: u64) {
        let before = self.0.get(reason).and_then(Value::as_u64).unwrap_or(0);
        self.0.insert(reason.to_owned(), (before + count).into());
    }

    /// Adds the drops of a virtual interface in both directions. `layer` is the end that counts,
    /// netback or netfront. It becomes a prefix of the reasons that other layers also have.
    pub fn add_vif(&mut self, layer: &str, counters: &InterfaceCounters) {
        for drops in [&counters.from_guest_drops, &counters.to_guest_drops] {
            for (reason, count) in drops.iter() {
                match reason {
                    VifDrop::Fault => self.add(&format!("{layer}.fault"), count),
                    _ => self.add(reason.name(), count),
                }
            }
        }
    }

    /// Adds a device's dropped frames.
    pub fn add_device(&mut self, given: &TxTotals) {
        self.add("device_full", given.full);
        self.add("device_fault", given.fault);
        self.add("device_refused", given.refused);
    }
}

impl From<DropTable> for Value {
    fn from(table: DropTable) -> Self {
        Self::Object(table.0)
    }
}

fn by_reason(drops: &DropCounts) -> Value {
    drops
        .iter()
        .map(|(reason, count)| (reason.name().to_owned(), Value::from(count)))
        .collect()
}
