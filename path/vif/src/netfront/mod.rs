//! The frontend of one virtual interface, in the guest domain.
//!
//! All its memory is laid out once ([`Layout`]) and granted page by page: the rings and the event
//! page and the receive buffers to be written, the transmit buffers to be read only. Spare pages of
//! receive buffers are granted when they are needed, and revoked when they are not (`turnover.rs`).
//! Frames may also be sent from pages outside of it ([`Outside`]): those are granted when a frame
//! lies in them, and stay granted while there is room for them (`track.rs`).
//!
//! A turn of the guest is: [`Netfront::receive`] (responses → frames), [`Netfront::refill`], the
//! endpoint takes the frames, [`Netfront::receive_done`] (their buffers are free or posted again),
//! [`Netfront::release`]; the endpoint yields frames into [`Netfront::buffers`],
//! [`Netfront::transmit`] sends them; [`Netfront::publish`], `fence(SeqCst)`, [`Netfront::notify`].
//!
//! Packets that are [small frames](nic::small_frame) may be taken and sent before the others:
//! [`Netfront::receive_small_frames`], [`Netfront::small_frames_done`],
//! [`Netfront::transmit_small_frames`].
//!
//! Nothing that the driver domain writes is believed: ids, offsets, lengths and flags are checked
//! against what was posted (rows 2, 3, 6 of the field's list).

mod interface;
mod layout;
mod offers;
mod packet;
mod pool;
mod receive;
mod rx_pages;
mod sendfile;
mod setup;
mod small_frames;
mod table;
mod track;
mod tracked;
mod transmit;
mod turnover;

pub use interface::Netfront;
pub use layout::{Layout, Sizes};
pub use offers::Exchange;
pub use pool::{TX_SMALL_BYTES, TxPool};
pub use rx_pages::Turnover;
pub use setup::{Setup, SetupError};
pub use table::{GrantError, GrantTable, GrantedPage, Granter};
pub use track::Tracking;
pub use tracked::Outside;
pub use transmit::Transmitted;
