//! What a run showed: samples of every configuration round by round, and the figures they make.

mod comparisons;
mod samples;

pub use samples::{Samples, Series};
