//! What a call asks for: its kind, count and words, decoded once into a typed [`Call`].
//!
//! Decoding is pure and total: every input is a call or `EINVAL`. What a domain may not have is
//! refused later, where the call is done.

use abi::hypercall::{Bind, Create, Kind, OPS_MAX, Revoke};
use abi::{ConnId, Handle, XenbusState};
use rustix::io::Errno;

/// A call, in the words of the monitor.
///
/// A connection's number or a count of entries that is too large for its type is its largest value,
/// which is none's: that is the status of the operation; the call as a whole is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// Writes the caller's record of a connection: its new state; none: there is no such state. The
    /// record's body is still in the page.
    ConnectSet(ConnId, Option<XenbusState>),
    /// Reads the other end's record.
    ConnectGet(ConnId),
    /// The domain has started.
    Ready,
    /// Makes the granter's half of a table, for this connection and with so many entries.
    TableCreate(ConnId, u32),
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
            Kind::ConnectSet => {
                let [conn, state, _] = words(0);
                Call::ConnectSet(ConnId(narrow(conn)), XenbusState::from_wire(state))
            }
            Kind::ConnectGet => Call::ConnectGet(ConnId(narrow(words(0)[0]))),
            Kind::TableCreate => {
                let [conn, entries, _] = words(0);
                Call::TableCreate(ConnId(narrow(conn)), narrow(entries))
            }
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

fn narrow(word: u64) -> u32 {
    u32::try_from(word).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
