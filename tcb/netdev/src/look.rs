//! What tools look at in a namespace before and while a machine runs in it. netd never does.

use crate::error::SetupError;
use crate::forwarding::{self, Lock};
use crate::interface::{in_place, namespace};
use crate::legacy;
use crate::netlink::{Attributes, Netlink, RTM_GETADDR, RTM_NEWADDR, dump};
use crate::nftables::{self, GENERIC, SUBSYSTEM};
use crate::overlap::{self, Cidr, Overlap};
use crate::tap;
use std::fmt;
use std::io;
use std::net::IpAddr;

const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const GET_CHAIN: u16 = (SUBSYSTEM << 8) | 4;
const NEW_RULE: u16 = (SUBSYSTEM << 8) | 6;
const GET_RULE: u16 = (SUBSYSTEM << 8) | 7;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const RULE_TABLE: u16 = 1;
const RULE_EXPRESSIONS: u16 = 4;
const HOOK_NUMBER: u16 = 1;
const HOOK_FORWARD: u32 = 2;
const POLICY_DROP: u32 = 0;
const FAMILY_INET: u8 = 1;
const FAMILY_IPV4: u8 = libc::AF_INET as u8;
const FAMILY_IPV6: u8 = libc::AF_INET6 as u8;

/// An interface that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    /// Its name.
    pub ifname: &'a str,
    /// The machine that may take it up, if it is persistent.
    pub owner: Option<&'a str>,
    /// The bridge that it is to be a port of.
    pub bridge: Option<&'a str>,
    /// Its networks, unless they may overlap others.
    pub networks: &'a [Cidr],
}

/// What stands in the way of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Another interface has its name.
    NameTaken,
    /// There is no interface of the bridge's name.
    NoBridge,
    /// The interface of the bridge's name is none.
    NotABridge,
    /// Another interface has its network, in part at least.
    Overlap(Overlap),
}

/// Everything in a namespace that stands in the way of an interface.
///
/// # Errors
/// The namespace cannot be entered, or the kernel does not answer.
pub fn obstacles(netns: Option<&str>, planned: &Planned<'_>) -> Result<Vec<Obstacle>, SetupError> {
    in_place(netns, || obstacles_here(planned))?.map_err(|e| cannot(planned.ifname, netns, e))
}

fn obstacles_here(planned: &Planned<'_>) -> io::Result<Vec<Obstacle>> {
    let mut netlink = Netlink::open()?;
    let mut found = Vec::new();
    let index = netlink.index(planned.ifname).ok();
    if let Some(index) = index {
        let (alias, _) = netlink.alias(index)?;
        let is_own = |owner: &str| alias == tap::alias(owner);
        if !planned.owner.is_some_and(is_own) {
            found.push(Obstacle::NameTaken);
        }
    }
    if let Some(bridge) = planned.bridge {
        match netlink.index(bridge) {
            Err(_) => found.push(Obstacle::NoBridge),
            Ok(index) if netlink.kind(index)? != "bridge" => found.push(Obstacle::NotABridge),
            Ok(_) => {}
        }
    }
    let overlap = overlap::find_here(&netlink, index.unwrap_or(0), planned.networks)?;
    found.extend(overlap.map(Obstacle::Overlap));
    Ok(found)
}

/// Returns the first overlap of `networks` with an address or route of a namespace.
///
/// # Errors
/// As [`obstacles`].
pub fn overlap_of(netns: Option<&str>, networks: &[Cidr]) -> Result<Option<Overlap>, SetupError> {
    let look = || overlap::find_here(&Netlink::open()?, 0, networks);
    in_place(netns, look)?.map_err(|e| cannot("with these networks", netns, e))
}

/// The settings that a machine with these networks would switch on in a namespace now.
///
/// # Errors
/// The namespace cannot be entered, or its rules cannot be listed: it needs CAP_NET_ADMIN.
pub fn would_switch_on(netns: Option<&str>, networks: &[Cidr]) -> Result<Vec<String>, SetupError> {
    let settings = forwarding::settings(networks);
    let look = || forwarding::off_before(&Lock::take()?, &settings);
    in_place(netns, look)?.map_err(|e| cannot("with these networks", netns, e))
}

