//! A TCP/IP station in user space, and its programs.

use crate::address::Cidr;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// A TCP/IP station in user space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stack {
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

/// A program of a TCP/IP station in user space. Each counts what it does: `app.<n>.…` in the
/// domain's counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "app", rename_all = "kebab-case", deny_unknown_fields)]
pub enum StackApp {
    /// Takes connections and throws away what comes.
    TcpSink {
        /// The port.
        port: u16,
    },
    /// Takes connections and sends back what comes.
    TcpEcho {
        /// The port.
        port: u16,
    },
    /// Sends a stream.
    TcpSource {
        /// Where to.
        to: SocketAddr,
        /// For how long, seconds.
        seconds: u32,
        /// Seconds until it begins.
        #[serde(default)]
        after_s: u32,
        /// KB of a file in the guest's frames that it sends over and over from where it lies; none:
        /// what it sends is written for every frame.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file_kb: Option<u32>,
    },
    /// Sends requests to an echo, the next when the last has come back whole, and keeps the times.
    TcpClient {
        /// Where to.
        to: SocketAddr,
        /// Bytes of a request and of its reply.
        size: u32,
        /// For how long, seconds.
        seconds: u32,
        /// Seconds until it begins.
        #[serde(default)]
        after_s: u32,
    },
    /// Sends echo requests, one every 100 ms.
    Ping {
        /// Where to.
        to: IpAddr,
        /// How many.
        count: u32,
        /// Seconds until it begins.
        #[serde(default)]
        after_s: u32,
    },
}
