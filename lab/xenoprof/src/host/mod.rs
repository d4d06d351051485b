//! What the host knows: processes, their exact CPU time, and which of them are domains.

pub mod process;
pub mod watch;
