//! One pass over an interface in one direction: its input and its result.

use runtime::ledger::Ledger;
use runtime::trace::Trace;
use vif::Fatal;

/// Input of a pass, from the main loop.
#[derive(Debug)]
pub struct PassInput<'a> {
    /// The monotonic clock.
    pub now_ns: u64,
    /// Maximum number of frames to move.
    pub budget: usize,
    /// Ledger to charge.
    pub ledger: &'a Ledger,
    /// Trace to record.
    pub trace: &'a mut Trace,
}

/// Result of a pass.
#[derive(Debug, Default)]
pub(super) struct PassOutcome {
    /// Whether any frame moved.
    pub moved: bool,
    /// Whether the rings need publishing.
    pub touched: bool,
    /// Reason why the connection must end, if it must.
    pub fatal: Option<Fatal>,
}
