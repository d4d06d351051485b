//! Capture files of a domain.

use serde::{Deserialize, Serialize};

/// The capture files of a NIC or an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureSpec {
    /// Device number of the file to read, if any.
    pub read: Option<u32>,
    /// Device number of the file to write, if any.
    pub write: Option<u32>,
    /// Size limit of the written file, MiB.
    pub write_mib: u32,
}
