//! A TCP/IP station in user space, and its programs.

use crate::address::{Cidr, MacAddress};
use crate::findings::Findings;
use crate::neighbour::gateway;
use crate::problem::ConfigPart;
use crate::route::StationAddresses;
use crate::table::TomlTable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The example of an address in remedies.
pub(crate) const PLAIN_ADDRESS: &str = "10.0.0.1";

/// The remedy for a source of frames without a destination.
pub(crate) const SEND_TO: &str = "write the MAC to send to: to = \"02:00:00:00:00:01\"";
/// Size of a page in KB.
const PAGE_KB: u32 = (abi::PAGE / 1024) as u32;
/// The largest file in a guest's frames.
const FILE_KB_MAX: u32 = 256 << 10;

/// A TCP/IP station in user space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackConfig {
    /// Its addresses, IPv4 or IPv6.
    #[serde(default)]
    pub addresses: Vec<Cidr>,
    /// Its default route, if any.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// The programs that it runs.
    #[serde(default)]
    pub apps: Vec<StackApp>,
}

impl StackConfig {
    pub(crate) fn stations(&self) -> StationAddresses<'_> {
        StationAddresses {
            addresses: &self.addresses,
            gateway: self.gateway,
            routes: &[],
        }
    }
}

/// A program of a TCP/IP station in user space. Its counters are `app.<n>.…` in the domain's
/// counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "app", rename_all = "kebab-case", deny_unknown_fields)]
pub enum StackApp {
    /// Accepts connections and discards their data.
    TcpSink {
        /// The port.
        port: u16,
    },
    /// Accepts connections and echoes their data.
    TcpEcho {
        /// The port.
        port: u16,
    },
    /// Sends a stream.
    TcpSource {
        /// Destination.
        to: SocketAddr,
        /// Duration, seconds.
        seconds: u32,
        /// Seconds before it starts.
        #[serde(default)]
        after_s: u32,
        /// Size of a file in the guest's frames, KB. The program sends it repeatedly, in place.
        /// `None`: the program writes the data of every frame.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file_kb: Option<u32>,
    },
    /// Sends requests to an echo server, each after the previous reply is complete, and records the
    /// round-trip times.
    TcpClient {
        /// Destination.
        to: SocketAddr,
        /// Bytes of a request and of its reply.
        size: u32,
        /// Duration, seconds.
        seconds: u32,
        /// Seconds before it starts.
        #[serde(default)]
        after_s: u32,
    },
    /// Sends echo requests, one every 100 ms.
    Ping {
        /// Destination.
        to: IpAddr,
        /// Number of requests.
        count: u32,
        /// Seconds before it starts.
        #[serde(default)]
        after_s: u32,
    },
}

/// Reads a station. `section` and `part` name its programs.
pub(crate) fn read(
    t: &TomlTable<'_, '_>,
    section: &'static str,
    part: impl Fn(usize) -> ConfigPart,
) -> StackConfig {
    let apps = t.tables("app", section, part, |_, t| app(t));
    StackConfig {
        addresses: t.value("addresses").unwrap_or_default(),
        gateway: t.parsed("gateway", PLAIN_ADDRESS),
        apps: apps.into_iter().flatten().collect(),
    }
}

/// Reads a program, unless a required key is missing.
type ReadApp = fn(&TomlTable<'_, '_>) -> Option<StackApp>;

/// Values of `kind`.
const APPS: [(&str, ReadApp); 5] = [
    ("tcp-sink", |t| {
        Some(StackApp::TcpSink { port: port_of(t)? })
    }),
    ("tcp-echo", |t| {
        Some(StackApp::TcpEcho { port: port_of(t)? })
    }),
    ("tcp-source", |t| {
        let (to, seconds, after_s) = peer(t);
        let file_kb = t.value("file_kb");
        Some(StackApp::TcpSource {
            to: to?,
            seconds,
            after_s,
            file_kb,
        })
    }),
    ("tcp-client", |t| {
        let (to, seconds, after_s) = peer(t);
        let size = t.value("size").unwrap_or(1);
        Some(StackApp::TcpClient {
            to: to?,
            size,
            seconds,
            after_s,
        })
    }),
    ("ping", |t| {
        t.needs("to", "write the destination, like to = \"10.0.0.1\"");
        let to = t.parsed("to", PLAIN_ADDRESS);
        Some(StackApp::Ping {
            to: to.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            count: t.value("count").unwrap_or(3),
            after_s: t.value("after_s").unwrap_or(0),
        })
    }),
];

fn app(t: TomlTable<'_, '_>) -> Option<StackApp> {
    t.needs("kind", "write the program, like kind = \"tcp-echo\"");
    let Some(read) = t.choice("kind", &APPS) else {
        t.finish_unknown("kind");
        return None;
    };
    let app = read(&t);
    t.finish();
    app
}

fn port_of(t: &TomlTable<'_, '_>) -> Option<u16> {
    t.required("port", "write the port, like port = 5001")
}

/// Reads the destination of a program, its duration and the seconds before it starts.
fn peer(t: &TomlTable<'_, '_>) -> (Option<SocketAddr>, u32, u32) {
    t.needs("to", "write the destination, like to = \"10.0.0.1:5001\"");
    let seconds = t.value("seconds").unwrap_or(10);
    let after_s = t.value("after_s").unwrap_or(0);
    (t.parsed("to", "10.0.0.1:5001"), seconds, after_s)
}

/// Checks a station. For a guest's station, `workers` is the number of workers to which its
/// interface has queues.
pub(crate) fn check(
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
pub(crate) fn destination(found: &mut Findings, part: ConfigPart, to: MacAddress) {
    if to.is_zero() {
        let remedy = "write the MAC of a vif or station, like 02:00:00:00:00:01";
        found.add(part, "to", format!("`to` is {to}"), remedy);
    }
}
