//! Instances of Grantway: start the monitor (`grantwayd`), find a running one, speak to it over
//! its control socket, end it. Everything has a deadline; every error is one sentence that says
//! what to do.
//!
//! Knows processes and JSON only, no type of the data path.

mod acl;
mod control;
mod end;
mod error;
mod instance;
mod left;
mod limits;
mod log;
mod metrics;
mod notes;
mod process;
mod reach;
mod runtime;

pub use control::ask;
pub use error::Error;
pub use instance::{Instance, Log, Options};
pub use left::forget_left;
pub use limits::{check_limits, check_smallest};
pub use log::last_words;
pub use metrics::MetricsFormat;
pub use notes::{clear_notes, note_of, write_note};
pub use process::children;
pub use reach::Reach;
pub use runtime::{
    MONITOR, MONITOR_OF_COMPARISONS, RUNTIME_DIR_VAR, check_name, daemon_path, find, given_dir,
    listed, names, program_path, runtime_dir, socket_path,
};
