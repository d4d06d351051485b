//! A TCP/IP station in user space, and its programs.

use crate::address::Cidr;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

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
