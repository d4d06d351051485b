//! Status and audit, as bytes that travel beside an answer: counts before what is counted, numbers
//! little-endian in eight bytes, texts behind their lengths.

use crate::XenbusState;
use crate::machine::{Audit, ConnectionStatus, DomainAudit, DomainStatus, GrantInUse, Program};

/// What the core knows of every domain and connection.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreStatus {
    /// CPU time of the core, nanoseconds.
    pub cpu_ns: u64,
    /// CPU time of netd, nanoseconds.
    pub netd_cpu_ns: u64,
    /// What the start had to do without, in words.
    pub missing: Vec<String>,
    /// Every domain.
    pub domains: Vec<DomainStatus>,
    /// Every connection.
    pub connections: Vec<ConnectionStatus>,
}

/// The bytes of a status.
#[must_use]
pub fn status_bytes(status: &CoreStatus) -> Vec<u8> {
    let mut to = Bytes(Vec::new());
    to.number(status.cpu_ns);
    to.number(status.netd_cpu_ns);
    to.list(&status.missing, |to, what| to.text(what));
    to.list(&status.domains, |to, domain| {
        to.text(&domain.name);
        to.text(&domain.state);
        to.number(u64::from(domain.program == Program::Driver));
        to.number(u64::from(domain.alive));
        to.number(u64::from(domain.id));
        to.number(u64::from(domain.pid as u32));
        to.number(u64::from(domain.agent_pid as u32));
        to.number(domain.cpu_ns);
        to.number(domain.agent_cpu_ns);
        to.number(domain.worker_cpu_ns);
        to.number(domain.hypercalls);
        to.number(domain.operations);
        to.number(u64::from(domain.system_calls));
    });
    to.list(&status.connections, |to, connection| {
        to.text(&connection.backend);
        to.text(&connection.frontend);
        to.number(u64::from(connection.handle));
        to.number(connection.backend_state as u64);
        to.number(connection.frontend_state as u64);
    });
    to.0
}

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

/// The bytes of an audit.
#[must_use]
pub fn audit_bytes(audit: &Audit) -> Vec<u8> {
    let mut to = Bytes(Vec::new());
    for number in [audit.leaked, audit.created, audit.revoked, audit.forced] {
        to.number(number);
    }
    to.list(&audit.domains, |to, domain| {
        to.text(&domain.name);
        to.number(u64::from(domain.alive));
        to.number(u64::from(domain.lingers));
        for number in [
            domain.owned,
            domain.granted,
            domain.mapped,
            domain.collateral_used,
        ] {
            to.number(u64::from(number));
        }
        to.list(&domain.in_use, |to, grant| {
            to.text(&grant.by);
            to.number(u64::from(grant.gref));
            to.number(u64::from(grant.frame));
            to.number(u64::from(grant.mappings));
            to.number(u64::from(grant.writable));
        });
    });
    to.0
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

struct Bytes(Vec<u8>);

impl Bytes {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend(text.bytes());
    }

    fn list<T>(&mut self, all: &[T], each: impl Fn(&mut Self, &T)) {
        self.number(all.len() as u64);
        all.iter().for_each(|one| each(self, one));
    }
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
