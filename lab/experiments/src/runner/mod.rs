//! What a run showed: samples of every configuration round by round, and the figures they make.

mod beside;
mod comparisons;
mod samples;

pub use beside::{Stands, words};
pub use samples::{Samples, Series};
