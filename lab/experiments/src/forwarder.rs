//! The baseline for a driver domain: one process with two TAPs, one `read` and one `write` per
//! frame or segment, and no isolation.

use abi::machine::Tap;
use anyhow::Context as _;
use figures::helper::{self, LineChild};
use figures::measure::pin;
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Maximum number of frames read from one side before the other side is served.
const BUDGET: u32 = 64;

/// Buffer size, bytes: more than a virtio-net header and a segment.
const FRAME_MAX: usize = 128 << 10;

/// Returns a side without offloads, which carries only frames.
#[must_use]
pub fn side(ifname: &str, netns: &Path, address: Option<String>) -> Tap {
    Tap {
        ifname: ifname.to_owned(),
        netns: Some(netns.display().to_string()),
        mac: None,
        addresses: address.into_iter().collect(),
        mtu: 1500,
        // The kernel's default for a TAP.
        tx_queue: 500,
        ..Tap::default()
    }
}

/// Returns a side that carries segments.
#[must_use]
pub fn tap_end_with_segments(ifname: &str, netns: &Path, address: Option<String>) -> Tap {
    Tap {
        vnet_header: true,
        checksum: true,
        tso: true,
        ..side(ifname, netns, address)
    }
}

/// Arguments of the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwarderSpec {
    /// The two sides.
    pub taps: [Tap; 2],
    /// Core of the process; `None`: any.
    pub cpu: Option<usize>,
}

/// Frames forwarded since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Frames.
    pub packets: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Frames that the other side rejected.
    pub drops: u64,
}

/// A running forwarder.
#[derive(Debug)]
pub struct Forwarder {
    child: LineChild,
}

impl Forwarder {
    /// Starts the process. Both TAPs are up when this returns.
    ///
    /// # Errors
    /// Returns an error if a TAP cannot be created.
    pub fn start(spec: &ForwarderSpec) -> anyhow::Result<Self> {
        let mut command = helper::own("forward")?;
        command.arg(serde_json::to_string(spec)?);
        let child = LineChild::start("forwarder", command, Duration::from_secs(30))?;
        Ok(Self { child })
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn counters(&mut self) -> anyhow::Result<Counters> {
        let answer = self.child.request("mark", Duration::from_secs(30))?;
        Ok(serde_json::from_value(answer)?)
    }
}

#[derive(Default)]
struct Tally {
    packets: AtomicU64,
    bytes: AtomicU64,
    drops: AtomicU64,
}

/// Runs the helper process.
///
/// # Errors
/// Returns an error if a TAP cannot be opened or the core cannot be used.
pub fn main(spec: &ForwarderSpec) -> anyhow::Result<()> {
    if let Some(cpu) = spec.cpu {
        pin(cpu)?;
    }
    let [a, b] = &spec.taps;
    let open = |tap: &Tap| {
        netdev::tool_setup::open_tap(tap).with_context(|| format!("TAP {}", tap.ifname))
    };
    let taps = [open(a)?, open(b)?];
    let tally = Arc::new(Tally::default());
    let theirs = Arc::clone(&tally);
    std::thread::Builder::new().spawn(move || {
        if let Err(error) = forward(&taps, &theirs) {
            eprintln!("forwarder: {error}");
            std::process::exit(1);
        }
    })?;
    helper::reply(&serde_json::json!({"ready": true}));
    helper::serve(|_| {
        let counters = Counters {
            packets: tally.packets.load(Ordering::Relaxed),
            bytes: tally.bytes.load(Ordering::Relaxed),
            drops: tally.drops.load(Ordering::Relaxed),
        };
        Some(serde_json::to_value(counters).unwrap_or_default())
    });
    Ok(())
}

fn forward(taps: &[OwnedFd; 2], tally: &Tally) -> rustix::io::Result<()> {
    let mut frame = vec![0u8; FRAME_MAX];
    let [a, b] = taps;
    loop {
        let mut set = [PollFd::new(a, PollFlags::IN), PollFd::new(b, PollFlags::IN)];
        match poll(&mut set, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let [from_a, from_b] = set.map(|side| !side.revents().is_empty());
        for (ready, from, to) in [(from_a, a, b), (from_b, b, a)] {
            if !ready {
                continue;
            }
            for _ in 0..BUDGET {
                let Ok(count) = rustix::io::read(from, &mut *frame) else {
                    break;
                };
                let bytes = frame.get(..count).unwrap_or_default();
                if rustix::io::write(to, bytes) == Ok(count) {
                    tally.packets.fetch_add(1, Ordering::Relaxed);
                    tally.bytes.fetch_add(count as u64, Ordering::Relaxed);
                } else {
                    tally.drops.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}
