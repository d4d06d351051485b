//! The manager's side of [`super::report`]: status and audit out of bytes.

use super::report::CoreStatus;
use crate::XenbusState;
use crate::status::{Audit, ConnectionStatus, DomainAudit, DomainStatus, GrantInUse, Program};

/// The status of these bytes; none: they are no status.
#[must_use]
pub fn status_of(bytes: &[u8]) -> Option<CoreStatus> {
    let mut from = Cursor(bytes);
    let status = CoreStatus {
        cpu_ns: from.number()?,
        netd_cpu_ns: from.number()?,
        missing: from.list(Cursor::text)?,
        domains: from.list(|from| {
            Some(DomainStatus {
                name: from.text()?,
                state: from.text()?,
                program: match from.flag()? {
                    true => Program::Driver,
                    false => Program::Guest,
                },
                alive: from.flag()?,
                id: from.small()?,
                pid: from.small::<u32>()? as i32,
                agent_pid: from.small::<u32>()? as i32,
                cpu_ns: from.number()?,
                agent_cpu_ns: from.number()?,
                worker_cpu_ns: from.number()?,
                hypercalls: from.number()?,
                operations: from.number()?,
                system_calls: from.small()?,
                restarts: None,
            })
        })?,
        connections: from.list(|from| {
            Some(ConnectionStatus {
                backend: from.text()?,
                frontend: from.text()?,
                handle: from.small()?,
                backend_state: XenbusState::from_wire(from.number()?)?,
                frontend_state: XenbusState::from_wire(from.number()?)?,
            })
        })?,
    };
    from.is_empty().then_some(status)
}

/// The audit of these bytes; none: they are no audit.
#[must_use]
pub fn audit_of(bytes: &[u8]) -> Option<Audit> {
    let mut from = Cursor(bytes);
    let [leaked, created, revoked, forced] = [
        from.number()?,
        from.number()?,
        from.number()?,
        from.number()?,
    ];
    let domains = from.list(|from| {
        Some(DomainAudit {
            name: from.text()?,
            alive: from.flag()?,
            lingers: from.flag()?,
            owned: from.small()?,
            granted: from.small()?,
            mapped: from.small()?,
            collateral_used: from.small()?,
            in_use: from.list(|from| {
                Some(GrantInUse {
                    by: from.text()?,
                    gref: from.small()?,
                    frame: from.small()?,
                    mappings: from.small()?,
                    writable: from.flag()?,
                })
            })?,
        })
    })?;
    from.is_empty().then_some(Audit {
        domains,
        leaked,
        created,
        revoked,
        forced,
    })
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        self.number()?.try_into().ok()
    }

    fn flag(&mut self) -> Option<bool> {
        match self.number()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<String> {
        let len = self.small()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(std::str::from_utf8(text).ok()?.to_owned())
    }

    /// A count that is too large ends with the bytes, and reserves nothing before.
    fn list<T>(&mut self, each: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(each(self)?);
        }
        Some(all)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
