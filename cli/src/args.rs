//! Command-line arguments.

use crate::instance_arg::InstanceArg;
use crate::upgrade::Machines;
use clap::{Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use std::ffi::OsString;
use std::path::PathBuf;

/// A network driver domain for Linux, in user space.
///
/// One untrusted process owns the NICs and switches packets between guests. A small monitor grants
/// it access to each guest's packet buffers page by page, and can revoke that access at any moment.
#[derive(Debug, Parser)]
#[command(
    name = "grantway",
    version,
    after_help = "Try it:        grantway demo\n\
                  Your own:      grantway up examples/two-guests.toml\n\
                  Exit status:   0 done, 1 failed, 2 wrong usage or configuration, \
                  3 cannot run here,\n               130 stopped by a signal"
)]
pub(crate) struct Cli {
    /// Print only JSON lines on standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the machine that a configuration file describes, and run it until Ctrl-C
    ///
    /// Reports all mistakes in the file together, each with its line and a remedy. Without
    /// privileges the machine runs in a new user namespace and a new network namespace.
    #[command(after_help = "Examples:\n  \
        grantway up examples/two-guests.toml\n  \
        grantway up office.toml --name office --detach")]
    Up(crate::up::UpOptions),
    /// Run a command in a new network namespace, behind a driver domain
    ///
    /// Starts a machine with one guest for the command. The command has an address, a default route
    /// and name servers; its packets get this system's address (NAT). When the command exits,
    /// `grantway run` ends the machine and kills all processes that the command left running. With
    /// --machine, attaches the command to a running machine instead. Without privileges, `pasta`
    /// connects the command to the outside, if it is installed.
    #[command(after_help = crate::run::AFTER_HELP)]
    Run(crate::run::RunArgs),
    /// End a machine and all its domains
    #[command(after_help = "Example:\n  grantway down --name office")]
    Down {
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Serve the guests of a real Xen, as its driver domain
    ///
    /// Run it as root, in dom0 or in a driver domain, instead of the kernel's xen-netback. The
    /// xenstore lists the guests; the file configures the driver and its network interfaces. Runs
    /// until a signal.
    #[command(after_help = "Example:\n  grantway xen /etc/grantway/xen.toml")]
    Xen {
        /// The configuration, without guests (docs/xen.md describes it)
        #[arg(value_name = "CONFIG", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
    /// Show domains, processes and connections
    #[command(after_help = "Examples:\n  grantway status\n  \
        grantway status --json | jq '.domains[] | {name, cpu_ns}'")]
    Status {
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Show the counters of one domain, or of all
    #[command(after_help = "Examples:\n  grantway stat driver\n  \
        grantway stat --nonzero | grep drop\n  grantway stat web --table")]
    Stat {
        /// The domain [default: all domains]
        domain: Option<String>,
        /// Omit counters that are zero
        #[arg(long)]
        nonzero: bool,
        /// Print tables instead of lines
        #[arg(long, conflicts_with = "json")]
        table: bool,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Show what the driver domain can access: the audit of grants and mappings
    #[command(
        after_help = "Examples:\n  grantway grants\n  grantway grants --all\n  \
        grantway grants --json | jq .leaked"
    )]
    Grants {
        /// List each classic grant in use; only machines of `up --lab` have any
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Watch traffic, drops and CPU time of every domain
    ///
    /// Shows one row for each NIC, domain and guest, and one for the monitor. `s`, `r`, `d`, `c`
    /// and `n` sort by bytes sent, bytes received, dropped frames, CPU time and name; the arrow
    /// keys select a row, `t` traces a packet through its domain, `p` profiles it for 3 seconds,
    /// `q` quits. If standard input or output is not a terminal, prints one table.
    #[command(
        after_help = "Examples:\n  grantway top\n  grantway top --once --sort drops\n  \
        grantway top --json | jq '.rows[] | {name, cpus}'"
    )]
    Top(crate::top::TopOptions),
    /// Print all counters once, for Prometheus
    ///
    /// Prints what HTTP requests to the socket `NAME.metrics` in the runtime directory return:
    /// traffic by port, drops by reason, large receive offload, CPU time by domain and hop,
    /// restarts, grants.
    #[command(after_help = "Examples:\n  \
        grantway metrics > /var/lib/prometheus/node-exporter/grantway.prom\n  \
        grantway metrics --openmetrics\n  \
        curl --unix-socket /run/grantway/grantway.metrics http://localhost/metrics")]
    Metrics {
        /// Print OpenMetrics 1.0 instead of Prometheus' text format 0.0.4
        #[arg(long)]
        openmetrics: bool,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Trace the next packet through the machine, or through one domain, hop by hop
    #[command(after_help = "Examples:\n  grantway trace\n  grantway trace web --wait 30")]
    Trace {
        /// One domain [default: the driver domain and all guests on the packet's path]
        domain: Option<String>,
        /// Time to wait for a packet, seconds
        #[arg(
            long,
            value_name = "S",
            default_value_t = 5,
            value_parser = clap::value_parser!(u32).range(1..=3600)
        )]
        wait: u32,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Show the flows of a guest or a NIC whose firewall rules keep state
    #[command(after_help = "Examples:\n  grantway flows web\n  \
        grantway flows web --json | jq '.flows[] | select(.state == \"established\")'")]
    Flows {
        /// A NIC, a guest, or one interface of a guest (GUEST-N)
        #[arg(value_name = "GUEST|NIC")]
        of: String,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Write the frames of a guest or a NIC to a capture file (pcapng)
    ///
    /// Captures both directions at the bridge. The comment of a dropped frame gives the reason.
    /// Runs until Ctrl-C or a limit, and reports the number of frames that it could not capture.
    #[command(
        after_help = "Examples:\n  grantway capture web -w web.pcapng --seconds 10\n  \
        grantway capture wire -w - | tcpdump -nr -"
    )]
    Capture(crate::capture::CaptureOptions),
    /// Change a setting of a running domain
    ///
    /// The settings are the keys of the section `lro` of the configuration file, except `flows`.
    /// They apply until the domain restarts. An unknown key is rejected with the list of valid
    /// keys.
    #[command(after_help = "Examples:\n  grantway set driver lro.flush t50\n  \
        grantway set web lro.at both")]
    Set {
        /// The domain
        domain: String,
        /// The setting, as lro.KEY
        key: String,
        /// Its new value, as in the file, without quotes
        value: String,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Restart domains with the installed programs
    ///
    /// Restarts one domain after another, and returns when their connections are up again. Streams
    /// pause and continue. A guest loses the contents of its memory, including the connections of
    /// an endpoint `stack`.
    #[command(after_help = "Examples:\n  grantway restart driver\n  \
        grantway restart web db --json | jq .connected_ns")]
    Restart {
        /// The domains, in this order
        #[arg(required = true, value_name = "DOMAIN")]
        domains: Vec<String>,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Switch a running machine to the installed programs
    ///
    /// Restarts the manager, netd and the driver domains, one after another. Connections of guests
    /// survive. The core and the guests keep running unchanged. If the installed programs need
    /// another core, `grantway up` in the foreground restarts the whole machine and attaches every
    /// attached guest again; a machine that was started with `--detach` is left unchanged (exit
    /// status 3).
    #[command(after_help = "Examples:\n  grantway upgrade\n  \
        grantway upgrade --all --json | jq .drivers")]
    Upgrade {
        #[command(flatten)]
        machines: Machines,
    },
    /// Attach a network namespace or a virtual machine to a running machine
    ///
    /// Creates an interface in the namespace, or a socket for the virtual machine monitor, and a
    /// guest domain behind it. Returns when the guest is connected. On failure, undoes everything.
    #[command(after_help = "Examples:\n  \
        grantway attach web --netns web --ip 10.0.0.2/24 --gateway 10.0.0.1\n  \
        grantway attach box --netns 4711 --ip 10.0.0.3/24\n  \
        grantway attach db --netns db --network\n  \
        grantway attach vm --vhost-user /run/grantway/vhost/vm.sock --owner libvirt-qemu\n  \
        grantway attach probe --file probe.toml --name office")]
    Attach {
        #[command(flatten)]
        guest: crate::live::AttachArgs,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Remove guests from a running machine
    ///
    /// Returns when no process, grant or mapping of the guests remains. Their interfaces disappear
    /// within a second.
    #[command(after_help = "Example:\n  grantway detach web db")]
    Detach {
        /// The guests, in this order
        #[arg(required = true, value_name = "GUEST")]
        guests: Vec<String>,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Replace the firewall rules of an attached guest while it runs
    ///
    /// Returns when the driver domain has replaced all rules in one step. Known flows continue if
    /// the new rules allow them. The guest stays connected. The rules survive restarts of the
    /// driver domain and of the machine. Use `grantway reload` to change the rules of guests in the
    /// configuration file.
    #[command(after_help = "Examples:\n  \
        grantway rules web --file rules.toml\n  \
        grantway rules web --file rules.json --json | jq .took_ns\n\n\
        rules.toml has a section for each interface, with the keys of [[guest.vif]]:\n  \
        [[vif]]\n  \
        firewall = \"stateful\"\n  \
        [[vif.rule]]\n  \
        action = \"allow\"\n  \
        direction = \"to-guest\"\n  \
        protocol = \"tcp\"\n  \
        destination_ports = 443")]
    Rules {
        /// The guest
        guest: String,
        /// A file with the guest's rules, in TOML, or in JSON if its name ends in `.json`. A
        /// section without rules removes all rules of its interface
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        #[command(flatten)]
        instance: InstanceArg,
    },
    /// Apply an edited configuration file to a running machine
    ///
    /// Detaches guests that are no longer in the file, attaches new guests, and reattaches changed
    /// guests. If a guest differs only in firewall rules and rate limits, changes them in place.
    /// Rejects changes that need a new machine before it applies any change. Guests that `grantway
    /// attach` added stay, unless the file names them.
    #[command(after_help = "Examples:\n  \
        grantway reload office.toml --dry-run\n  \
        grantway reload office.toml --name office --json | jq '.steps[] | {step, domain}'")]
    Reload(crate::reload::ReloadArgs),
    /// Commands of the program `grantway-lab`
    #[command(flatten)]
    Lab(lab_args::LabCommand),
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
        /// The folder to write to
        #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        folder: PathBuf,
    },
    /// The first process of a command's namespaces
    #[command(hide = true)]
    RunPid1 {
        /// The task, as JSON
        spec: String,
        /// The command
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Helper processes
    #[command(hide = true)]
    Internal {
        /// The helper and its arguments
        #[arg(allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_valid() {
        Cli::command().debug_assert();
    }

    /// Returns all commands and subcommands, each with the words that invoke it.
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

    /// Checks that every example is a valid command.
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
