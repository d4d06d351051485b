//! The command's address, and the machine that provides it.

use super::RunArgs;
use abi::machine::{Forward, Nat, Uplink};
use anyhow::Context;
use config::domain::Offloads;
use config::{
    Cidr, Config, Endpoint, GuestSection, KernelPort, NicKind, NicSection, PortForward, Vif,
};
use netdev::netns::Namespace;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tool::Failure;

/// The name of the guest whose interface the command uses.
pub(super) const GUEST: &str = "command";
/// The name of the NIC that connects to the outside.
pub(super) const UPLINK: &str = "uplink";
/// The name of the command's interface.
pub(super) const IFNAME: &str = "eth0";

/// The network between the command and this system.
#[derive(Debug)]
pub(super) struct RunNetwork {
    /// The command's address.
    own: Cidr,
    /// This system's address, or `None` if the machine has no uplink.
    gateway: Option<IpAddr>,
    forward: Vec<Forward>,
    connections: u32,
    mtu: u32,
    allow_overlap: bool,
}

/// The address families with which the command can reach other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostFamilies {
    pub(super) ipv4: bool,
    pub(super) ipv6: bool,
}

impl RunNetwork {
    /// Returns the requested network, or a free one.
    pub(super) fn choose(args: &RunArgs, uplink: bool) -> anyhow::Result<Self> {
        let own = match args.ip {
            Some(own) => own,
            None => free(|own| overlap(own).is_none(), std::process::id()),
        };
        if let Some(why) = own.non_station_reason() {
            return Err(Failure::Usage(format!("--ip {own}: it {why}")).into());
        }
        let gateway = other(own).ok_or_else(|| {
            Failure::Usage(format!(
                "--ip {own}: the network has no address for a gateway; write a network of two \
                 addresses or more, like 10.9.0.2/24"
            ))
        })?;
        if uplink
            && !args.allow_overlap
            && let Some(overlap) = overlap(own)
        {
            let what =
                format!("--ip {own}: {overlap}; choose another network, or give --allow-overlap");
            return Err(Failure::Usage(what).into());
        }
        Ok(Self {
            own,
            gateway: uplink.then_some(gateway),
            forward: forwards(&args.forward, own.address)?,
            connections: args.connections,
            mtu: args.mtu,
            allow_overlap: args.allow_overlap,
        })
    }

    pub(super) fn families(&self) -> HostFamilies {
        let leads_out = self.gateway.is_some();
        HostFamilies {
            ipv4: leads_out && self.own.address.is_ipv4(),
            ipv6: leads_out && self.own.address.is_ipv6(),
        }
    }

    /// Returns the configuration of a machine with one guest, whose TAP is in `netns`.
    pub(super) fn config(&self, name: &str, netns: &Namespace) -> Config {
        let tap = Endpoint::Tap(KernelPort {
            ifname: Some(IFNAME.to_owned()),
            netns: Some(netns.path().display().to_string()),
            addresses: vec![self.own],
            gateway: self.gateway,
            ..KernelPort::default()
        });
        let guest = GuestSection {
            name: GUEST.to_owned(),
            restart: true,
            vifs: vec![Vif {
                mtu: self.mtu,
                ..Vif::new(tap)
            }],
            ..GuestSection::default()
        };
        Config {
            name: name.to_owned(),
            nics: self
                .gateway
                .map(|gateway| self.uplink(gateway))
                .into_iter()
                .collect(),
            guests: vec![guest],
            ..Config::default()
        }
    }

    fn uplink(&self, gateway: IpAddr) -> NicSection {
        let port = KernelPort {
            ifname: Some(format!("gw-{}", std::process::id())),
            addresses: vec![Cidr {
                address: gateway,
                prefix: self.own.prefix,
            }],
            allow_overlap: self.allow_overlap,
            ..KernelPort::default()
        };
        let tap = NicKind::Tap {
            port,
            offloads: Offloads::Tso,
            napi_threads: false,
        };
        let mut nic = NicSection::new(UPLINK, tap);
        nic.settings.mtu = self.mtu;
        nic.uplink = Some(Uplink::Nat(Nat {
            forward: self.forward.clone(),
            connections: self.connections,
        }));
        nic
    }
}

