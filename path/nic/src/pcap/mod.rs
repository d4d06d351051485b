//! Capture files: a device that plays one and records another, and a [`Tee`] that records any
//! device's traffic.
//!
//! Files are byte streams that the caller has opened ([`std::io::Read`], [`std::io::Write`]),
//! because a domain has descriptors and cannot open files. Frames are written as they pass: a blank
//! checksum is blank in the file, and a frame with pending segmentation is one packet.

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
