//! Which instance a command is about.

use clap::Args;

/// Which instance.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Name of the instance
    #[arg(long, default_value = config::DEFAULT_NAME)]
    pub(crate) name: String,
}
