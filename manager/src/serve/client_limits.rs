//! Limits of concurrent clients of the control socket, by user.
//!
//! Root and the machine's user have a limit that clients of other users do not affect. Every other
//! user has a separate limit. At a limit, a new client evicts a client without a pending request.

use super::requests::refusal;
use super::{Deadline, ManagerServer};
use crate::access::{self, ClientIdentity, Right};
use crate::client::Client;
use rustix::io::Errno;
use std::io;
use std::os::unix::net::UnixStream;

/// Maximum number of clients of root and the machine's user. Further clients wait in the listener's
/// queue.
const OWNERS_MAX: usize = 32;
/// Maximum number of clients of one other user. The server refuses further clients.
const USER_MAX: usize = 32;
/// Maximum number of clients of all other users together.
const OTHERS_MAX: usize = 64;
/// Maximum number of connections that one turn accepts. At most one of them is from a client with a
/// right.
const ACCEPTS_PER_TURN: usize = 32;
/// Pause after a failed `accept`, for example because no descriptor was free.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;

/// Admission of a new client.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    /// Fewer clients than the limit: the new client is added.
    Free,
    /// The server closes the connection of this client and adds the new one.
    Evict(u64),
    /// All clients within the limit have pending requests: the server refuses the new client.
    Refused,
}

impl ManagerServer<'_> {
    fn is_owner(&self, user: u32) -> bool {
        user == 0 || user == self.user
    }

    /// Returns the clients of root and the machine's user, or of all other users.
    fn clients_of(&self, owners: bool) -> impl Iterator<Item = (&u64, &Client)> {
        let clients = self.clients.iter();
        clients.filter(move |(_, client)| {
            let user = client.user.filter(|_| !client.is_internal);
            user.is_some_and(|user| self.is_owner(user) == owners)
        })
    }

    /// Returns whether root and the machine's user are at their limit.
    pub(super) fn is_full(&self) -> bool {
        self.clients_of(true).count() >= OWNERS_MAX
    }

    /// Returns whether this client's user is at the limit.
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

    /// Returns the time from which the server can accept a client of root or the machine's user.
    /// Returns `None` while all clients within the limit have pending requests.
    pub(super) fn accept_from_ns(&self) -> Option<u64> {
        match self.is_full() {
            false => Some(0),
            true => Some(next_eviction(self.clients_of(true))?.0),
        }
    }

    /// Returns whether the server accepts clients now.
    pub(super) fn accepts(&self, now: u64) -> bool {
        let has_place = self.accept_from_ns().is_some_and(|at| at <= now);
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

    /// Accepts one client, if one waits. Closes connections of users without a right.
    pub(super) fn accept(&mut self, now: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.next_connection() {
                Ok(Some(stream)) => {
                    if let Some((right, user)) = self.right_of(&stream) {
                        return self.admit(Client::new(stream, (right, Some(user)), now), now);
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    let until_ns = now.saturating_add(ACCEPT_PAUSE_NS);
                    return self.deadlines.set(Deadline::Accept, until_ns);
                }
            }
        }
    }

    /// Returns the first waiting connection, or `None` if none waits.
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

    /// Returns the right of a client, and its user. Returns `None` if it has no right.
    fn right_of(&self, stream: &UnixStream) -> Option<(Right, u32)> {
        let peer = ClientIdentity::of(stream)?;
        let right = access::right_of_client(&self.state.access, self.user, peer)?;
        Some((right, peer.user()))
    }

    /// Adds a new client, or refuses it because of a limit.
    fn admit(&mut self, mut client: Client, now: u64) {
        match self.admission_of(client.user.unwrap_or_default(), now) {
            Admission::Free => {}
            Admission::Evict(id) => {
                self.deadlines.set(Deadline::Client(id), None);
                self.clients.remove(&id);
            }
            Admission::Refused => {
                let why = "this user has too many pending requests: try again later";
                return client.answer(&refusal(why.to_owned()), now);
            }
        }
        self.insert_client(client);
    }

    fn admission_of(&self, user: u32, now: u64) -> Admission {
        let owner = self.is_owner(user);
        let own = |(_, client): &(&u64, &Client)| client.user == Some(user);
        let eviction = match owner {
            true if !self.is_full() => return Admission::Free,
            true => next_eviction(self.clients_of(true)),
            false if self.count_of(user) >= USER_MAX => {
                next_eviction(self.clients_of(false).filter(own))
            }
            false if self.clients_of(false).count() < OTHERS_MAX => return Admission::Free,
            false => next_eviction(self.clients_of(false)),
        };
        match eviction {
            Some((at, id)) if at <= now => Admission::Evict(id),
            _ => Admission::Refused,
        }
    }
}

/// Returns the client that the server can evict first, and the earliest time of the eviction.
fn next_eviction<'a>(clients: impl Iterator<Item = (&'a u64, &'a Client)>) -> Option<(u64, u64)> {
    let eviction = |(&id, client): (&u64, &Client)| Some((client.evictable_from_ns()?, id));
    clients.filter_map(eviction).min()
}
