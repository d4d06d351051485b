//! What the core tells of domains and connections. People see it as JSON; the core sends it as
//! bytes ([`crate::core::report_bytes`]).

use crate::connect::XenbusState;

/// Which program a domain runs; also chooses its filter profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "json",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Program {
    /// The driver domain.
    Driver,
    /// A guest domain.
    Guest,
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
    /// `starting`, `running`, or how it ended.
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
    /// Operations in them.
    pub operations: u64,
    /// System calls that its filter lets through.
    pub system_calls: u32,
}

/// One connection of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(serde::Serialize, serde::Deserialize))]
pub struct ConnectionStatus {
    /// Name of the domain that serves.
    pub backend: String,
    /// Name of the domain that is served.
    pub frontend: String,
    /// Number of the interface within the frontend.
    pub handle: u16,
    /// The two states.
    pub backend_state: XenbusState,
    /// The two states.
    pub frontend_state: XenbusState,
}

/// What `grantway grants` shows: every grant in use and every mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(serde::Serialize, serde::Deserialize))]
pub struct Audit {
    /// Every domain's account.
    pub domains: Vec<DomainAudit>,
    /// Grants in use that no mapping accounts for, mappings without a grant, frames that no
    /// living domain owns: 0, or the monitor has a bug.
    pub leaked: u64,
    /// Grants of the new mechanism that were made.
    pub created: u64,
    /// Those that were revoked.
    pub revoked: u64,
    /// Those that were revoked by force while they were in use.
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
    /// Whether it was killed more than 2 s ago and the kernel has not let go of its process. What
    /// it had mapped is in use until it does.
    #[cfg_attr(feature = "json", serde(default))]
    pub lingers: bool,
    /// Pages that it owns: its page frames, and those of exchanges that are its own now.
    pub owned: u32,
    /// Distinct frames of its own that it grants to somebody.
    pub granted: u32,
    /// Distinct frames of others that are in its window now.
    pub mapped: u32,
    /// Frames that others' forced revocations cost it now.
    pub collateral_used: u32,
    /// Every grant of its own that is in use.
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
    /// Who uses it.
    pub by: String,
    /// Mappings of it.
    pub mappings: u32,
    /// Whether any of them may write.
    pub writable: bool,
}
