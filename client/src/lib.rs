//! Instances of Grantway: starts the monitor (`grantwayd`), connects to a running one, sends
//! requests to its control socket, and stops it. Every operation has a deadline; every error is one
//! sentence with a remedy.
//!
//! This crate handles processes and JSON only, no type of the data path.

mod acl;
mod control;
mod counters;
mod driver_access;
mod error;
mod host_notes;
mod instance;
mod limits;
mod log;
mod metrics;
pub mod pods;
mod process;
pub mod record_file;
mod runtime;
mod saved_state;
mod shutdown;

pub use control::send_request;
pub use driver_access::DriverAccess;
pub use error::Error;
pub use host_notes::{clear_notes, note_of, write_note};
pub use instance::{Instance, LogDestination, StartOptions};
pub use limits::{check_limits, check_smallest};
pub use log::last_log_line;
pub use metrics::MetricsFormat;
pub use process::children;
pub use runtime::{
    LAB_MONITOR, MONITOR, RUNTIME_DIR_VAR, check_name, configured_runtime_dir, daemon_path, find,
    listed_instances, program_path, running_instances, runtime_dir, socket_path,
};
pub use saved_state::remove_saved_state;
