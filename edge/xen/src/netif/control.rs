//! The control ring of an interface (public/io/netif.h): how its guest chooses the queue that a
//! frame comes by. Requests and their answers, whatever a guest may write.

use driver::vifs::hashing::{Hashing, KEY_MAX, TABLE_MAX};
use net::packet::toeplitz::HashTypes;
use shmem::Span;
use std::sync::atomic::{Ordering, fence};
use vif::ring::{HEADER_BYTES, Index, Pages, Words, passes};

/// Slots of the ring: 16 bytes each, as many as fit a page, a power of two.
pub const SLOTS: u32 = 128;
/// Words of a request.
const REQUEST: usize = 4;
/// Words of an answer.
const ANSWER: usize = 3;

/// `XEN_NETIF_CTRL_TYPE_*`.
pub mod kind {
    /// Which packets can have a hash.
    pub const GET_HASH_FLAGS: u16 = 1;
    /// Which packets shall have one.
    pub const SET_HASH_FLAGS: u16 = 2;
    /// The key lies in a granted page.
    pub const SET_HASH_KEY: u16 = 3;
    /// How long a table can be.
    pub const GET_HASH_MAPPING_SIZE: u16 = 4;
    /// How long it is.
    pub const SET_HASH_MAPPING_SIZE: u16 = 5;
    /// A part of it lies in a granted page.
    pub const SET_HASH_MAPPING: u16 = 6;
    /// None, or Toeplitz.
    pub const SET_HASH_ALGORITHM: u16 = 7;
}

/// `XEN_NETIF_CTRL_STATUS_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ControlStatus {
    /// Done.
    Success = 0,
    /// Nothing of the kind is done here.
    NotSupported = 1,
    /// It makes no sense.
    InvalidParameter = 2,
    /// More than is kept.
    BufferOverflow = 3,
}

use ControlStatus::{BufferOverflow, InvalidParameter, NotSupported, Success};

/// Reads from the start of a page that the guest has granted; false: it is not granted.
pub trait Fetch {
    /// Fills `bytes`, at most a page.
    fn fetch(&self, gref: u32, bytes: &mut [u8]) -> bool;
}

/// Does what a request asks for; `queues` is how many the interface has.
fn answer(
    hashing: Hashing,
    queues: u32,
    of: &impl Fetch,
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
    // Id and kind are the request's.
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

fn set_key(hashing: Hashing, of: &impl Fetch, gref: u32, len: u32) -> Done {
    let mut key = [0; KEY_MAX];
    let key = key.get_mut(..len as usize).ok_or(BufferOverflow)?;
    if !key.is_empty() && !of.fetch(gref, key) {
        return Err(InvalidParameter);
    }
    hashing.set_key(key);
    Ok(0)
}

fn set_table(hashing: Hashing, queues: u32, of: &impl Fetch, [gref, len, first]: [u32; 3]) -> Done {
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

/// The request that was taken off the ring last, in memory that outlives the process: its answer
/// is written over it before the guest sees that.
///
/// ```text
///   0  u32 noted   1: what follows is there
///   4  u32 index
///   8  u32[4]      the request
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TakenRequest(Span);

impl TakenRequest {
    /// Bytes that it takes.
    pub const BYTES: usize = 8 + REQUEST * 4;

    /// In `memory`, which was made full of zeros.
    #[must_use]
    pub const fn over(memory: Span) -> Self {
        Self(memory)
    }

    fn note(self, index: u32, request: [u32; REQUEST]) {
        // Half of it is none of it.
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

/// This domain's end of a control ring. Each request is answered, and its answer shown, before the
/// next is taken.
#[derive(Debug)]
pub struct ControlRing {
    pages: Pages,
    taken: TakenRequest,
    /// Requests answered.
    done: u32,
    /// The guest breaks the ring: it is not served any more.
    broken: bool,
}

impl ControlRing {
    /// Goes on behind the answers that the guest has been shown.
    #[must_use]
    pub fn new(pages: Pages, taken: TakenRequest) -> Self {
        let done = pages.index(Index::RspProd, Ordering::Acquire);
        Self {
            pages,
            taken,
            done,
            broken: false,
        }
    }

    /// Whether there is a request.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.broken && self.made() != 0
    }

    fn made(&self) -> u32 {
        let made = self.pages.index(Index::ReqProd, Ordering::Acquire);
        made.wrapping_sub(self.done)
    }

    /// Answers what there is, at most a ring full; whether the guest is to be notified.
    pub fn serve(&mut self, hashing: Hashing, queues: u32, of: &impl Fetch) -> bool {
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
            .set_index(Index::ReqEvent, next, Ordering::Release);
        // The guest is asked to notify before [`ControlRing::has_work`] looks once more; what it
        // asks for is read after it was shown the answers.
        fence(Ordering::SeqCst);
        let event = self.pages.index(Index::RspEvent, Ordering::Acquire);
        passes(event, before, self.done)
    }

    fn serve_one(&mut self, hashing: Hashing, queues: u32, of: &impl Fetch) {
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
            .set_index(Index::RspProd, self.done, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
