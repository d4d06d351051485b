//! The control ring of an interface (public/io/netif.h), through which its guest configures flow
//! steering. The guest may write arbitrary requests, and each gets an answer.

use driver::vifs::hashing::{Hashing, KEY_MAX, TABLE_MAX};
use net::packet::toeplitz::HashTypes;
use shmem::Span;
use std::sync::atomic::{Ordering, fence};
use vif::ring::{GrantedRingPages, HEADER_BYTES, RingIndex, RingMemory, passes};

/// Number of slots of the ring: the highest power of two of slots of 16 bytes that fit a page.
pub const SLOTS: u32 = 128;
/// Words of a request.
const REQUEST: usize = 4;
/// Words of an answer.
const ANSWER: usize = 3;

/// `XEN_NETIF_CTRL_TYPE_*`.
pub mod kind {
    /// Returns the kinds of packets that can have a hash.
    pub const GET_HASH_FLAGS: u16 = 1;
    /// Sets the kinds of packets that get a hash.
    pub const SET_HASH_FLAGS: u16 = 2;
    /// Sets the key from a granted page.
    pub const SET_HASH_KEY: u16 = 3;
    /// Returns the maximum size of the table.
    pub const GET_HASH_MAPPING_SIZE: u16 = 4;
    /// Sets the size of the table.
    pub const SET_HASH_MAPPING_SIZE: u16 = 5;
    /// Sets a part of the table from a granted page.
    pub const SET_HASH_MAPPING: u16 = 6;
    /// Sets the algorithm: none, or Toeplitz.
    pub const SET_HASH_ALGORITHM: u16 = 7;
}

/// `XEN_NETIF_CTRL_STATUS_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ControlStatus {
    /// Done.
    Success = 0,
    /// Not supported here.
    NotSupported = 1,
    /// Invalid.
    InvalidParameter = 2,
    /// The data exceeds the available space.
    BufferOverflow = 3,
}

use ControlStatus::{BufferOverflow, InvalidParameter, NotSupported, Success};

/// Read access to pages that the guest has granted.
pub trait ReadGranted {
    /// Fills `bytes`, at most a page, from the start of a granted page. Returns false if the page
    /// is not granted.
    fn fetch(&self, gref: u32, bytes: &mut [u8]) -> bool;
}

/// Executes a request. `queues` is the number of the interface's queues.
fn answer(
    hashing: Hashing,
    queues: u32,
    of: &impl ReadGranted,
    request: [u32; REQUEST],
) -> [u32; ANSWER] {
    let [head, one, two, three] = request;
    let done = match (head >> 16) as u16 {
        kind::SET_HASH_ALGORITHM => set_algorithm(hashing, one),
        kind::GET_HASH_FLAGS => match hashing.is_on() {
            true => Ok(HashTypes::ALL.0),
            false => Err(NotSupported),
        },
        kind::SET_HASH_FLAGS => set_types(hashing, one),
        kind::SET_HASH_KEY => set_key(hashing, of, one, two),
        kind::GET_HASH_MAPPING_SIZE => Ok(TABLE_MAX as u32),
        kind::SET_HASH_MAPPING_SIZE => match one as usize {
            ..=TABLE_MAX => {
                hashing.set_entries(one as usize);
                Ok(0)
            }
            _ => Err(InvalidParameter),
        },
        kind::SET_HASH_MAPPING => set_table(hashing, queues, of, [one, two, three]),
        _ => Err(NotSupported),
    };
    // The answer repeats the id and the kind of the request.
    match done {
        Ok(data) => [head, Success as u32, data],
        Err(status) => [head, status as u32, 0],
    }
}

type Done = Result<u32, ControlStatus>;

fn set_algorithm(hashing: Hashing, algorithm: u32) -> Done {
    let is_on = match algorithm {
        0 => false,
        1 => true,
        _ => return Err(InvalidParameter),
    };
    hashing.set_on(is_on);
    Ok(0)
}

fn set_types(hashing: Hashing, types: u32) -> Done {
    if types & !HashTypes::ALL.0 != 0 || !hashing.is_on() {
        return Err(InvalidParameter);
    }
    hashing.set_types(HashTypes(types));
    Ok(0)
}

fn set_key(hashing: Hashing, of: &impl ReadGranted, gref: u32, len: u32) -> Done {
    let mut key = [0; KEY_MAX];
    let key = key.get_mut(..len as usize).ok_or(BufferOverflow)?;
    if !key.is_empty() && !of.fetch(gref, key) {
        return Err(InvalidParameter);
    }
    hashing.set_key(key);
    Ok(0)
}

