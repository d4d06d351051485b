//! What the host knows: CPUs and clocks, processes, their exact CPU time, and which of them are
//! domains.

pub(crate) mod cpus;
pub mod credentials;
pub mod process;
pub mod watch;
