//! What a capture file may hold, and what can be wrong with one.

/// Bytes of the longest frame that is read or written: 64 KB of IP and its Ethernet header.
pub const FRAME_BYTES: usize = 65_535 + 18;

/// What is wrong with a capture file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PcapError {
    /// It does not begin as a capture file does.
    #[error("not a pcap file: {0}")]
    NotPcap(&'static str),
    /// It is a pcapng file.
    #[error("a pcapng file; convert it to pcap (editcap -F pcap IN OUT)")]
    PcapNg,
    /// Its frames are not Ethernet's.
    #[error("its link type is {0}, not ETHERNET")]
    NotEthernet(String),
    /// It ends within a frame.
    #[error("it ends within frame {frame}")]
    Truncated {
        /// Number of the frame, from 1.
        frame: u64,
    },
    /// A frame's record is nonsense.
    #[error("frame {frame}: {why}")]
    Malformed {
        /// Number of the frame, from 1.
        frame: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// It has as many bytes as it may.
    #[error("it has reached its limit of {} MiB", .limit_bytes >> 20)]
    Full {
        /// The limit, bytes.
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
