//! Which queue a frame for a guest goes to, as the guest has chosen it (NETIF-29): by the Toeplitz
//! hash of its addresses and ports and a table, in memory that may outlive the process.
//!
//! ```text
//!    0  u32 algorithm    0: this domain chooses; 1: Toeplitz
//!    4  u32 types        which packets have a hash
//!    8  u32 entries      of the table; 0: the hash modulo the number of queues
//!   16  40 bytes         key, zeros behind its end
//!   64  u32[128]         table
//! ```
//!
//! OWNERSHIP. The memory is this domain's own; no peer can touch it. The process that has the back
//! end of the rings writes it, one process after the other.

use net::packet::toeplitz::{HashTypes, hash};
use shmem::Span;

/// Bytes of the longest key.
pub const KEY_MAX: usize = 40;
/// Entries of the longest table.
pub const TABLE_MAX: usize = 128;
/// The algorithm.
const TOEPLITZ: u32 = 1;

const ALGORITHM: usize = 0;
const TYPES: usize = 4;
const ENTRIES: usize = 8;
const KEY: usize = 16;
const TABLE: usize = 64;

/// One guest's choice.
#[derive(Clone, Copy, Debug)]
pub struct Hashing(Span);

impl Hashing {
    /// Bytes that it takes.
    pub const BYTES: usize = TABLE + TABLE_MAX * 4;

    /// The choice in `memory`, which was made full of zeros: this domain chooses.
    #[must_use]
    pub const fn over(memory: Span) -> Self {
        Self(memory)
    }

    /// A connection begins: the guest has chosen nothing.
    pub fn begin(self) {
        let _ = self.0.fill(0);
    }

    /// Whether it has chosen the algorithm.
    #[must_use]
    pub fn is_on(self) -> bool {
        self.word(ALGORITHM) == TOEPLITZ
    }

    /// Whether it hashes at all.
    pub fn set_on(self, is_on: bool) {
        let _ = self.0.store_u32(ALGORITHM, u32::from(is_on) * TOEPLITZ);
    }

    /// Which packets have a hash.
    pub fn set_types(self, types: HashTypes) {
        let _ = self.0.store_u32(TYPES, types.0);
    }

    /// The key; what is longer than [`KEY_MAX`] is cut.
    pub fn set_key(self, key: &[u8]) {
        let mut whole = [0; KEY_MAX];
        for (to, from) in whole.iter_mut().zip(key) {
            *to = *from;
        }
        let place = self.0.sub(KEY, KEY_MAX).unwrap_or(Span::EMPTY);
        let _ = place.write(&whole);
    }

    /// Entries of the table.
    #[must_use]
    pub fn entries(self) -> usize {
        (self.word(ENTRIES) as usize).min(TABLE_MAX)
    }

    /// A new table, of this many entries, at most [`TABLE_MAX`]; all of them name queue 0.
    pub fn set_entries(self, entries: usize) {
        let table = self.0.sub(TABLE, TABLE_MAX * 4).unwrap_or(Span::EMPTY);
        let _ = table.fill(0);
        let _ = self.0.store_u32(ENTRIES, entries.min(TABLE_MAX) as u32);
    }

    /// A part of the table, from entry `first` on; the rest stays.
    pub fn set_table(self, first: usize, queues: &[u32]) {
        for (at, queue) in (first..TABLE_MAX).zip(queues) {
            let _ = self.0.store_u32(TABLE + at * 4, *queue);
        }
    }

    /// The queue, of `count`, of a frame that begins with `header`. None: the guest leaves it to
    /// this domain.
    #[must_use]
    pub fn queue(self, header: &[u8], count: usize) -> Option<usize> {
        let types = HashTypes(self.word(TYPES));
        if !self.is_on() || types == HashTypes::default() {
            return None;
        }
        let mut key = [0; KEY_MAX];
        self.0.sub(KEY, KEY_MAX)?.read(&mut key).ok()?;
        // As xen-netback: a packet that has no hash has the hash 0.
        let hash = hash(header, types, &key).unwrap_or(0) as usize;
        let queue = match self.entries() {
            0 => hash,
            entries => self.word(TABLE + hash % entries * 4) as usize,
        };
        Some(queue % count.max(1))
    }

    fn word(self, at: usize) -> u32 {
        self.0.load_u32(at).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;
    use vif::testing::ipv4_tcp;

    fn hashing() -> Hashing {
        let memory = Area::anonymous(abi::PAGE).unwrap().span();
        Hashing::over(memory.sub(0, Hashing::BYTES).unwrap())
    }

    #[test]
    fn netif_29_who_chooses_nothing_leaves_it_to_the_driver() {
        let hashing = hashing();
        let header = ipv4_tcp(100, 1);
        assert_eq!(hashing.queue(&header, 4), None);
        hashing.set_on(true);
        assert_eq!(hashing.queue(&header, 4), None, "no packet has a hash");
        hashing.set_types(HashTypes::ALL);
        assert!(hashing.queue(&header, 4).is_some());
        hashing.set_on(false);
        assert_eq!(hashing.queue(&header, 4), None);
        assert_eq!(Hashing::over(Span::EMPTY).queue(&header, 4), None);
    }

    #[test]
    fn netif_29_a_table_says_which_queue() {
        let hashing = hashing();
        hashing.set_on(true);
        hashing.set_types(HashTypes::IPV4);
        hashing.set_key(&[0x5a, 0x13, 0x77, 0xc9, 0x21, 0x4e, 0x91, 0xb6]);
        hashing.set_entries(2);
        hashing.set_table(0, &[3, 1]);
        let mut seen = [0; 4];
        for last in 0..=255 {
            let mut header = ipv4_tcp(100, 1);
            header[26] = last;
            seen[hashing.queue(&header, 4).unwrap()] += 1;
        }
        assert_eq!((seen[0], seen[2]), (0, 0), "no entry names them");
        assert_eq!(seen[1] + seen[3], 256);
        // What has no hash is at the first entry.
        assert_eq!(hashing.queue(&[0xff; 60], 4), Some(3));
        // A queue that there is not.
        hashing.set_table(0, &[7]);
        assert_eq!(hashing.queue(&[0xff; 60], 4), Some(3));
        hashing.set_entries(2);
        assert_eq!(hashing.queue(&[0xff; 60], 4), Some(0), "a new table");
    }
}