fn set_table(
    hashing: Hashing,
    queues: u32,
    of: &impl ReadGranted,
    [gref, len, first]: [u32; 3],
) -> Done {
    let end = first.checked_add(len).ok_or(BufferOverflow)?;
    if end as usize > TABLE_MAX {
        return Err(BufferOverflow);
    }
    if end as usize > hashing.entries() {
        return Err(InvalidParameter);
    }
    let mut bytes = [0; TABLE_MAX * 4];
    let bytes = bytes.get_mut(..len as usize * 4).ok_or(BufferOverflow)?;
    if !bytes.is_empty() && !of.fetch(gref, bytes) {
        return Err(InvalidParameter);
    }
    let words = bytes.as_chunks::<4>().0.iter().copied();
    let table: Vec<u32> = words.map(u32::from_le_bytes).collect();
    if table.iter().any(|queue| *queue >= queues) {
        return Err(InvalidParameter);
    }
    hashing.set_table(first as usize, &table);
    Ok(0)
}

/// The last request taken from the ring, in memory that outlives the process. It is needed because
/// the answer overwrites the request in the ring before the guest sees the answer.
///
/// ```text
///   0  u32 noted   1: the other fields are valid
///   4  u32 index
///   8  u32[4]      the request
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TakenRequest(Span);

impl TakenRequest {
    /// Size of the record in bytes.
    pub const BYTES: usize = 8 + REQUEST * 4;

    /// Opens the record in `memory`, which must start zeroed.
    #[must_use]
    pub const fn in_memory(memory: Span) -> Self {
        Self(memory)
    }

    fn note(self, index: u32, request: [u32; REQUEST]) {
        // A partial record is invalid.
        let _ = self.0.store_u32(0, 0);
        let _ = self.0.write_words(8, &request);
        let _ = self.0.store_u32(4, index);
        let _ = self.0.store_u32(0, 1);
    }

    fn noted(self, index: u32) -> Option<[u32; REQUEST]> {
        let is_noted = self.0.load_u32(0) == Ok(1) && self.0.load_u32(4) == Ok(index);
        let mut request = [0; REQUEST];
        (is_noted && self.0.read_words(8, &mut request).is_ok()).then_some(request)
    }
}

/// This domain's end of a control ring. It answers each request, and publishes the answer, before
/// it takes the next.
#[derive(Debug)]
pub struct ControlRing {
    pages: GrantedRingPages,
    taken: TakenRequest,
    /// Number of requests answered so far.
    done: u32,
    /// Whether the guest has broken the ring, which is then no longer served.
    broken: bool,
}

impl ControlRing {
    /// Opens the ring, and continues after the answers that were published.
    #[must_use]
    pub fn new(pages: GrantedRingPages, taken: TakenRequest) -> Self {
        let done = pages.index(RingIndex::RspProd, Ordering::Acquire);
        Self {
            pages,
            taken,
            done,
            broken: false,
        }
    }

    /// Returns whether a request is pending.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.broken && self.made() != 0
    }

    fn made(&self) -> u32 {
        let made = self.pages.index(RingIndex::ReqProd, Ordering::Acquire);
        made.wrapping_sub(self.done)
    }

    /// Answers pending requests, at most as many as the ring has slots. Returns whether to notify
    /// the guest.
    pub fn serve(&mut self, hashing: Hashing, queues: u32, of: &impl ReadGranted) -> bool {
        let before = self.done;
        for _ in 0..SLOTS {
            if self.broken || self.made() == 0 {
                break;
            }
            if self.made() > SLOTS {
                self.broken = true;
                break;
            }
            self.serve_one(hashing, queues, of);
        }
        let next = self.done.wrapping_add(1);
        self.pages
            .set_index(RingIndex::ReqEvent, next, Ordering::Release);
        // Orders the request for notifications before the next check by [`ControlRing::has_work`],
        // and the publication of the answers before the guest's request for notifications is read.
        fence(Ordering::SeqCst);
        let event = self.pages.index(RingIndex::RspEvent, Ordering::Acquire);
        passes(event, before, self.done)
    }

    fn serve_one(&mut self, hashing: Hashing, queues: u32, of: &impl ReadGranted) {
        let at = HEADER_BYTES + (self.done % SLOTS) as usize * REQUEST * 4;
        let request = self.taken.noted(self.done).unwrap_or_else(|| {
            let mut slot = [[0; REQUEST]];
            self.pages.read(0, at, REQUEST * 4, &mut slot);
            let [request] = slot;
            self.taken.note(self.done, request);
            request
        });
        let answer = answer(hashing, queues, of, request);
        self.pages.write(0, at, answer);
        self.done = self.done.wrapping_add(1);
        self.pages
            .set_index(RingIndex::RspProd, self.done, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
