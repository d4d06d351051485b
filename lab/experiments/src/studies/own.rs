//! What studies whose plans have forms of their own share: a plan from its text, a lane for each
//! column, and rounds of them.

use crate::lane::Lane;
use crate::lane::cores::Cores;
use crate::plan::{Adjustment, Config, Rounds};
use crate::runner::Samples;
use figures::{Failure, interrupt};
use serde::de::DeserializeOwned;

/// A plan of its own form.
pub(super) trait OwnPlan: DeserializeOwned {
    /// Its rounds, and those of a short run.
    fn rounds(&mut self) -> (&mut Rounds, Rounds);

    /// From its text, its rounds as a command line changes them.
    ///
    /// # Errors
    /// [`Failure::Usage`] saying what is wrong with it, or with what is left of it.
    fn parse(text: &str, by: &Adjustment) -> Result<Self, Failure> {
        let mut plan: Self =
            toml::from_str(text).map_err(|error| Failure::Usage(error.to_string()))?;
        let (full, quick) = plan.rounds();
        *full = full.adjusted(quick, by)?;
        Ok(plan)
    }
}

/// A column that is one lane.
pub(super) trait LaneColumn {
    /// Its name.
    fn name(&self) -> &str;

    /// Whether it is no failure if this system cannot run it.
    fn may_lack(&self) -> bool;

    /// Sets it up.
    ///
    /// # Errors
    /// If namespaces cannot be made, or what lies between does not start.
    fn lane(&self, cores: Cores) -> anyhow::Result<Lane>;
}

/// The lanes of all columns. `configs` are a column's configurations: those of one that this system
/// cannot run are noted as not measurable.
///
/// # Errors
/// If a lane cannot be set up.
pub(super) fn lanes<'a, C: LaneColumn>(
    columns: &'a [C],
    configs: impl Fn(&C) -> Vec<Config>,
    cores: Cores,
    samples: &mut Samples,
) -> anyhow::Result<Vec<(&'a C, Lane)>> {
    let mut lanes = Vec::new();
    for column in columns {
        let lane = column.lane(cores);
        let lane = samples.made(column.name(), lane, column.may_lack(), configs(column))?;
        if let Some(remark) = lane.as_ref().and_then(Lane::remark) {
            for config in configs(column) {
                samples.note(&config, remark);
            }
        }
        lanes.extend(lane.map(|lane| (column, lane)));
    }
    Ok(lanes)
}

/// Round by round, each told to who watches.
///
/// # Errors
/// Those of a round, and that the user asked to stop.
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

/// Looks at all columns at each stop, round by round, so that what disturbs the machine disturbs
/// all.
///
/// # Errors
/// Those of `look`, and that the user asked to stop.
pub(super) fn interleave<C, S: Copy>(
    count: usize,
    stops: &[S],
    lanes: &mut [(&C, Lane)],
    mut look: impl FnMut(usize, S, &C, &mut Lane) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    rounds(count, |round| {
        for &stop in stops {
            for (column, lane) in &mut *lanes {
                interrupt::check()?;
                look(round, stop, column, lane)?;
            }
        }
        Ok(())
    })
}
