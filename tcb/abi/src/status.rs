//! The core's report on domains and connections. The core sends it as bytes
//! ([`crate::core::encode_report`]); users receive it as JSON.

use crate::connect::XenbusState;
use crate::wire_enum::wire_enum;

wire_enum! {
    /// The program of a domain; it also selects the filter profile.
    #[derive(Hash)]
    #[cfg_attr(
        feature = "json",
        derive(serde::Serialize, serde::Deserialize),
        serde(rename_all = "lowercase")
    )]
    pub enum Program: u8 from u16 {
        /// The driver domain.
        Driver = 0,
        /// A guest domain.
        Guest = 1,
        /// The device process of a NIC.
        Device = 2,
    }
}

/// One domain of a machine.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "json", derive(serde::Serialize, serde::Deserialize))]
pub struct DomainReport {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u16,
    /// Its program.
    pub program: Program,
    /// `starting`, `running`, or the reason of its exit.
    pub state: String,
    /// Whether it is alive.
    pub alive: bool,
    /// Process id of the domain.
    pub pid: i32,
    /// Process id of its agent.
    pub agent_pid: i32,
    /// CPU time of the domain's process, nanoseconds.
    pub cpu_ns: u64,
    /// CPU time of its agent, nanoseconds.
    pub agent_cpu_ns: u64,
    /// CPU time of the monitor's worker that serves its hypercalls, nanoseconds.
    pub worker_cpu_ns: u64,
    /// Hypercalls made.
    pub hypercalls: u64,
    /// Operations in these calls.
    pub operations: u64,
    /// The number of system calls that its filter allows.
    pub system_calls: u32,
}

/// One connection of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(serde::Serialize, serde::Deserialize))]
pub struct ConnectionStatus {
    /// Name of the serving domain.
    pub backend: String,
    /// Name of the served domain.
    pub frontend: String,
    /// Number of the interface within the frontend.
    pub handle: u16,
    /// The backend's state.
    pub backend_state: XenbusState,
    /// The frontend's state.
    pub frontend_state: XenbusState,
}

/// The output of `grantway grants`: every grant in use and every mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(serde::Serialize, serde::Deserialize))]
pub struct Audit {
    /// Every domain's account.
    pub domains: Vec<DomainAudit>,
    /// The number of grants in use without a mapping, mappings without a grant, and frames without
    /// a living owner: 0 unless the monitor has a bug.
    pub leaked: u64,
    /// Counted grants created.
    pub created: u64,
    /// Counted grants revoked.
    pub revoked: u64,
    /// Counted grants revoked by force while in use.
    pub forced: u64,
}

/// One domain in [`Audit`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(serde::Serialize, serde::Deserialize))]
pub struct DomainAudit {
    /// Its name.
    pub name: String,
    /// Whether it is alive.
    pub alive: bool,
    /// Whether it was killed more than 2 s ago, but its process has not exited yet. Its mappings
    /// stay in use until the exit.
    #[cfg_attr(feature = "json", serde(default))]
    pub lingers: bool,
    /// Pages that it owns: its page frames, and its current pages of exchanges.
    pub owned: u32,
    /// The number of frames that it grants.
    pub granted: u32,
    /// The number of other domains' frames in its window.
    pub mapped: u32,
    /// Frames of its collateral in use.
    pub collateral_used: u32,
    /// Every grant of its frames that is in use.
    pub in_use: Vec<GrantInUse>,
}

/// One grant in [`DomainAudit`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(serde::Serialize, serde::Deserialize))]
pub struct GrantInUse {
    /// The reference.
    pub gref: u32,
    /// The granting domain's frame.
    pub frame: u32,
    /// The domain that uses it.
    pub by: String,
    /// The number of its mappings.
    pub mappings: u32,
    /// Whether any of them is writable.
    pub writable: bool,
}
