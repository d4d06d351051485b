//! Shared state and counters of a load's process.

use super::spec::{CHUNK, TAKE_MAX};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// State shared between the worker threads and the controlling thread.
pub(super) struct LoadState {
    running: Mutex<bool>,
    changed: Condvar,
    /// Copy of `running` that can be read for each operation.
    pub(super) run: AtomicBool,
    bytes: AtomicU64,
    operations: AtomicU64,
    /// Bytes per call of a sink.
    pub(super) take: AtomicUsize,
    /// Bytes per call of a source.
    pub(super) give: AtomicUsize,
    /// Round-trip times, nanoseconds.
    latency: Mutex<Histogram<u64>>,
}

impl LoadState {
    pub(super) fn new() -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            running: Mutex::new(false),
            changed: Condvar::new(),
            run: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            take: AtomicUsize::new(TAKE_MAX),
            give: AtomicUsize::new(CHUNK),
            latency: Mutex::new(Histogram::new_with_max(60_000_000_000, 3)?),
        }))
    }

    /// Waits until the load is started.
    pub(super) fn wait(&self) {
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

    pub(super) fn set(&self, run: bool) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = run;
        self.run.store(run, Ordering::Relaxed);
        self.changed.notify_all();
    }

    pub(super) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn round_trip(&self, time: Duration) {
        let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        latency.saturating_record(time.as_nanos().min(u128::from(u64::MAX)) as u64);
    }

    pub(super) fn take_latency(&self) -> Option<(f64, f64)> {
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

/// Absolute counters. Marks are differences between them.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) ns: u64,
    pub(super) bytes: u64,
    pub(super) operations: u64,
    pub(super) cpu_ns: u64,
    pub(super) segments: u64,
    pub(super) sent_segments: u64,
    pub(super) frames: u64,
    pub(super) frame_bytes: u64,
}

impl Totals {
    pub(super) fn now(state: &LoadState) -> Self {
        use rustix::time::{ClockId, clock_gettime};
        let ns = |clock| {
            let time = clock_gettime(clock);
            (time.tv_sec * 1_000_000_000 + time.tv_nsec).cast_unsigned()
        };
        let snmp = std::fs::read_to_string("/proc/self/net/snmp").unwrap_or_default();
        let interfaces = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
        let (frames, frame_bytes) = received(&interfaces);
        Self {
            frames,
            frame_bytes,
            ns: ns(ClockId::Monotonic),
            bytes: state.bytes.load(Ordering::Relaxed),
            operations: state.operations.load(Ordering::Relaxed),
            cpu_ns: ns(ClockId::ProcessCPUTime),
            segments: segments(&snmp, "InSegs").unwrap_or(0),
            sent_segments: segments(&snmp, "OutSegs").unwrap_or(0),
        }
    }
}

/// Reads a counter of the kernel's TCP table, which has a line of names and a line of values.
fn segments(snmp: &str, counter: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let at = lines
        .next()?
        .split_whitespace()
        .position(|name| name == counter)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

/// Returns the frames and bytes that all interfaces except the loopback received. Each line has a
/// name, bytes and packets.
fn received(interfaces: &str) -> (u64, u64) {
    let lines = interfaces.lines().filter_map(|line| line.split_once(':'));
    let others = lines.filter(|(name, _)| name.trim() != "lo");
    let counters = others.filter_map(|(_, counters)| {
        let mut counters = counters.split_whitespace().map(str::parse::<u64>);
        let bytes = counters.next()?.ok()?;
        Some((counters.next()?.ok()?, bytes))
    });
    counters.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[cfg(test)]
mod tests {
    use super::{received, segments};

    #[test]
    fn frames_of_known_interfaces() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes    packets errs | bytes\n\
                    lo: 99 9 0 0\n  eth0: 3000 2 0 0\neth1:1500 1 0\nbad: x\n";
        assert_eq!(received(text), (3, 4500));
        assert_eq!(received(""), (0, 0));
    }

    #[test]
    fn segments_of_a_known_table() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: RtoMin MaxConn InSegs OutSegs\n\
                    Tcp: 200 -1 42 7\n";
        assert_eq!(segments(text, "InSegs"), Some(42));
        assert_eq!(segments(text, "OutSegs"), Some(7));
        assert_eq!(segments("Tcp: InSegs\n", "InSegs"), None);
        assert_eq!(segments("Udp: InSegs\nUdp: 3\n", "InSegs"), None);
    }
}
