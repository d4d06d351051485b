//! Failures of commands, with their exit statuses.

/// The exit status of [`Failure::CannotRun`].
pub const CANNOT_RUN: u8 = 3;

/// A failure whose kind determines the exit status. Any other error in an [`anyhow::Error`] counts
/// as [`Failure::Failed`].
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Exit status 1: the command was tried and failed.
    #[error("{0}")]
    Failed(String),
    /// Exit status 2: the request or a configuration is wrong.
    #[error("{0}")]
    Usage(String),
    /// Exit status 3: this machine or this user cannot run the command. One sentence with the
    /// reason.
    #[error("{0}")]
    CannotRun(String),
    /// Exit status 130: stopped by a signal.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// Returns the exit status.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::CannotRun(_) => CANNOT_RUN,
            Self::Interrupted => 130,
        }
    }
}

/// Returns the exit status of any error.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Failure>())
        .map_or(1, Failure::exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn a_cause_keeps_its_status_under_context() {
        let error = Err::<(), _>(Failure::CannotRun("no TAP".to_owned()))
            .context("demo")
            .unwrap_err();
        assert_eq!(exit_code(&error), 3);
        assert_eq!(exit_code(&anyhow::anyhow!("else")), 1);
        assert_eq!(exit_code(&Failure::Usage(String::new()).into()), 2);
    }
}
