//! Decodes a call's kind, count and words once into a typed [`DecodedCall`].
//!
//! Decoding is pure and total: every input yields a call or `EINVAL`. Access is checked later, when
//! the call is executed.

use abi::hypercall::{
    BindOp, CreateGrantOp, ForeignMap, HypercallKind, OPS_MAX, RevokeOp, ShareOp,
};
use abi::{ConnId, Handle, XenbusState};
use rustix::io::Errno;

/// A decoded call.
///
/// If a connection number or an entry count does not fit its type, decoding replaces it by the
/// type's largest value, which is never valid. The call as a whole is then accepted, and its
/// operation fails with a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedCall<'a> {
    /// Writes the caller's record of a connection. Contains the new state, or `None` if the state
    /// is invalid; the record's body is still in the page.
    ConnectSet(ConnId, Option<XenbusState>),
    /// Reads the other end's record.
    ConnectGet(ConnId),
    /// Reports that the domain has started.
    Ready,
    /// Creates the granter's half of a table. Contains the connection and the number of entries.
    TableCreate(ConnId, u32),
    /// Binds a table or an exchange.
    TableBind(BindOp),
    /// Maps a table's pages for a device.
    TableShare(ShareOp),
    /// Ends the caller's half of a table or an exchange.
    TableEnd(Handle),
    /// Creates counted grants.
    GrantCreate(&'a [CreateGrantOp]),
    /// Revokes counted grants.
    GrantRevoke(&'a [RevokeOp]),
    /// Passes control words to devices. Each operation has a device's number and two words,
    /// uninterpreted.
    DeviceControl(&'a [[u64; 3]]),
    /// Ends the device with this number.
    DeviceEnd(u64),
    /// Maps foreign memory.
    ForeignMap(ForeignMap),
    /// Unmaps the foreign memory at this page of its range.
    ForeignUnmap(u64),
    /// Executes a call of [`crate::grant::mechanism`]. Contains the words of its operations,
    /// uninterpreted.
    Other(HypercallKind, &'a [[u64; 3]]),
}

/// Buffers for the operations of a batch. They are reused, so decoding allocates nothing once each
/// buffer has grown to its largest batch.
#[derive(Debug, Default)]
pub struct Operations {
    creates: Vec<CreateGrantOp>,
    revokes: Vec<RevokeOp>,
    words: Vec<[u64; 3]>,
}

impl Operations {
    /// Decodes a call of `count` operations. `words` yields the first three words of an operation
    /// and is called at most once for each.
    ///
    /// # Errors
    /// Returns `EINVAL` if the kind does not exist, or does not accept `count` operations. No
    /// operation is read in this case.
    pub fn decode(
        &mut self,
        kind: u32,
        count: usize,
        words: impl Fn(usize) -> [u64; 3],
    ) -> Result<DecodedCall<'_>, Errno> {
        let kind = HypercallKind::from_wire(kind).ok_or(Errno::INVAL)?;
        if count > OPS_MAX {
            return Err(Errno::INVAL);
        }
        let all = (0..count).map(&words);
        Ok(match kind {
            HypercallKind::GrantCreate => {
                DecodedCall::GrantCreate(fill(&mut self.creates, all.map(CreateGrantOp::decode)))
            }
            HypercallKind::GrantRevoke => {
                DecodedCall::GrantRevoke(fill(&mut self.revokes, all.map(RevokeOp::decode)))
            }
            HypercallKind::DeviceControl => DecodedCall::DeviceControl(fill(&mut self.words, all)),
            other if other.is_experimental() => {
                DecodedCall::Other(other, fill(&mut self.words, all))
            }
            HypercallKind::Ready if count == 0 => DecodedCall::Ready,
            _ if count != 1 => return Err(Errno::INVAL),
            HypercallKind::ConnectSet => {
                let [conn, state, _] = words(0);
                DecodedCall::ConnectSet(ConnId(narrow(conn)), XenbusState::from_wire(state))
            }
            HypercallKind::ConnectGet => DecodedCall::ConnectGet(ConnId(narrow(words(0)[0]))),
            HypercallKind::TableCreate => {
                let [conn, entries, _] = words(0);
                DecodedCall::TableCreate(ConnId(narrow(conn)), narrow(entries))
            }
            HypercallKind::TableBind => DecodedCall::TableBind(BindOp::decode(words(0))),
            HypercallKind::TableShare => DecodedCall::TableShare(ShareOp::decode(words(0))),
            HypercallKind::TableEnd => DecodedCall::TableEnd(Handle(words(0)[0] as u32)),
            HypercallKind::DeviceEnd => DecodedCall::DeviceEnd(words(0)[0]),
            HypercallKind::ForeignMap => DecodedCall::ForeignMap(ForeignMap::decode(words(0))),
            HypercallKind::ForeignUnmap => DecodedCall::ForeignUnmap(words(0)[0]),
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
