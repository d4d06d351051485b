//! Traffic counters of a port.

use serde::Serialize;

/// Traffic of a port, from the driver's point of view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortTraffic {
    /// Number of frames received from the port.
    pub in_packets: u64,
    /// Bytes in these frames.
    pub in_bytes: u64,
    /// Number of frames sent to the port.
    pub out_packets: u64,
    /// Bytes in these frames.
    pub out_bytes: u64,
}
