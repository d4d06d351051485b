//! The driver domain on the real Xen: Grantway's switch, netback and rings for stock netfronts, in
//! place of the kernel's xen-netback.
//!
//! | module | purpose |
//! |---|---|
//! | [`program`] | starts the driver from the command line |
//! | [`calls`] | the process's system calls |
//! | [`control`] | the control socket |
//! | [`devices`] | the NICs |
//! | [`platform`] | the platform of the driver: connections, doorbells |
//! | [`guests`] | guests that are created and removed |
//! | [`guest_memory`] | access to one guest's memory, queue by queue |
//! | [`notifications`] | doorbells of frontends |
//! | [`control_rings`] | guests' control rings |
//! | [`waiter`] | the driver's sleep |
//! | [`interfaces`] | this domain's interfaces in the xenstore |
//! | [`netif`] | the xenstore nodes of both ends of an interface: features, states, settings |
//! | [`grants`] | guests' pages by grant copy, or mapped |
//! | [`journals`] | state for the successor of a killed process |
//! | [`hypercall_counters`] | hypercalls, counted by kind |
//! | [`store`] | the xenstore's protocol |
//! | [`dev`] | Xen's devices (`unsafe`) |
//!
//! The process can access its own memory, the mapped rings of each guest, and exactly the pages
//! that guests grant, of which Xen copies byte ranges. With `grants = "map"`, pages that guests
//! send are mapped read-only for a batch.

pub mod calls;
pub mod control;
pub mod control_rings;
pub mod dev;
pub mod devices;
pub mod grants;
pub mod guest_memory;
pub mod guests;
pub mod hypercall_counters;
pub mod interfaces;
pub mod journals;
pub mod netif;
pub mod notifications;
pub mod platform;
pub mod program;
pub mod store;
pub mod waiter;
