//! The backend of one virtual interface, in the driver domain: pure steps over slots.
//!
//! A turn of the driver is: [`Netback::from_guest`] (requests → frames), whatever is done with
//! the frames, [`Netback::to_guest`] of any interface they go to (frames → copies → responses),
//! [`Netback::publish`] of all of these, [`Netback::from_guest_done`] (grants given up, requests
//! answered), one `fence(SeqCst)`, [`Netback::notify`] of all.
//!
//! Packets that are [small frames](nic::small_frame) may be taken and given before the others, by
//! [`Netback::small_frames_from_guest`] and [`Netback::small_frames_to_guest`].
//!
//! Every grant of a batch is held until `from_guest_done`, and no request is answered before
//! (row 31 of the field's list); a response is written only after its copies (RING-8).

mod answers;
mod buffers;
mod chains;
mod copies;
mod from_guest;
mod groups;
mod interface;
mod lent;
mod loans;
mod posted;
mod posts;
mod small_frames;
mod to_guest;

pub use answers::ToGuest;
pub use chains::ACCESSES_MAX;
pub use groups::{GROUPS_MAX, Groups};
pub use interface::Netback;
pub use loans::{Loan, Returned};
pub use small_frames::Taken;

#[cfg(test)]
mod tests;
