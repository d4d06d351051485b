//! `grantway prof`: what can be typed, and who does it.

use crate::run::exit;
use clap::{Args, Subcommand, ValueHint};
use figures::Failure;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use xenoprof::attribute::Classing;
use xenoprof::attribute::rules::Rules;
use xenoprof::model::{Mode, Session, file};
use xenoprof::record::Participants;
use xenoprof::session::participant;
use xenoprof::session::state::Expected;
use xenoprof::show::diff::Diff;
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
    Record(Record),
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
    /// Compare two sessions, point A against point B: by class and by function
    #[command(after_help = "Example:\n  grantway prof diff fast.prof slow.prof --domain receiver")]
    Diff {
        /// Point A
        #[arg(value_hint = ValueHint::FilePath)]
        a: PathBuf,
        /// Point B
        #[arg(value_hint = ValueHint::FilePath)]
        b: PathBuf,
        /// One domain instead of all
        #[arg(long)]
        domain: Option<String>,
        /// Functions shown
        #[arg(long, value_name = "N", default_value_t = 15)]
        functions: usize,
        #[command(flatten)]
        classing: Classes,
    },
    /// Draw flame graphs: one of all domains, one of each
    #[command(after_help = "Examples:\n  grantway prof flame\n  \
        grantway prof flame busy.prof --domain driver\n  \
        grantway prof flame busy.prof --out pictures")]
    Flame {
        /// The session
        #[arg(default_value = DEFAULT_FILE, value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// One domain alone
        #[arg(long)]
        domain: Option<String>,
        /// The folder of the pictures, instead of the session's
        #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
    },
    /// Write a session for the Firefox Profiler (profiler.firefox.com): domains are processes,
    /// classes are categories
    #[command(after_help = "Example:\n  grantway prof export busy.prof -o busy.json")]
    Export {
        #[command(flatten)]
        view: View,
        /// The file; otherwise the session's name with `.json`
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Watch all domains live
    #[command(after_help = "Examples:\n  grantway prof top\n  grantway prof top --count 1 --json")]
    Top {
        #[command(flatten)]
        sampling: Sampling,
        #[command(flatten)]
        classing: Classes,
        /// Seconds from one picture to the next
        #[arg(long, value_name = "S", default_value_t = 2,
              value_parser = clap::value_parser!(u32).range(1..=3600))]
        interval: u32,
        /// How many pictures; otherwise until Ctrl-C
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// Take part in a session as a domain that attributes its own samples
    ///
    /// Waits for `grantway prof record --participants …`, takes part in that one session and ends
    /// with it. Without --pid the domain is the PID namespace in which this command runs.
    #[command(
        after_help = "Examples:\n  grantway prof participate web --pid 1234\n  \
        grantway prof participate uml --passive --pid 1234 --symbols kallsyms\n  \
        grantway prof participate vm --agent-only -- ./server"
    )]
    Participate(Participate),
}

/// What to record, and where to.
#[derive(Debug, Args)]
pub(crate) struct Record {
    /// The file of the session
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE,
          value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    with: With,
    /// How long at most
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// What to run
    #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    command: Vec<String>,
}

/// How to take part in a session.
#[derive(Debug, Args)]
pub(crate) struct Participate {
    /// The domain's name
    name: String,
    /// Its processes, PID[,PID…]; what they start belongs to it too
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Let the initiator attribute its samples
    #[arg(long)]
    passive: bool,
    /// Symbols of a passive domain: ADDRESS KIND NAME, as in /proc/kallsyms
    #[arg(long, value_name = "FILE", requires = "passive", value_hint = ValueHint::FilePath)]
    symbols: Option<PathBuf>,
    /// Run and sample a command here, and bring the result: stands in for a machine of its own
    #[arg(long, conflicts_with_all = ["passive", "pid"], requires = "command")]
    agent_only: bool,
    /// Where the initiator listens
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,
    /// Seconds to wait for a session
    #[arg(long, default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    wait: u32,
    /// What an agent runs
    #[arg(last = true, value_name = "CMD", requires = "agent_only",
          value_hint = ValueHint::CommandWithArguments)]
    command: Vec<String>,
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

/// Who else takes part.
#[derive(Debug, Args)]
pub(crate) struct With {
    /// Domains with a profiler of their own (`prof participate`): how many, or NAME[,NAME…]
    #[arg(long, value_name = "N|NAMES", value_parser = Expected::parse)]
    participants: Option<Expected>,
    /// Seconds to wait for them; then the session goes on and names who is missing
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout: u32,
    /// Where they come to
    #[arg(long, value_name = "SOCKET", requires = "participants", value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,
}

impl With {
    fn participants(&self) -> anyhow::Result<Option<Participants>> {
        let Some(expected) = self.participants.clone() else {
            return Ok(None);
        };
        Ok(Some(Participants {
            expected,
            timeout: Duration::from_secs(self.timeout.into()),
            socket: socket(self.socket.as_ref())?,
        }))
    }
}

fn socket(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    Ok(match given {
        Some(path) => path.clone(),
        None => xenoprof::session::default_socket()?,
    })
}

