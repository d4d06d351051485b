//! Limits and errors of capture files.

/// Length of the longest frame in a file: 64 KB of IP and its Ethernet header.
pub const FRAME_BYTES: usize = 65_535 + 18;

/// Reason why a capture file cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PcapError {
    /// The file does not begin with a valid pcap header.
    #[error("not a pcap file: {0}")]
    NotPcap(&'static str),
    /// The file is a pcapng file.
    #[error("a pcapng file; convert it to pcap (editcap -F pcap IN OUT)")]
    PcapNg,
    /// The file's frames are not Ethernet frames.
    #[error("its link type is {0}, not ETHERNET")]
    NotEthernet(String),
    /// The file ends within a frame.
    #[error("it ends within frame {frame}")]
    Truncated {
        /// Number of the frame, from 1.
        frame: u64,
    },
    /// A frame's record is invalid.
    #[error("frame {frame}: {why}")]
    Malformed {
        /// Number of the frame, from 1.
        frame: u64,
        /// The violation.
        why: &'static str,
    },
    /// The file has reached its size limit.
    #[error("it has reached its limit of {} MiB", .limit_bytes >> 20)]
    Full {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// Reading or writing failed.
    #[error("{0}")]
    Io(std::io::ErrorKind),
}

impl From<std::io::Error> for PcapError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.kind())
    }
}
