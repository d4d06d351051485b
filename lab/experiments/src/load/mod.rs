//! TCP loads with ordinary sockets, each a helper process in one network namespace on one core.
//!
//! A load is driven over its standard streams: `go` and `stop` start and stop its work, `mark`
//! answers with its counters since the last mark. The process that starts it reads exact CPU times
//! from outside; nothing here depends on the clock of anybody else.

mod client;
mod echo;
mod sink;
mod source;

use crate::ns;
use figures::helper::{self, LineChild};
use figures::measure::pin;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Bytes that a source hands to the kernel at once.
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
    /// Accepts connections and answers each request with as many bytes.
    Echo,
    /// Sends a request, waits for its answer, sends the next.
    Client,
}

/// A load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
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
    /// Median round trip, microseconds (client).
    pub p50_us: Option<f64>,
    /// 99th percentile of the round trip, microseconds (client).
    pub p99_us: Option<f64>,
}

/// A running load.
#[derive(Debug)]
pub struct Load {
    child: LineChild,
}

const WAIT: Duration = Duration::from_secs(10);

impl Load {
    /// Starts it. It returns when the load listens, or when all its connections are made.
    ///
    /// # Errors
    /// If it cannot be started, or nobody answers at its address for some seconds.
    pub fn start(spec: &Spec) -> anyhow::Result<Self> {
        let mut command = helper::own("load")?;
        command.arg(serde_json::to_string(spec)?);
        let name = format!("{:?} {}", spec.role, spec.address).to_lowercase();
        let child = LineChild::start(&name, command, WAIT)?;
        Ok(Self { child })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Begins its work.
    ///
    /// # Errors
    /// If it has gone.
    pub fn go(&mut self) -> anyhow::Result<()> {
        self.child.tell("go")
    }

    /// Ends its work after the operation under way; connections stay.
    ///
    /// # Errors
    /// If it has gone.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.child.tell("stop")
    }

    /// From now on a sink takes at most so many bytes with one call; [`TAKE_MAX`] bounds it.
    ///
    /// # Errors
    /// If it has gone.
    pub fn take(&mut self, bytes: usize) -> anyhow::Result<()> {
        self.child.tell(&format!("take {bytes}"))
    }

    /// Its counters since the last mark.
    ///
    /// # Errors
    /// If it has gone.
    pub fn mark(&mut self) -> anyhow::Result<Mark> {
        let answer = self.child.ask("mark", WAIT)?;
        Ok(serde_json::from_value(answer)?)
    }
}

/// What the working threads and the controlling one share.
struct Shared {
    running: Mutex<bool>,
    changed: Condvar,
    /// The same as `running`, for a look per operation.
    run: AtomicBool,
    bytes: AtomicU64,
    operations: AtomicU64,
    /// Bytes that a sink takes at once.
    take: AtomicUsize,
    /// Round trips, nanoseconds.
    latency: Mutex<Histogram<u64>>,
}

impl Shared {
    fn new() -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            running: Mutex::new(false),
            changed: Condvar::new(),
            run: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            take: AtomicUsize::new(TAKE_MAX),
            latency: Mutex::new(Histogram::new_with_max(60_000_000_000, 3)?),
        }))
    }

    /// Waits until the load is to work.
    fn wait(&self) {
        if self.run.load(Ordering::Relaxed) {
            return;
        }
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while !*running {
            running = self
                .changed
                .wait(running)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn set(&self, run: bool) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = run;
        self.run.store(run, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    fn round_trip(&self, time: Duration) {
        let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        latency.saturating_record(time.as_nanos().min(u128::from(u64::MAX)) as u64);
    }

    fn take_latency(&self) -> Option<(f64, f64)> {
        let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        if latency.is_empty() {
            return None;
        }
        let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
        let found = (us(0.5), us(0.99));
        latency.reset();
        Some(found)
    }
}

/// Absolute counters, from which marks are differences.
#[derive(Clone, Copy, Default)]
struct Reading {
    ns: u64,
    bytes: u64,
    operations: u64,
    cpu_ns: u64,
    segments: u64,
}

impl Reading {
    fn now(shared: &Shared) -> Self {
        use rustix::time::{ClockId, clock_gettime};
        let ns = |clock| {
            let time = clock_gettime(clock);
            (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned()
        };
        Self {
            ns: ns(ClockId::Monotonic),
            bytes: shared.bytes.load(Ordering::Relaxed),
            operations: shared.operations.load(Ordering::Relaxed),
            cpu_ns: ns(ClockId::ProcessCPUTime),
            segments: std::fs::read_to_string("/proc/self/net/snmp")
                .ok()
                .and_then(|text| segments_in(&text))
                .unwrap_or(0),
        }
    }
}

/// `InSegs` of the kernel's TCP table: a line of names, then one of values.
fn segments_in(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let at = lines
        .next()?
        .split_whitespace()
        .position(|name| name == "InSegs")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

/// The helper process.
///
/// # Errors
/// If its namespace, core or address cannot be had.
pub fn main(spec: &Spec) -> anyhow::Result<()> {
    if let Some(path) = &spec.netns {
        ns::enter(path)?;
    }
    if let Some(cpu) = spec.cpu {
        pin(cpu)?;
    }
    let shared = Shared::new()?;
    match spec.role {
        Role::Sink => sink::start(spec, &shared)?,
        Role::Source => source::start(spec, &shared)?,
        Role::Echo => echo::start(spec, &shared)?,
        Role::Client => client::start(spec, &shared)?,
    }
    helper::reply(&serde_json::json!({"ready": true}));
    let mut last = Reading::now(&shared);
    helper::serve(|line| match line {
        "go" | "stop" => {
            shared.set(line == "go");
            None
        }
        _ if line.starts_with("take ") => {
            if let Some(Ok(bytes)) = line.strip_prefix("take ").map(str::parse) {
                shared.take.store(bytes, Ordering::Relaxed);
            }
            None
        }
        _ => {
            let now = Reading::now(&shared);
            let latency = shared.take_latency();
            let mark = Mark {
                ns: now.ns - last.ns,
                bytes: now.bytes - last.bytes,
                operations: now.operations - last.operations,
                cpu_ns: now.cpu_ns - last.cpu_ns,
                segments: now.segments - last.segments,
                p50_us: latency.map(|(p50, _)| p50),
                p99_us: latency.map(|(_, p99)| p99),
            };
            last = now;
            Some(serde_json::to_value(mark).unwrap_or_default())
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::segments_in;

    #[test]
    fn segments_of_a_known_table() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: RtoMin MaxConn InSegs OutSegs\n\
                    Tcp: 200 -1 42 7\n";
        assert_eq!(segments_in(text), Some(42));
        assert_eq!(segments_in("Tcp: InSegs\n"), None);
        assert_eq!(segments_in("Udp: InSegs\nUdp: 3\n"), None);
    }
}
