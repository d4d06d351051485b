//! Capture files of a domain.

use serde::{Deserialize, Serialize};

/// Reads frames from a capture file, and writes frames to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureSpec {
    /// Number of the device to read, if any.
    pub read: Option<u32>,
    /// Number of the device to write, if any.
    pub write: Option<u32>,
    /// Size limit of the written file, MiB.
    pub write_mib: u32,
}