/// What keeps a machine's address translation from working.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A setting that it needs is off.
    Off(String),
    /// The interface is not there.
    NoInterface(String),
    /// The interface has lost this address.
    NoAddress(String, Cidr),
    /// Another table drops what is forwarded.
    Dropped {
        /// The interface.
        interface: String,
        /// `ip`, `ip6` or `inet`; of the older iptables its program.
        family: &'static str,
        /// The table.
        table: String,
        /// Its chain.
        chain: String,
    },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off(setting) => write!(
                f,
                "{setting} is 0, so the host forwards nothing of its guests: `sysctl -w \
                 {setting}=1` switches it on"
            ),
            Self::NoInterface(interface) => write!(
                f,
                "its interface {interface} is not there, so its guests reach nothing: start the \
                 machine again"
            ),
            Self::NoAddress(interface, (address, prefix)) => write!(
                f,
                "its interface {interface} has lost the address {address}/{prefix}, so its guests \
                 have no gateway: `ip address add {address}/{prefix} dev {interface}` adds it"
            ),
            Self::Dropped {
                interface,
                family,
                table,
                chain,
            } => {
                let program = match (*family, table.as_str(), chain.as_str()) {
                    ("ip", "filter", "FORWARD") => "iptables",
                    ("ip6", "filter", "FORWARD") => "ip6tables",
                    ("ip" | "ip6" | "inet", ..) => "",
                    _ => family,
                };
                let rule = |way: &str, option: &str| match program {
                    "" => {
                        format!("nft insert rule {family} {table} {chain} {way} {interface} accept")
                    }
                    program => format!("{program} -I {chain} -{option} {interface} -j ACCEPT"),
                };
                write!(
                    f,
                    "chain {chain} of table {family} {table} drops packets that are forwarded and \
                     has no rule for {interface}, so its guests reach nothing: `{}` and `{}` let \
                     them through",
                    rule("iifname", "i"),
                    rule("oifname", "o")
                )
            }
        }
    }
}

/// Tables of a namespace that drop what is forwarded from and to `ifname`, behind which `networks`
/// are: chains whose policy is to drop, in tables that do not name the interface.
///
/// # Errors
/// The namespace cannot be entered, or the kernel does not answer: it needs CAP_NET_ADMIN.
pub fn dropping(
    netns: Option<&str>,
    ifname: &str,
    networks: &[Cidr],
) -> Result<Vec<Trouble>, SetupError> {
    in_place(netns, || dropping_here(ifname, networks))?.map_err(|e| cannot(ifname, netns, e))
}

fn dropping_here(ifname: &str, networks: &[Cidr]) -> io::Result<Vec<Trouble>> {
    let has = |wanted: fn(&IpAddr) -> bool| networks.iter().any(|(ip, _)| wanted(ip));
    let (v4, v6) = (has(IpAddr::is_ipv4), has(IpAddr::is_ipv6));
    let trouble = |(family, table, chain)| Trouble::Dropped {
        interface: ifname.to_owned(),
        family,
        table,
        chain,
    };
    // An interface's name in a comparison ends with a zero byte.
    let name = [ifname.as_bytes(), &[0]].concat();
    let names = |rules: &[u8]| rules.windows(name.len()).any(|window| window == name);
    let mut found = Vec::new();
    for (family, _) in [(legacy::IPV4, v4), (legacy::IPV6, v6)]
        .iter()
        .filter(|(_, has)| *has)
    {
        if family.dropping()?.is_some_and(|rules| !names(&rules)) {
            let chain = (family.program, "filter".to_owned(), "FORWARD".to_owned());
            found.push(trouble(chain));
        }
    }
    let chains = dropping_chains(v4, v6, names)?;
    found.extend(chains.into_iter().map(trouble));
    Ok(found)
}

