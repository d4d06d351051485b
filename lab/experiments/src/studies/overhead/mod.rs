//! The plan `prof-overhead`: what the profiler takes from the machine that it looks at.
//!
//! Two accounts that do not know of each other. The *direct* one multiplies: samples and stamps of
//! each core in each profiled window, times what one of them costs: a sample by a calibration of
//! the same run, a stamp by the domain's own timing. The *difference* compares throughput in pairs
//! of windows next to each other, one of them profiled, and so holds everything, the profiler's own
//! reading of its rings too. A third window beside each pair has the timers alone, as many
//! interrupts that take no sample: what of the difference is the machine's price for being
//! interrupted.

mod plan;
mod run;
mod stamps;
mod tables;

pub use plan::{NAME, TEXT};

use super::own::OwnPlan as _;
use super::{Outcome, Study};
use crate::plan::Adjustment;
use figures::Failure;
use figures::report::Figure;
use plan::OverheadPlan;
use std::path::Path;

/// The study.
#[derive(Debug)]
pub struct Overhead(OverheadPlan);

impl Overhead {
    /// From the plan's text.
    ///
    /// # Errors
    /// [`Failure::Usage`] saying what is wrong with it.
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

    fn run(&self, _folder: Option<&Path>) -> anyhow::Result<Outcome> {
        run::run(&self.0)
    }

    fn tables(&self, figures: &[Figure]) -> String {
        tables::tables(&self.0, figures)
    }
}
