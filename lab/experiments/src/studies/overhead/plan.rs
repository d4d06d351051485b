//! What the plan `prof-overhead` holds, and the windows that it compares.

use crate::plan::{Config, Direction, Place, Rounds};
use crate::studies::own::OwnPlan;
use serde::Deserialize;

/// The plan's name.
pub const NAME: &str = "prof-overhead";
/// The text of its plan.
pub const TEXT: &str = include_str!("../../../plans/prof-overhead.toml");

/// The plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverheadPlan {
    /// Its name.
    pub(super) name: String,
    /// What it is about, for people.
    pub(super) about: String,
    pub(super) hz: u32,
    pub(super) direction: Vec<Direction>,
    pub(super) place: Vec<Place>,
    #[serde(rename = "bar")]
    pub(super) most: Most,
    pub(super) full: Rounds,
    pub(super) quick: Rounds,
}

/// The shares that profiling may take at the most: of a core, and of throughput.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Most {
    pub(super) cpu: f64,
    pub(super) throughput: f64,
}

impl OwnPlan for OverheadPlan {
    fn rounds(&mut self) -> (&mut Rounds, Rounds) {
        (&mut self.full, self.quick)
    }
}

/// What runs beside the load, as a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// The timers of a profiler, and no samples.
    Timers,
    Profiler,
}

impl Beside {
    pub(super) const ALL: [Self; 3] = [Self::Nothing, Self::Timers, Self::Profiler];

    pub(super) fn column(self) -> &'static str {
        match self {
            Self::Nothing => "bare",
            Self::Timers => "timers",
            Self::Profiler => "profiled",
        }
    }

    /// What the helper is asked before a window.
    pub(super) fn start(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Timers => Some("timers"),
            Self::Profiler => Some("start"),
        }
    }
}

/// Losses of throughput: a metric, whose, and against what.
pub(super) const LOSSES: [(&str, Beside, Beside); 3] = [
    ("loss.throughput", Beside::Profiler, Beside::Nothing),
    ("loss.timers", Beside::Timers, Beside::Nothing),
    ("loss.sampling", Beside::Profiler, Beside::Timers),
];

/// The configuration of a window with that beside the load.
pub(super) fn config(beside: Beside, place: Place, direction: Direction) -> Config {
    let keys = [("dir", direction.name()), ("place", place.name())];
    Config::new(beside.column(), &keys)
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
