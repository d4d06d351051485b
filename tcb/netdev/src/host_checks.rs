//! Checks by which tools inspect a namespace before and while a machine runs in it. netd does not
//! use them.

use crate::error::NetError;
use crate::forwarding::{self, Lock};
use crate::interface::{in_namespace, namespace};
use crate::legacy;
use crate::netlink::{
    Attributes, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, LINK, Netlink,
    RTM_GETADDR, RTM_GETLINK, RTM_NEWADDR, dump, of_link, u32_at,
};
use crate::nftables::{self, GENERIC, SUBSYSTEM};
use crate::overlap::{self, Overlap, Subnet};
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
const IFF_LOWER_UP: u32 = 1 << 16;
const FAMILY_INET: u8 = 1;
const FAMILY_IPV4: u8 = libc::AF_INET as u8;
const FAMILY_IPV6: u8 = libc::AF_INET6 as u8;

/// An interface to create.
#[derive(Clone, Copy, Debug)]
pub struct PlannedInterface<'a> {
    /// The name of the interface.
    pub ifname: &'a str,
    /// The machine that may reuse the interface, if it is persistent.
    pub owner: Option<&'a str>,
    /// The bridge of which the interface becomes a port.
    pub bridge: Option<&'a str>,
    /// The interface's networks, or none if they may overlap other networks.
    pub networks: &'a [Subnet],
}

/// A reason why an interface cannot be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Another interface has the name.
    NameTaken,
    /// The bridge does not exist.
    NoBridge,
    /// The interface with the bridge's name is not a bridge.
    NotABridge,
    /// The network overlaps the network of another interface.
    Overlap(Overlap),
}

/// Returns all reasons why an interface cannot be created in a namespace.
///
/// # Errors
/// Returns an error if the namespace cannot be entered, or a request to the kernel fails.
pub fn obstacles(
    netns: Option<&str>,
    planned: &PlannedInterface<'_>,
) -> Result<Vec<Obstacle>, NetError> {
    in_namespace(netns, || obstacles_here(planned))?.map_err(|e| cannot(planned.ifname, netns, e))
}

fn obstacles_here(planned: &PlannedInterface<'_>) -> io::Result<Vec<Obstacle>> {
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
            Ok(index) if kind_of(&netlink.link(index)?) != "bridge" => {
                found.push(Obstacle::NotABridge)
            }
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
/// Returns the errors of [`obstacles`].
pub fn overlap_of(netns: Option<&str>, networks: &[Subnet]) -> Result<Option<Overlap>, NetError> {
    let check = || overlap::find_here(&Netlink::open()?, 0, networks);
    in_namespace(netns, check)?.map_err(|e| cannot("with these networks", netns, e))
}

/// Returns the settings that a machine with these networks would now switch on in a namespace.
///
/// # Errors
/// Returns an error if the namespace cannot be entered, or its rules cannot be listed, which needs
/// CAP_NET_ADMIN.
pub fn would_switch_on(netns: Option<&str>, networks: &[Subnet]) -> Result<Vec<String>, NetError> {
    let settings = forwarding::settings(networks);
    let check = || forwarding::originally_off(&Lock::take()?, &settings);
    in_namespace(netns, check)?.map_err(|e| cannot("with these networks", netns, e))
}

/// A fault of a machine's address translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatProblem {
    /// A required setting is off.
    Off(String),
    /// The interface does not exist.
    NoInterface(String),
    /// The interface has lost this address.
    NoAddress(String, Subnet),
    /// Another table drops forwarded packets.
    Dropped {
        /// The interface.
        interface: String,
        /// `ip`, `ip6` or `inet`; for the older iptables, the program.
        family: &'static str,
        /// The table.
        table: String,
        /// The chain.
        chain: String,
    },
}

impl fmt::Display for NatProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off(setting) => write!(
                f,
                "{setting} is 0, so the host forwards no packets of its guests: `sysctl -w \
                 {setting}=1` enables it"
            ),
            Self::NoInterface(interface) => write!(
                f,
                "its interface {interface} does not exist, so its guests reach nothing: start the \
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
                    "chain {chain} of table {family} {table} drops forwarded packets and \
                     has no rule for {interface}, so its guests reach nothing: `{}` and `{}` allow \
                     their packets",
                    rule("iifname", "i"),
                    rule("oifname", "o")
                )
            }
        }
    }
}

/// Returns the chains of a namespace that drop packets forwarded from and to `ifname`, the
/// interface of `networks`: chains with the policy *drop*, in tables without a rule for the
/// interface.
///
/// # Errors
/// Returns an error if the namespace cannot be entered, or a request to the kernel, which needs
/// CAP_NET_ADMIN, fails.
pub fn dropping(
    netns: Option<&str>,
    ifname: &str,
    networks: &[Subnet],
) -> Result<Vec<NatProblem>, NetError> {
    in_namespace(netns, || dropping_here(ifname, networks))?.map_err(|e| cannot(ifname, netns, e))
}

