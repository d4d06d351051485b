//! Connections: two records each, whose states follow xenbus and whose bodies only pass through.
//!
//! A connection that is taken away stays as long as one of its ends has not let go of it: to each
//! the other one is *unknown*, and nobody reaches anybody. Then its numbers are free again.

use crate::event::Port;
use crate::numbers::Numbers;
use abi::layout::fd;
use abi::{ConnId, DomId, RECORD_BYTES, Role, XenbusState};
use rustix::io::Errno;
use shmem::rate::TokenBucket;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Writes of one record in a row, before [`WRITES_PER_SECOND`] counts: each wakes the other end.
const WRITES_BURST: u32 = 64;
/// Writes of one record a second, in the long run.
const WRITES_PER_SECOND: u64 = 32;
/// Numbers of a domain that rest: who has one in mind still finds nothing under it. The doorbells
/// of those that rest stay open.
const RESTING: usize = 64;

/// One end of a connection.
#[derive(Debug)]
struct End {
    domain: DomId,
    /// The domain's own number of the connection.
    number: u32,
    /// Whether the domain has this end: not once it has let go of a connection that was taken away.
    held: bool,
    /// None once the domain is dead, or the connection taken away.
    port: Option<Arc<Port>>,
    state: XenbusState,
    body: [u8; RECORD_BYTES],
    writes: TokenBucket,
}

impl End {
    fn new(domain: DomId, number: u32, port: Arc<Port>) -> Self {
        Self {
            domain,
            number,
            held: true,
            port: Some(port),
            state: XenbusState::Initialising,
            body: [0; RECORD_BYTES],
            writes: TokenBucket::new(WRITES_PER_SECOND, WRITES_BURST),
        }
    }

    /// Who is to be told when the other end changes, and of which of its connections.
    fn told(&self) -> Option<(Arc<Port>, u32)> {
        Some((Arc::clone(self.port.as_ref()?), self.number))
    }

    /// Whether its domain uses nothing of the other end's, as far as the state tells.
    fn is_idle(&self) -> bool {
        use XenbusState as S;
        matches!(
            self.state,
            S::Unknown | S::Initialising | S::InitWait | S::Closed
        )
    }
}

/// Tells domains that connections of theirs are others now, under no lock.
fn tell(ends: impl IntoIterator<Item = (Arc<Port>, u32)>) {
    for (port, number) in ends {
        port.tell_of(number);
    }
}

#[derive(Debug)]
struct Connection {
    handle: u16,
    backend: End,
    frontend: End,
    /// It was taken away.
    leaves: bool,
}

impl Connection {
    fn ends(&mut self, role: Role) -> (&mut End, &mut End) {
        match role {
            Role::Backend => (&mut self.backend, &mut self.frontend),
            Role::Frontend => (&mut self.frontend, &mut self.backend),
        }
    }

