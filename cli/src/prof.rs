//! `grantway prof`: what can be typed, and who does it.

use clap::{Args, Subcommand, ValueHint};
use experiments::Failure;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;
use xenoprof::attribute::Classing;
use xenoprof::attribute::rules::Rules;
use xenoprof::model::{Session, file};
use xenoprof::show::{self, report::Form};

/// Where a session lies unless said otherwise.
const DEFAULT_FILE: &str = "grantway.prof";

#[derive(Debug, Subcommand)]
pub(crate) enum Prof {
    /// Record a session: a command from its start to its end, or whatever runs until Ctrl-C
    ///
    /// Domains are found by themselves, also those that the command starts. A command that starts
    /// none is one domain. The exit status is the command's.
    #[command(after_help = "Examples:\n  grantway prof record -- grantway demo\n  \
        grantway prof record --seconds 10 -o busy.prof\n  \
        grantway prof record --domain app=1234 --seconds 5")]
    Record {
        /// The file of the session
        #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE,
              value_hint = ValueHint::FilePath)]
        output: PathBuf,
        /// Replace the file if it exists
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        sampling: Sampling,
        /// How long at most
        #[arg(long, value_name = "S")]
        seconds: Option<f64>,
        /// What to run
        #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
        command: Vec<String>,
    },
    /// Show a session: domains, classes, hops, functions, and how well the three agree
    #[command(after_help = "Examples:\n  grantway prof report\n  \
        grantway prof report busy.prof --json | jq .metric\n  \
        grantway prof report --flat --rules my.rules")]
    Report {
        #[command(flatten)]
        view: View,
        /// Comma-separated values
        #[arg(long, conflicts_with = "json")]
        csv: bool,
        /// Functions of each domain; 0: none
        #[arg(long, value_name = "N", default_value_t = 10)]
        functions: usize,
    },
}

/// A session, and how it is looked at.
#[derive(Debug, Args)]
pub(crate) struct View {
    /// The session
    #[arg(default_value = DEFAULT_FILE, value_hint = ValueHint::FilePath)]
    file: PathBuf,
    #[command(flatten)]
    classing: Classes,
}

/// How classes are found.
#[derive(Debug, Args)]
pub(crate) struct Classes {
    /// Other classes than the thesis's nine
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    rules: Option<PathBuf>,
    /// The class of the function itself, not of the nearest caller that has one: the papers' way
    #[arg(long)]
    flat: bool,
}

impl Classes {
    fn rules(&self) -> anyhow::Result<Rules> {
        match &self.rules {
            None => Ok(Rules::thesis()),
            Some(path) => Rules::read(path).map_err(|e| Failure::Usage(e.to_string()).into()),
        }
    }

    const fn classing(&self) -> Classing {
        if self.flat {
            Classing::Flat
        } else {
            Classing::Nearest
        }
    }
}

/// How to sample.
#[derive(Debug, Args)]
pub(crate) struct Sampling {
    /// cycles, instructions, cache-misses, dtlb-misses, itlb-misses or cpu-clock; otherwise the
    /// best that this machine has
    #[arg(long)]
    event: Option<String>,
    /// Samples a second and CPU
    #[arg(long, default_value_t = xenoprof::record::DEFAULT_HZ,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    hz: u32,
    /// Processes that are to be a domain, NAME=PID[,PID…]; can be given more than once
    #[arg(long, value_name = "NAME=PID")]
    domain: Vec<String>,
    /// Symbols of another kernel: a copy of its /proc/kallsyms
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kallsyms: Option<PathBuf>,
}

impl Sampling {
    fn options(&self, seconds: Option<f64>, command: &[String]) -> xenoprof::record::Options {
        xenoprof::record::Options {
            event: self.event.clone(),
            hz: self.hz,
            limit: seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()),
            named: self.domain.clone(),
            kallsyms: self.kallsyms.clone(),
            command: command.to_vec(),
        }
    }
}

pub(crate) fn run(command: &Prof, json: bool) -> anyhow::Result<ExitCode> {
    match command {
        Prof::Record {
            output,
            force,
            sampling,
            seconds,
            command,
        } => {
            let options = sampling.options(*seconds, command);
            let status = xenoprof::record::to_file(&options, output, *force)?;
            Ok(status.map_or(ExitCode::SUCCESS, exit_code))
        }
        Prof::Report {
            view,
            csv,
            functions,
        } => {
            let form = match (json, csv) {
                (true, _) => Form::Json,
                (_, true) => Form::Csv,
                _ => Form::Text,
            };
            let session = read(&view.file)?;
            let classes = &view.classing;
            show::report(
                &session,
                &classes.rules()?,
                classes.classing(),
                form,
                *functions,
            )?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Session> {
    file::read(path).map_err(|error| match error {
        // A wrong name, or a file that is no session.
        file::FileError::Io { .. } | file::FileError::Damaged { .. } => {
            Failure::Usage(error.to_string()).into()
        }
        file::FileError::Exists(_) => error.into(),
    })
}

/// A command's own exit status; 128 and the signal if one ended it, as shells say it.
fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
