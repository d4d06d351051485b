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
    /// Its earlier ends; `None`: it is not restarted.
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
    /// The number of latest consecutive processes that ended soon after their start.
    pub in_a_row: u32,
    /// The last outage: nanoseconds from its beginning until a new process was ready; `None`: not
    /// yet.
    pub ready_ns: Option<u64>,
    /// Nanoseconds until all its connections were up, except those whose other end is dead.
    pub connected_ns: Option<u64>,
    /// A histogram of the outages by that duration: at most 1 ms, 2 ms, 4 ms … and, in the last
    /// class, longer.
    #[serde(default)]
    pub outages: [u64; 16],
    /// The sum of all outages, nanoseconds.
    #[serde(default)]
    pub outages_ns: u64,
}
