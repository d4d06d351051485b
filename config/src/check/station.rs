//! Checks of the far end: kernel interfaces, and stations in user space.

use super::findings::Findings;
use super::neighbour::gateway;
use super::route::routes;
use crate::address::MacAddress;
use crate::domain::{StackApp, StackConfig};
use crate::model::KernelPort;
use crate::problem::ConfigPart;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Longest name of a network interface, bytes.
const IFNAME_MAX: usize = 15;
/// Longest name of a file, bytes.
const FILE_NAME_MAX: usize = 255;
/// Size of a page in KB.
const PAGE_KB: u32 = (abi::PAGE / 1024) as u32;
/// The largest file in a guest's frames.
const FILE_KB_MAX: u32 = 256 << 10;
/// Longest path, bytes.
const PATH_MAX: usize = 4095;

pub(super) fn port(
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
    routes(found, part, port);
}

pub(super) fn ifname(found: &mut Findings, part: ConfigPart, key: &'static str, ifname: &str) {
    let good = |c: u8| c.is_ascii_graphic() && c != b'/' && c != b':' && c != b'%';
    let is_name = !ifname.is_empty() && ifname.len() <= IFNAME_MAX && ifname.bytes().all(good);
    if !is_name || ifname == "." || ifname == ".." {
        let what = format!("`{key}` is \"{}\"", ifname.escape_debug());
        let remedy = format!("use 1 to {IFNAME_MAX} letters, digits, `-`, `_` and `.`");
        found.add(part, key, what, remedy);
    }
}

pub(super) fn netns(found: &mut Findings, part: ConfigPart, netns: Option<&str>) {
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

/// Checks a station. For a guest's station, `workers` is the number of workers to which its
/// interface has queues.
pub(super) fn station(
    found: &mut Findings,
    part: ConfigPart,
    station: &StackConfig,
    workers: Option<u32>,
    app_part: impl Fn(usize) -> ConfigPart,
) {
    if station.addresses.is_empty() || station.addresses.len() > 4 {
        let what = format!("it has {} addresses", station.addresses.len());
        let remedy = "write 1 to 4, like addresses = [\"10.0.0.2/24\"]";
        found.add(part, "addresses", what, remedy);
    }
    gateway(found, part, &station.addresses, station.gateway);
    if station.apps.len() > 32 {
        found.add(part, "", "it has more than 32 apps", "leave some out");
    }
    let mut ports = BTreeMap::new();
    for (a, app) in station.apps.iter().enumerate() {
        let part = app_part(a);
        match *app {
            StackApp::TcpSink { port } | StackApp::TcpEcho { port } => {
                found.range(part, "port", port.into(), 1..=65_535);
                if ports.insert(port, a).is_some() {
                    let what = format!("port {port} is taken by another app");
                    found.add(part, "port", what, "choose another one");
                }
            }
            StackApp::TcpSource {
                to,
                seconds,
                file_kb,
                ..
            } => {
                found.range(part, "seconds", seconds, 1..=1_000_000);
                if let Some(kb) = file_kb {
                    file(found, part, kb, workers);
                }
                target(found, part, to.ip(), Some(to.port()));
            }
            StackApp::TcpClient {
                to, size, seconds, ..
            } => {
                found.range(part, "seconds", seconds, 1..=1_000_000);
                found.range(part, "size", size, 1..=1 << 20);
                target(found, part, to.ip(), Some(to.port()));
            }
            StackApp::Ping { to, count, .. } => {
                found.range(part, "count", count, 1..=1_000_000);
                target(found, part, to, None);
            }
        }
    }
}

/// Checks a file of `kb` KB that lies in a guest's frames.
fn file(found: &mut Findings, part: ConfigPart, kb: u32, workers: Option<u32>) {
    const KEY: &str = "file_kb";
    found.range(part, KEY, kb, PAGE_KB..=FILE_KB_MAX);
    if !kb.is_multiple_of(PAGE_KB) {
        let remedy = format!("write a multiple of {PAGE_KB}: a file consists of whole pages");
        found.add(part, KEY, format!("`{KEY}` is {kb}"), remedy);
    }
    let remedy = match workers {
        None => "leave it out: such a file needs a guest's frames",
        Some(0 | 1) => return,
        Some(_) => "leave it out, or `workers`: with several queues frames are copied",
    };
    found.add(part, KEY, format!("`{KEY}` is {kb}"), remedy);
}

fn target(found: &mut Findings, part: ConfigPart, to: IpAddr, port: Option<u16>) {
    if to.is_unspecified() || to.is_multicast() || port == Some(0) {
        let remedy = "write the address of one station, and a port above 0";
        found.add(part, "to", format!("`to` is {to}"), remedy);
    }
}

/// Checks the MAC to which frames are sent.
pub(super) fn destination(found: &mut Findings, part: ConfigPart, to: MacAddress) {
    if to.is_zero() {
        let remedy = "write the MAC of a vif or station, like 02:00:00:00:00:01";
        found.add(part, "to", format!("`to` is {to}"), remedy);
    }
}
