//! Capture files of a NIC or an endpoint.

use crate::findings::Findings;
use crate::problem::ConfigPart;
use serde::{Deserialize, Serialize};

/// Capture files. `F` identifies a file: its path, or in a domain the number of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CaptureFiles<F = String> {
    /// File to read.
    pub read: Option<F>,
    /// File to write; it must not exist.
    pub write: Option<F>,
    /// Size limit of the written file, MiB. Recording stops there; traffic continues.
    pub write_mib: u32,
}

/// Capture files of a domain, by the numbers of their devices.
pub type CaptureSpec = CaptureFiles<u32>;

impl<F> Default for CaptureFiles<F> {
    fn default() -> Self {
        Self {
            read: None,
            write: None,
            write_mib: 1024,
        }
    }
}

impl CaptureFiles {
    pub(crate) fn check(&self, found: &mut Findings, part: ConfigPart) {
        let Self { read, write, .. } = self;
        found.range(part, "write_mib", self.write_mib, 1..=1 << 20);
        if read.is_none() && write.is_none() {
            let remedy = "write read = \"in.pcap\", write = \"out.pcap\" or both";
            found.add(part, "", "neither `read` nor `write` is set", remedy);
        }
        for (key, file) in [("read", read), ("write", write)] {
            if let Some(file) = file
                && (file.is_empty() || file.contains('\0'))
            {
                let what = format!("`{key}` is not a file");
                found.add(part, key, what, "write its path");
            }
        }
    }
}
