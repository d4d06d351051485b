//! What a call asks for: its kind, count and words, decoded once into a typed [`Call`].
//!
//! Decoding is pure and total: every input is a call or `EINVAL`. What a domain may not have is
//! refused later, where the call is done.

use abi::hypercall::{Bind, Copy, Create, Kind, Map, OPS_MAX, Revoke, Transfer, Unmap};
use abi::{ConnId, Handle, Slot, XenbusState};
use rustix::io::Errno;

/// A call, in the words of the monitor.
///
/// An error inside a variant is the status of its one operation; the call as a whole is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// Copies between pages.
    GrantCopy(&'a [Copy]),
    /// Maps classic grants.
    GrantMap(&'a [Map]),
    /// Unmaps classic grants.
    GrantUnmap(&'a [Unmap]),
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
    /// Makes the granter's half of an exchange.
    ExchangeCreate(ExchangeCreate),
    /// Transfers pages of an exchange.
    GrantTransfer(&'a [Transfer]),
    /// Tells devices something: a device's number and two words, as they are.
    DeviceControl(&'a [[u64; 3]]),
    /// The domain has done with the device of this number.
    DeviceEnd(u64),
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

/// An exchange to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeCreate {
    /// For which connection of the caller's.
    pub conn: Option<ConnId>,
    /// Pages of each end, and the caller's first slot; none: no window has such slots.
    pub place: Option<(u32, Slot)>,
}

/// The operations of a batch. The buffers are reused: decoding allocates nothing once each has
/// grown to its largest batch.
#[derive(Debug)]
pub struct Operations {
    copies: Vec<Copy>,
    maps: Vec<Map>,
    unmaps: Vec<Unmap>,
    creates: Vec<Create>,
    revokes: Vec<Revoke>,
    transfers: Vec<Transfer>,
    controls: Vec<[u64; 3]>,
}

impl Default for Operations {
    /// Empty buffers; those of the calls that a packet may take have room for the largest batch.
    fn default() -> Self {
        Self {
            copies: Vec::with_capacity(OPS_MAX),
            maps: Vec::with_capacity(OPS_MAX),
            unmaps: Vec::with_capacity(OPS_MAX),
            creates: Vec::new(),
            revokes: Vec::new(),
            transfers: Vec::new(),
            controls: Vec::new(),
        }
    }
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
            Kind::GrantCopy => Call::GrantCopy(fill(&mut self.copies, all.map(Copy::decode))),
            Kind::GrantMap => Call::GrantMap(fill(&mut self.maps, all.map(Map::decode))),
            Kind::GrantUnmap => Call::GrantUnmap(fill(&mut self.unmaps, all.map(unmap))),
            Kind::GrantCreate => {
                Call::GrantCreate(fill(&mut self.creates, all.map(Create::decode)))
            }
            Kind::GrantRevoke => {
                Call::GrantRevoke(fill(&mut self.revokes, all.map(Revoke::decode)))
            }
            Kind::GrantTransfer => {
                Call::GrantTransfer(fill(&mut self.transfers, all.map(Transfer::decode)))
            }
            Kind::DeviceControl => Call::DeviceControl(fill(&mut self.controls, all)),
            Kind::Ready if count == 0 => Call::Ready,
            _ if count != 1 => return Err(Errno::INVAL),
            Kind::ConnectSet => Call::ConnectSet(connect_set(words(0))),
            Kind::ConnectGet => Call::ConnectGet(connection(words(0)[0]).ok_or(Errno::NOENT)),
            Kind::TableCreate => Call::TableCreate(table_create(words(0))),
            Kind::TableBind => Call::TableBind(Bind::decode(words(0))),
            Kind::TableEnd => Call::TableEnd(Handle(words(0)[0] as u32)),
            Kind::ExchangeCreate => Call::ExchangeCreate(exchange_create(words(0))),
            Kind::DeviceEnd => Call::DeviceEnd(words(0)[0]),
            Kind::Ready => return Err(Errno::INVAL),
        })
    }
}

fn fill<T>(buffer: &mut Vec<T>, operations: impl Iterator<Item = T>) -> &[T] {
    buffer.clear();
    buffer.extend(operations);
    buffer
}

/// As in [`Map::decode`], the slot is the low half of its word.
fn unmap([slot, ..]: [u64; 3]) -> Unmap {
    let slot = Slot(slot as u32);
    Unmap { slot }
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

fn exchange_create([conn, pages, first]: [u64; 3]) -> ExchangeCreate {
    let (pages, first) = (u32::try_from(pages).ok(), u32::try_from(first).ok());
    ExchangeCreate {
        conn: connection(conn),
        place: pages.zip(first.map(Slot)),
    }
}

fn connection(word: u64) -> Option<ConnId> {
    u32::try_from(word).map(ConnId).ok()
}

#[cfg(test)]
mod tests;
