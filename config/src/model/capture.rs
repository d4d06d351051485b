//! Capture files.

/// Capture files of a NIC or an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFiles {
    /// File to read.
    pub read: Option<String>,
    /// File to write; it must not exist.
    pub write: Option<String>,
    /// Size limit of the written file, MiB. Recording stops there; traffic continues.
    pub write_mib: u32,
}

impl Default for CaptureFiles {
    fn default() -> Self {
        Self {
            read: None,
            write: None,
            write_mib: 1024,
        }
    }
}
