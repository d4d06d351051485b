//! The hypervisor: domains, frames, grants, event channels, connections. Safe code only. It has no
//! code for Ethernet, rings or NICs: a device is a descriptor that a domain may attach.
//!
//! | module | contents |
//! |---|---|
//! | [`hypervisor`] | the machine, as its main thread uses it |
//! | `domain`, [`memory`], [`life`] | a domain's parts; its life and deadlines |
//! | `process`, [`space`] | its process; how pages enter and leave its window |
//! | `worker`, [`hypercall`] | one thread per domain that serves its calls and tears it down |
//! | `spec`, `starter` | limits of a domain's specification; creation of its process |
//! | `post` | notices from the workers to the main thread |
//! | [`grant`] | classic and counted grants, exchanges, the audit |
//! | `naming`, `numbers` | reuse of ids and numbers that are no longer in use |
//! | [`connect`], [`event`] | connection records; pending bits and doorbells |
//! | `attach`, [`device`], `give` | descriptors that a domain attaches, and their control calls |
//! | [`pins`] | frames that a device has pinned |
//! | `report` | status and audit |
//!
//! Threads: one main thread (the program `grantwayd`), which never blocks on a domain, and one
//! worker per domain, which blocks on that domain only. The state that they share
//! ([`hypercall::Shared`]) is behind locks that are held for bookkeeping only.

mod attach;
pub mod connect;
pub mod device;
mod domain;
pub mod event;
pub mod fake;
mod foreign;
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
