//! Studies that `exp` runs. [`crate::exp`] has the table of all of them.
//!
//! | module | subject |
//! |---|---|
//! | [`attach`] | attach and detach latency on a running machine |
//! | [`base`] | columns side by side, raw frames, start-up times: most plans |
//! | [`egress`] | limits of the traffic to guests, and the latency of other guests |
//! | [`overhead`] | cost of the profiler |
//! | [`receive_buffer`] | throughput against the size of the receive buffer |
//! | `lane_study` | code shared by studies whose plans have a separate form |
//! | [`restart`] | outage of guests when the driver domain is killed |
//! | [`uplink`] | connections of a machine to the host's network |

pub mod attach;
pub mod base;
pub mod egress;
mod lane_study;
pub mod overhead;
pub mod receive_buffer;
pub mod restart;
pub mod uplink;

use crate::html::Flames;
use crate::plan::Adjustment;
use figures::Failure;
use figures::provenance::Provenance;
use figures::report::Figure;
use std::path::Path;

/// A plan with command-line options applied, which can be run and whose figures can be formatted.
pub trait Study {
    /// Returns the plan's name, the argument of `exp`.
    fn name(&self) -> &str;

    /// Returns the one-line description for users.
    fn about(&self) -> &str;

    /// Runs the study. A study of several parts saves each part in `folder` as it completes, and
    /// reuses the parts that an interrupted run saved.
    ///
    /// # Errors
    /// Returns an error if a required set-up fails, or the user interrupted the run. A column whose
    /// programs are not installed may be reported as not measurable instead.
    fn run(&self, folder: Option<&Path>) -> anyhow::Result<StudyOutcome>;

    /// Returns an HTML page of the figures beside a paper's, with links to flame graphs. Returns
    /// `None` if the plan reproduces no paper.
    ///
    /// # Errors
    /// Returns an error if the paper's data cannot be read.
    fn page(&self, _ran: &StudyOutcome, _flames: &Flames) -> anyhow::Result<Option<String>> {
        Ok(None)
    }

    /// Returns the figures as text.
    fn tables(&self, figures: &[Figure]) -> String;
}

/// Figures of a run and their provenance.
#[derive(Clone, Debug)]
pub struct StudyOutcome {
    /// Provenance of the figures.
    pub provenance: Provenance,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// Opens a study from a plan's text and command-line options.
pub type Open = fn(&str, &Adjustment) -> Result<Box<dyn Study>, Failure>;
