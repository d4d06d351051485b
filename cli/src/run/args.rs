//! What can be typed.

use clap::Args;
use config::Cidr;
use std::ffi::OsString;
use std::net::IpAddr;

/// `grantway run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The command's address, with the length of its network's prefix; left out: one that this
    /// system, or the machine, has no other use for
    #[arg(long, value_name = "CIDR")]
    pub(crate) ip: Option<Cidr>,
    /// Accept an --ip whose network overlaps an address or route of this system
    #[arg(long, requires = "ip", conflicts_with = "machine")]
    pub(crate) allow_overlap: bool,
    /// A name server for the command, instead of this system's; may be given several times
    #[arg(long, value_name = "IP")]
    pub(crate) dns: Vec<IpAddr>,
    /// Ports of this system that are forwarded to the command, like tcp:8080=80; may be given
    /// several times, or separated by commas
    #[arg(
        long,
        value_name = "PORTS",
        value_delimiter = ',',
        conflicts_with_all = ["no_uplink", "machine"]
    )]
    pub(crate) forward: Vec<String>,
    /// Bytes of an IP packet
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 1500,
        value_parser = clap::value_parser!(u32).range(576..=9000)
    )]
    pub(crate) mtu: u32,
    /// No way outside: the command has an address, and nobody to talk to
    #[arg(long, conflicts_with = "machine")]
    pub(crate) no_uplink: bool,
    /// Wait for everything that the command leaves running, too; else it is killed when the
    /// command ends
    #[arg(long)]
    pub(crate) wait: bool,
    /// Say at the end, on standard error, who could touch what, and what passed
    #[arg(long)]
    pub(crate) report: bool,
    /// Say nothing of what is missing
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Name of the instance, for `grantway status --name` and others; left out: run-PID
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Attach the command to this machine, which runs, instead of starting one for it; it is
    /// detached when it ends
    #[arg(long, value_name = "INSTANCE", conflicts_with = "name")]
    pub(crate) machine: Option<String>,
    /// Its name as a guest of that machine; left out: run-PID
    #[arg(long, value_name = "NAME", requires = "machine")]
    pub(crate) guest: Option<String>,
    /// The NIC of that machine in whose network the command gets an address, if no --ip is given;
    /// left out: the first one with an address, else that of a guest
    #[arg(long, value_name = "NIC", requires = "machine", conflicts_with = "ip")]
    pub(crate) network: Option<String>,
    /// Its default route there, with --ip; left out: none
    #[arg(long, value_name = "IP", requires_all = ["machine", "ip"])]
    pub(crate) gateway: Option<IpAddr>,
    /// The command, and what it is given
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What `--help` says below the options.
pub(crate) const AFTER_HELP: &str = "Examples:\n  \
    grantway run -- curl https://example.org/\n  \
    grantway run --report -- iperf3 -c 192.0.2.7\n  \
    grantway run --forward tcp:8080=80 --ip 10.9.0.2/24 -- python3 -m http.server 80\n  \
    grantway run --no-uplink -- make test\n  \
    grantway run --machine office -- curl http://10.0.0.2/\n  \
    grantway run --machine office --ip 10.0.0.9/24 --gateway 10.0.0.1 -- bash\n  \
    grantway run -- bash\n\n\
    Exit status: the command's; 128 and the number of the signal that has ended it; \
    125 if grantway itself fails,\n126 if the command cannot be executed, 127 if there is none";