/// How to sample.
#[derive(Debug, Args)]
pub(crate) struct Sampling {
    /// cycles, instructions, cache-misses, dtlb-misses, itlb-misses or cpu-clock; otherwise the
    /// best that this machine has
    #[arg(long)]
    event: Option<String>,
    /// Samples a second and CPU; otherwise 997, and a word where these take over 2 % of a busy core
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    hz: Option<u32>,
    /// Profile this machine alone; otherwise every machine of this host
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
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
            machine: self.name.clone(),
            kallsyms: self.kallsyms.clone(),
            command: command.to_vec(),
            ..xenoprof::record::Options::default()
        }
    }
}

pub(crate) fn run(command: &Prof, json: bool) -> anyhow::Result<ExitCode> {
    match command {
        Prof::Record(record) => return record.run(),
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
            report(view, form, *functions)?;
        }
        Prof::Diff {
            a,
            b,
            domain,
            functions,
            classing,
        } => diff([a, b], domain.as_deref(), *functions, classing, json)?,
        Prof::Flame { file, domain, out } => {
            let session = read(file)?;
            let folder = out.as_deref().or(file.parent()).unwrap_or(Path::new("."));
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            let written = show::flame::files(&session, folder, &stem, domain.as_deref())?;
            print_files(&written, json)?;
        }
        Prof::Export { view, output } => {
            let path = output
                .clone()
                .unwrap_or_else(|| view.file.with_extension("json"));
            export(view, &path)?;
            print_files(&[path], json)?;
        }
        Prof::Top {
            sampling,
            classing,
            interval,
            count,
        } => {
            let view = show::top::View {
                interval: Duration::from_secs((*interval).into()),
                count: *count,
                classing: classing.classing(),
                json,
            };
            show::top::top(&sampling.options(None, &[]), &classing.rules()?, view)?;
        }
        Prof::Participate(participate) => participate.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Record {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let options = xenoprof::record::Options {
            participants: self.with.participants()?,
            ..self.sampling.options(self.seconds, &self.command)
        };
        let status = xenoprof::record::to_file(&options, &self.output, self.force)?;
        Ok(status.map_or(ExitCode::SUCCESS, |status| exit::status(status).into()))
    }
}

impl Participate {
    fn run(&self) -> anyhow::Result<()> {
        let mode = match (self.passive, self.agent_only) {
            (true, _) => Mode::Passive,
            (_, true) => Mode::AgentOnly,
            _ => Mode::Active,
        };
        let took = participant::run(&participant::Participation {
            name: self.name.clone(),
            mode,
            pids: self.pid.clone(),
            symbols: self.symbols.clone(),
            command: self.command.clone(),
            socket: socket(self.socket.as_ref())?,
            wait: Duration::from_secs(self.wait.into()),
        })?;
        eprintln!(
            "{} samples of `{}` in the session; {} came through its ring, {} addresses named",
            took.samples, self.name, took.read, took.names
        );
        Ok(())
    }
}

/// Samples one machine for `time` and prints the functions in which one of its domains ran. Writes
/// no file.
pub(crate) fn look_at(
    machine: &str,
    domain: &str,
    time: Duration,
    functions: usize,
) -> anyhow::Result<()> {
    let options = xenoprof::record::Options {
        limit: Some(time),
        machine: Some(machine.to_owned()),
        ..xenoprof::record::Options::default()
    };
    let (session, _) = xenoprof::record::run(&options)?;
    crate::output::print(&show::report::of_domain(&session, domain, functions)?)
}

fn report(view: &View, form: Form, functions: usize) -> anyhow::Result<()> {
    let session = read(&view.file)?;
    let (rules, classing) = (view.classing.rules()?, view.classing.classing());
    let mut text = Vec::new();
    show::report(&session, &rules, classing, form, functions, &mut text)?;
    crate::output::print(&String::from_utf8_lossy(&text))
}

/// Writes a session's profile for Firefox to `path`.
fn export(view: &View, path: &Path) -> anyhow::Result<()> {
    let session = read(&view.file)?;
    let rules = view.classing.rules()?;
    figures::file::replace(path, |out| show::export::firefox(&session, &rules, out))
}

fn diff(
    [a, b]: [&PathBuf; 2],
    domain: Option<&str>,
    functions: usize,
    classing: &Classes,
    json: bool,
) -> anyhow::Result<()> {
    let (a, b) = (read(a)?, read(b)?);
    for session in [&a, &b] {
        if let Some(domain) = domain {
            show::flame::domain(session, domain)?;
        }
    }
    let rules = classing.rules()?;
    let diff = Diff::new(&a, &b, &rules, classing.classing(), domain);
    if json {
        let provenance = serde_json::json!({ "A": a.head.provenance, "B": b.head.provenance });
        let mut text = Vec::new();
        show::report::write_json(&mut text, &provenance, &diff.figures(functions))?;
        crate::output::print(&String::from_utf8_lossy(&text))
    } else {
        crate::output::print(&diff.text(functions))
    }
}

/// Prints the names of written files.
fn print_files(paths: &[PathBuf], json: bool) -> anyhow::Result<()> {
    for path in paths {
        if json {
            crate::output::json(&serde_json::json!({ "file": path }))?;
        } else {
            crate::output::print(&format!("{}\n", path.display()))?;
        }
    }
    Ok(())
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
