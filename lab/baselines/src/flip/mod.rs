//! Page flipping: `GNTTABOP_transfer` of Xen 2.
//!
//! ```text
//!   an exchange: memory of the monitor; n pages belong to the granter and n to the user
//!
//!   granter's window   first … first + n − 1 ┐ each slot has one page,
//!   user's window      first … first + n − 1 ┘ each page is at one slot
//!
//!   a transfer   swaps the pages of a user's slot and a granter's slot,
//!                and zeroes the page that the user receives
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `exchange` | one exchange: its pages, and their assignment to the two ends |
//! | `registry` | all exchanges: create, bind, end, clean up |
//! | `transfer` | batches of transfers |
//!
//! An entry of the granter's classic table specifies a slot that accepts a page, and is valid for
//! one transfer. The agents of both ends execute a transfer. Between transfers, the page tables
//! prevent each end from accessing the other end's pages. An exchange belongs to one connection, so
//! no page is transferred from guest to guest. The pages of a dead end return to the kernel.

mod exchange;
mod registry;
mod transfer;

pub(crate) use registry::Exchanges;
