//! Connections. Each has two records, one per end. Their states follow xenbus; the monitor forwards
//! their bodies without reading them.
//!
//! Each record names the other end. If the other end does not exist, the connection was removed:
//! the state of the missing end is *unknown*, and neither domain can notify the other. The
//! remaining end is kept until its domain no longer uses the connection; then its number can be
//! reused.

use crate::event::EventPort;
use crate::id_pool::IdPool;
use abi::layout::fd;
use abi::status::ConnectionStatus;
use abi::{ConnId, DomId, RECORD_BYTES, Role, XenbusState};
use rustix::io::Errno;
use shmem::lock;
use shmem::rate::TokenBucket;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

/// Writes of one record in a burst before [`WRITES_PER_SECOND`] applies. Writes are limited because
/// each one wakes the other end.
const WRITES_BURST: u32 = 64;
/// Writes of one record per second in the long run.
const WRITES_PER_SECOND: u64 = 32;
/// The number of a domain's released connection numbers that the monitor does not reuse yet, so
/// that a domain that still uses an old number finds no connection under it. The doorbells of these
/// numbers stay open.
const HELD_BACK: usize = 64;

/// A domain, and its number for a connection.
type Key = (DomId, u32);

/// One end of a connection.
#[derive(Debug)]
struct ConnectionEnd {
    role: Role,
    handle: u16,
    /// The other end. No other connection uses its key while this end exists.
    peer: Key,
    /// `None` once the domain is dead.
    port: Option<Arc<EventPort>>,
    /// Whether the domain has received the other end's doorbell.
    has_doorbell: bool,
    state: XenbusState,
    body: [u8; RECORD_BYTES],
    writes: TokenBucket,
}

impl ConnectionEnd {
    fn new(role: Role, handle: u16, peer: Key, port: Arc<EventPort>) -> Self {
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

    /// Returns whether the state shows that this end's domain uses no page or doorbell of the other
    /// end.
    fn is_idle(&self) -> bool {
        use XenbusState::{Closed, InitWait, Initialising, Unknown};
        matches!(self.state, Unknown | Initialising | InitWait | Closed)
    }
}

fn writes() -> TokenBucket {
    TokenBucket::new(WRITES_PER_SECOND, WRITES_BURST)
}

/// A domain's view of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// The other end's domain.
    pub peer: DomId,
    /// The domain's own role.
    pub role: Role,
    /// The domain's own state.
    pub own: XenbusState,
    /// The other end's state.
    pub state: XenbusState,
    /// The body of the other end's record.
    pub body: [u8; RECORD_BYTES],
}

/// Returns the range of keys of a domain.
fn of(domain: DomId) -> RangeInclusive<Key> {
    (domain, 0)..=(domain, u32::MAX)
}

#[derive(Debug, Default)]
struct Records {
    ends: BTreeMap<Key, ConnectionEnd>,
    numbers: BTreeMap<DomId, IdPool>,
}

impl Records {
    fn end(&mut self, domain: DomId, conn: ConnId) -> Result<&mut ConnectionEnd, Errno> {
        self.ends.get_mut(&(domain, conn.0)).ok_or(Errno::NOENT)
    }

    /// Removes and returns a domain's ends.
    fn remove_ends(&mut self, domain: DomId) -> Vec<(Key, ConnectionEnd)> {
        self.ends.extract_if(of(domain), |_, _| true).collect()
    }

    /// Returns the event channel of an end's domain, or `None` if the domain is dead.
    fn port(&self, end: Key) -> Option<Arc<EventPort>> {
        self.ends.get(&end)?.port.clone()
    }

    fn take_number(&mut self, domain: DomId) -> Result<Key, Errno> {
        let numbers = self.numbers.entry(domain);
        let numbers = numbers.or_insert_with(|| IdPool::new(fd::CONNECTIONS_MAX, HELD_BACK));
        // Nothing refers to a released number: see [`Connections::release_unused`].
        let number = numbers.take(|_| false).ok_or(Errno::NOSPC)?;
        Ok((domain, number))
    }

