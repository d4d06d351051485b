//! One pass over an interface in one direction: what it gets, and what came of it.

use runtime::ledger::Ledger;
use runtime::trace::Trace;
use vif::Fatal;

/// What a pass gets from the main loop.
#[derive(Debug)]
pub struct Pass<'a> {
    /// The monotonic clock.
    pub now_ns: u64,
    /// Frames that it may move at the most.
    pub budget: usize,
    /// Where its cycles are charged.
    pub ledger: &'a Ledger,
    /// Where a frame is followed.
    pub trace: &'a mut Trace,
}

/// What came of a pass.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Whether any frame moved.
    pub moved: bool,
    /// Whether there is anything in the rings to publish.
    pub touched: bool,
    /// What has ended the connection.
    pub fatal: Option<Fatal>,
}
