//! Output of sessions: reports, comparisons, exports.

pub mod diff;
pub mod export;
pub mod flame;
pub mod report;
mod sums;
mod text;
pub mod top;

pub use report::report;
