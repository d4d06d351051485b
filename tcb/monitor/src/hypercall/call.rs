//! What a call asks for: its kind, count and words, decoded once into a typed [`Call`].
//!
//! Decoding is pure and total: every input is a call or `EINVAL`. What a domain may not have is
//! refused later, where the call is done.

use abi::hypercall::{Bind, Create, Kind, OPS_MAX, Revoke};
use abi::{ConnId, Handle, XenbusState};
use rustix::io::Errno;

/// A call, in the words of the monitor.
///
/// An error inside a variant is the status of its one operation; the call as a whole is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// Writes the caller's record of a connection. The record's body is still in the page.
    ConnectSet(Result<ConnectSet, Errno>),
    /// Reads the other end's record.
    ConnectGet(Result<ConnId, Errno>),
    /// The domain has started.
    Ready,
    /// Makes the granter's half of a table.
    TableCreate(TableCreate),
    /// Binds a table or an exchange.
    TableBind(Bind),
    /// Ends the caller's half of a table or an exchange.
    TableEnd(Handle),
    /// Makes counted grants.
    GrantCreate(&'a [Create]),
    /// Revokes counted grants.
    GrantRevoke(&'a [Revoke]),
    /// Tells devices something: a device's number and two words, as they are.
    DeviceControl(&'a [[u64; 3]]),
    /// The domain has done with the device of this number.
    DeviceEnd(u64),
    /// A call of [`crate::grant::mechanism`]: the words of its operations, as they are.
    Other(Kind, &'a [[u64; 3]]),
}

/// A record to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectSet {
    /// Whose record: no connection has a number above 32 bits.
    pub conn: Option<ConnId>,
    /// The caller's new state.
    pub state: XenbusState,
}

/// A table to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableCreate {
    /// For which connection of the caller's.
    pub conn: Option<ConnId>,
    /// How many entries; none: more than any table has.
    pub entries: Option<u32>,
}

/// The operations of a batch. The buffers are reused: decoding allocates nothing once each has
/// grown to its largest batch.
#[derive(Debug, Default)]
pub struct Operations {
    creates: Vec<Create>,
    revokes: Vec<Revoke>,
    words: Vec<[u64; 3]>,
}

impl Operations {
    /// Decodes a call of `count` operations. `words` yields the first three words of an operation,
    /// and is asked at most once for each.
    ///
    /// # Errors
    /// `EINVAL`: there is no such kind, or it does not have that many operations. Then no
    /// operation was looked at.
    pub fn decode(
        &mut self,
        kind: u32,
        count: usize,
        words: impl Fn(usize) -> [u64; 3],
    ) -> Result<Call<'_>, Errno> {
        let kind = Kind::from_wire(kind).ok_or(Errno::INVAL)?;
        if count > OPS_MAX {
            return Err(Errno::INVAL);
        }
        let all = (0..count).map(&words);
        Ok(match kind {
            Kind::GrantCreate => {
                Call::GrantCreate(fill(&mut self.creates, all.map(Create::decode)))
            }
            Kind::GrantRevoke => {
                Call::GrantRevoke(fill(&mut self.revokes, all.map(Revoke::decode)))
            }
            Kind::DeviceControl => Call::DeviceControl(fill(&mut self.words, all)),
            other if other.is_other() => Call::Other(other, fill(&mut self.words, all)),
            Kind::Ready if count == 0 => Call::Ready,
            _ if count != 1 => return Err(Errno::INVAL),
            Kind::ConnectSet => Call::ConnectSet(connect_set(words(0))),
            Kind::ConnectGet => Call::ConnectGet(connection(words(0)[0]).ok_or(Errno::NOENT)),
            Kind::TableCreate => Call::TableCreate(table_create(words(0))),
            Kind::TableBind => Call::TableBind(Bind::decode(words(0))),
            Kind::TableEnd => Call::TableEnd(Handle(words(0)[0] as u32)),
            Kind::DeviceEnd => Call::DeviceEnd(words(0)[0]),
            _ => return Err(Errno::INVAL),
        })
    }
}

fn fill<T>(buffer: &mut Vec<T>, operations: impl Iterator<Item = T>) -> &[T] {
    buffer.clear();
    buffer.extend(operations);
    buffer
}

fn connect_set([conn, state, _]: [u64; 3]) -> Result<ConnectSet, Errno> {
    let state = XenbusState::from_wire(state).ok_or(Errno::INVAL)?;
    let conn = connection(conn);
    Ok(ConnectSet { conn, state })
}

fn table_create([conn, entries, _]: [u64; 3]) -> TableCreate {
    TableCreate {
        conn: connection(conn),
        entries: u32::try_from(entries).ok(),
    }
}

fn connection(word: u64) -> Option<ConnId> {
    u32::try_from(word).map(ConnId).ok()
}

#[cfg(test)]
mod tests;
