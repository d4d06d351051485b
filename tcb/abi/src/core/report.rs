//! Status and audit, as bytes attached to an answer: their fields, in words of eight bytes.

use super::field::{Field, Reader, Writer, fields};
use super::wire::Malformed;
use crate::status::{Audit, ConnectionStatus, DomainAudit, DomainReport, GrantInUse};

/// The core's report on every domain and connection.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreStatus {
    /// CPU time of the core, nanoseconds.
    pub cpu_ns: u64,
    /// CPU time of netd, nanoseconds.
    pub netd_cpu_ns: u64,
    /// Features that this system lacks.
    pub missing: Vec<String>,
    /// Every domain.
    pub domains: Vec<DomainReport>,
    /// Every connection.
    pub connections: Vec<ConnectionStatus>,
}

fields! { CoreStatus { cpu_ns netd_cpu_ns missing domains connections } }
fields! {
    DomainReport {
        name state program alive id pid agent_pid cpu_ns agent_cpu_ns worker_cpu_ns hypercalls
        operations system_calls
    }
}
fields! { ConnectionStatus { backend frontend handle backend_state frontend_state } }
fields! { Audit { leaked created revoked forced domains } }
fields! { DomainAudit { name alive lingers owned granted mapped collateral_used in_use } }
fields! { GrantInUse { by gref frame mappings writable } }

/// Encodes a status or an audit.
#[must_use]
pub fn encode_report(report: &impl Field) -> Vec<u8> {
    let mut to = Writer::default();
    report.put(&mut to);
    to.0.into_iter().flat_map(u64::to_le_bytes).collect()
}
