//! The hypervisor: domains, frames, grants, event channels, connections. Safe code only; it
//! knows no Ethernet, no rings and no NICs: a device is a descriptor that a domain may attach.
//!
//! | module | what it is |
//! |---|---|
//! | [`hypervisor`] | the whole, as its main thread uses it |
//! | `domain`, [`memory`], [`life`] | what a domain is made of; its life and deadlines |
//! | `process`, [`space`] | its process; how pages enter and leave its window |
//! | `worker`, [`hypercall`] | one thread per domain that serves its calls and clears it away |
//! | `spec`, `starter` | what a domain is made of; its worker's first act: the process is made |
//! | `post` | what the workers tell the main thread |
//! | [`grant`] | classic and counted grants, exchanges, the audit |
//! | `naming`, `numbers` | ids and numbers are given out again once nothing names them |
//! | [`connect`], [`event`] | connection records; pending bits and doorbells |
//! | `attach`, [`device`], `give` | descriptors for a domain, and what they can be told |
//! | [`pins`] | frames that a device has pinned |
//! | `report` | status and audit |
//!
//! Threads: one main thread (the program `grantwayd`), which never waits for a domain, and one
//! worker per domain, which waits only for its own. What they share
//! ([`hypercall::Shared`]) lies behind locks that are held for bookkeeping only.

mod attach;
pub mod connect;
pub mod device;
mod domain;
pub mod event;
pub mod fake;
mod give;
pub mod grant;
pub mod hypercall;
pub mod hypervisor;
pub mod life;
pub mod memory;
mod naming;
mod numbers;
pub mod pins;
mod post;
mod process;
mod report;
pub mod space;
mod spec;
mod starter;
mod watch;
mod worker;

pub use device::{Device, DeviceControl, DeviceMap, NoRoom};
pub use domain::Domain;
pub use hypervisor::Hypervisor;
pub use memory::Left;
pub use pins::Pin;
pub use spec::{DomainError, Start};