fn dropping_here(ifname: &str, networks: &[Subnet]) -> io::Result<Vec<NatProblem>> {
    let has = |wanted: fn(&IpAddr) -> bool| networks.iter().any(|(ip, _)| wanted(ip));
    let (v4, v6) = (has(IpAddr::is_ipv4), has(IpAddr::is_ipv6));
    let problem = |(family, table, chain)| NatProblem::Dropped {
        interface: ifname.to_owned(),
        family,
        table,
        chain,
    };
    // In a rule's comparison, an interface's name ends with a zero byte.
    let name = [ifname.as_bytes(), &[0]].concat();
    let names = |rules: &[u8]| rules.windows(name.len()).any(|window| window == name);
    let mut found = Vec::new();
    for (family, _) in [(legacy::IPV4, v4), (legacy::IPV6, v6)]
        .iter()
        .filter(|(_, has)| *has)
    {
        if family.dropping()?.is_some_and(|rules| !names(&rules)) {
            let chain = (family.program, "filter".to_owned(), "FORWARD".to_owned());
            found.push(problem(chain));
        }
    }
    let chains = dropping_chains(v4, v6, names)?;
    found.extend(chains.into_iter().map(problem));
    Ok(found)
}

/// Returns family, table and name of each nf_tables chain that drops forwarded packets, except
/// chains in tables with a rule that contains the interface's name (`names`).
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
            chains.extend(dropping_chain(kind, body, v4, v6));
        },
    )?;
    if chains.is_empty() {
        return Ok(chains);
    }
    let mut naming = Vec::new();
    dump(&socket, nftables::message_of_any(GET_RULE), |kind, body| {
        naming.extend(naming_rule(kind, body, &names));
    })?;
    let is_named = |(family, table, _): &(&str, String, String)| {
        let number = match *family {
            "ip" => FAMILY_IPV4,
            "ip6" => FAMILY_IPV6,
            _ => FAMILY_INET,
        };
        naming.contains(&(number, table.clone()))
    };
    chains.retain(|chain| !is_named(chain));
    Ok(chains)
}

/// Returns family, table and name of the chain in a message if the chain drops forwarded packets.
pub(crate) fn dropping_chain(
    kind: u16,
    body: &[u8],
    v4: bool,
    v6: bool,
) -> Option<(&'static str, String, String)> {
    let attributes = Attributes(body.get(GENERIC..)?);
    let family = match *body.first()? {
        FAMILY_IPV4 if v4 => "ip",
        FAMILY_IPV6 if v6 => "ip6",
        FAMILY_INET => "inet",
        _ => return None,
    };
    let hook = Attributes(attributes.get(CHAIN_HOOK)).get(HOOK_NUMBER);
    let is_dropping = kind == NEW_CHAIN
        && big_endian(hook) == Some(HOOK_FORWARD)
        && big_endian(attributes.get(CHAIN_POLICY)) == Some(POLICY_DROP);
    is_dropping.then(|| {
        (
            family,
            attributes.text(CHAIN_TABLE),
            attributes.text(CHAIN_NAME),
        )
    })
}

/// Returns family and table of the rule in a message if `names` finds the interface in the rule's
/// expressions.
pub(crate) fn naming_rule(
    kind: u16,
    body: &[u8],
    names: impl Fn(&[u8]) -> bool,
) -> Option<(u8, String)> {
    let attributes = Attributes(body.get(GENERIC..)?);
    let is_naming = kind == NEW_RULE && names(attributes.get(RULE_EXPRESSIONS));
    is_naming.then_some((*body.first()?, attributes.text(RULE_TABLE)))
}

/// Returns all faults of a running machine's address translation.
///
/// # Errors
/// Returns the errors of [`dropping`].
pub fn nat_faults(
    netns: Option<&str>,
    ifname: &str,
    networks: &[Subnet],
) -> Result<Vec<NatProblem>, NetError> {
    let check = || {
        let mut found = Vec::new();
        for setting in forwarding::settings(networks) {
            if !forwarding::is_on(setting)? {
                found.push(NatProblem::Off(setting.to_owned()));
            }
        }
        let netlink = Netlink::open()?;
        match netlink.index(ifname) {
            Err(_) => found.push(NatProblem::NoInterface(ifname.to_owned())),
            Ok(index) => {
                let has = addresses(&netlink, index)?;
                let lost = networks.iter().filter(|network| !has.contains(network));
                found.extend(lost.map(|lost| NatProblem::NoAddress(ifname.to_owned(), *lost)));
            }
        }
        found.extend(dropping_here(ifname, networks)?);
        Ok(found)
    };
    in_namespace(netns, check)?.map_err(|e| cannot(ifname, netns, e))
}

