//! What a port has done.

use serde::Serialize;

/// What a port has done, from the driver's point of view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Frames that came in by it.
    pub in_packets: u64,
    /// Their bytes.
    pub in_bytes: u64,
    /// Frames that went out by it.
    pub out_packets: u64,
    /// Their bytes.
    pub out_bytes: u64,
}
