//! The command line.

use crate::upgrade::Machines;
use crate::which::Which;
use clap::{Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;

/// A network driver domain for Linux, in user space.
///
/// One untrusted process owns the NICs and switches packets between guests; a small monitor gives
/// it access to a guest's packet buffers page by page, and can take it back at any moment.
#[derive(Debug, Parser)]
#[command(
    name = "grantway",
    version,
    after_help = "Try it:        grantway demo\n\
                  Your own:      grantway up examples/two-guests.toml\n\
                  Exit status:   0 done, 1 failed, 2 wrong usage or configuration, \
                  3 cannot run here"
)]
pub(crate) struct Cli {
    /// Print JSON lines and nothing else on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the machine that a file describes, until Ctrl-C
    ///
    /// Mistakes in the file are told all at once, each with its line and remedy. Without
    /// privileges the machine gets a user namespace and a network namespace of its own.
    #[command(after_help = "Examples:\n  \
        grantway up examples/two-guests.toml\n  \
        grantway up office.toml --name office --detach")]
    Up(crate::up::UpOptions),
    /// Run a command in a network namespace of its own, behind a driver domain
    ///
    /// When it starts it has an address, a default route and name servers; what it sends leaves
    /// with this system's address. A machine of one guest is started for it and goes with it, as
    /// do all processes that the command leaves; or it is attached to a machine that runs. Without
    /// privileges the outside is reached by `pasta`, where that is installed.
    #[command(after_help = crate::run::AFTER_HELP)]
    Run(crate::run::RunArgs),
    /// End a machine and everything in it
    #[command(after_help = "Example:\n  grantway down --name office")]
    Down {
        #[command(flatten)]
        which: Which,
    },
    /// Serve the guests of a real Xen, as its driver domain
    ///
    /// In dom0 or in a driver domain, as root, in the place of the kernel's xen-netback. Guests
    /// come from the xenstore; the file has the driver and its network interfaces.
    #[command(after_help = "Example:\n  grantway xen /etc/grantway/xen.toml")]
    Xen {
        /// The configuration, without guests
        config: PathBuf,
    },
    /// Show domains, processes and connections
    #[command(after_help = "Examples:\n  grantway status\n  \
        grantway status --json | jq '.domains[] | {name, cpu_ns}'")]
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// Show the counters of one domain, or of all
    #[command(after_help = "Examples:\n  grantway stat driver\n  \
        grantway stat --nonzero | grep drop\n  grantway stat web --table")]
    Stat {
        /// The domain
        domain: Option<String>,
        /// Leave out what is zero
        #[arg(long)]
        nonzero: bool,
        /// Tables instead of lines
        #[arg(long, conflicts_with = "json")]
        table: bool,
        #[command(flatten)]
        which: Which,
    },
    /// Show what the driver domain can touch: the audit of grants and mappings
    #[command(
        after_help = "Examples:\n  grantway grants\n  grantway grants --all\n  \
        grantway grants --json | jq .leaked"
    )]
    Grants {
        /// List every single grant that is in use
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        which: Which,
    },
    /// Watch who sends, who receives, who drops and why, and whose CPU time it takes
    ///
    /// One row for each network interface, domain and guest, and one for the monitor. `s`, `r`,
    /// `d`, `c` and `n` choose the order, `t` follows a packet through the selected domain, `p`
    /// says how to profile it, `q` quits. Where standard output is no terminal it prints one table.
    #[command(
        after_help = "Examples:\n  grantway top\n  grantway top --once --sort drops\n  \
        grantway top --json | jq '.rows[] | {name, cpus}'"
    )]
    Top(crate::top::TopOptions),
    /// Print all counters once, for Prometheus
    ///
    /// What `NAME.metrics` in the runtime directory answers to HTTP, too: traffic by port, drops
    /// by reason, large receive offload, CPU time by domain and hop, restarts, grants.
    #[command(after_help = "Examples:\n  \
        grantway metrics > /var/lib/prometheus/node-exporter/grantway.prom\n  \
        grantway metrics --openmetrics\n  \
        curl --unix-socket /run/grantway/grantway.metrics http://localhost/metrics")]
    Metrics {
        /// As OpenMetrics 1.0, instead of Prometheus' text format 0.0.4
        #[arg(long)]
        openmetrics: bool,
        #[command(flatten)]
        which: Which,
    },
    /// Follow the next packet through the machine, or through one domain, hop by hop
    #[command(after_help = "Examples:\n  grantway trace\n  grantway trace web --wait 30")]
    Trace {
        /// One domain; left out: the driver domain, and the guests that the same packet came
        /// through
        domain: Option<String>,
        /// Seconds to wait for a packet
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
        wait: u32,
        #[command(flatten)]
        which: Which,
    },
    /// Write what a guest or a NIC sees to a capture file (pcapng)
    ///
    /// Both directions, as the bridge sees them; of a frame that was dropped the comment says why.
    /// Until Ctrl-C, unless there is a limit. Frames that could not be kept are counted.
    #[command(
        after_help = "Examples:\n  grantway capture web -w web.pcapng --seconds 10\n  \
        grantway capture wire -w - | tcpdump -nr -"
    )]
    Capture(crate::capture::CaptureOptions),
    /// Change a switch of a domain while traffic runs
    ///
    /// A wrong key is answered with those that there are.
    #[command(after_help = "Example:\n  grantway set driver lro.flush t50")]
    Set {
        /// The domain
        domain: String,
        /// The switch
        key: String,
        /// Its new value
        value: String,
        #[command(flatten)]
        which: Which,
    },
    /// End a domain and start it again, with the program that lies there now
    ///
    /// Returns when its connections are up again: streams go on. What a guest had in memory is
    /// lost. With several, each is restarted when the one before is back.
    #[command(after_help = "Examples:\n  grantway restart driver\n  \
        grantway restart web db --json | jq .connected_ns")]
    Restart {
        /// The domains, in this order
        #[arg(required = true, value_name = "DOMAIN")]
        domains: Vec<String>,
        #[command(flatten)]
        which: Which,
    },
    /// Have a running machine go on with the programs that are installed now
    ///
    /// Manager, netd and the driver domains are started again, one after another: connections of
    /// guests outlive it. The core and guests stay what they are. Where the programs are of another
    /// version than the core, `grantway up` in the foreground starts the machine anew, and what was
    /// attached is attached again; a machine that was started with `--detach` is refused then (exit
    /// status 3).
    #[command(after_help = "Examples:\n  grantway upgrade\n  \
        grantway upgrade --all --json | jq .drivers")]
    Upgrade {
        #[command(flatten)]
        machines: Machines,
    },
    /// Attach a network namespace to a running machine
    ///
    /// Makes an interface in the namespace, and a guest domain of its own behind it. Returns when
    /// it is connected. What fails leaves nothing behind.
    #[command(after_help = "Examples:\n  \
        grantway attach web --netns web --ip 10.0.0.2/24 --gateway 10.0.0.1\n  \
        grantway attach box --netns 4711 --ip 10.0.0.3/24\n  \
        grantway attach db --netns db --network\n  \
        grantway attach probe --file probe.toml --name office")]
    Attach {
        #[command(flatten)]
        newcomer: crate::live::Newcomer,
        #[command(flatten)]
        which: Which,
    },
    /// Take guests away from a running machine
    ///
    /// Returns when nothing is left of them: no process, no grant, no mapping. Their interfaces go
    /// within a second.
    #[command(after_help = "Example:\n  grantway detach web db")]
    Detach {
        /// The guests, in this order
        #[arg(required = true, value_name = "GUEST")]
        guests: Vec<String>,
        #[command(flatten)]
        which: Which,
    },
    /// Make a running machine what a file says now
    ///
    /// Guests that the file does not have any more are detached, new ones are attached, and those
    /// that it describes otherwise both, unless only firewall rules and rate limits differ: these
    /// are changed. What cannot change while the machine runs is refused before anything is done.
    /// Guests that `grantway attach` brought stay, unless the file names them.
    #[command(after_help = "Examples:\n  \
        grantway reload office.toml --dry-run\n  \
        grantway reload office.toml --name office --json | jq '.steps[] | {step, domain}'")]
    Reload(crate::reload::ReloadArgs),
    /// Run a whole machine for half a minute and report what it did
    ///
    /// Makes its own namespaces, a wire and a guest; measures a TCP stream and requests with
    /// ordinary sockets, both ways; leaves nothing behind. Needs no privileges.
    #[command(after_help = "Examples:\n  grantway demo\n  grantway demo --quick --json")]
    Demo {
        /// At most 15 seconds
        #[arg(long)]
        quick: bool,
        /// Without TAPs: a wire in memory, TCP/IP inside the domains
        #[arg(long)]
        sim: bool,
    },
    /// Run an experiment: a plan that compares configurations side by side
    #[command(
        after_help = "Examples:\n  grantway exp --list\n  grantway exp base --quick\n  \
        grantway exp base --only grantway --out results --json"
    )]
    Exp {
        /// The plan: one of the list, or a file NAME.toml
        #[arg(required_unless_present = "list")]
        plan: Option<String>,
        /// A short run: every configuration, at most two minutes
        #[arg(long)]
        quick: bool,
        /// Name the plans that there are
        #[arg(long)]
        list: bool,
        /// Another number of rounds than the plan's
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        /// Another length of a measurement than the plan's
        #[arg(long, value_name = "S")]
        seconds: Option<f64>,
        /// Let idle cores halt, also where the plan would keep them awake
        #[arg(long)]
        halt: bool,
        /// Only configurations whose names contain this
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
        /// A folder to keep the data in (JSON lines, CSV), and a picture (SVG) per metric
        #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        out: Option<PathBuf>,
    },
    /// Profile all domains together: where the CPU time of each goes
    #[command(
        after_help = "Examples:\n  grantway prof record -- grantway demo\n  grantway prof report"
    )]
    Prof {
        #[command(subcommand)]
        command: crate::prof::Prof,
    },
    /// Print completions for a shell
    #[command(after_help = "Example:\n  \
        grantway completions bash > ~/.local/share/bash-completion/completions/grantway")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write manual pages, one for each command
    #[command(after_help = "Example:\n  grantway manual ~/.local/share/man/man1")]
    Manual {
        /// The folder
        #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        folder: PathBuf,
    },
    /// The first process of a command's namespaces
    #[command(hide = true)]
    RunFirst {
        /// What to do, as JSON
        spec: String,
        /// The command
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Helper processes of experiments
    #[command(hide = true)]
    Internal {
        /// What to do, and with what
        #[arg(allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    /// All commands and commands of commands, each as it is typed.
    fn commands() -> Vec<(String, clap::Command)> {
        fn below(prefix: &str, command: &clap::Command, found: &mut Vec<(String, clap::Command)>) {
            for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
                let typed = format!("{prefix} {}", inner.get_name());
                below(&typed, inner, found);
                found.push((typed, inner.clone()));
            }
        }
        let mut found = Vec::new();
        below("grantway", &Cli::command(), &mut found);
        found
    }

    fn examples(command: &clap::Command) -> String {
        command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    #[test]
    fn every_command_has_an_example() {
        for (typed, command) in commands() {
            let help = examples(&command);
            assert!(help.contains(&typed), "{typed}: {help}");
        }
    }

    /// Examples that are no command are worse than none.
    #[test]
    fn examples_parse() {
        for (_, command) in commands() {
            for line in examples(&command)
                .lines()
                .map(str::trim)
                .filter(|line| line.starts_with("grantway "))
            {
                let words = line
                    .split(['|', '>'])
                    .next()
                    .unwrap_or("")
                    .split_whitespace();
                assert!(Cli::try_parse_from(words).is_ok(), "{line}");
            }
        }
    }
}
