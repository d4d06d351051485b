//! Command-line arguments of `grantway prof`.

use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// Default file of a session.
const DEFAULT_FILE: &str = "grantway.prof";

/// A command of the profiler.
#[derive(Debug, Subcommand)]
pub enum Prof {
    /// Record a session: a command from start to end, or everything that runs until Ctrl-C
    ///
    /// Finds domains automatically, including those that the command starts. A command that starts
    /// no domains is profiled as one domain. The exit status is the command's.
    #[command(after_help = "Examples:\n  grantway prof record -- grantway demo\n  \
        grantway prof record --seconds 10 -o busy.prof\n  \
        grantway prof record -e cpu-clock,page-faults -- ./server\n  \
        grantway prof record --domain app=1234 --seconds 5")]
    Record(RecordArgs),
    /// Show a session: domains, classes, hops, functions, and how well the instruments agree
    #[command(after_help = "Examples:\n  grantway prof report\n  \
        grantway prof report busy.prof --json | jq .metric\n  \
        grantway prof report --flat --rules my.rules\n  \
        grantway prof report --domain driver --children --callers\n  \
        grantway prof report --domain driver --lines\n  \
        grantway prof report --event page-faults --callers\n  \
        grantway prof report --time 2,2.5 --thread ksoftirqd/1")]
    Report {
        /// The session, and display options
        #[command(flatten)]
        view: ViewArgs,
        /// Print comma-separated values
        #[arg(long, conflicts_with = "json")]
        csv: bool,
        /// The tables of functions
        #[command(flatten)]
        functions: Functions,
    },
    /// Compare two sessions, point A against point B: by class and by function
    #[command(
        after_help = "Example:\n  grantway prof diff fast.prof slow.prof --domain receiver --flame \
                      slower.svg"
    )]
    Diff {
        /// Point A
        #[arg(value_hint = ValueHint::FilePath)]
        a: PathBuf,
        /// Point B
        #[arg(value_hint = ValueHint::FilePath)]
        b: PathBuf,
        /// Compare only this domain
        #[arg(long)]
        domain: Option<String>,
        /// Number of functions per domain
        #[arg(long, value_name = "N", default_value_t = 15)]
        functions: usize,
        /// Write the differences as a flame graph, too: red functions take more time in B, blue
        /// ones less
        #[arg(long, value_name = "SVG", value_hint = ValueHint::FilePath)]
        flame: Option<PathBuf>,
        /// How classes are found
        #[command(flatten)]
        classing: Classes,
        /// The part of both sessions
        #[command(flatten)]
        part: Part,
    },
    /// Show the source lines and the instructions of a function, with their shares of each domain's
    /// time
    ///
    /// FUNCTION is a whole name, the end of a path (`engine::copy`), or a part of exactly one
    /// function's name. Source lines and instructions are read from files on this machine.
    #[command(after_help = "Examples:\n  grantway prof annotate engine::copy\n  \
        grantway prof annotate memcpy busy.prof --domain driver")]
    Annotate {
        /// The function
        function: String,
        /// The session
        #[arg(default_value = DEFAULT_FILE, value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Only this domain
        #[arg(long)]
        domain: Option<String>,
        /// Only samples of this class of the thesis
        #[arg(long)]
        class: Option<String>,
        /// The part of the session
        #[command(flatten)]
        part: Part,
    },
    /// Draw flame graphs: one of all domains, and one of each domain
    #[command(after_help = "Examples:\n  grantway prof flame\n  \
        grantway prof flame busy.prof --domain driver\n  \
        grantway prof flame busy.prof --out pictures")]
    Flame {
        /// The session
        #[arg(default_value = DEFAULT_FILE, value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Only this domain
        #[arg(long)]
        domain: Option<String>,
        /// Folder for the flame graphs [default: the session's]
        #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
        /// Rule file that replaces the thesis's nine classes, which are the colours
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        rules: Option<PathBuf>,
        /// The part of the session
        #[command(flatten)]
        part: Part,
    },
    /// Convert a session for another tool
    ///
    /// In the Firefox Profiler (profiler.firefox.com) domains are processes, and classes are
    /// categories.
    #[command(
        after_help = "Examples:\n  grantway prof export busy.prof -o busy.json\n  \
        grantway prof export --format pprof"
    )]
    Export {
        /// The session, and display options
        #[command(flatten)]
        view: ViewArgs,
        /// Format: firefox, folded (stacks with microseconds), perf (the text of `perf script`) or
        /// pprof
        #[arg(long, value_name = "FORMAT", default_value = "firefox",
              value_parser = ["firefox", "folded", "perf", "pprof"])]
        format: String,
        /// Output file [default: the session's name with `.json`, `.folded`, `.perf` or `.pb`]
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Watch all domains live
    #[command(after_help = "Examples:\n  grantway prof top\n  grantway prof top --count 1 --json")]
    Top {
        /// Sampling options
        #[command(flatten)]
        sampling: Sampling,
        /// How classes are found
        #[command(flatten)]
        classing: Classes,
        /// Time between two screens, seconds
        #[arg(long, value_name = "S", default_value_t = 2,
              value_parser = clap::value_parser!(u32).range(1..=3600))]
        interval: u32,
        /// Number of screens [default: until Ctrl-C]
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// Take part in a session as a domain that attributes its samples itself
    ///
    /// Waits for `grantway prof record --participants …`, takes part in that session, and exits
    /// with it. Without --pid the domain is the PID namespace in which this command runs.
    #[command(
        after_help = "Examples:\n  grantway prof participate web --pid 1234\n  \
        grantway prof participate uml --passive --pid 1234 --symbols kallsyms\n  \
        grantway prof participate vm --agent-only -- ./server"
    )]
    Participate(Participate),
}

