//! Output of sessions: reports, comparisons, exports.

mod cells;
pub mod diff;
pub mod export;
mod firefox;
pub mod flame;
pub(crate) mod functions;
pub(crate) mod lines;
mod palette;
pub mod pprof;
pub mod report;
pub mod script;
mod sums;
mod text;
pub mod top;
mod windows;

pub use report::report;
