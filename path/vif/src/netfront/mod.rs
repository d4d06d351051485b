//! The frontend of one virtual interface, in the guest domain.
//!
//! Its memory is laid out once ([`Layout`]) and granted page by page: rings, event page and receive
//! buffers writable, transmit buffers read-only unless they swap memory with receive buffers
//! ([`Setup::swap`]). The netfront grants and revokes spare pages of
//! receive buffers on demand (`recycling.rs`). Frames may also lie in pages outside the layout
//! ([`ExternalPages`]): the first frame in such a page grants it, and the grant stays until its
//! table entry is needed (`track.rs`).
//!
//! A turn of the guest calls [`Netfront::receive`] (responses → frames) and [`Netfront::refill`];
//! the endpoint consumes the frames; [`Netfront::receive_done`] frees or reposts their buffers;
//! then [`Netfront::release`]. The endpoint reads frames into [`Netfront::buffers`], and
//! [`Netfront::transmit`] sends them. The turn ends with [`Netfront::publish`], `fence(SeqCst)`,
//! [`Netfront::notify`].
//!
//! [Small frames](nic::small_frame) may be received and sent before other packets:
//! [`Netfront::receive_small_frames`], [`Netfront::small_frames_done`],
//! [`Netfront::transmit_small_frames`].
//!
//! The netfront does not trust the driver domain: it checks ids, offsets, lengths and flags against
//! the posted requests (rows 2, 3, 6 of the attack table in SPECIFICATION).

mod interface;
mod layout;
mod offers;
mod packet;
mod pool;
mod receive;
mod recycling;
mod rx_pages;
mod sendfile;
mod setup;
mod small_frames;
mod table;
mod track;
mod tracked;
mod transmit;

pub use interface::Netfront;
pub use layout::{Layout, Sizes};
pub use offers::ExchangedPages;
pub use pool::{TX_SMALL_BYTES, TxPool};
pub use rx_pages::PageRecycling;
pub use setup::{Setup, SetupError};
pub use table::{GrantError, GrantTable, GrantedPage, Granter};
pub use track::Tracking;
pub use tracked::ExternalPages;
pub use transmit::TransmitReport;
