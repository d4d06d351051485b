//! Findings of a demonstration.

use crate::lane::running::Running;
use crate::plan::{PayloadDirection, Workload};
use crate::progress;
use client::DriverAccess;
use figures::report::Figure;
use indicatif::ProgressBar;

/// Plan name in figures.
pub(super) const PLAN: &str = "demo";
/// Column name in figures.
pub(super) const COLUMN: &str = "grantway";

/// Findings of a demonstration, which the report prints.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) figures: Vec<Figure>,
    /// Memory that the driver domain could access.
    pub(super) access: DriverAccess,
    /// Notes for users: omitted parts, with reasons.
    pub(super) notes: Vec<String>,
}

/// Queries the monitor for the memory that the driver domain can access.
pub(super) fn query_access(running: &Running) -> anyhow::Result<DriverAccess> {
    Ok(DriverAccess::of(&running.status()?, &running.audit()?))
}

/// Adds the monitor's figures, which apply to both directions.
pub(super) fn add_access(found: &mut Findings, up_ms: f64) {
    let access = &found.access;
    for (metric, value) in [
        ("grants.granted", access.granted as f64),
        ("grants.owned", access.owned as f64),
        ("grants.leaked", access.leaked as f64),
        ("system_calls", access.system_calls as f64),
        ("up_ms", up_ms),
    ] {
        found
            .figures
            .push(Figure::single(PLAN, COLUMN, metric, value));
    }
}

/// Creates a progress bar for this many windows.
pub(super) fn bar(windows: u64) -> ProgressBar {
    progress::bar(windows, "{bar:30} {msg}")
}

/// Returns the title of a window, for the progress bar.
pub(super) fn title(workload: Workload, direction: PayloadDirection) -> String {
    match workload {
        Workload::Stream => format!("a TCP stream, {}", direction.name()),
        Workload::Requests(_) => format!("requests and responses, {}", direction.name()),
    }
}
