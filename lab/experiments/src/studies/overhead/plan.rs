//! Contents of the plan `prof-overhead`, and the windows that it compares.

use crate::plan::{ColumnConfig, PayloadDirection, Place, Rounds};
use crate::studies::lane_study::LanePlan;
use serde::Deserialize;

/// Plan name.
pub const NAME: &str = "prof-overhead";
/// Text of the plan.
pub const TEXT: &str = include_str!("../../../plans/prof-overhead.toml");

/// Contents of the plan file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverheadPlan {
    /// Plan name.
    pub(super) name: String,
    /// One-line description for users.
    pub(super) about: String,
    pub(super) hz: u32,
    pub(super) direction: Vec<PayloadDirection>,
    pub(super) place: Vec<Place>,
    #[serde(rename = "bar")]
    pub(super) most: CostLimits,
    pub(super) full: Rounds,
    pub(super) quick: Rounds,
}

/// Maximum cost of profiling, as shares of a core and of throughput.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CostLimits {
    pub(super) cpu: f64,
    pub(super) throughput: f64,
}

impl LanePlan for OverheadPlan {
    fn rounds(&mut self) -> (&mut Rounds, Rounds) {
        (&mut self.full, self.quick)
    }
}

/// Activity beside the load. Each variant is one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Nothing,
    /// The timers of a profiler, without samples.
    Timers,
    Profiler,
}

impl Activity {
    pub(super) const ALL: [Self; 3] = [Self::Nothing, Self::Timers, Self::Profiler];

    pub(super) fn column(self) -> &'static str {
        match self {
            Self::Nothing => "bare",
            Self::Timers => "timers",
            Self::Profiler => "profiled",
        }
    }

    /// Returns the request sent to the helper before a window.
    pub(super) fn start(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Timers => Some("timers"),
            Self::Profiler => Some("start"),
        }
    }
}

/// Losses of throughput: metric, subject, and reference.
pub(super) const LOSSES: [(&str, Activity, Activity); 3] = [
    ("loss.throughput", Activity::Profiler, Activity::Nothing),
    ("loss.timers", Activity::Timers, Activity::Nothing),
    ("loss.sampling", Activity::Profiler, Activity::Timers),
];

/// Returns the configuration of a window with this activity beside the load.
pub(super) fn config(
    activity: Activity,
    place: Place,
    direction: PayloadDirection,
) -> ColumnConfig {
    let keys = [("dir", direction.name()), ("place", place.name())];
    ColumnConfig::new(activity.column(), &keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Adjustment;

    #[test]
    fn the_plan_is_valid_and_named_as_its_file() {
        let plan = OverheadPlan::parse(TEXT, &Adjustment::default()).unwrap();
        assert_eq!(plan.name, NAME);
        assert_eq!(plan.full.rounds, 30);
        let quick = Adjustment {
            quick: true,
            ..Adjustment::default()
        };
        let quick = OverheadPlan::parse(TEXT, &quick).unwrap().full;
        assert!(quick.rounds >= 3 && quick.window_s <= 1.0);
        let none = Adjustment {
            rounds: Some(2),
            ..Adjustment::default()
        };
        assert!(OverheadPlan::parse(TEXT, &none).is_err());
    }
}
