//! Page flipping: `GNTTABOP_transfer` of Xen 2.
//!
//! ```text
//!   an exchange: memory of the monitor; n pages belong to the granter and n to the user
//!
//!   granter's window   first … first + n − 1 ┐ each slot shows one page,
//!   user's window      first … first + n − 1 ┘ each page is shown by one slot
//!
//!   a transfer   swaps the pages of a user's slot and a granter's slot,
//!                and zeroes the page that the user receives
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `exchange` | one exchange: its pages, and which end has each of them |
//! | `registry` | all exchanges: create, bind, end, clean up |
//! | `transfer` | batches of transfers |
//!
//! An entry of the granter's classic table names a slot that accepts a page, and is valid for one
//! transfer. The agents of both ends take part in a transfer. Between two transfers the page tables
//! prevent each end from accessing the other's pages. An exchange belongs to one connection, so no
//! page moves from guest to guest, and the pages of a dead end return to the kernel.

mod exchange;
mod registry;
mod transfer;

pub(crate) use registry::Exchanges;