    fn both(&mut self) -> [&mut End; 2] {
        [&mut self.backend, &mut self.frontend]
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

/// One domain's connections, by its own numbers.
#[derive(Debug)]
struct Own {
    numbers: Numbers,
    by_number: BTreeMap<u32, (u64, Role)>,
}

impl Default for Own {
    fn default() -> Self {
        Self {
            numbers: Numbers::new(fd::CONNECTIONS_MAX, RESTING),
            by_number: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Records {
    /// In the order of creation.
    connections: BTreeMap<u64, Connection>,
    /// Connections that there ever were.
    made: u64,
    by_domain: BTreeMap<DomId, Own>,
}

impl Records {
    fn find(&mut self, domain: DomId, conn: ConnId) -> Option<(&mut Connection, Role)> {
        let &(at, role) = self.by_domain.get(&domain)?.by_number.get(&conn.0)?;
        Some((self.connections.get_mut(&at)?, role))
    }

    /// A domain's connections, and what it is to each.
    fn of(&self, domain: DomId) -> Vec<(u64, Role)> {
        let own = self.by_domain.get(&domain);
        own.map_or_else(Vec::new, |own| own.by_number.values().copied().collect())
    }

    fn take_number(&mut self, domain: DomId) -> Option<u32> {
        let own = self.by_domain.entry(domain).or_default();
        // What comes back is named by nothing: see [`Connections::release_unused`].
        own.numbers.take(|_| false)
    }

    fn give_number_back(&mut self, domain: DomId, number: u32) {
        if let Some(own) = self.by_domain.get_mut(&domain) {
            own.by_number.remove(&number);
            own.numbers.give_back(number);
        }
    }

    /// Removes a connection that neither end has any more.
    fn remove_if_over(&mut self, at: u64) {
        let over = |c: &Connection| !c.backend.held && !c.frontend.held;
        if self.connections.get(&at).is_some_and(over) {
            self.connections.remove(&at);
        }
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct Connections(Mutex<Records>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a connection; both ends start as [`XenbusState::Initialising`] and are told. The
    /// backend's number of it, and the frontend's.
    ///
    /// # Errors
    /// `ENOSPC`: one of the domains has [`fd::CONNECTIONS_MAX`] connections already.
    pub fn add(
        &self,
        backend: (DomId, Arc<Port>),
        frontend: (DomId, Arc<Port>),
        handle: u16,
    ) -> Result<(ConnId, ConnId), Errno> {
        let mut records = self.lock();
        let back = records.take_number(backend.0).ok_or(Errno::NOSPC)?;
        let Some(front) = records.take_number(frontend.0) else {
            records.give_number_back(backend.0, back);
            return Err(Errno::NOSPC);
        };
        let at = records.made;
        records.made += 1;
        let told = [
            (Arc::clone(&backend.1), back),
            (Arc::clone(&frontend.1), front),
        ];
        let mut end = |(domain, port), number, role| {
            let own = records.by_domain.entry(domain).or_default();
            own.by_number.insert(number, (at, role));
            End::new(domain, number, port)
        };
        let connection = Connection {
            handle,
            backend: end(backend, back, Role::Backend),
            frontend: end(frontend, front, Role::Frontend),
            leaves: false,
        };
        records.connections.insert(at, connection);
        drop(records);
        tell(told);
        Ok((ConnId(back), ConnId(front)))
    }

    /// Writes a domain's record of a connection and tells the other end.
    ///
    /// # Errors
    /// `ENOENT`: no such connection. `EINVAL`: the state cannot follow the present one
    /// ([`XenbusState::may_become`]), or the connection was taken away and this is no way out.
    /// `EAGAIN`: too often.
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
        let leaves = connection.leaves;
        let (own, other) = connection.ends(role);
        let closes = matches!(state, XenbusState::Closing | XenbusState::Closed);
        if !own.state.may_become(state) || leaves && !closes {
            return Err(Errno::INVAL);
        }
        if !own.writes.take(now_ns, 1) {
            return Err(Errno::AGAIN);
        }
        own.state = state;
        own.body = *body;
        let told = other.told();
        drop(records);
        tell(told);
        Ok(())
    }

    /// What a domain sees of a connection.
    ///
    /// # Errors
    /// `ENOENT`: no such connection.
    pub fn get(&self, domain: DomId, conn: ConnId) -> Result<View, Errno> {
        let mut records = self.lock();
        let (connection, role) = records.find(domain, conn).ok_or(Errno::NOENT)?;
        let leaves = connection.leaves;
        let (own, other) = connection.ends(role);
        let (state, body) = match leaves {
            true => (XenbusState::Unknown, [0; RECORD_BYTES]),
            false => (other.state, other.body),
        };
        Ok(View {
            peer: other.domain,
            role,
            own: own.state,
            state,
            body,
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
        let Some(mut own) = records.by_domain.remove(&dead) else {
            return Vec::new();
        };
        let mut told = Vec::new();
        let mut others = Vec::new();
        let mut over = Vec::new();
        for (&number, &(at, role)) in &own.by_number {
            let Some(connection) = records.connections.get_mut(&at) else {
                continue;
            };
            let leaves = connection.leaves;
            let (end, other) = connection.ends(role);
            if leaves {
                end.held = false;
                over.push((number, at));
                continue;
            }
            *end = End::new(domain, number, Arc::clone(&port));
            // The other end has to close and come back: it may write as often as that takes.
            other.writes = TokenBucket::new(WRITES_PER_SECOND, WRITES_BURST);
            told.extend(end.told().into_iter().chain(other.told()));
            others.push((other.domain, ConnId(other.number)));
        }
        for (number, at) in over {
            own.by_number.remove(&number);
            own.numbers.give_back(number);
            records.remove_if_over(at);
        }
        records.by_domain.insert(domain, own);
        drop(records);
        tell(told);
        others
    }

    /// Takes away every connection of a domain of which nothing is left, and its ends of them: to
    /// each other end it is *unknown*, and cannot be reached.
    pub fn remove_all(&self, dead: DomId) {
        let mut records = self.lock();
        let own = records.of(dead);
        records.by_domain.remove(&dead);
        let mut told = Vec::new();
        for (at, role) in own {
            let Some(connection) = records.connections.get_mut(&at) else {
                continue;
            };
            connection.leaves = true;
            let (end, other) = connection.ends(role);
            end.held = false;
            told.extend(other.told());
            other.port = None;
            records.remove_if_over(at);
        }
        drop(records);
        tell(told);
    }

    /// Gives the numbers of connections that were taken away back, where the domain is idle and
    /// nothing of the connection is in use any more; which these are.
    pub fn release_unused(&self, is_used: impl Fn(DomId, ConnId) -> bool) -> Vec<(DomId, ConnId)> {
        let mut idle = Vec::new();
        for (&at, connection) in &mut self.lock().connections {
            if connection.leaves {
                let ends = connection.both().into_iter();
                let ends = ends.filter(|end| end.held && end.is_idle());
                idle.extend(ends.map(|end| (at, end.domain, end.number)));
            }
        }
        idle.retain(|&(_, domain, number)| !is_used(domain, ConnId(number)));
        let mut records = self.lock();
        for &(at, domain, number) in &idle {
            if let Some(connection) = records.connections.get_mut(&at) {
                let mut ends = connection.both().into_iter();
                if let Some(end) = ends.find(|end| end.domain == domain) {
                    end.held = false;
                }
            }
            records.give_number_back(domain, number);
            records.remove_if_over(at);
        }
        let freed = idle.into_iter();
        freed
            .map(|(_, domain, number)| (domain, ConnId(number)))
            .collect()
    }

    /// Whether a domain is an end of any connection.
    #[must_use]
    pub fn names(&self, domain: DomId) -> bool {
        let records = self.lock();
        let mut all = records.connections.values();
        let is_end = |c: &Connection| c.backend.domain == domain || c.frontend.domain == domain;
        all.any(is_end) || records.by_domain.contains_key(&domain)
    }

    /// Whether every connection of a domain's is up, but for those whose other end is dead.
    #[must_use]
    pub fn are_up(&self, domain: DomId) -> bool {
        let mut records = self.lock();
        records.of(domain).into_iter().all(|(at, role)| {
            records.connections.get_mut(&at).is_some_and(|connection| {
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
        for (at, role) in records.of(domain) {
            let Some(connection) = records.connections.get_mut(&at) else {
                continue;
            };
            let (own, other) = connection.ends(role);
            own.state = state;
            own.body = [0; RECORD_BYTES];
            own.port = None;
            told.extend(other.told());
        }
        drop(records);
        tell(told);
    }

    /// Every connection that was not taken away, in the order of creation.
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
        let all = records.connections.values();
        all.filter(|c| !c.leaves).map(summary).collect()
    }
}