/// Options of a recording.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// File of the session
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE,
          value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
    /// Sampling options
    #[command(flatten)]
    pub sampling: Sampling,
    /// Participants
    #[command(flatten)]
    pub with: With,
    /// Maximum duration, seconds [default: until the command exits, or Ctrl-C]
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Command to run
    #[arg(last = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<String>,
}

/// Options of a participation.
#[derive(Debug, Args)]
pub struct Participate {
    /// Name of the domain
    pub name: String,
    /// Processes of the domain, PID[,PID…], including their descendants
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub pid: Vec<u32>,
    /// Let the initiator attribute the domain's samples
    #[arg(long)]
    pub passive: bool,
    /// Symbols of a passive domain: ADDRESS KIND NAME, as in /proc/kallsyms
    #[arg(long, value_name = "FILE", requires = "passive", value_hint = ValueHint::FilePath)]
    pub symbols: Option<PathBuf>,
    /// Run a command, sample it here, and send the result, as an agent on another machine would
    #[arg(long, conflicts_with_all = ["passive", "pid"], requires = "command")]
    pub agent_only: bool,
    /// Socket of the initiator [default: in the runtime directory]
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,
    /// Time to wait for a session, seconds
    #[arg(long, value_name = "S", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub wait: u32,
    /// Command that the agent runs
    #[arg(last = true, value_name = "CMD", requires = "agent_only",
          value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<String>,
}

/// A session, and display options.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// The session
    #[arg(default_value = DEFAULT_FILE, value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// How classes are found
    #[command(flatten)]
    pub classing: Classes,
    /// The part of the session
    #[command(flatten)]
    pub part: Part,
}

/// A part of a session.
#[derive(Debug, Args)]
pub struct Part {
    /// Only samples of threads with this name or id; can be repeated
    #[arg(long, value_name = "NAME|TID")]
    pub thread: Vec<String>,
    /// Only samples from START to STOP, seconds since the session's start; either can be omitted
    #[arg(long, value_name = "START,STOP")]
    pub time: Option<String>,
    /// Only samples of this event of a session of several [default: report and the export formats
    /// firefox, perf and pprof: all events; everything else: the first event]
    #[arg(long, value_name = "EVENT")]
    pub event: Option<String>,
}

/// The functions that a report shows.
#[derive(Debug, Args)]
pub struct Functions {
    /// Only this domain
    #[arg(long)]
    pub domain: Option<String>,
    /// Only samples of this class
    #[arg(long)]
    pub class: Option<String>,
    /// Number of functions per domain; 0: none
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub functions: usize,
    /// Show the time with callees, too
    #[arg(long)]
    pub children: bool,
    /// Show the callers of each function
    #[arg(long)]
    pub callers: bool,
    /// Show source lines, too
    #[arg(long)]
    pub lines: bool,
    /// Sort functions by time without callees (self) or with callees (total) [default: self, with
    /// --children total]
    #[arg(long, value_name = "TIME", value_parser = ["self", "total"])]
    pub sort: Option<String>,
}

/// Classification options.
#[derive(Debug, Args)]
pub struct Classes {
    /// Rule file that replaces the thesis's nine classes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub rules: Option<PathBuf>,
    /// Use the class of the function itself, not of the nearest classified caller, as in the papers
    #[arg(long)]
    pub flat: bool,
}

/// Participants of a session.
#[derive(Debug, Args)]
pub struct With {
    /// Domains with separate profilers (`prof participate`): their number, or NAME[,NAME…]
    /// [default: none]
    #[arg(long, value_name = "N|NAMES")]
    pub participants: Option<String>,
    /// Time to wait for participants, seconds. After it the session starts without the missing
    /// ones, and the report names them
    #[arg(long, value_name = "S", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
    /// Socket to which participants connect [default: in the runtime directory]
    #[arg(long, value_name = "SOCKET", requires = "participants", value_hint = ValueHint::FilePath)]
    pub socket: Option<PathBuf>,
}

/// Sampling options.
#[derive(Debug, Args)]
pub struct Sampling {
    /// Events to sample, NAME or NAME/period=N/; several with commas or by repetition: cycles,
    /// instructions, cache-misses, dtlb-misses, itlb-misses, cpu-clock, task-clock, page-faults,
    /// context-switches or cpu-migrations [default: cycles, or cpu-clock on machines without a PMU]
    #[arg(short, long, value_name = "EVENT", value_delimiter = ',')]
    pub event: Vec<String>,
    /// Samples per second and CPU, 1 to 10000 [default: 997, with a warning if they cost more than
    /// 2 % of a busy core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub hz: Option<u32>,
    /// Profile only this machine [default: all machines of this host; with a command, those that
    /// it starts]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Processes that form a domain, NAME=PID[,PID…]; can be repeated
    #[arg(long, value_name = "NAME=PID")]
    pub domain: Vec<String>,
    /// Symbols of another kernel: a copy of its /proc/kallsyms
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub kallsyms: Option<PathBuf>,
}

/// The profile behind one row of `grantway top`: the functions of one domain. Writes no file.
#[derive(Debug, Args)]
pub struct RowProfileArgs {
    /// The machine
    pub machine: String,
    /// The domain
    pub domain: String,
    /// Seconds to sample
    #[arg(long)]
    pub seconds: u64,
    /// Number of functions
    #[arg(long)]
    pub functions: usize,
}
