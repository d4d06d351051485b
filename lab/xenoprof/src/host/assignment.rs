//! Assignment of processes to the domains of a session.

use crate::model::{DomainKind, Mode, ProfiledDomain};
use std::collections::BTreeMap;

/// The domains of a session, and the domain of each process.
#[derive(Clone, Debug, Default)]
pub struct Assigned {
    /// Domains.
    pub domains: Vec<ProfiledDomain>,
    by_pid: BTreeMap<u32, u32>,
}

impl Assigned {
    /// Returns the domain of a process; an unknown process belongs to `other`.
    #[must_use]
    pub fn of(&mut self, pid: u32) -> u32 {
        if let Some(domain) = self.by_pid.get(&pid) {
            return *domain;
        }
        self.put(pid, "other", DomainKind::Other)
    }

    /// Assigns a process to a domain, unless it already has one.
    pub(super) fn put(&mut self, pid: u32, name: &str, kind: DomainKind) -> u32 {
        if let Some(domain) = self.by_pid.get(&pid) {
            return *domain;
        }
        // Compare kinds too: a process named `driver` is not the driver domain.
        let is_it = |domain: &ProfiledDomain| domain.name == name && domain.kind == kind;
        let found = self.domains.iter().position(is_it);
        let index = found.unwrap_or_else(|| {
            self.domains.push(ProfiledDomain {
                name: name.to_owned(),
                kind,
                mode: Mode::Passive,
                cpu_ns: None,
                agent_ns: None,
                ledger: None,
                traffic: None,
                buffer: None,
                missing: None,
            });
            self.domains.len() - 1
        });
        self.by_pid.insert(pid, index as u32);
        index as u32
    }

    /// Returns the domain of a process, or `None` if it is not assigned.
    pub(super) fn domain_mut(&mut self, pid: u32) -> Option<&mut ProfiledDomain> {
        let index = *self.by_pid.get(&pid)?;
        self.domains.get_mut(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_has_one_domain() {
        let mut assigned = Assigned::default();
        let driver = assigned.put(5, "driver", DomainKind::Driver);
        assert_eq!(assigned.put(5, "other", DomainKind::Other), driver);
        assert_eq!(assigned.put(6, "driver", DomainKind::Driver), driver);
        assert_eq!(assigned.domains.len(), 1);
        assert_ne!(assigned.put(7, "driver", DomainKind::Process), driver);
    }
}
