//! The far end in the kernel.

use crate::address::Cidr;
use crate::findings::Findings;
use crate::neighbour::gateway;
use crate::problem::ConfigPart;
use crate::route::{self, RouteConfig, StationAddresses};
use crate::station::PLAIN_ADDRESS;
use crate::table::TomlTable;
use abi::machine::Ipv6Settings;
use serde::Deserialize;
use std::net::IpAddr;

/// Longest name of a network interface, bytes.
const IFNAME_MAX: usize = 15;
/// Longest name of a file, bytes.
const FILE_NAME_MAX: usize = 255;
/// Longest path, bytes.
const PATH_MAX: usize = 4095;

/// The kernel's end of a TAP, or of a veth pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KernelPort {
    /// Name of the interface; `None`: that of the NIC, or `eth` and the vif's number.
    pub ifname: Option<String>,
    /// Network namespace: a name or an absolute path; `None`: that of `grantway`.
    pub netns: Option<String>,
    /// Addresses.
    pub addresses: Vec<Cidr>,
    /// Default route.
    #[serde(skip)]
    pub gateway: Option<IpAddr>,
    /// Additional routes, in the order in which they are added.
    pub routes: Vec<RouteConfig>,
    /// Length of the transmit queue of the kernel's end, packets; 0: the kernel's default.
    pub tx_queue: u32,
    /// Whether the networks of `addresses` may overlap an address or route of the namespace.
    pub allow_overlap: bool,
    /// IPv6 settings of the interface. Only for guests.
    #[serde(skip)]
    pub ipv6: Ipv6Settings,
    /// Whether the interface outlives a machine that crashes. Only for guests.
    #[serde(skip)]
    pub persistent: bool,
}

impl KernelPort {
    pub(crate) fn stations(&self) -> StationAddresses<'_> {
        StationAddresses {
            addresses: &self.addresses,
            gateway: self.gateway,
            routes: &self.routes,
        }
    }

    /// Reads the kernel's end of a NIC or a guest's interface.
    pub(crate) fn read(t: &TomlTable<'_, '_>) -> Self {
        Self {
            gateway: t.parsed("gateway", PLAIN_ADDRESS),
            ..t.fields()
        }
    }
}

/// Checks the kernel's end, whose interface has the name `ifname`.
pub(crate) fn check(
    found: &mut Findings,
    part: ConfigPart,
    port: &KernelPort,
    ifname: Option<String>,
) {
    let ifname = ifname.unwrap_or_default();
    self::ifname(found, part, "ifname", &ifname);
    netns(found, part, port.netns.as_deref());
    if port.netns.is_none() && port.ifname.is_none() && matches!(part, ConfigPart::Vif(..)) {
        let what = format!("`netns` is missing, so the interface would be this system's {ifname}");
        let remedy = "write netns = \"…\" (create it with `ip netns add`), or choose an `ifname`";
        found.add(part, "", what, remedy);
    }
    found.range(part, "tx_queue", port.tx_queue, 0..=1_000_000);
    for (key, value, most) in [
        ("accept_ra", port.ipv6.accept_ra, 2),
        ("accept_dad", port.ipv6.accept_dad, 2),
        ("router_solicitations", port.ipv6.router_solicitations, 255),
    ] {
        let value = value.unwrap_or(0);
        found.range(part, key, value.try_into().unwrap_or(u32::MAX), 0..=most);
    }
    gateway(found, part, &port.addresses, port.gateway);
    route::check(found, part, port.stations());
}

pub(crate) fn ifname(found: &mut Findings, part: ConfigPart, key: &'static str, ifname: &str) {
    let good = |c: u8| c.is_ascii_graphic() && c != b'/' && c != b':' && c != b'%';
    let is_name = !ifname.is_empty() && ifname.len() <= IFNAME_MAX && ifname.bytes().all(good);
    if !is_name || ifname == "." || ifname == ".." {
        let what = format!("`{key}` is \"{}\"", ifname.escape_debug());
        let remedy = format!("use 1 to {IFNAME_MAX} letters, digits, `-`, `_` and `.`");
        found.add(part, key, what, remedy);
    }
}

pub(crate) fn netns(found: &mut Findings, part: ConfigPart, netns: Option<&str>) {
    let Some(netns) = netns else { return };
    let path = netns.starts_with('/');
    let most = if path { PATH_MAX } else { FILE_NAME_MAX };
    let is_name = !netns.contains('/') && netns != "." && netns != "..";
    let is_text = !netns.is_empty() && netns.len() <= most && !netns.contains(char::is_control);
    if !is_text || !(path || is_name) {
        let what = format!("`netns` is \"{}\"", netns.escape_debug());
        let remedy = "write a name as in `ip netns list`, or an absolute path";
        found.add(part, "netns", what, remedy);
    }
}
