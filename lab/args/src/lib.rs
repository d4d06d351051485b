//! Command-line arguments of `grantway demo`, `grantway exp` and `grantway prof`.
//!
//! `grantway` uses them for help, completions and manual pages, and `grantway-lab` to run the
//! commands.
#![forbid(unsafe_code)]

pub mod prof;

use clap::{Subcommand, ValueHint};
use std::path::PathBuf;

/// A NIC in memory for `demo`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum DemoNic {
    /// A simulated cable
    Sim,
    /// A device in software with descriptor rings
    Soft,
}

/// A command of `grantway-lab`.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Run a whole machine for half a minute and report its performance
    ///
    /// Creates namespaces, a wire and a guest, measures a TCP stream and requests in both
    /// directions with ordinary sockets, and removes everything at the end. Needs no privileges.
    #[command(after_help = "Examples:\n  grantway demo\n  grantway demo --quick --json")]
    Demo {
        /// Take at most 15 seconds
        #[arg(long)]
        quick: bool,
        /// Use a NIC in memory, and TCP/IP stacks inside the domains, instead of TAPs
        #[arg(long, value_name = "KIND")]
        nic: Option<DemoNic>,
        /// The same as --nic sim
        #[arg(long, conflicts_with = "nic")]
        sim: bool,
    },
    /// Run an experiment: a plan that compares configurations side by side
    #[command(
        after_help = "Examples:\n  grantway exp --list\n  grantway exp base --quick\n  \
        grantway exp base --only grantway --out results --json"
    )]
    Exp {
        /// Name of a plan (see --list), or a file NAME.toml
        #[arg(required_unless_present = "list")]
        plan: Option<String>,
        /// Measure every configuration briefly, at most 2 minutes in all
        #[arg(long)]
        quick: bool,
        /// List the plans
        #[arg(long)]
        list: bool,
        /// Number of rounds [default: the plan's]
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        /// Duration of a measurement, seconds [default: the plan's]
        #[arg(long, value_name = "S")]
        seconds: Option<f64>,
        /// Let idle cores halt, even if the plan keeps them awake
        #[arg(long)]
        halt: bool,
        /// Run only columns whose names contain this text, or one of several texts separated by
        /// commas
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
        /// Write the data (JSON lines, CSV) and a plot (SVG) of each metric to this folder
        /// [default: print only]
        #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
    },
    /// Profile all domains together: CPU time by domain and by function
    #[command(
        after_help = "Examples:\n  grantway prof record -- grantway demo\n  grantway prof report"
    )]
    Prof {
        /// The profiler's command
        #[command(subcommand)]
        command: prof::Prof,
    },
}

impl LabCommand {
    /// Returns the command's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Demo { .. } => "demo",
            Self::Exp { .. } => "exp",
            Self::Prof { .. } => "prof",
        }
    }
}
