//! The hypervisor: domains, frames, grants, event channels, connections. Safe code only. It has no
//! code for Ethernet, rings or NICs: a device is a descriptor that a domain may attach.
//!
//! | module | contents |
//! |---|---|
//! | [`hypervisor`] | the machine, as its main thread uses it |
//! | `domain`, [`memory`], [`liveness`] | a domain's parts; its stages and deadlines |
//! | `process`, [`space`] | its process; changes of its address space |
//! | `worker`, [`hypercall`] | one thread per domain that serves its calls and tears it down |
//! | `spec`, `starter` | limits of a domain's specification; creation of its process |
//! | `notices` | notices from the workers to the main thread |
//! | [`grant`] | classic and counted grants, exchanges, the audit |
//! | `id_reuse`, `id_pool` | reuse of domain ids and connection numbers |
//! | [`connect`], [`event`] | connection records; pending bits and doorbells |
//! | `attach`, [`device`], `assign_devices` | descriptors that a domain attaches, and their control calls |
//! | [`pins`] | frames that a device has pinned |
//! | `report` | status and audit |
//!
//! Threads: one main thread (the program `grantwayd`), which never blocks on a domain, and one
//! worker per domain, which blocks on that domain only. The state that they share
//! ([`hypercall::MonitorState`]) is behind locks that are held for bookkeeping only.

mod assign_devices;
mod attach;
pub mod connect;
pub mod device;
mod domain;
pub mod event;
pub mod fake;
mod foreign;
pub mod grant;
pub mod hypercall;
pub mod hypervisor;
mod id_pool;
mod id_reuse;
pub mod liveness;
pub mod memory;
mod notices;
pub mod pins;
mod process;
mod report;
pub mod space;
mod spec;
mod starter;
mod watch;
mod worker;

pub use device::{DeviceControl, DeviceMap, DomainDevice, WindowFull};
pub use domain::Domain;
pub use hypervisor::Hypervisor;
pub use memory::RetainedFrames;
pub use pins::Pin;
pub use spec::{DomainError, StartSpec};
