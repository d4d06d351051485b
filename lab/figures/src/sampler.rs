//! Messages between the plan `prof-overhead` and the profiler's sampler, which runs as the separate
//! helper process `sample`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the sampler's helper, after `internal`.
pub const HELPER: &str = "sample";

/// Arguments of the helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerSpec {
    /// Samples per second and CPU.
    pub hz: u32,
    /// CPU on which the cost of a sample is measured.
    pub cpu: usize,
}

/// The answer to `stop`, with the counts since `start`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleCounts {
    /// Elapsed time, nanoseconds.
    pub ran_ns: u64,
    /// Number of samples by CPU.
    pub samples: BTreeMap<u32, u64>,
    /// Number of records that the kernel could not write.
    pub lost: u64,
    /// Number of addresses in all call stacks.
    pub frames: u64,
    /// CPU time of the profiler, nanoseconds.
    pub cpu_ns: u64,
}

/// The answer to `calibrate`. The lists have one time per pair of measurements, nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Cost of one sample of a session.
    pub sample_ns: Vec<f64>,
    /// Number of addresses in the call stack of that sample.
    pub frames: f64,
    /// Cost of one timer interrupt.
    pub interrupt_ns: Vec<f64>,
}
