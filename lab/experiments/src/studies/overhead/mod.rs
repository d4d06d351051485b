//! The plan `prof-overhead`: the cost of the profiler.
//!
//! The study measures the cost in two independent ways. The *direct* way multiplies the samples and
//! stamps of each core in each profiled window by their unit costs. A calibration in the same run
//! measures the cost of a sample; the domains measure that of a stamp. The *difference* compares
//! throughput in pairs of adjacent windows, one of them profiled. It includes everything, even the
//! time in which the profiler reads its rings. A third window beside each pair runs only the
//! timers, with the same number of interrupts and no samples. It shows the share of the difference
//! that interrupts alone cause.

mod plan;
mod run;
mod stamps;
mod tables;

pub use plan::{NAME, TEXT};

use super::lane_study::LanePlan as _;
use super::{Study, StudyOutcome};
use crate::plan::Adjustment;
use figures::Failure;
use figures::report::Figure;
use plan::OverheadPlan;
use std::path::Path;

/// The study.
#[derive(Debug)]
pub struct Overhead(OverheadPlan);

impl Overhead {
    /// Opens the plan in `text`.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the plan is not valid.
    pub fn open(text: &str, by: &Adjustment) -> Result<Box<dyn Study>, Failure> {
        Ok(Box::new(Self(OverheadPlan::parse(text, by)?)))
    }
}

impl Study for Overhead {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn about(&self) -> &str {
        &self.0.about
    }

    fn run(&self, _folder: Option<&Path>) -> anyhow::Result<StudyOutcome> {
        run::run(&self.0)
    }

    fn tables(&self, figures: &[Figure]) -> String {
        tables::tables(&self.0, figures)
    }
}
