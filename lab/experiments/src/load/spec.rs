//! Arguments and answers of a load.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Default and maximum bytes per call of a source.
pub const CHUNK: usize = 128 << 10;

/// Default and maximum bytes per call of a sink.
pub const TAKE_MAX: usize = 256 << 10;

/// Role of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadRole {
    /// Accepts streams and discards them.
    Sink,
    /// Sends a stream, [`CHUNK`] bytes at a time.
    Source,
    /// Sends a stream in which each message is a separate packet with PSH set.
    Pushed,
    /// Sends a file in memory with `sendfile`.
    File,
    /// Accepts connections and answers each request with the same number of bytes.
    Echo,
    /// Sends a request, waits for its answer, and repeats.
    Client,
    /// Opens connections one after another, at a limited rate, and sends one request over each.
    Visitor,
}

/// Arguments of a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadSpec {
    /// Role.
    pub role: LoadRole,
    /// Network namespace; `None`: the parent's.
    pub netns: Option<PathBuf>,
    /// Core; `None`: any.
    pub cpu: Option<usize>,
    /// Address to listen on (sink, echo) or to connect to (source, client, visitor).
    pub address: SocketAddr,
    /// Size of a request, bytes.
    pub size: usize,
    /// Number of connections that a source opens.
    pub flows: usize,
    /// Rate of a source, bytes per second over all connections; `None`: as much as TCP allows.
    pub bytes_per_s: Option<u64>,
}

/// Counters of a load since the previous mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Elapsed time, nanoseconds.
    pub ns: u64,
    /// Bytes of payload received (sink) or accepted by the kernel (source).
    pub bytes: u64,
    /// Requests answered (client, visitor, echo), or calls (sink, source).
    pub operations: u64,
    /// CPU time of the load's process, nanoseconds.
    pub cpu_ns: u64,
    /// TCP segments that the network stack of its namespace received. An aggregate counts once.
    pub segments: u64,
    /// TCP segments that it sent. A pure receiver sends only acknowledgements.
    pub sent_segments: u64,
    /// Frames that the interfaces of its namespace received, before aggregation.
    pub frames: u64,
    /// Bytes of these frames.
    pub frame_bytes: u64,
    /// Median round-trip time, microseconds (client, visitor).
    pub p50_us: Option<f64>,
    /// 99th percentile of the round-trip time, microseconds (client, visitor).
    pub p99_us: Option<f64>,
}
