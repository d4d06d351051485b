//! Traces one packet through all hops of this domain.
//!
//! A request arms the trace. The trace then follows the first frame of the next batch through this
//! domain, and records each hop's action and time. It stops at the end of the batch, so a trace
//! never covers two frames.

mod frame;
mod words;

pub use words::{DropSnapshot, dropped};

use crate::ledger::Hop;
use nic::Frame;
use serde_json::{Value, json};
use shmem::time::{tsc, tsc_hz};

/// The tracer of one domain.
#[derive(Debug, Default)]
pub struct Trace {
    armed: bool,
    running: Option<RunningTrace>,
    last: Option<Value>,
}

#[derive(Debug)]
struct RunningTrace {
    from_tsc: u64,
    frame: Value,
    steps: Vec<Value>,
}

impl Trace {
    /// Returns the last completed trace, or null before the first one, and arms the next trace.
    pub fn request(&mut self) -> Value {
        self.armed = true;
        json!({ "trace": self.last.take() })
    }

    /// Begins a batch that arrived at `port`. If the trace is armed, it follows the first frame.
    #[inline]
    pub fn begin(&mut self, hop: Hop, port: &str, frames: &[Frame]) {
        if self.armed
            && let Some(frame) = frames.first()
        {
            self.armed = false;
            self.running = Some(RunningTrace {
                from_tsc: tsc(),
                frame: frame::describe(frame),
                steps: Vec::new(),
            });
            self.step(hop, || match frames.len() {
                1 => format!("received at {port}"),
                n => format!("received at {port}, first of {n} frames"),
            });
        }
    }

    /// Returns whether the trace is armed or running.
    #[inline]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.armed || self.is_running()
    }

    /// Returns whether the trace follows a frame.
    #[inline]
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Records a hop's action on the followed frame.
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

    /// Ends the batch.
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
