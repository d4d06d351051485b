//! Places at the control socket: the number of clients that are served at a time, by user.
//!
//! Root and the machine's user have places that no other user can take. Every other user has a
//! bounded number of places. A client without a pending request yields its place to a new client.

use super::requests::refusal;
use super::{Deadline, ManagerServer};
use crate::access::{self, ClientIdentity, Right};
use crate::client::Client;
use rustix::io::Errno;
use std::io;
use std::os::unix::net::UnixStream;

/// Clients of root and the machine's user; further ones wait in the listener's queue.
const OWNERS_MAX: usize = 32;
/// Clients of one other user; the server refuses further ones.
const USER_MAX: usize = 32;
/// Clients of all other users.
const OTHERS_MAX: usize = 64;
/// Connections that a turn accepts; at most one of them has a right.
const ACCEPTS: usize = 32;
/// Pause after an `accept` that failed, for example because no descriptor was free.
const PAUSE_NS: u64 = 100_000_000;

/// Where a new client is served.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// At a free place.
    Free,
    /// In the place of this client, whose connection is closed.
    Of(u64),
    /// Nowhere: every place serves a request.
    Nowhere,
}

impl ManagerServer<'_> {
    fn is_owner(&self, user: u32) -> bool {
        user == 0 || user == self.user
    }

    /// Returns the clients of root and the machine's user, or of all other users.
    fn clients_of(&self, owners: bool) -> impl Iterator<Item = (&u64, &Client)> {
        let clients = self.clients.iter();
        clients.filter(move |(_, client)| {
            let user = client.user.filter(|_| !client.stays);
            user.is_some_and(|user| self.is_owner(user) == owners)
        })
    }

    /// Whether root and the machine's user have no free place.
    pub(super) fn is_full(&self) -> bool {
        self.clients_of(true).count() >= OWNERS_MAX
    }

    /// Whether this client's user has no free place.
    pub(super) fn is_full_for(&self, id: u64) -> bool {
        let user = self.clients.get(&id).and_then(|client| client.user);
        match user {
            Some(user) if !self.is_owner(user) => self.count_of(user) >= USER_MAX,
            _ => self.is_full(),
        }
    }

    fn count_of(&self, user: u32) -> usize {
        let clients = self.clients_of(false);
        clients.filter(|(_, it)| it.user == Some(user)).count()
    }

    /// Returns the time from which an owner's place is free, or can be; `None` while all of them
    /// have a request under way.
    pub(super) fn place_ns(&self) -> Option<u64> {
        match self.is_full() {
            false => Some(0),
            true => Some(first_to_yield(self.clients_of(true))?.0),
        }
    }

    /// Whether the server accepts clients now.
    pub(super) fn accepts(&self, now: u64) -> bool {
        let has_place = self.place_ns().is_some_and(|at| at <= now);
        has_place && !self.deadlines.has(&Deadline::Accept)
    }

    /// Adds a client.
    pub(super) fn insert_client(&mut self, client: Client) {
        let id = self.next_client;
        self.deadlines
            .set(Deadline::Client(id), client.deadline_ns());
        self.clients.insert(id, client);
        self.next_client += 1;
    }

    /// Accepts one client, if one waits, and closes connections before it that have no right.
    pub(super) fn accept(&mut self, now: u64) {
        for _ in 0..ACCEPTS {
            match self.next_connection() {
                Ok(Some(stream)) => {
                    if let Some((right, user)) = self.right_of(&stream) {
                        return self.admit(Client::new(stream, (right, Some(user)), now), now);
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    let until_ns = now.saturating_add(PAUSE_NS);
                    return self.deadlines.set(Deadline::Accept, until_ns);
                }
            }
        }
    }

    /// Returns the connection that waits first; `None` if none waits.
    fn next_connection(&self) -> io::Result<Option<UnixStream>> {
        let accepted = self.socket.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let passes = [Errno::AGAIN, Errno::INTR, Errno::CONNABORTED];
        match accepted {
            Err(error) if Errno::from_io_error(&error).is_some_and(|it| passes.contains(&it)) => {
                Ok(None)
            }
            accepted => accepted.map(Some),
        }
    }

    /// Returns what a client may do, and its user; `None` if it has no right.
    fn right_of(&self, stream: &UnixStream) -> Option<(Right, u32)> {
        let peer = ClientIdentity::of(stream)?;
        let right = access::of_client(&self.state.access, self.user, peer)?;
        Some((right, peer.user()))
    }

    /// Gives a new client a place, or refuses it.
    fn admit(&mut self, mut client: Client, now: u64) {
        match self.place_for(client.user.unwrap_or_default(), now) {
            Place::Free => {}
            Place::Of(id) => {
                self.deadlines.set(Deadline::Client(id), None);
                self.clients.remove(&id);
            }
            Place::Nowhere => {
                let why = "too many requests of this user's are under way: try again later";
                return client.answer(&refusal(why.to_owned()), now);
            }
        }
        self.insert_client(client);
    }

    fn place_for(&self, user: u32, now: u64) -> Place {
        let owner = self.is_owner(user);
        let own = |(_, client): &(&u64, &Client)| client.user == Some(user);
        let yields = match owner {
            true if !self.is_full() => return Place::Free,
            true => first_to_yield(self.clients_of(true)),
            false if self.count_of(user) >= USER_MAX => {
                first_to_yield(self.clients_of(false).filter(own))
            }
            false if self.clients_of(false).count() < OTHERS_MAX => return Place::Free,
            false => first_to_yield(self.clients_of(false)),
        };
        match yields {
            Some((at, id)) if at <= now => Place::Of(id),
            _ => Place::Nowhere,
        }
    }
}

/// Returns the time at which the first of these clients yields its place, and that client.
fn first_to_yield<'a>(clients: impl Iterator<Item = (&'a u64, &'a Client)>) -> Option<(u64, u64)> {
    let yields = |(&id, client): (&u64, &Client)| Some((client.yields_ns()?, id));
    clients.filter_map(yields).min()
}