/// Returns the addresses of an interface.
fn addresses(netlink: &Netlink, index: u32) -> io::Result<Vec<Subnet>> {
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

fn cannot(ifname: &str, netns: Option<&str>, error: io::Error) -> NetError {
    NetError::Step {
        interface: ifname.to_owned(),
        namespace: namespace(netns),
        step: "looked for",
        error,
        hint: "it needs CAP_NET_ADMIN, rtnetlink and nf_tables",
    }
}

/// Removes the persistent interfaces that a dead machine left in a namespace, and returns their
/// names. Keeps an interface whose descriptor a process has, because that interface belongs to
/// another machine.
///
/// # Errors
/// Returns an error if the namespace cannot be entered, or the kernel rejects the call.
pub fn remove_leftovers(netns: Option<&str>, owner: &str) -> Result<Vec<String>, NetError> {
    let remove = || {
        let mut netlink = Netlink::open()?;
        let alias = tap::alias(owner);
        let mut left = Vec::new();
        netlink.list(RTM_GETLINK, |_, body| left.extend(unused(body, &alias)))?;
        for (index, _) in &left {
            netlink.delete_link(*index)?;
        }
        Ok(left.into_iter().map(|(_, name)| name).collect())
    };
    in_namespace(netns, remove)?.map_err(|e| cannot("of a dead machine", netns, e))
}

/// Returns the kind of the interface in a whole RTM_NEWLINK message, as in `ip link add type KIND`,
/// or an empty text for hardware.
pub(crate) fn kind_of(message: &[u8]) -> String {
    Attributes(of_link(message).get(IFLA_LINKINFO)).text(IFLA_INFO_KIND)
}

/// Returns number and name of the interface in the body of RTM_NEWLINK if it has this alias and no
/// carrier, which means that no process has a descriptor of the TAP.
pub(crate) fn unused(body: &[u8], alias: &str) -> Option<(u32, String)> {
    let all = Attributes(body.get(LINK..).unwrap_or(&[]));
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let is_unused = flags & IFF_LOWER_UP == 0 && all.text(IFLA_IFALIAS) == alias;
    is_unused.then(|| (index, all.text(IFLA_IFNAME)))
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

    const NETWORK: [Subnet; 1] = [(IpAddr::V4(std::net::Ipv4Addr::new(10, 91, 0, 1)), 24)];

    #[test]
    fn obstacles_of_every_kind_are_found() {
        require!(netns, tool("ip"));
        let check = |ifname, bridge, owner| {
            let networks = &NETWORK;
            let planned = PlannedInterface {
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
                check("there", Some("absent"), None),
                check("new", Some("there"), None),
            ];
            run("ip address flush dev other");
            (found, check("there", None, Some("m")))
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
            let mut readings = vec![texts()];
            for (family, table, chain_name) in [
                ("ip", "filter", "FORWARD"),
                ("inet", "fw", "forward"),
                ("ip6", "x", "y"),
            ] {
                run(&format!("nft add table {family} {table}"));
                run(&format!(
                    "nft add chain {family} {table} {chain_name} {chain}"
                ));
                readings.push(texts());
            }
            run("nft insert rule ip filter FORWARD iifname up0 accept");
            run("nft insert rule inet fw forward iifname up01 accept");
            readings.push(texts());
            readings
        });
        assert_eq!(found[0], [""; 0]);
        let remedy = "`iptables -I FORWARD -i up0 -j ACCEPT` and `iptables -I FORWARD -o up0 -j \
                      ACCEPT` allow their packets";
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
            let mut readings = vec![texts()];
            for program in ["iptables-legacy", "ip6tables-legacy"] {
                run(&format!("{program} -P FORWARD DROP"));
                readings.push(texts());
                run(&format!("{program} -I FORWARD -i up0 -j ACCEPT"));
                readings.push(texts());
            }
            readings
        });
        let counts: Vec<_> = found.iter().map(Vec::len).collect();
        assert_eq!(counts, [0, 1, 0, 1, 0], "{found:?}");
        let remedy = "`ip6tables-legacy -I FORWARD -i up0 -j ACCEPT`";
        assert!(found[3][0].contains(remedy), "{found:?}");
    }

    #[test]
    fn faults_of_a_running_machine_are_found() {
        require!(netns, tool("ip"), tool("nft"));
        let check = |name: &str| nat_faults(None, name, &NETWORK).unwrap();
        let found = inside(|| {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            run("ip link add up0 type veth peer name other");
            run("ip address add 10.91.0.1/24 dev up0");
            let good = check("up0");
            fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
            run("ip address flush dev up0");
            [good, check("up0"), check("gone")]
        });
        let off = NatProblem::Off("net.ipv4.ip_forward".to_owned());
        let [good, bad, gone] = found;
        assert_eq!(good, []);
        let lost = NatProblem::NoAddress("up0".to_owned(), NETWORK[0]);
        assert_eq!(bad, [off.clone(), lost]);
        assert_eq!(gone, [off, NatProblem::NoInterface("gone".to_owned())]);
    }

    #[test]
    fn interfaces_of_dead_machines_are_removed() {
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
            let removed = remove_leftovers(None, "m").unwrap();
            (
                removed,
                fs::read_to_string("/proc/thread-self/net/dev").unwrap(),
            )
        });
        assert_eq!(left.0, ["left"]);
        assert!(["other:", "bare:"].iter().all(|name| left.1.contains(name)));
    }
}
