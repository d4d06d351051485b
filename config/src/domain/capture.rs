//! Capture files of a domain.

use serde::{Deserialize, Serialize};

/// Frames from a capture file, frames to a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// Number of the device to read, if any.
    pub read: Option<u32>,
    /// Number of the device to write, if any.
    pub write: Option<u32>,
    /// The most that is written, MiB.
    pub write_mib: u32,
}
