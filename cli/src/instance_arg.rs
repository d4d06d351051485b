//! Selects the instance of a command.

use clap::Args;

/// An instance.
#[derive(Debug, Args)]
pub(crate) struct InstanceArg {
    /// Name of the machine
    #[arg(long, default_value = config::DEFAULT_NAME)]
    pub(crate) name: String,
}
