//! Arguments of `grantway run`.

use super::processes;
use clap::Args;
use config::Cidr;
use std::ffi::OsString;
use std::net::IpAddr;

/// `grantway run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The command's address, with the prefix length of its network [default: an unused network of
    /// four addresses in 10.64.0.0/10]
    #[arg(long, value_name = "CIDR")]
    pub(crate) ip: Option<Cidr>,
    /// Accept an --ip whose network overlaps an address or route of this system
    #[arg(long, requires = "ip", conflicts_with = "machine")]
    pub(crate) allow_overlap: bool,
    /// A name server for the command; can be repeated [default: this system's]
    #[arg(long, value_name = "IP")]
    pub(crate) dns: Vec<IpAddr>,
    /// Ports of this system to forward to the command, like tcp:8080=80; can be repeated, or
    /// separated by commas
    #[arg(
        long,
        value_name = "PORTS",
        value_delimiter = ',',
        conflicts_with_all = ["no_uplink", "machine"]
    )]
    pub(crate) forward: Vec<String>,
    /// Limit of the command's open connections through this system; new connections per second are
    /// limited to an eighth of it; 0: unlimited
    #[arg(
        long,
        value_name = "N",
        default_value_t = config::CONNECTIONS,
        conflicts_with_all = ["no_uplink", "machine"]
    )]
    pub(crate) connections: u32,
    /// MTU of the command's interface, bytes, 576 to 9000
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 1500,
        value_parser = clap::value_parser!(u32).range(576..=9000)
    )]
    pub(crate) mtu: u32,
    /// Give the command an address, but no connection to the outside
    #[arg(long, conflicts_with = "machine")]
    pub(crate) no_uplink: bool,
    /// Limit of the command's processes and threads, which stops fork bombs: 512 or more; 0:
    /// unlimited. Needs Linux 6.14; older kernels ignore it
    #[arg(
        long,
        value_name = "N",
        default_value_t = processes::DEFAULT_PROCESSES,
        value_parser = processes::parse
    )]
    pub(crate) processes: u32,
    /// Wait for all processes that the command leaves running, too [default: they are killed when
    /// the command exits]
    #[arg(long)]
    pub(crate) wait: bool,
    /// At the end, report the driver domain's access and the traffic on standard error
    #[arg(long)]
    pub(crate) report: bool,
    /// Do not report missing features
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Name of the new machine, for options such as `grantway status --name` [default: run-PID]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Attach the command to this running machine instead of a new one, and detach it when it exits
    #[arg(long, value_name = "INSTANCE", conflicts_with = "name")]
    pub(crate) machine: Option<String>,
    /// Name of the command as a guest of that machine [default: run-PID]
    #[arg(long, value_name = "NAME", requires = "machine")]
    pub(crate) guest: Option<String>,
    /// The NIC whose network provides the command's address [default: the first NIC with an
    /// address, or else the first guest with one]
    #[arg(long, value_name = "NIC", requires = "machine", conflicts_with = "ip")]
    pub(crate) network: Option<String>,
    /// The command's default route, with --ip [default: none]
    #[arg(long, value_name = "IP", requires_all = ["machine", "ip"])]
    pub(crate) gateway: Option<IpAddr>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// The help text below the options.
pub(crate) const AFTER_HELP: &str = "Examples:\n  \
    grantway run -- curl https://example.org/\n  \
    grantway run --report -- iperf3 -c 192.0.2.7\n  \
    grantway run --forward tcp:8080=80 --ip 10.9.0.2/24 -- python3 -m http.server 80\n  \
    grantway run --no-uplink -- make test\n  \
    grantway run --machine office -- curl http://10.0.0.2/\n  \
    grantway run --machine office --ip 10.0.0.9/24 --gateway 10.0.0.1 -- bash\n  \
    grantway run -- bash\n\n\
    Exit status: the command's; 128 and the number of the signal that killed it; \
    125 if grantway itself fails,\n126 if the command cannot be executed, 127 if it does not exist";
