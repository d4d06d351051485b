//! What people and programs get to see of a session.

pub mod report;
mod sums;
mod text;

pub use report::report;
