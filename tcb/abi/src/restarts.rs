//! What the manager says of a domain: what the core tells of it, and how often it has ended.

use crate::status::DomainReport;
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// One domain of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainStatus {
    /// What the core tells.
    #[serde(flatten)]
    pub report: DomainReport,
    /// What is known of its ends before this one; none: it is not started again.
    #[serde(default)]
    pub restarts: Option<Restarts>,
    /// Its interfaces that were removed, by their names: frames to and from them are dropped until
    /// it is started again.
    #[serde(default)]
    pub removed: Vec<String>,
}

impl Deref for DomainStatus {
    type Target = DomainReport;

    fn deref(&self) -> &DomainReport {
        &self.report
    }
}

/// How often a domain was started again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// Processes that were started after the first.
    pub count: u64,
    /// How many of them in a row ended soon.
    pub in_a_row: u32,
    /// The last outage: nanoseconds from its beginning until a new process was ready; none: not
    /// yet.
    pub ready_ns: Option<u64>,
    /// The same until all its connections were up, but for those whose other end is dead.
    pub connected_ns: Option<u64>,
    /// All outages by what they took until then: at most 1 ms, 2 ms, 4 ms … and, the last class,
    /// longer.
    #[serde(default)]
    pub outages: [u64; 16],
    /// All of them together, nanoseconds.
    #[serde(default)]
    pub outages_ns: u64,
}
