//! The hypervisor's reports: the status of every domain, and the audit.

use crate::domain::Domain;
use crate::hypervisor::Hypervisor;
use abi::status::{Audit, ConnectionStatus, DomainAudit, DomainReport, GrantInUse};
use std::sync::atomic::Ordering;

/// Returns a description of a domain's state.
fn state(domain: &Domain) -> String {
    match domain.liveness.text() {
        why if domain.lingers() => format!("{why}; its process has not ended yet"),
        text => text.to_owned(),
    }
}

impl Hypervisor {
    /// Returns every domain's status.
    pub fn domain_status(&mut self) -> Vec<DomainReport> {
        let report = |domain: &mut Domain| {
            let [cpu_ns, agent_cpu_ns, worker_cpu_ns] = domain.read_cpu();
            DomainReport {
                name: domain.spec.name.as_str().to_owned(),
                id: domain.id.0,
                program: domain.spec.program,
                state: state(domain),
                alive: domain.liveness.is_alive(),
                pid: domain.pids.0,
                agent_pid: domain.pids.1,
                cpu_ns,
                agent_cpu_ns,
                worker_cpu_ns,
                hypercalls: domain.counters.calls.load(Ordering::Relaxed),
                operations: domain.counters.operations.load(Ordering::Relaxed),
                system_calls: sandbox::system_calls((&*domain.spec).into()).len() as u32,
            }
        };
        self.domains.iter_mut().map(report).collect()
    }

    /// Returns every connection's status.
    #[must_use]
    pub fn connection_status(&self) -> Vec<ConnectionStatus> {
        self.shared.connections.list(|id| self.name(id))
    }

    /// Returns every grant in use and every mapping.
    #[must_use]
    pub fn audit(&self) -> Audit {
        let (mut accounts, leaked) = self.shared.audit();
        let domains = self.domains.iter().map(|domain| {
            let account = accounts.remove(&domain.id).unwrap_or_default();
            let in_use = account.in_use.iter().map(|grant| GrantInUse {
                gref: grant.index,
                frame: grant.frame,
                by: self.name(grant.by),
                mappings: grant.mappings,
                writable: grant.writable,
            });
            DomainAudit {
                name: domain.spec.name.as_str().to_owned(),
                alive: domain.liveness.is_alive(),
                lingers: domain.lingers(),
                owned: account.owned,
                granted: account.granted.len() as u32,
                mapped: account.mapped.len() as u32,
                collateral_used: account.collateral_used,
                in_use: in_use.collect(),
            }
        });
        let domains = domains.collect();
        let counters = &self.shared.counted.counters;
        // The remaining accounts belong to ids without a domain.
        let ownerless = accounts.values().map(|account| u64::from(account.owned));
        Audit {
            domains,
            leaked: leaked.saturating_add(ownerless.sum()),
            created: counters.created.load(Ordering::Relaxed),
            revoked: counters.revoked.load(Ordering::Relaxed),
            forced: counters.forced.load(Ordering::Relaxed),
        }
    }
}
