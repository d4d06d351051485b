//! The driver domain on the real Xen: the path's own switch, netback and rings, for stock
//! netfronts, in place of the kernel's xen-netback.
//!
//! | module | what it is |
//! |---|---|
//! | [`program`] | from the command line to a running driver |
//! | [`calls`] | the system calls that are left to it |
//! | [`control`] | the control socket |
//! | [`devices`] | the NICs |
//! | [`platform`] | Xen as the driver sees it: connections, doorbells |
//! | [`guests`] | guests that come and go |
//! | [`reach`] | how one guest's memory is reached, queue by queue |
//! | [`bells`] | how a frontend is notified |
//! | [`control_rings`] | guests' control rings |
//! | [`waiter`] | how the driver sleeps |
//! | [`interfaces`] | this domain's interfaces in the xenstore |
//! | [`netif`] | what both ends of an interface write there: features, states, settings |
//! | [`grants`] | guests' pages by grant copy, or mapped |
//! | [`journals`] | what lets the next process take over from a killed one |
//! | [`tally`] | hypercalls, counted by kind |
//! | [`store`] | the xenstore's protocol |
//! | [`dev`] | Xen's devices: `unsafe` |
//!
//! Who may touch what: this process its own memory, both rings of each guest (mapped), and exactly
//! the pages that guests grant: byte ranges at a time, by Xen's copy. If it is to map, those that
//! guests send are mapped, to be read, for the time of a batch.

pub mod bells;
pub mod calls;
pub mod control;
pub mod control_rings;
pub mod dev;
pub mod devices;
pub mod grants;
pub mod guests;
pub mod interfaces;
pub mod journals;
pub mod netif;
pub mod platform;
pub mod program;
pub mod reach;
pub mod store;
pub mod tally;
pub mod waiter;
