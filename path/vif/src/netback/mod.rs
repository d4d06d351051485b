//! The backend of one virtual interface, in the driver domain: pure steps over slots.
//!
//! A turn of the driver calls [`Netback::from_guest`] (requests → frames), processes the frames,
//! calls [`Netback::to_guest`] of each destination (frames → copies → responses) and
//! [`Netback::publish`] of each, then [`Netback::from_guest_done`] (releases grants, answers
//! requests), one `fence(SeqCst)`, and [`Netback::notify`] of all.
//!
//! [Small frames](nic::small_frame) may be taken and delivered before other packets, by
//! [`Netback::small_frames_from_guest`] and [`Netback::small_frames_to_guest`].
//!
//! The netback holds every grant of a batch, and answers no request, until `from_guest_done` (row
//! 31 of the attack table in SPECIFICATION). It writes a response only after its copies (RING-8).

mod buffers;
mod chains;
mod completions;
mod copies;
mod device_buffers;
mod from_guest;
mod interface;
mod kept_frames;
mod multicast_filter;
mod outstanding;
mod small_frames;
mod to_guest;
mod zero_copy;
mod zero_copy_batch;

pub use chains::ACCESSES_MAX;
pub use completions::DeliveryReport;
pub use interface::Netback;
pub use multicast_filter::{GROUPS_MAX, MulticastFilter};
pub use outstanding::{DeviceBuffer, Returned};
pub use small_frames::SmallFramesTaken;

#[cfg(test)]
mod tests;
