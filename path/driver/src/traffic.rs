//! Traffic counters of a port.

use serde::Serialize;

/// Traffic of a port, from the driver's point of view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortTraffic {
    /// Frames that arrived by the port.
    pub in_packets: u64,
    /// Bytes in these frames.
    pub in_bytes: u64,
    /// Frames that left by the port.
    pub out_packets: u64,
    /// Bytes in these frames.
    pub out_bytes: u64,
}
