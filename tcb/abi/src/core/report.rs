//! Status and audit, as bytes that travel beside an answer: counts before what is counted, numbers
//! little-endian in eight bytes, texts behind their lengths.

use crate::status::{Audit, ConnectionStatus, DomainStatus, Program};

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
