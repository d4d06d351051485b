//! Capture files: a device that plays one and records another, and a [`Tee`] that records any
//! device's traffic.
//!
//! Files are byte streams opened elsewhere ([`std::io::Read`], [`std::io::Write`]): a domain has
//! descriptors, not files. Frames are written as they pass, so a blank checksum is blank in the
//! file, and a packet still to be segmented is whole.

mod device;
mod format;
mod read;
mod tee;
mod write;

pub use device::{Pace, PcapNic};
pub use format::{FRAME_BYTES, PcapError};
pub use read::FrameReader;
pub use tee::Tee;
pub use write::FrameWriter;
