//! Studies: what can be run by `exp`. The table of all of them is in [`crate::exp`].
//!
//! | module | what it looks at |
//! |---|---|
//! | [`attach`] | how long a guest takes to come and to go while a machine runs |
//! | [`base`] | columns side by side, raw frames, times to come up: most plans |
//! | [`overhead`] | what the profiler takes from the machine that it looks at |
//! | [`receive_buffer`] | throughput against the size of the receiver's buffer |
//! | `own` | what those of a form of their own share |
//! | [`restart`] | how long guests are without a network when the driver domain is killed |
//! | [`uplink`] | how a machine joins the host's network |

pub mod attach;
pub mod base;
pub mod overhead;
mod own;
pub mod receive_buffer;
pub mod restart;
pub mod uplink;

use crate::html::Flames;
use crate::plan::Adjustment;
use figures::Failure;
use figures::provenance::Provenance;
use figures::report::Figure;
use std::path::Path;

/// A plan as a command line has changed it: how it is run, and how its figures are shown.
pub trait Study {
    /// Its name, the argument of `exp`.
    fn name(&self) -> &str;

    /// What it is about, for people.
    fn about(&self) -> &str;

    /// Runs it. A study of several parts keeps each in `folder` as soon as it has it, and takes
    /// from there what an earlier run was broken off after.
    ///
    /// # Errors
    /// If what it needs cannot be set up or breaks, or the user asked to stop. A column whose
    /// programs are not installed may be reported as not measurable instead.
    fn run(&self, folder: Option<&Path>) -> anyhow::Result<Outcome>;

    /// The figures as a page beside a paper's, with links to flame graphs; none where a plan
    /// repeats no paper.
    ///
    /// # Errors
    /// If the paper's data cannot be read.
    fn page(&self, _ran: &Outcome, _flames: &Flames) -> anyhow::Result<Option<String>> {
        Ok(None)
    }

    /// The figures as text.
    fn tables(&self, figures: &[Figure]) -> String;
}

/// What a run found, and where that comes from.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Where figures come from.
    pub provenance: Provenance,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// From a plan's text, as a command line changes it, to a study.
pub type Open = fn(&str, &Adjustment) -> Result<Box<dyn Study>, Failure>;
