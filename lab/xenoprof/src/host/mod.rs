//! Information about the host: CPUs and clocks, processes, their exact CPU time, and the domains
//! among them.

mod assignment;
pub(crate) mod cpus;
pub mod credentials;
pub(crate) mod files;
mod instance;
mod markers;
pub mod process;
pub mod watch;
