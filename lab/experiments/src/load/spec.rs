//! What a load is told, and what it answers.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Bytes that a source hands to the kernel at once, unless told otherwise, and at most.
pub const CHUNK: usize = 128 << 10;

/// Bytes that a sink takes from the kernel at once, unless told otherwise, and at most.
pub const TAKE_MAX: usize = 256 << 10;

/// What a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Accepts streams and throws them away.
    Sink,
    /// Sends a stream, [`CHUNK`] bytes at a time.
    Source,
    /// The same, each message a packet of its own and pushed.
    Pushed,
    /// A stream out of a file that lies in memory, by `sendfile`.
    File,
    /// Accepts connections and answers each request with as many bytes.
    Echo,
    /// Sends a request, waits for its answer, sends the next.
    Client,
}

/// A load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadSpec {
    /// What it does.
    pub role: Role,
    /// Its network namespace; none: its parent's.
    pub netns: Option<PathBuf>,
    /// Its core; none: any.
    pub cpu: Option<usize>,
    /// Where it listens (sink, echo) or connects to (source, client).
    pub address: SocketAddr,
    /// Bytes of a request.
    pub size: usize,
    /// Connections that a source opens.
    pub flows: usize,
}

/// What a load did since the mark before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Length of the time, nanoseconds.
    pub ns: u64,
    /// Bytes of payload received (sink) or accepted by the kernel (source).
    pub bytes: u64,
    /// Requests answered (client, echo), or calls (sink, source).
    pub operations: u64,
    /// CPU time of the load's own process, nanoseconds.
    pub cpu_ns: u64,
    /// TCP segments that the network stack of its namespace has received, an aggregate as one.
    pub segments: u64,
    /// TCP segments that it has sent: of one that only receives, acknowledgements.
    pub sent_segments: u64,
    /// Frames that the interfaces of its namespace have received, before they are merged.
    pub frames: u64,
    /// Bytes of these frames.
    pub frame_bytes: u64,
    /// Median round trip, microseconds (client).
    pub p50_us: Option<f64>,
    /// 99th percentile of the round trip, microseconds (client).
    pub p99_us: Option<f64>,
}