impl HostFamilies {
    /// Returns the address families for which the calling thread's network namespace has a default
    /// route.
    pub(super) fn reached() -> Self {
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default()
        };
        Self::in_tables(&read("route"), &read("ipv6_route"))
    }

    /// Returns whether any family has a default route.
    pub(super) fn is_any(self) -> bool {
        self.ipv4 || self.ipv6
    }

    /// Like [`HostFamilies::reached`], from the text of both routing tables.
    fn in_tables(ipv4: &str, ipv6: &str) -> Self {
        let has = |table: &str, is_default: &dyn Fn(&[&str]) -> bool| {
            let mut lines = table.lines().map(|line| line.split_whitespace().collect());
            lines.any(|words: Vec<&str>| is_default(&words))
        };
        let zero = |word: Option<&&str>| word.is_some_and(|w| w.bytes().all(|b| b == b'0'));
        Self {
            // The fields are destination and mask.
            ipv4: has(ipv4, &|words| zero(words.get(1)) && zero(words.get(7))),
            // The fields are destination and prefix length. The loopback's default route does not
            // count.
            ipv6: has(ipv6, &|words| {
                zero(words.first()) && zero(words.get(1)) && words.last() != Some(&"lo")
            }),
        }
    }
}

/// Returns the forwarded ports when the command's address is not known yet.
pub(super) fn forwards_of(args: &RunArgs) -> anyhow::Result<Vec<Forward>> {
    let address = args
        .ip
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ip| ip.address);
    forwards(&args.forward, address)
}

fn forwards(texts: &[String], to: IpAddr) -> anyhow::Result<Vec<Forward>> {
    texts.iter().map(|text| forward(text, to)).collect()
}

/// Parses `tcp:8080=80`, or `tcp:8080=ADDRESS:80` as in a configuration file.
fn forward(text: &str, to: IpAddr) -> anyhow::Result<Forward> {
    let wrong = |why: &str| Failure::Usage(format!("--forward {text}: {why}"));
    let whole = match text.split_once('=') {
        Some((from, port)) if !port.contains(':') => {
            let port = port
                .parse()
                .map_err(|_| wrong("write it like tcp:8080=80"))?;
            format!("{from}={}", SocketAddr::new(to, port))
        }
        _ => text.to_owned(),
    };
    let PortForward(forward) = whole
        .parse()
        .map_err(|_| wrong("write it like tcp:8080=80"))?;
    if forward.port == 0 || forward.to.port() == 0 {
        return Err(wrong("0 is not a port; write ports from 1 to 65535").into());
    }
    if forward.to.ip() != to && !to.is_unspecified() {
        let why = format!(
            "{} is not the command's address, which is {to}",
            forward.to.ip()
        );
        return Err(wrong(&why).into());
    }
    Ok(forward)
}

/// Returns the first address in `own`'s network that another station can use.
fn other(own: Cidr) -> Option<IpAddr> {
    let free = own.first_free(|address| address == own.address)?;
    Some(free.address)
}

/// Returns an address in a network that overlaps no network of the calling process's namespace, and
/// the other address of that network.
pub(super) fn unused() -> anyhow::Result<(Cidr, IpAddr)> {
    let own = free(|own| overlap(own).is_none(), std::process::id());
    let gateway = other(own).context("a network of four addresses has two stations")?;
    Ok((own, gateway))
}

/// Returns the interface and network in the calling process's namespace that `own`'s network
/// overlaps.
fn overlap(own: Cidr) -> Option<netdev::overlap::Overlap> {
    let networks = [(own.address, own.prefix)];
    netdev::host_checks::overlap_of(None, &networks)
        .ok()
        .flatten()
}

