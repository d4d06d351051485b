//! The manager's report on a domain: the core's report, and its restarts.

use crate::status::DomainReport;
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// One domain of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainStatus {
    /// The core's report.
    #[serde(flatten)]
    pub report: DomainReport,
    /// Statistics of its restarts; `None` if the manager does not restart it.
    #[serde(default)]
    pub restarts: Option<Restarts>,
    /// The names of its interfaces that were removed: frames to and from them are dropped until the
    /// domain is restarted.
    #[serde(default)]
    pub removed: Vec<String>,
    /// Whether it serves a virtual machine.
    #[serde(default)]
    pub serves_vm: bool,
}

impl Deref for DomainStatus {
    type Target = DomainReport;

    fn deref(&self) -> &DomainReport {
        &self.report
    }
}

/// Statistics of a domain's restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// The number of restarts.
    pub count: u64,
    /// The number of its most recent consecutive processes that exited soon after their start.
    pub in_a_row: u32,
    /// Nanoseconds from the beginning of the last outage until a new process was ready; `None` if
    /// none is ready yet.
    pub ready_ns: Option<u64>,
    /// Nanoseconds from the beginning of the last outage until all its connections were up, except
    /// those whose other end is dead.
    pub connected_ns: Option<u64>,
    /// A histogram of that duration over all outages: up to 1 ms, 2 ms, 4 ms … and, in the last
    /// class, longer.
    #[serde(default)]
    pub outages: [u64; 16],
    /// The sum of all outages, nanoseconds.
    #[serde(default)]
    pub outages_ns: u64,
}
