//! What can go wrong, each with its remedy.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why an instance could not be started, found or spoken to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program of the monitor is not where it belongs.
    #[error(
        "no program {0}: build the whole workspace, or keep grantwayd, driver and guest beside \
         grantway or in ../libexec/grantway"
    )]
    NoDaemon(PathBuf),
    /// Nothing answers under this name.
    #[error("no instance named `{name}` is running{}", others(.running))]
    NoInstance {
        /// The name.
        name: String,
        /// Names that do answer.
        running: Vec<String>,
    },
    /// The name is taken.
    #[error(
        "an instance named `{0}` is running already: end it with `grantway down --name {0}`, or \
         choose another --name"
    )]
    Running(String),
    /// Not a name.
    #[error("`{0}` is no name for an instance: use 1 to 32 letters, digits, `-` and `_`")]
    BadName(String),
    /// The system says no.
    #[error("permission denied: {what}; run as the user who started the instance, or as root")]
    Denied {
        /// What was tried.
        what: String,
    },
    /// A limit of this process is too low for the machine.
    #[error("the limit of {what} is {limit}, and the machine needs {need}{used}: raise it")]
    Limit {
        /// The limit, and how it is shown.
        what: &'static str,
        /// Its value.
        limit: u64,
        /// The value that it must have.
        need: u64,
        /// How much of that is in use, if anything, after a comma.
        used: String,
    },
    /// The runtime directory belongs to somebody else, or others may change what is in it.
    #[error(
        "{0} is not a directory that this user alone may change: remove it, or set {var} to \
         another place",
        var = crate::RUNTIME_DIR_VAR
    )]
    NotOurs(PathBuf),
    /// The monitor could not build the machine.
    #[error("{why}")]
    Start {
        /// Why.
        why: String,
        /// Whether no machine can run on this system.
        cannot_run_here: bool,
    },
    /// The monitor ended before it was ready.
    #[error("the monitor ended before it was ready ({how}); its log is {log}{last}")]
    Died {
        /// How it ended.
        how: String,
        /// Where its log lies.
        log: PathBuf,
        /// The last line of it, if any, after ": ".
        last: String,
    },
    /// No answer in time.
    #[error("{what} took longer than {} s{hint}", .limit.as_secs_f32())]
    Late {
        /// What.
        what: String,
        /// The deadline.
        limit: Duration,
        /// What to look at, if anything, after "; ".
        hint: String,
    },
    /// The monitor or a domain refused a request.
    #[error("{0}")]
    Refused(String),
    /// The machine has ended, and guests that were attached to it could not be forgotten.
    #[error("the machine has ended, but {0}")]
    NotForgotten(String),
    /// An answer that makes no sense.
    #[error("the monitor's answer makes no sense: {0}")]
    Nonsense(String),
    /// Anything else of the system's.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        error: io::Error,
    },
}

impl Error {
    /// An I/O error with what was tried; "permission denied" gets its own sentence.
    pub(crate) fn io(what: impl Into<String>, error: io::Error) -> Self {
        let what = what.into();
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied { what },
            _ => Self::Io { what, error },
        }
    }

    /// Whether the reason lies in this system or installation, not in the request: exit status 3.
    #[must_use]
    pub fn cannot_run_here(&self) -> bool {
        matches!(
            self,
            Self::NoDaemon(_)
                | Self::Denied { .. }
                | Self::NotOurs(_)
                | Self::Limit { .. }
                | Self::Start {
                    cannot_run_here: true,
                    ..
                }
        )
    }

    /// Whether the request itself was wrong: exit status 2.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::BadName(_))
    }
}

fn others(running: &[String]) -> String {
    match running {
        [] => "; start one with `grantway up CONFIG`".to_owned(),
        names => format!("; running: {}", names.join(", ")),
    }
}
