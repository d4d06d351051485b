//! One packet, hop by hop.
//!
//! Armed by a request, the trace follows the first frame of the next batch through this domain:
//! what each hop did with it and when. It ends with the batch, so a trace never spans two frames.

use crate::ledger::Hop;
use nic::{Checksum, Frame};
use serde_json::{Value, json};
use shmem::time::{tsc, tsc_hz};
use std::fmt::Write as _;

/// Bytes of the header that a trace shows.
const SHOWN: usize = 64;

/// The tracer of one domain.
#[derive(Debug, Default)]
pub struct Trace {
    armed: bool,
    running: Option<Running>,
    last: Option<Value>,
}

#[derive(Debug)]
struct Running {
    from_tsc: u64,
    frame: Value,
    steps: Vec<Value>,
}

impl Trace {
    /// The answer to a request: the last trace that was completed (null: none yet); the next
    /// packet is followed.
    pub fn request(&mut self) -> Value {
        self.armed = true;
        json!({ "trace": self.last.take() })
    }

    /// A batch came in at `port`; its first frame is followed if somebody asked for it.
    #[inline]
    pub fn begin(&mut self, hop: Hop, port: &str, frames: &[Frame]) {
        if self.armed
            && let Some(frame) = frames.first()
        {
            self.armed = false;
            self.running = Some(Running {
                from_tsc: tsc(),
                frame: describe(frame),
                steps: Vec::new(),
            });
            self.step(hop, || format!("came in at {port}"));
        }
    }

    /// Whether a frame is being followed.
    #[inline]
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// What a hop did with the frame that is being followed.
    #[inline]
    pub fn step(&mut self, hop: Hop, what: impl FnOnce() -> String) {
        if let Some(running) = &mut self.running {
            let cycles = tsc().wrapping_sub(running.from_tsc);
            let ns = (u128::from(cycles) * 1_000_000_000 / u128::from(tsc_hz())) as u64;
            let name = Hop::ALL.get(hop as usize).map_or("", |&(_, name)| name);
            running
                .steps
                .push(json!({ "hop": name, "at_ns": ns, "what": what() }));
        }
    }

    /// The batch is over.
    #[inline]
    pub fn end(&mut self) {
        if let Some(running) = self.running.take() {
            self.last = Some(json!({ "frame": running.frame, "hops": running.steps }));
        }
    }
}

fn describe(frame: &Frame) -> Value {
    let header = frame.header();
    let shown = header.get(..SHOWN.min(header.len())).unwrap_or(&[]);
    let mut hex = String::with_capacity(2 * shown.len());
    for byte in shown {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    json!({
        "bytes": frame.len(),
        "pieces": frame.pieces.len(),
        "checksum": match frame.offload.checksum {
            Checksum::Unknown => "as is",
            Checksum::Blank { .. } => "blank",
            Checksum::Valid => "valid",
        },
        "gso_bytes": frame.offload.gso.map(|gso| gso.size),
        "header": hex,
    })
}