/// Family, table and name of each chain of nf_tables that drops what is forwarded, in a table none
/// of whose rules has the interface's name (`names`).
fn dropping_chains(
    v4: bool,
    v6: bool,
    names: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<(&'static str, String, String)>> {
    let socket = nftables::open()?;
    let mut chains = Vec::new();
    dump(
        &socket,
        nftables::message_of_any(GET_CHAIN),
        |kind, body| {
            let attributes = Attributes(body.get(GENERIC..).unwrap_or(&[]));
            let hook = Attributes(attributes.get(CHAIN_HOOK)).get(HOOK_NUMBER);
            let family = match body.first() {
                Some(&FAMILY_IPV4) if v4 => "ip",
                Some(&FAMILY_IPV6) if v6 => "ip6",
                Some(&FAMILY_INET) => "inet",
                _ => return,
            };
            let drops = |policy: &[u8]| big_endian(policy) == Some(POLICY_DROP);
            if kind == NEW_CHAIN
                && big_endian(hook) == Some(HOOK_FORWARD)
                && drops(attributes.get(CHAIN_POLICY))
            {
                let (table, chain) = (attributes.text(CHAIN_TABLE), attributes.text(CHAIN_NAME));
                chains.push((family, table, chain));
            }
        },
    )?;
    if chains.is_empty() {
        return Ok(chains);
    }
    let mut naming = Vec::new();
    dump(&socket, nftables::message_of_any(GET_RULE), |kind, body| {
        let attributes = Attributes(body.get(GENERIC..).unwrap_or(&[]));
        if kind == NEW_RULE && names(attributes.get(RULE_EXPRESSIONS)) {
            naming.push((body.first().copied(), attributes.text(RULE_TABLE)));
        }
    })?;
    let is_named = |(family, table, _): &(&str, String, String)| {
        let number = match *family {
            "ip" => FAMILY_IPV4,
            "ip6" => FAMILY_IPV6,
            _ => FAMILY_INET,
        };
        naming.contains(&(Some(number), table.clone()))
    };
    chains.retain(|chain| !is_named(chain));
    Ok(chains)
}

/// Everything that keeps the address translation of a running machine from working.
///
/// # Errors
/// As [`dropping`].
pub fn troubles(
    netns: Option<&str>,
    ifname: &str,
    networks: &[Cidr],
) -> Result<Vec<Trouble>, SetupError> {
    let look = || {
        let mut found = Vec::new();
        for setting in forwarding::settings(networks) {
            if !forwarding::is_on(setting)? {
                found.push(Trouble::Off(setting.to_owned()));
            }
        }
        let netlink = Netlink::open()?;
        match netlink.index(ifname) {
            Err(_) => found.push(Trouble::NoInterface(ifname.to_owned())),
            Ok(index) => {
                let has = addresses(&netlink, index)?;
                let lost = networks.iter().filter(|network| !has.contains(network));
                found.extend(lost.map(|lost| Trouble::NoAddress(ifname.to_owned(), *lost)));
            }
        }
        found.extend(dropping_here(ifname, networks)?);
        Ok(found)
    };
    in_place(netns, look)?.map_err(|e| cannot(ifname, netns, e))
}

/// The addresses of an interface.
fn addresses(netlink: &Netlink, index: u32) -> io::Result<Vec<Cidr>> {
    let mut found = Vec::new();
    netlink.list(RTM_GETADDR, |kind, body| {
        if kind == RTM_NEWADDR
            && let Some((address, of)) = overlap::address(body)
            && of == index
        {
            found.push(address);
        }
    })?;
    Ok(found)
}

fn big_endian(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn cannot(ifname: &str, netns: Option<&str>, error: io::Error) -> SetupError {
    SetupError::Step {
        interface: ifname.to_owned(),
        namespace: namespace(netns),
        step: "looked for",
        error,
        hint: "it needs CAP_NET_ADMIN, rtnetlink and nf_tables",
    }
}

/// Removes the persistent interfaces that a dead machine has left in a namespace, and returns their
/// names. Interfaces that a process has a descriptor of are another machine's.
///
/// # Errors
/// The namespace cannot be entered, or the kernel refuses.
pub fn remove_left(netns: Option<&str>, owner: &str) -> Result<Vec<String>, SetupError> {
    let remove = || {
        let mut netlink = Netlink::open()?;
        let left = netlink.unused_with_alias(&tap::alias(owner))?;
        for (index, _) in &left {
            netlink.delete_link(*index)?;
        }
        Ok(left.into_iter().map(|(_, name)| name).collect())
    };
    in_place(netns, remove)?.map_err(|e| cannot("of a dead machine", netns, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use std::fs;
    use std::process::Command;
    use testing::require;

    fn run(line: &str) {
        let mut words = line.split(' ');
        let program = words.next().unwrap();
        let status = Command::new(program).args(words).status().unwrap();
        assert!(status.success(), "{line}");
    }

    fn alias(name: &str, text: &str) {
        let mut ip = Command::new("ip");
        let status = ip.args(["link", "set", name, "alias", text]).status();
        assert!(status.unwrap().success(), "{name}");
    }

    fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        Namespace::new().unwrap().enter(work).unwrap()
    }

    const NETWORK: [Cidr; 1] = [(IpAddr::V4(std::net::Ipv4Addr::new(10, 91, 0, 1)), 24)];

    #[test]
    fn taken_names_absent_bridges_and_overlaps_are_found() {
        require!(netns, tool("ip"));
        let look = |ifname, bridge, owner| {
            let networks = &NETWORK;
            let planned = Planned {
                ifname,
                owner,
                bridge,
                networks,
            };
            obstacles(None, &planned).unwrap()
        };
        let found = inside(|| {
            run("ip link add there type veth peer name other");
            alias("there", "grantway m");
            run("ip link set other up");
            run("ip address add 10.91.0.129/25 dev other");
            let found = [
                look("there", Some("absent"), None),
                look("new", Some("there"), None),
            ];
            run("ip address flush dev other");
            (found, look("there", None, Some("m")))
        });
        let overlap = |found: &Obstacle| match found {
            Obstacle::Overlap(overlap) => overlap.interface == "other" && overlap.is_address,
            _ => false,
        };
        let ([there, new], own) = found;
        assert_eq!(there[..2], [Obstacle::NameTaken, Obstacle::NoBridge]);
        assert_eq!(new[..1], [Obstacle::NotABridge]);
        assert!(overlap(&there[2]) && overlap(&new[1]), "{there:?} {new:?}");
        assert_eq!(own, []);
    }

    #[test]
    fn a_forward_chain_that_drops_is_found() {
        require!(netns, tool("nft"));
        let texts = || {
            let found = dropping(None, "up0", &NETWORK).unwrap();
            let texts = found.iter().map(ToString::to_string);
            texts.collect::<Vec<_>>()
        };
        let chain = "{ type filter hook forward priority 0 ; policy drop ; }";
        let found = inside(|| {
            let mut seen = vec![texts()];
            for (family, table, chain_name) in [
                ("ip", "filter", "FORWARD"),
                ("inet", "fw", "forward"),
                ("ip6", "x", "y"),
            ] {
                run(&format!("nft add table {family} {table}"));
                run(&format!(
                    "nft add chain {family} {table} {chain_name} {chain}"
                ));
                seen.push(texts());
            }
            run("nft insert rule ip filter FORWARD iifname up0 accept");
            run("nft insert rule inet fw forward iifname up01 accept");
            seen.push(texts());
            seen
        });
        assert_eq!(found[0], [""; 0]);
        let remedy = "`iptables -I FORWARD -i up0 -j ACCEPT` and `iptables -I FORWARD -o up0 -j \
                      ACCEPT` let them through";
        assert!(found[1][0].ends_with(remedy), "{found:?}");
        assert_eq!(found[2].len(), 2, "{found:?}");
        assert_eq!(found[2], found[3], "IPv6 is not translated");
        assert_eq!(found[4].len(), 1, "{found:?}");
        let remedy = "`nft insert rule inet fw forward iifname up0 accept`";
        assert!(found[4][0].contains(remedy), "{found:?}");
    }

    #[test]
    fn an_older_forward_chain_that_drops_is_found() {
        require!(netns, tool("iptables-legacy"), tool("ip6tables-legacy"));
        let texts = || {
            let networks = [NETWORK[0], ("fd00::1".parse().unwrap(), 64)];
            let found = dropping(None, "up0", &networks).unwrap();
            let texts = found.iter().map(ToString::to_string);
            texts.collect::<Vec<_>>()
        };
        let found = inside(|| {
            let mut seen = vec![texts()];
            for program in ["iptables-legacy", "ip6tables-legacy"] {
                run(&format!("{program} -P FORWARD DROP"));
                seen.push(texts());
                run(&format!("{program} -I FORWARD -i up0 -j ACCEPT"));
                seen.push(texts());
            }
            seen
        });
        let counts: Vec<_> = found.iter().map(Vec::len).collect();
        assert_eq!(counts, [0, 1, 0, 1, 0], "{found:?}");
        let remedy = "`ip6tables-legacy -I FORWARD -i up0 -j ACCEPT`";
        assert!(found[3][0].contains(remedy), "{found:?}");
    }

    #[test]
    fn what_is_lost_while_it_runs_is_found() {
        require!(netns, tool("ip"), tool("nft"));
        let look = |name: &str| troubles(None, name, &NETWORK).unwrap();
        let found = inside(|| {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            run("ip link add up0 type veth peer name other");
            run("ip address add 10.91.0.1/24 dev up0");
            let good = look("up0");
            fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
            run("ip address flush dev up0");
            [good, look("up0"), look("gone")]
        });
        let off = Trouble::Off("net.ipv4.ip_forward".to_owned());
        let [good, bad, gone] = found;
        assert_eq!(good, []);
        let lost = Trouble::NoAddress("up0".to_owned(), NETWORK[0]);
        assert_eq!(bad, [off.clone(), lost]);
        assert_eq!(gone, [off, Trouble::NoInterface("gone".to_owned())]);
    }

    #[test]
    fn interfaces_of_the_dead_are_removed() {
        require!(netns, tool("ip"));
        let left = inside(|| {
            for (name, text) in [
                ("left", "grantway m"),
                ("other", "grantway n"),
                ("bare", ""),
            ] {
                run(&format!("ip tuntap add {name} mode tap"));
                alias(name, text);
                run(&format!("ip link set {name} up"));
            }
            let removed = remove_left(None, "m").unwrap();
            (
                removed,
                fs::read_to_string("/proc/thread-self/net/dev").unwrap(),
            )
        });
        assert_eq!(left.0, ["left"]);
        assert!(["other:", "bare:"].iter().all(|name| left.1.contains(name)));
    }
}
