//! Code shared by studies whose plan files have a separate format: parsing, a lane for each column,
//! and rounds.

use crate::lane::Lane;
use crate::lane::cores::Cores;
use crate::plan::{Adjustment, ColumnConfig, Rounds};
use crate::runner::Samples;
use figures::{Failure, interrupt};
use serde::de::DeserializeOwned;

/// A plan whose file has a separate format.
pub(super) trait LanePlan: DeserializeOwned {
    /// Returns its rounds, and those of a short run.
    fn rounds(&mut self) -> (&mut Rounds, Rounds);

    /// Parses the plan and applies command-line options to its rounds.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the plan is invalid before or after `by` is applied.
    fn parse(text: &str, by: &Adjustment) -> Result<Self, Failure> {
        let mut plan: Self =
            toml::from_str(text).map_err(|error| Failure::Usage(error.to_string()))?;
        let (full, quick) = plan.rounds();
        *full = full.adjusted(quick, by)?;
        Ok(plan)
    }
}

/// A column with one lane.
pub(super) trait LaneColumn {
    /// Returns the column's name.
    fn name(&self) -> &str;

    /// Returns whether the column may be unavailable on this system without failing the run.
    fn may_lack(&self) -> bool;

    /// Sets up the lane.
    ///
    /// # Errors
    /// Returns an error if namespaces cannot be created, or the path between them does not start.
    fn lane(&self, cores: Cores) -> anyhow::Result<Lane>;
}

/// Sets up the lanes of all columns. `configs` returns a column's configurations. Those of a column
/// that this system cannot run are recorded as not measurable.
///
/// # Errors
/// Returns an error if a lane cannot be set up.
pub(super) fn lanes<'a, C: LaneColumn>(
    columns: &'a [C],
    configs: impl Fn(&C) -> Vec<ColumnConfig>,
    cores: Cores,
    samples: &mut Samples,
) -> anyhow::Result<Vec<(&'a C, Lane)>> {
    let mut lanes = Vec::new();
    for column in columns {
        let lane = column.lane(cores);
        let lane = samples.setup_result(column.name(), lane, column.may_lack(), configs(column))?;
        if let Some(remark) = lane.as_ref().and_then(Lane::remark) {
            for config in configs(column) {
                samples.note(&config, remark);
            }
        }
        lanes.extend(lane.map(|lane| (column, lane)));
    }
    Ok(lanes)
}

/// Runs `count` rounds and reports each on standard error.
///
/// # Errors
/// Returns an error if a round fails, or the user interrupted the run.
pub(super) fn rounds(
    count: usize,
    mut each: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for round in 0..count {
        interrupt::check()?;
        eprintln!("round {} of {count}", round + 1);
        each(round)?;
    }
    Ok(())
}

/// Measures all columns at each point, round by round, so that a disturbance affects all columns
/// alike.
///
/// # Errors
/// Returns an error if `measure` fails or the user interrupted the run.
pub(super) fn interleave<C, S: Copy>(
    count: usize,
    points: &[S],
    lanes: &mut [(&C, Lane)],
    mut measure: impl FnMut(usize, S, &C, &mut Lane) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    rounds(count, |round| {
        for &point in points {
            for (column, lane) in &mut *lanes {
                interrupt::check()?;
                measure(round, point, column, lane)?;
            }
        }
        Ok(())
    })
}
