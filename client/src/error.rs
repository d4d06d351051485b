//! Errors, each with its remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Reason why an instance could not be started, found or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The monitor's program is missing.
    #[error(
        "no program {0}: build the whole workspace, or keep grantwayd, driver and guest beside \
         grantway or in ../libexec/grantway"
    )]
    NoDaemon(PathBuf),
    /// No instance with this name answers.
    #[error("no instance named `{name}` is running{}", describe_running(.running))]
    NoInstance {
        /// The name.
        name: String,
        /// The names of running instances.
        running: Vec<String>,
    },
    /// An instance of this name is running.
    #[error(
        "an instance named `{0}` is already running: end it with `grantway down --name {0}`, or \
         choose another --name"
    )]
    Running(String),
    /// Not a valid name.
    #[error("`{0}` is not a name for an instance: use 1 to 32 letters, digits, `-` and `_`")]
    BadName(String),
    /// Permission denied.
    #[error("permission denied: {what}; run as the user who started the instance, or as root")]
    Denied {
        /// The operation.
        what: String,
    },
    /// A limit of this process is too low for the machine.
    #[error("the limit of {what} is {limit}, but the machine needs {need}{used}: raise it")]
    Limit {
        /// The limit, and the command that shows it.
        what: &'static str,
        /// Its value.
        limit: u64,
        /// The needed value.
        need: u64,
        /// The part of the limit that is in use, if any, preceded by a comma.
        used: String,
    },
    /// The runtime directory belongs to another user, or other users may change its contents.
    #[error(
        "{0} can be changed by other users, or is not a directory: remove it, or set {var} to \
         another place",
        var = crate::RUNTIME_DIR_VAR
    )]
    ForeignDirectory(PathBuf),
    /// The monitor could not build the machine.
    #[error("{why}")]
    Start {
        /// The reason.
        why: String,
        /// Whether this system can run no machine at all.
        cannot_run_here: bool,
    },
    /// The monitor exited before it was ready.
    #[error("the monitor ended before it was ready ({how}); its log is {log}{last}")]
    ExitedEarly {
        /// Its exit status or signal, as text.
        how: String,
        /// Path of its log.
        log: PathBuf,
        /// The last line of the log, if any, after ": ".
        last: String,
    },
    /// No answer in time.
    #[error("{what} took longer than {} s{hint}", .limit.as_secs_f32())]
    TimedOut {
        /// The operation.
        what: String,
        /// The deadline.
        limit: Duration,
        /// A hint, if any, after "; ".
        hint: String,
    },
    /// The monitor or a domain rejected a request.
    #[error("{0}")]
    Refused(String),
    /// The machine has stopped, but the record of its attached guests could not be removed.
    #[error("the machine has ended, but {0}")]
    StateNotRemoved(String),
    /// An invalid answer.
    #[error("the monitor's answer is invalid: {0}")]
    InvalidAnswer(String),
    /// Any other system error.
    #[error("{what}: {error}")]
    Io {
        /// The operation.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

impl Error {
    /// Returns an I/O error of this operation; "permission denied" has a separate variant.
    pub(crate) fn io(what: impl Into<String>, error: io::Error) -> Self {
        let what = what.into();
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied { what },
            _ => Self::Io { what, error },
        }
    }

    /// Returns whether this system or installation is the reason, and not the request: exit status
    /// 3.
    #[must_use]
    pub fn cannot_run_here(&self) -> bool {
        matches!(
            self,
            Self::NoDaemon(_)
                | Self::Denied { .. }
                | Self::ForeignDirectory(_)
                | Self::Limit { .. }
                | Self::Start {
                    cannot_run_here: true,
                    ..
                }
        )
    }

    /// Returns whether the request itself was wrong: exit status 2.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::BadName(_))
    }

    /// Returns the exit status of a command that failed with this error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            error if error.is_usage() => 2,
            error if error.cannot_run_here() => 3,
            _ => 1,
        }
    }
}

fn describe_running(running: &[String]) -> String {
    match running {
        [] => "; start one with `grantway up CONFIG`".to_owned(),
        names => format!("; running: {}", names.join(", ")),
    }
}
