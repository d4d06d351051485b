//! Connections: two records each, whose states follow xenbus and whose bodies only pass through.

use crate::event::Port;
use abi::layout::{fd, info};
use abi::{ConnId, DomId, RECORD_BYTES, Role, XenbusState};
use rustix::io::Errno;
use shmem::rate::TokenBucket;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Writes of one record in a row, before [`WRITES_PER_SECOND`] counts: each wakes the other end.
const WRITES_BURST: u32 = 64;
/// Writes of one record a second, in the long run.
const WRITES_PER_SECOND: u64 = 32;

/// One end of a connection.
#[derive(Debug)]
struct End {
    domain: DomId,
    /// None once the domain is dead.
    port: Option<Arc<Port>>,
    state: XenbusState,
    body: [u8; RECORD_BYTES],
    writes: TokenBucket,
}

impl End {
    fn new(domain: DomId, port: Arc<Port>) -> Self {
        Self {
            domain,
            port: Some(port),
            state: XenbusState::Initialising,
            body: [0; RECORD_BYTES],
            writes: TokenBucket::new(WRITES_PER_SECOND, WRITES_BURST),
        }
    }
}

#[derive(Debug)]
struct Connection {
    handle: u16,
    backend: End,
    frontend: End,
}

impl Connection {
    fn ends(&mut self, role: Role) -> (&mut End, &mut End) {
        match role {
            Role::Backend => (&mut self.backend, &mut self.frontend),
            Role::Frontend => (&mut self.frontend, &mut self.backend),
        }
    }
}

/// What a domain sees of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The other end's domain.
    pub peer: DomId,
    /// What the domain itself is to it.
    pub role: Role,
    /// The domain's own state.
    pub own: XenbusState,
    /// The other end's state.
    pub state: XenbusState,
    /// The body of the other end's record.
    pub body: [u8; RECORD_BYTES],
}

/// One connection, for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Who serves.
    pub backend: DomId,
    /// Who is served.
    pub frontend: DomId,
    /// Number of the interface within the frontend.
    pub handle: u16,
    /// State of the end that serves.
    pub backend_state: XenbusState,
    /// State of the end that is served.
    pub frontend_state: XenbusState,
}

#[derive(Debug, Default)]
struct Records {
    connections: Vec<Connection>,
    /// A domain's own count of its connections.
    by_domain: BTreeMap<DomId, Vec<(usize, Role)>>,
}

