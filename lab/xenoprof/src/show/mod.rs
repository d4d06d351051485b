//! What people and programs get to see of a session.

pub mod diff;
pub mod export;
pub mod flame;
pub mod report;
mod sums;
mod text;
pub mod top;

pub use report::report;
