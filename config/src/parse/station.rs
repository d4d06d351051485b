//! Reads the far end: a kernel interface, or a station in user space.

use crate::domain::{StackApp, StackConfig};
use crate::model::KernelPort;
use crate::problem::ConfigPart;
use crate::table::TomlTable;
use abi::machine::Ipv6Settings;
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};

/// The example of a MAC in remedies.
pub(super) const MAC: &str = "02:00:00:00:00:01";
const PLAIN_ADDRESS: &str = "10.0.0.1";
const ROUTE: &str = "10.1.0.0/16 via 10.0.0.1";
const SOCKET: &str = "10.0.0.1:5001";

pub(super) fn port(t: &TomlTable<'_, '_>, own_mac: bool) -> KernelPort {
    KernelPort {
        ifname: t.text("ifname"),
        netns: t.text("netns"),
        mac: if own_mac { t.parsed("mac", MAC) } else { None },
        addresses: t.cidrs("addresses"),
        gateway: t.parsed("gateway", PLAIN_ADDRESS),
        routes: t.parsed_list("routes", ROUTE),
        tx_queue: t.number("tx_queue").unwrap_or(0),
        allow_overlap: t.flag("allow_overlap").unwrap_or(false),
        ipv6: Ipv6Settings::default(),
        persistent: false,
    }
}

/// Reads the IPv6 settings of a guest's interface.
pub(super) fn ipv6(t: &TomlTable<'_, '_>) -> Ipv6Settings {
    Ipv6Settings {
        accept_ra: t.number("accept_ra"),
        accept_dad: t.number("accept_dad"),
        router_solicitations: t.number("router_solicitations"),
    }
}

pub(super) fn station(
    t: &TomlTable<'_, '_>,
    section: &'static str,
    part: impl Fn(usize) -> ConfigPart,
) -> StackConfig {
    StackConfig {
        addresses: t.cidrs("addresses"),
        gateway: t.parsed("gateway", PLAIN_ADDRESS),
        apps: t
            .tables("app", section, part, |_, t| app(t))
            .into_iter()
            .flatten()
            .collect(),
    }
}

/// Values of `kind`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StackAppKey {
    TcpSink,
    TcpEcho,
    TcpSource,
    TcpClient,
    Ping,
}

fn app(t: TomlTable<'_, '_>) -> Option<StackApp> {
    const PORT: &str = "write the port, like port = 5001";
    const TO: &str = "write the destination, like to = \"10.0.0.1:5001\"";
    const KIND: &str = "write the program, like kind = \"tcp-echo\"";
    let Some(word) = t.required("kind", TomlTable::word, KIND) else {
        t.finish_unknown("kind");
        return None;
    };
    let port = || t.required("port", TomlTable::number, PORT);
    let to = || t.required("to", |t, key| t.parsed(key, SOCKET), TO);
    let seconds = || t.number("seconds").unwrap_or(10);
    let after_s = || t.number("after_s").unwrap_or(0);
    let app = match word {
        StackAppKey::TcpSink => port().map(|port| StackApp::TcpSink { port }),
        StackAppKey::TcpEcho => port().map(|port| StackApp::TcpEcho { port }),
        StackAppKey::TcpSource => {
            let (to, seconds, after_s) = (to(), seconds(), after_s());
            let file_kb = t.number("file_kb");
            to.map(|to| StackApp::TcpSource {
                to,
                seconds,
                after_s,
                file_kb,
            })
        }
        StackAppKey::TcpClient => {
            let (to, seconds, after_s) = (to(), seconds(), after_s());
            let size = t.number("size").unwrap_or(1);
            to.map(|to| StackApp::TcpClient {
                to,
                size,
                seconds,
                after_s,
            })
        }
        StackAppKey::Ping => {
            let remedy = "write the destination, like to = \"10.0.0.1\"";
            let to = t.required("to", |t, key| t.parsed(key, PLAIN_ADDRESS), remedy);
            let (count, after_s) = (t.number("count").unwrap_or(3), after_s());
            let to = to.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            Some(StackApp::Ping { to, count, after_s })
        }
    };
    t.finish();
    app
}
