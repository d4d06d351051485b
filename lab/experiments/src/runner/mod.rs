//! Results of a run: samples per configuration and round, and the figures computed from them.

mod comparisons;
mod paper_ratios;
mod samples;

pub use paper_ratios::{ReproducedConfig, ReproducedConfigs, words};
pub use samples::{Samples, Series};