impl Records {
    fn find(&mut self, domain: DomId, conn: ConnId) -> Option<(&mut Connection, Role)> {
        let &(at, role) = self.by_domain.get(&domain)?.get(conn.0 as usize)?;
        Some((self.connections.get_mut(at)?, role))
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct Connections(Mutex<Records>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a connection; both ends start as [`XenbusState::Initialising`] and are told.
    ///
    /// # Errors
    /// One of the domains has [`fd::CONNECTIONS_MAX`] connections already.
    pub fn add(
        &self,
        backend: (DomId, Arc<Port>),
        frontend: (DomId, Arc<Port>),
        handle: u16,
    ) -> Result<(), Errno> {
        let mut records = self.lock();
        let at = records.connections.len();
        let full = |domain| {
            records.by_domain.get(&domain).map_or(0, Vec::len) >= fd::CONNECTIONS_MAX as usize
        };
        if full(backend.0) || full(frontend.0) {
            return Err(Errno::NOSPC);
        }
        records
            .by_domain
            .entry(backend.0)
            .or_default()
            .push((at, Role::Backend));
        records
            .by_domain
            .entry(frontend.0)
            .or_default()
            .push((at, Role::Frontend));
        let ports = [Arc::clone(&backend.1), Arc::clone(&frontend.1)];
        let end = |(domain, port)| End::new(domain, port);
        records.connections.push(Connection {
            handle,
            backend: end(backend),
            frontend: end(frontend),
        });
        drop(records);
        for port in ports {
            port.raise(info::PENDING_CONNECT);
        }
        Ok(())
    }

    /// Writes a domain's record of a connection and tells the other end.
    ///
    /// # Errors
    /// `ENOENT`: no such connection. `EINVAL`: the state cannot follow the present one
    /// ([`XenbusState::may_become`]). `EAGAIN`: too often.
    pub fn set(
        &self,
        domain: DomId,
        conn: ConnId,
        state: XenbusState,
        body: &[u8; RECORD_BYTES],
        now_ns: u64,
    ) -> Result<(), Errno> {
        let mut records = self.lock();
        let (connection, role) = records.find(domain, conn).ok_or(Errno::NOENT)?;
        let (own, other) = connection.ends(role);
        if !own.state.may_become(state) {
            return Err(Errno::INVAL);
        }
        if !own.writes.take(now_ns, 1) {
            return Err(Errno::AGAIN);
        }
        own.state = state;
        own.body = *body;
        let port = other.port.clone();
        drop(records);
        if let Some(port) = port {
            port.raise(info::PENDING_CONNECT);
        }
        Ok(())
    }

    /// What a domain sees of a connection.
    ///
    /// # Errors
    /// `ENOENT`: no such connection.
    pub fn get(&self, domain: DomId, conn: ConnId) -> Result<View, Errno> {
        let mut records = self.lock();
        let (connection, role) = records.find(domain, conn).ok_or(Errno::NOENT)?;
        let (own, other) = connection.ends(role);
        Ok(View {
            peer: other.domain,
            role,
            own: own.state,
            state: other.state,
            body: other.body,
        })
    }

    /// Where the other end of a connection can be reached.
    ///
    /// # Errors
    /// `ENOENT`: no such connection. `ENOTCONN`: the other end is dead.
    pub fn other_end(&self, domain: DomId, conn: ConnId) -> Result<Arc<Port>, Errno> {
        let mut records = self.lock();
        let (connection, role) = records.find(domain, conn).ok_or(Errno::NOENT)?;
        connection.ends(role).1.port.clone().ok_or(Errno::NOTCONN)
    }

    /// A domain takes the place of a dead one: the dead one's ends begin anew, under the same
    /// numbers, and both domains are told. Who is at the other ends, and their numbers there.
    ///
    /// What the other ends have written stays: it is theirs to take back.
    pub fn replace(&self, dead: DomId, (domain, port): (DomId, Arc<Port>)) -> Vec<(DomId, ConnId)> {
        let mut records = self.lock();
        let own = records.by_domain.remove(&dead).unwrap_or_default();
        let mut told = vec![Arc::clone(&port)];
        let mut others = Vec::new();
        for &(at, role) in &own {
            let Some(connection) = records.connections.get_mut(at) else {
                continue;
            };
            let (end, other) = connection.ends(role);
            *end = End::new(domain, Arc::clone(&port));
            // Who has to close and come back may do so, however often that is.
            other.writes = TokenBucket::new(WRITES_PER_SECOND, WRITES_BURST);
            told.extend(other.port.clone());
            let peer = other.domain;
            let numbers = records.by_domain.get(&peer).into_iter().flatten();
            let number = numbers.zip(0..).find(|((place, _), _)| *place == at);
            others.extend(number.map(|(_, number)| (peer, ConnId(number))));
        }
        records.by_domain.insert(domain, own);
        drop(records);
        for port in told {
            port.raise(info::PENDING_CONNECT);
        }
        others
    }

    /// Whether every connection of a domain's is up, but for those whose other end is dead.
    #[must_use]
    pub fn are_up(&self, domain: DomId) -> bool {
        let mut records = self.lock();
        let own = records.by_domain.get(&domain).cloned().unwrap_or_default();
        own.into_iter().all(|(at, role)| {
            records.connections.get_mut(at).is_some_and(|connection| {
                let (own, other) = connection.ends(role);
                let up = [own.state, other.state] == [XenbusState::Connected; 2];
                up || other.port.is_none()
            })
        })
    }

    /// A domain is dead: its ends are closed, and the others are told.
    pub fn close_all(&self, domain: DomId) {
        self.end_all(domain, XenbusState::Closed);
    }

    /// A dead domain has been cleared away: its ends are unknown, and the others are told.
    pub fn forget_all(&self, domain: DomId) {
        self.end_all(domain, XenbusState::Unknown);
    }

    fn end_all(&self, domain: DomId, state: XenbusState) {
        let mut records = self.lock();
        let mut told = Vec::new();
        for (at, role) in records.by_domain.get(&domain).cloned().unwrap_or_default() {
            let Some(connection) = records.connections.get_mut(at) else {
                continue;
            };
            let (own, other) = connection.ends(role);
            own.state = state;
            own.body = [0; RECORD_BYTES];
            own.port = None;
            told.extend(other.port.clone());
        }
        drop(records);
        for port in told {
            port.raise(info::PENDING_CONNECT);
        }
    }

    /// Every connection, in the order of creation.
    #[must_use]
    pub fn list(&self) -> Vec<Summary> {
        let records = self.lock();
        let summary = |c: &Connection| Summary {
            backend: c.backend.domain,
            frontend: c.frontend.domain,
            handle: c.handle,
            backend_state: c.backend.state,
            frontend_state: c.frontend.state,
        };
        records.connections.iter().map(summary).collect()
    }
}