/// Returns the command's address in a network of four addresses from 10.64.0.0/10 that `is_free`
/// accepts. The gateway has the first address. Concurrent processes start their search at different
/// networks.
fn free(is_free: impl Fn(Cidr) -> bool, pid: u32) -> Cidr {
    const FIRST: u32 = u32::from_be_bytes([10, 64, 0, 0]);
    const NETWORKS: u32 = 1 << 20;
    const PREFIX: u8 = 30;
    // The step is large, because the previous candidate may have overlapped a large network.
    const STEP: u32 = 65_537;
    let candidate = |n: u32| {
        let network = pid.wrapping_add(n.wrapping_mul(STEP)) % NETWORKS;
        Cidr {
            address: IpAddr::V4(Ipv4Addr::from_bits(FIRST + 4 * network + 2)),
            prefix: PREFIX,
        }
    };
    let mut candidates = (0..256).map(candidate);
    let found = candidates.find(|own| is_free(*own));
    found.unwrap_or(candidate(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn the_gateway_gets_the_first_other_address() {
        for (own, gateway) in [
            ("10.9.0.2/24", Some("10.9.0.1")),
            ("10.9.0.1/24", Some("10.9.0.2")),
            ("10.64.0.6/30", Some("10.64.0.5")),
            ("10.9.0.4/31", Some("10.9.0.5")),
            ("10.9.0.5/31", Some("10.9.0.4")),
            ("10.9.0.5/32", None),
            ("10.0.0.5/0", Some("0.0.0.1")),
            ("fd00::2/64", Some("fd00::1")),
            ("fd00::1/127", Some("fd00::")),
            ("fd00::1/128", None),
            ("fd00::1/0", Some("::1")),
        ] {
            let found = other(cidr(own)).map(|ip| ip.to_string());
            assert_eq!(found.as_deref(), gateway, "{own}");
        }
    }

    #[test]
    fn the_command_needs_a_station_address() {
        use clap::Parser;
        for (ip, why) in [
            ("10.91.0.0/24", "the network itself"),
            ("10.91.0.255/24", "broadcast address"),
            ("127.0.0.5/8", "loopback"),
            ("::ffff:10.0.0.1/96", "mapped into IPv6"),
        ] {
            let typed = ["grantway", "run", "--ip", ip, "--", "true"];
            let crate::args::Command::Run(args) = crate::args::Cli::parse_from(typed).command
            else {
                panic!("{typed:?}")
            };
            let error = RunNetwork::choose(&args, false).unwrap_err().to_string();
            assert!(error.contains(ip) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_free_network_is_chosen() {
        let all = |_| true;
        assert_eq!(free(all, 1), cidr("10.64.0.6/30"));
        let taken = cidr("10.64.0.0/16");
        let found = free(|own| !taken.contains(own.address), 1);
        assert!(!taken.contains(found.address), "{found}");
        // Different processes get different networks.
        assert_ne!(free(all, 1), free(all, 2));
        assert_eq!(free(|_| false, 3), free(all, 3), "none is");
    }

    #[test]
    fn only_a_default_route_counts_as_reachable() {
        let zeros = "0".repeat(32);
        let ipv4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                    eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        let near = "eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let ipv6 = |to: &str| format!("{zeros} 00 {zeros} 00 {zeros} 0 1 0 00200200 {to}\n");
        for (tables, reached) in [
            ((ipv4, ipv6("lo")), (true, false)),
            ((near, ipv6("eth0")), (false, true)),
            (("", String::new()), (false, false)),
        ] {
            let found = HostFamilies::in_tables(tables.0, &tables.1);
            assert_eq!((found.ipv4, found.ipv6), reached, "{tables:?}");
        }
    }

    #[test]
    fn ports_are_forwarded_only_to_the_command() {
        let to = "10.9.0.2".parse().unwrap();
        let text = |text: &str| forward(text, to).map(|f| (f.port, f.to.to_string()));
        let right = (8080, "10.9.0.2:80".to_owned());
        assert_eq!(text("tcp:8080=80").unwrap(), right);
        assert_eq!(text("tcp:8080=10.9.0.2:80").unwrap(), right);
        for (wrong, why) in [
            ("8080", "write it like"),
            ("tcp:8080=", "write it like"),
            ("tcp:8080=x", "write it like"),
            ("icmp:1=2", "write it like"),
            ("tcp:0=80", "0 is not a port"),
            ("tcp:80=0", "0 is not a port"),
            ("tcp:80=10.9.0.3:80", "not the command's address"),
        ] {
            let error = text(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains(why), "{error}");
        }
        let v6 = forward("udp:53=53", "fd00::2".parse().unwrap()).unwrap();
        assert_eq!(v6.to.to_string(), "[fd00::2]:53");
    }
}
