//! Output of sessions: reports, comparisons, exports.

mod cells;
pub mod diff;
pub mod export;
pub mod flame;
mod functions;
pub mod pprof;
pub mod report;
pub mod script;
mod sums;
mod text;
pub mod top;

pub use report::report;
