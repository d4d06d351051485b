//! Pages that change hands: `GNTTABOP_transfer`, the page flipping of Xen 2.
//!
//! ```text
//!   an exchange: one memory of the monitor's, of which n pages are the granter's and n the user's
//!
//!   granter's window   first … first + n − 1 ┐ each slot shows one page,
//!   user's window      first … first + n − 1 ┘ each page is shown by one slot
//!
//!   a transfer   a slot of the user's and one of the granter's: what they show changes places,
//!                and what the user gets is zero
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `exchange` | one exchange: its pages, and which end has which |
//! | `registry` | all exchanges: made, bound, ended, cleared away |
//! | `transfer` | batches of transfers |
//!
//! The granter says which of its slots accepts a page by an entry of its classic table, which is
//! good for one transfer. Between two transfers the kernel keeps either end from the other's
//! pages; both ends' agents work in one. An exchange belongs to one connection, so a page never
//! gets from guest to guest, and what is left of a dead end goes back to the kernel.

mod exchange;
mod registry;
mod transfer;

pub(crate) use registry::Exchanges;
