//! Errors that end a connection.

use crate::request::VhostRequest;

/// Reason why the shim ends a connection. The message is printed on the shim's console.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The front end has closed the connection.
    #[error("the front end has closed the connection")]
    Closed,
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(std::io::Error),
    /// The front end sends requests and does not read the replies.
    #[error("the front end does not read replies")]
    RepliesUnread,
    /// The version in the flags is not 1, or the message is a reply.
    #[error("flags {0:#x} are not those of a request of version 1")]
    Flags(u32),
    /// A request that no offered feature includes.
    #[error("request {0} is not supported")]
    Unknown(u32),
    /// The payload is longer than that of any request.
    #[error("request {request} has a payload of {bytes} bytes")]
    TooLong {
        /// The request's code.
        request: u32,
        /// Announced length in bytes.
        bytes: u32,
    },
    /// The payload is too short for the request.
    #[error("{0:?} has a payload of {1} bytes, which is too short")]
    TooShort(VhostRequest, usize),
    /// The number of descriptors does not match the request.
    #[error("{0:?} has a wrong number of descriptors: {1}")]
    Descriptors(VhostRequest, usize),
    /// Features that were not offered.
    #[error("features {0:#x} were not offered")]
    Features(u64),
    /// A ring that the device does not have.
    #[error("ring {0} does not exist")]
    Ring(u32),
    /// A ring size that is not a power of two, or that is too large.
    #[error("a ring cannot have {0} entries")]
    RingSize(u32),
    /// Ring addresses outside the memory, or not aligned.
    #[error("the addresses of ring {0} lie outside the memory, or are not aligned")]
    RingAddress(usize),
    /// A ring without a kick descriptor, which the shim would have to poll.
    #[error("ring {0} has no kick descriptor")]
    NoKick(usize),
    /// A region that is empty, not aligned, wraps, or overlaps another one.
    #[error("a region of {bytes:#x} bytes at {gpa:#x} is not aligned, wraps or overlaps another")]
    Region {
        /// The region's first guest physical address.
        gpa: u64,
        /// The region's length.
        bytes: u64,
    },
    /// The regions exceed the maximum number, or the maximum number of bytes.
    #[error("more memory than {regions} regions and {bytes:#x} bytes")]
    Memory {
        /// Maximum number of mapped regions.
        regions: usize,
        /// Maximum number of mapped bytes.
        bytes: u64,
    },
    /// The system did not map a region.
    #[error("a region was not mapped: {0}")]
    Map(std::io::Error),
    /// A log that is empty, not aligned, or larger than a log of the maximum memory.
    #[error("a log of {bytes:#x} bytes at {offset:#x} is empty, not aligned, or too large")]
    Log {
        /// The log's offset in its file.
        offset: u64,
        /// The log's length.
        bytes: u64,
    },
    /// A write could not be logged while a migration runs.
    #[error("the log of written pages has no bit for the page at {0:#x}")]
    Unlogged(u64),
    /// The system cannot wait for a kick descriptor.
    #[error("the kick descriptor of ring {0} cannot be waited for: {1}")]
    Watch(usize, std::io::Error),
}
