//! Connections: two records each, whose states follow xenbus and whose bodies only pass through.
//!
//! Each end is a record of its own, which names the other one. Where the other one is not there the
//! connection was taken away: it is *unknown*, and nobody reaches anybody. This end stays until its
//! domain has let go of it; then its number is free again.

use crate::event::Port;
use crate::numbers::Numbers;
use abi::layout::fd;
use abi::status::ConnectionStatus;
use abi::{ConnId, DomId, RECORD_BYTES, Role, XenbusState};
use rustix::io::Errno;
use shmem::rate::TokenBucket;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Writes of one record in a row, before [`WRITES_PER_SECOND`] counts: each wakes the other end.
const WRITES_BURST: u32 = 64;
/// Writes of one record a second, in the long run.
const WRITES_PER_SECOND: u64 = 32;
/// Numbers of a domain that rest: who has one in mind still finds nothing under it. The doorbells
/// of those that rest stay open.
const RESTING: usize = 64;

/// A domain, and its own number of a connection.
type Key = (DomId, u32);

/// One end of a connection.
#[derive(Debug)]
struct End {
    role: Role,
    handle: u16,
    /// The other end. Nothing else is ever under its key as long as this one is there.
    peer: Key,
    /// None once the domain is dead.
    port: Option<Arc<Port>>,
    /// The domain has got the other end's doorbell.
    has_doorbell: bool,
    state: XenbusState,
    body: [u8; RECORD_BYTES],
    writes: TokenBucket,
}

impl End {
    fn new(role: Role, handle: u16, peer: Key, port: Arc<Port>) -> Self {
        Self {
            role,
            handle,
            peer,
            port: Some(port),
            has_doorbell: false,
            state: XenbusState::Initialising,
            body: [0; RECORD_BYTES],
            writes: writes(),
        }
    }

    /// Whether its domain uses nothing of the other end's, as far as the state tells.
    fn is_idle(&self) -> bool {
        use XenbusState::{Closed, InitWait, Initialising, Unknown};
        matches!(self.state, Unknown | Initialising | InitWait | Closed)
    }
}