    fn release_number(&mut self, (domain, number): Key) {
        if let Some(numbers) = self.numbers.get_mut(&domain) {
            numbers.release(number);
        }
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct Connections(Mutex<Records>);

impl Connections {
    /// Changes records, releases the lock, and then notifies the domains of the ends that `change`
    /// puts into the list.
    fn change<T>(&self, change: impl FnOnce(&mut Records, &mut Vec<Key>) -> T) -> T {
        let mut records = lock(&self.0);
        let mut notify = Vec::new();
        let done = change(&mut records, &mut notify);
        let reached = |end: Key| Some((records.port(end)?, end.1));
        let ports: Vec<_> = notify.into_iter().filter_map(reached).collect();
        drop(records);
        for (port, number) in ports {
            port.mark_changed(number);
        }
        done
    }

    /// Adds a connection and notifies both domains; both ends start as
    /// [`XenbusState::Initialising`]. Returns the backend's and the frontend's number of the
    /// connection.
    ///
    /// # Errors
    /// Returns `ENOSPC` if one of the domains already has [`fd::CONNECTIONS_MAX`] connections.
    pub fn add(
        &self,
        backend: (DomId, Arc<EventPort>),
        frontend: (DomId, Arc<EventPort>),
        handle: u16,
    ) -> Result<(ConnId, ConnId), Errno> {
        self.change(|records, notify| {
            let back = records.take_number(backend.0)?;
            let front = records.take_number(frontend.0);
            let front = front.inspect_err(|_| records.release_number(back))?;
            for (own, port, role, peer) in [
                (back, backend.1, Role::Backend, front),
                (front, frontend.1, Role::Frontend, back),
            ] {
                records
                    .ends
                    .insert(own, ConnectionEnd::new(role, handle, peer, port));
                notify.push(own);
            }
            Ok((ConnId(back.1), ConnId(front.1)))
        })
    }

    /// Writes a domain's record of a connection and notifies the other end.
    ///
    /// # Errors
    /// Returns `ENOENT` if the connection does not exist. Returns `EINVAL` if the state cannot
    /// follow the present one ([`XenbusState::may_become`]), or the connection was removed and the
    /// state does not close it. Returns `EAGAIN` after too many writes.
    pub fn set(
        &self,
        domain: DomId,
        conn: ConnId,
        state: XenbusState,
        body: &[u8; RECORD_BYTES],
        now_ns: u64,
    ) -> Result<(), Errno> {
        self.change(|records, notify| {
            let peer = records.end(domain, conn)?.peer;
            let is_removed = !records.ends.contains_key(&peer);
            let own = records.end(domain, conn)?;
            let closes = matches!(state, XenbusState::Closing | XenbusState::Closed);
            if !own.state.may_become(state) || is_removed && !closes {
                return Err(Errno::INVAL);
            }
            if !own.writes.take(now_ns, 1) {
                return Err(Errno::AGAIN);
            }
            (own.state, own.body) = (state, *body);
            notify.push(peer);
            Ok(())
        })
    }

    /// Returns a domain's view of a connection.
    ///
    /// # Errors
    /// Returns `ENOENT` if the connection does not exist.
    pub fn get(&self, domain: DomId, conn: ConnId) -> Result<ConnectionView, Errno> {
        let mut records = lock(&self.0);
        let own = records.end(domain, conn)?;
        let (role, peer, state) = (own.role, own.peer, own.state);
        let other = records.ends.get(&peer);
        let unknown = (XenbusState::Unknown, [0; RECORD_BYTES]);
        let (theirs, body) = other.map_or(unknown, |other| (other.state, other.body));
        Ok(ConnectionView {
            peer: peer.0,
            role,
            own: state,
            state: theirs,
            body,
        })
    }

    /// Returns the domain at the other end of a connection, and its event channel.
    ///
    /// # Errors
    /// Returns `ENOENT` if the connection does not exist. Returns `ENOTCONN` if the other end is
    /// dead.
    pub fn other_end(&self, domain: DomId, conn: ConnId) -> Result<(DomId, Arc<EventPort>), Errno> {
        let mut records = lock(&self.0);
        let peer = records.end(domain, conn)?.peer;
        Ok((peer.0, records.port(peer).ok_or(Errno::NOTCONN)?))
    }

    /// Hands out the doorbell of a connection's other end, at most once: `give` puts it into the
    /// domain's descriptor table.
    ///
    /// # Errors
    /// Returns the errors of [`Connections::other_end`], `EEXIST` if the domain already has it, and
    /// otherwise the error of `give`.
    pub fn pass_doorbell(
        &self,
        domain: DomId,
        conn: ConnId,
        give: impl FnOnce(&EventPort) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (_, port) = self.other_end(domain, conn)?;
        if lock(&self.0).end(domain, conn)?.has_doorbell {
            return Err(Errno::EXIST);
        }
        give(&port)?;
        lock(&self.0).end(domain, conn)?.has_doorbell = true;
        Ok(())
    }

    /// Replaces a dead domain by another. The dead domain's ends restart under the same numbers,
    /// and the domains at both ends are notified. Each peer can attach the new doorbell.
    ///
    /// The peers' records are unchanged until their domains write them.
    pub fn replace(&self, dead: DomId, (domain, port): (DomId, Arc<EventPort>)) {
        self.change(|records, notify| {
            if let Some(numbers) = records.numbers.remove(&dead) {
                records.numbers.insert(domain, numbers);
            }
            for (old, end) in records.remove_ends(dead) {
                let new = (domain, old.1);
                let Some(other) = records.ends.get_mut(&end.peer) else {
                    records.release_number(new);
                    continue;
                };
                (other.peer, other.has_doorbell) = (new, false);
                // The other end must close and reconnect, so it receives a full budget of writes.
                other.writes = writes();
                notify.extend([end.peer, new]);
                let end = ConnectionEnd::new(end.role, end.handle, end.peer, Arc::clone(&port));
                records.ends.insert(new, end);
            }
        });
    }

    /// Removes every connection of a domain that was torn down. For each remaining end, the state
    /// of the other end is *unknown*, and the other end cannot be notified.
    pub fn remove_all(&self, dead: DomId) {
        self.change(|records, notify| {
            records.numbers.remove(&dead);
            notify.extend(records.remove_ends(dead).iter().map(|(_, end)| end.peer));
        });
    }

    /// Releases the numbers of removed connections whose remaining end is idle and for which
    /// `is_used` is false.
    pub fn release_unused(&self, is_used: impl Fn(DomId, ConnId) -> bool) {
        let mut idle: Vec<_> = {
            let Records { ends, .. } = &*lock(&self.0);
            let is_unused = |end: &ConnectionEnd| end.is_idle() && !ends.contains_key(&end.peer);
            let unused = ends.iter().filter(|(_, end)| is_unused(end));
            unused.map(|(key, _)| *key).collect()
        };
        idle.retain(|&(domain, number)| !is_used(domain, ConnId(number)));
        let mut records = lock(&self.0);
        for key in idle {
            records.ends.remove(&key);
            records.release_number(key);
        }
    }

    /// Returns whether any connection refers to a domain.
    #[must_use]
    pub fn refers_to(&self, domain: DomId) -> bool {
        let records = lock(&self.0);
        let mut others = records.ends.values().map(|end| end.peer.0);
        records.numbers.contains_key(&domain) || others.any(|other| other == domain)
    }

    /// Returns whether every connection of a domain is up, except those whose other end is dead.
    #[must_use]
    pub fn are_up(&self, domain: DomId) -> bool {
        let Records { ends, .. } = &*lock(&self.0);
        let mut own = ends.range(of(domain));
        own.all(|(_, own)| {
            let other = ends.get(&own.peer);
            let other = other.filter(|other| other.port.is_some());
            other.is_none_or(|other| [own.state, other.state] == [XenbusState::Connected; 2])
        })
    }

    /// Marks a dead domain's ends as closed or, once it has been torn down, unknown, and notifies
    /// the other ends.
    pub fn end_all(&self, domain: DomId, state: XenbusState) {
        self.change(|records, notify| {
            for own in records.ends.range_mut(of(domain)).map(|(_, own)| own) {
                (own.state, own.body, own.port) = (state, [0; RECORD_BYTES], None);
                notify.push(own.peer);
            }
        });
    }

    /// Lists every connection that was not removed, by its backend and the backend's number; `name`
    /// returns a domain's name.
    #[must_use]
    pub fn list(&self, name: impl Fn(DomId) -> String) -> Vec<ConnectionStatus> {
        let Records { ends, .. } = &*lock(&self.0);
        let served = ends.iter().filter(|(_, end)| end.role == Role::Backend);
        let status = |((backend, _), end): (&Key, &ConnectionEnd)| {
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
