//! What a demonstration found.

use crate::lane::running::Running;
use crate::plan::{Direction, Workload};
use crate::progress;
use client::Reach;
use figures::report::Figure;
use indicatif::ProgressBar;

/// The plan's name in figures.
pub(super) const PLAN: &str = "demo";
/// The column's name in figures.
pub(super) const COLUMN: &str = "grantway";

/// What a demonstration found, for the report.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) figures: Vec<Figure>,
    /// What the driver domain could reach.
    pub(super) reach: Reach,
    /// Lines for people: what was left out and why.
    pub(super) notes: Vec<String>,
}

/// Asks the monitor what the driver domain can reach.
pub(super) fn look(running: &Running) -> anyhow::Result<Reach> {
    Ok(Reach::of(&running.status()?, &running.audit()?))
}

/// The monitor's figures, which belong to no direction.
pub(super) fn add_reach(found: &mut Findings, up_ms: f64) {
    let reach = &found.reach;
    for (metric, value) in [
        ("grants.granted", reach.granted as f64),
        ("grants.owned", reach.owned as f64),
        ("grants.leaked", reach.leaked as f64),
        ("system_calls", reach.system_calls as f64),
        ("up_ms", up_ms),
    ] {
        found
            .figures
            .push(Figure::single(PLAN, COLUMN, metric, value));
    }
}

/// The bar of so many windows.
pub(super) fn bar(windows: u64) -> ProgressBar {
    progress::bar(windows, "{bar:30} {msg}")
}

/// What a window has, for the bar.
pub(super) fn title(workload: Workload, direction: Direction) -> String {
    match workload {
        Workload::Stream => format!("a TCP stream, {}", direction.name()),
        Workload::Requests(_) => format!("requests and responses, {}", direction.name()),
    }
}
