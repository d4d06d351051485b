//! One packet, hop by hop.
//!
//! Armed by a request, the trace follows the first frame of the next batch through this domain:
//! what each hop did with it and when. It ends with the batch, so a trace never spans two frames.

mod frame;
mod words;

pub use words::{Fate, dropped, dropped_by_bridge};

use crate::ledger::Hop;
use nic::Frame;
use serde_json::{Value, json};
use shmem::time::{tsc, tsc_hz};

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
                frame: frame::describe(frame),
                steps: Vec::new(),
            });
            self.step(hop, || match frames.len() {
                1 => format!("came in at {port}"),
                n => format!("came in at {port}, the first of {n}"),
            });
        }
    }

    /// Whether the next frame is to be followed, or one is.
    #[inline]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.armed || self.is_running()
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
            running
                .steps
                .push(json!({ "hop": hop.name(), "at_ns": ns, "what": what() }));
        }
    }

    /// The batch is over.
    #[inline]
    pub fn end(&mut self) {
        if let Some(running) = self.running.take() {
            self.last = Some(json!({
                "frame": running.frame,
                "from_tsc": running.from_tsc,
                "tsc_hz": tsc_hz(),
                "hops": running.steps,
            }));
        }
    }
}
