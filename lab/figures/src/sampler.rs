//! What the plan `prof-overhead` and the profiler say to each other: the helper `sample` is the
//! profiler's sampler by itself.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name behind `internal` of the sampler's helper, which the profiler has.
pub const HELPER: &str = "sample";

/// What the helper is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerSpec {
    /// Samples a second and CPU.
    pub hz: u32,
    /// Where samples are timed.
    pub cpu: usize,
}

/// What it answers to `stop`: what came since `start`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Nanoseconds.
    pub ran_ns: u64,
    /// By CPU.
    pub samples: BTreeMap<u32, u64>,
    /// What the kernel could not write.
    pub lost: u64,
    /// Addresses of all call stacks.
    pub frames: u64,
    /// CPU time of the profiler.
    pub cpu_ns: u64,
}

/// What it answers to `calibrate`: nanoseconds, one figure for each pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// A sample as sessions take it.
    pub sample_ns: Vec<f64>,
    /// Addresses in the call stack of such a sample.
    pub frames: f64,
    /// A timer's interrupt.
    pub interrupt_ns: Vec<f64>,
}