fn writes() -> TokenBucket {
    TokenBucket::new(WRITES_PER_SECOND, WRITES_BURST)
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

/// Every key of a domain's.
fn of(domain: DomId) -> RangeInclusive<Key> {
    (domain, 0)..=(domain, u32::MAX)
}

#[derive(Debug, Default)]
struct Records {
    ends: BTreeMap<Key, End>,
    numbers: BTreeMap<DomId, Numbers>,
}

impl Records {
    fn end(&mut self, domain: DomId, conn: ConnId) -> Result<&mut End, Errno> {
        self.ends.get_mut(&(domain, conn.0)).ok_or(Errno::NOENT)
    }

    /// A domain's ends, which are no more.
    fn take_out(&mut self, domain: DomId) -> Vec<(Key, End)> {
        self.ends.extract_if(of(domain), |_, _| true).collect()
    }

    /// Where the domain of an end can be reached, as long as it lives.
    fn port(&self, end: Key) -> Option<Arc<Port>> {
        self.ends.get(&end)?.port.clone()
    }

    fn take_number(&mut self, domain: DomId) -> Result<Key, Errno> {
        let numbers = self.numbers.entry(domain);
        let numbers = numbers.or_insert_with(|| Numbers::new(fd::CONNECTIONS_MAX, RESTING));
        // What comes back is named by nothing: see [`Connections::release_unused`].
        let number = numbers.take(|_| false).ok_or(Errno::NOSPC)?;
        Ok((domain, number))
    }

    fn give_number_back(&mut self, (domain, number): Key) {
        if let Some(numbers) = self.numbers.get_mut(&domain) {
            numbers.give_back(number);
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

    /// Changes records. Domains are told, under no lock, of the ends that `change` puts into the
    /// list.
    fn change<T>(&self, change: impl FnOnce(&mut Records, &mut Vec<Key>) -> T) -> T {
        let mut records = self.lock();
        let mut told = Vec::new();
        let done = change(&mut records, &mut told);
        let reached = |end: Key| Some((records.port(end)?, end.1));
        let ports: Vec<_> = told.into_iter().filter_map(reached).collect();
        drop(records);
        for (port, number) in ports {
            port.tell_of(number);
        }
        done
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
        self.change(|records, told| {
            let back = records.take_number(backend.0)?;
            let front = records.take_number(frontend.0);
            let front = front.inspect_err(|_| records.give_number_back(back))?;
            for (own, port, role, peer) in [
                (back, backend.1, Role::Backend, front),
                (front, frontend.1, Role::Frontend, back),
            ] {
                records.ends.insert(own, End::new(role, handle, peer, port));
                told.push(own);
            }
            Ok((ConnId(back.1), ConnId(front.1)))
        })
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
        self.change(|records, told| {
            let peer = records.end(domain, conn)?.peer;
            let leaves = !records.ends.contains_key(&peer);
            let own = records.end(domain, conn)?;
            let closes = matches!(state, XenbusState::Closing | XenbusState::Closed);
            if !own.state.may_become(state) || leaves && !closes {
                return Err(Errno::INVAL);
            }
            if !own.writes.take(now_ns, 1) {
                return Err(Errno::AGAIN);
            }
            (own.state, own.body) = (state, *body);
            told.push(peer);
            Ok(())
        })
    }

    /// What a domain sees of a connection.
    ///
    /// # Errors
    /// `ENOENT`: no such connection.
    pub fn get(&self, domain: DomId, conn: ConnId) -> Result<View, Errno> {
        let mut records = self.lock();
        let own = records.end(domain, conn)?;
        let (role, peer, state) = (own.role, own.peer, own.state);
        let other = records.ends.get(&peer);
        let unknown = (XenbusState::Unknown, [0; RECORD_BYTES]);
        let (theirs, body) = other.map_or(unknown, |other| (other.state, other.body));
        Ok(View {
            peer: peer.0,
            role,
            own: state,
            state: theirs,
            body,
        })
    }

    /// Who is at the other end of a connection, and where it can be reached.
    ///
    /// # Errors
    /// `ENOENT`: no such connection. `ENOTCONN`: the other end is dead.
    pub fn other_end(&self, domain: DomId, conn: ConnId) -> Result<(DomId, Arc<Port>), Errno> {
        let mut records = self.lock();
        let peer = records.end(domain, conn)?.peer;
        Ok((peer.0, records.port(peer).ok_or(Errno::NOTCONN)?))
    }

    /// Puts the doorbell of a connection's other end into a domain's table, once: `give` does.
    ///
    /// # Errors
    /// As [`Connections::other_end`]. `EEXIST`: the domain has got it. Otherwise `give`'s.
    pub fn hand_out(
        &self,
        domain: DomId,
        conn: ConnId,
        give: impl FnOnce(&Port) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (_, port) = self.other_end(domain, conn)?;
        if self.lock().end(domain, conn)?.has_doorbell {
            return Err(Errno::EXIST);
        }
        give(&port)?;
        self.lock().end(domain, conn)?.has_doorbell = true;
        Ok(())
    }

    /// A domain takes the place of a dead one: the dead one's ends begin anew, under the same
    /// numbers, and both domains are told. Each other end can be given the new doorbell.
    ///
    /// What the other ends have written stays: it is theirs to take back.
    pub fn replace(&self, dead: DomId, (domain, port): (DomId, Arc<Port>)) {
        self.change(|records, told| {
            if let Some(numbers) = records.numbers.remove(&dead) {
                records.numbers.insert(domain, numbers);
            }
            for (old, end) in records.take_out(dead) {
                let new = (domain, old.1);
                let Some(other) = records.ends.get_mut(&end.peer) else {
                    records.give_number_back(new);
                    continue;
                };
                (other.peer, other.has_doorbell) = (new, false);
                // The other end has to close and come back: it may write as often as that takes.
                other.writes = writes();
                told.extend([end.peer, new]);
                let end = End::new(end.role, end.handle, end.peer, Arc::clone(&port));
                records.ends.insert(new, end);
            }
        });
    }

    /// Takes away every connection of a domain of which nothing is left, and its ends of them: to
    /// each other end it is *unknown*, and cannot be reached.
    pub fn remove_all(&self, dead: DomId) {
        self.change(|records, told| {
            records.numbers.remove(&dead);
            told.extend(records.take_out(dead).iter().map(|(_, end)| end.peer));
        });
    }

    /// Gives the numbers of connections that were taken away back, where the domain is idle and
    /// nothing of the connection is in use any more.
    pub fn release_unused(&self, is_used: impl Fn(DomId, ConnId) -> bool) {
        let mut idle: Vec<_> = {
            let Records { ends, .. } = &*self.lock();
            let left = |end: &End| end.is_idle() && !ends.contains_key(&end.peer);
            let left = ends.iter().filter(|(_, end)| left(end));
            left.map(|(key, _)| *key).collect()
        };
        idle.retain(|&(domain, number)| !is_used(domain, ConnId(number)));
        let mut records = self.lock();
        for key in idle {
            records.ends.remove(&key);
            records.give_number_back(key);
        }
    }

    /// Whether a domain is an end of any connection.
    #[must_use]
    pub fn names(&self, domain: DomId) -> bool {
        let records = self.lock();
        let mut others = records.ends.values().map(|end| end.peer.0);
        records.numbers.contains_key(&domain) || others.any(|other| other == domain)
    }

    /// Whether every connection of a domain's is up, but for those whose other end is dead.
    #[must_use]
    pub fn are_up(&self, domain: DomId) -> bool {
        let Records { ends, .. } = &*self.lock();
        let mut own = ends.range(of(domain));
        own.all(|(_, own)| {
            let other = ends.get(&own.peer);
            let other = other.filter(|other| other.port.is_some());
            other.is_none_or(|other| [own.state, other.state] == [XenbusState::Connected; 2])
        })
    }

    /// A domain is dead: its ends are closed or, when it has been cleared away, unknown. The others
    /// are told.
    pub fn end_all(&self, domain: DomId, state: XenbusState) {
        self.change(|records, told| {
            for own in records.ends.range_mut(of(domain)).map(|(_, own)| own) {
                (own.state, own.body, own.port) = (state, [0; RECORD_BYTES], None);
                told.push(own.peer);
            }
        });
    }

    /// Every connection that was not taken away, by its backend and the backend's number; `name`
    /// says what a domain is called.
    #[must_use]
    pub fn list(&self, name: impl Fn(DomId) -> String) -> Vec<ConnectionStatus> {
        let Records { ends, .. } = &*self.lock();
        let served = ends.iter().filter(|(_, end)| end.role == Role::Backend);
        let status = |((backend, _), end): (&Key, &End)| {
            let other = ends.get(&end.peer)?;
            Some(ConnectionStatus {
                backend: name(*backend),
                frontend: name(end.peer.0),
                handle: end.handle,
                backend_state: end.state,
                frontend_state: other.state,
            })
        };
        served.filter_map(status).collect()
    }
}
