//! Flow steering (NETIF-29): selects the queue of a frame to a guest by the Toeplitz hash of
//! addresses and ports, and by a table. The guest configures both. The configuration is in memory
//! that may outlive the process.
//!
//! ```text
//!    0  u32 algorithm    0: this domain selects the queue; 1: Toeplitz
//!    4  u32 types        types of packets to hash
//!    8  u32 entries      number of table entries; 0: queue = hash modulo number of queues
//!   16  40 bytes         key, padded with zeros
//!   64  u32[128]         table of queue numbers
//! ```
//!
//! OWNERSHIP. The memory belongs to this domain; no peer can access it. The process that serves the
//! rings writes it; after a restart, the next process does.

use net::packet::toeplitz::{HashTypes, hash};
use shmem::Span;

/// Maximum number of bytes of a key.
pub const KEY_MAX: usize = 40;
/// Maximum number of entries of a table.
pub const TABLE_MAX: usize = 128;
/// Value of the algorithm word for the Toeplitz hash.
const TOEPLITZ: u32 = 1;

const ALGORITHM: usize = 0;
const TYPES: usize = 4;
const ENTRIES: usize = 8;
const KEY: usize = 16;
const TABLE: usize = 64;

/// The flow steering configuration of one guest.
#[derive(Clone, Copy, Debug)]
pub struct Hashing(Span);

impl Hashing {
    /// Size of the configuration in bytes.
    pub const BYTES: usize = TABLE + TABLE_MAX * 4;

    /// Opens the configuration in `memory`. Memory for a new configuration must be zeroed; this
    /// domain then selects the queue.
    #[must_use]
    pub const fn in_memory(memory: Span) -> Self {
        Self(memory)
    }

    /// Clears the configuration at the start of a connection.
    pub fn begin(self) {
        let _ = self.0.fill(0);
    }

    /// Returns whether the guest has enabled Toeplitz hashing.
    #[must_use]
    pub fn is_on(self) -> bool {
        self.word(ALGORITHM) == TOEPLITZ
    }

    /// Enables or disables Toeplitz hashing.
    pub fn set_on(self, is_on: bool) {
        let _ = self.0.store_u32(ALGORITHM, u32::from(is_on) * TOEPLITZ);
    }

    /// Sets the types of packets to hash.
    pub fn set_types(self, types: HashTypes) {
        let _ = self.0.store_u32(TYPES, types.0);
    }

    /// Sets the key, truncated to [`KEY_MAX`] bytes.
    pub fn set_key(self, key: &[u8]) {
        let mut whole = [0; KEY_MAX];
        for (to, from) in whole.iter_mut().zip(key) {
            *to = *from;
        }
        let place = self.0.sub(KEY, KEY_MAX).unwrap_or(Span::EMPTY);
        let _ = place.write(&whole);
    }

    /// Returns the number of table entries.
    #[must_use]
    pub fn entries(self) -> usize {
        (self.word(ENTRIES) as usize).min(TABLE_MAX)
    }

    /// Creates a table of `entries` entries, at most [`TABLE_MAX`]. Each entry selects queue 0.
    pub fn set_entries(self, entries: usize) {
        let table = self.0.sub(TABLE, TABLE_MAX * 4).unwrap_or(Span::EMPTY);
        let _ = table.fill(0);
        let _ = self.0.store_u32(ENTRIES, entries.min(TABLE_MAX) as u32);
    }

    /// Sets consecutive table entries, starting at entry `first`.
    pub fn set_table(self, first: usize, queues: &[u32]) {
        for (at, queue) in (first..TABLE_MAX).zip(queues) {
            let _ = self.0.store_u32(TABLE + at * 4, *queue);
        }
    }

    /// Returns the queue, below `count`, of a frame with this header. Returns `None` if the guest
    /// has not enabled hashing, so that this domain selects the queue.
    #[must_use]
    pub fn queue(self, header: &[u8], count: usize) -> Option<usize> {
        let types = HashTypes(self.word(TYPES));
        if !self.is_on() || types == HashTypes::default() {
            return None;
        }
        let mut key = [0; KEY_MAX];
        self.0.sub(KEY, KEY_MAX)?.read(&mut key).ok()?;
        // As in xen-netback, a packet of another type has hash 0.
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
        Hashing::in_memory(memory.sub(0, Hashing::BYTES).unwrap())
    }

    #[test]
    fn netif_29_driver_selects_the_queue_by_default() {
        let hashing = hashing();
        let header = ipv4_tcp(100, 1);
        assert_eq!(hashing.queue(&header, 4), None);
        hashing.set_on(true);
        assert_eq!(hashing.queue(&header, 4), None, "no packet type is hashed");
        hashing.set_types(HashTypes::ALL);
        assert!(hashing.queue(&header, 4).is_some());
        hashing.set_on(false);
        assert_eq!(hashing.queue(&header, 4), None);
        assert_eq!(Hashing::in_memory(Span::EMPTY).queue(&header, 4), None);
    }

    #[test]
    fn netif_29_table_selects_the_queue() {
        let hashing = hashing();
        hashing.set_on(true);
        hashing.set_types(HashTypes::IPV4);
        hashing.set_key(&[0x5a, 0x13, 0x77, 0xc9, 0x21, 0x4e, 0x91, 0xb6]);
        hashing.set_entries(2);
        hashing.set_table(0, &[3, 1]);
        let mut counts = [0; 4];
        for last in 0..=255 {
            let mut header = ipv4_tcp(100, 1);
            header[26] = last;
            counts[hashing.queue(&header, 4).unwrap()] += 1;
        }
        assert_eq!(
            (counts[0], counts[2]),
            (0, 0),
            "no entry selects these queues"
        );
        assert_eq!(counts[1] + counts[3], 256);
        // A packet of another type uses the first entry.
        assert_eq!(hashing.queue(&[0xff; 60], 4), Some(3));
        // An entry with a nonexistent queue is reduced modulo the number of queues.
        hashing.set_table(0, &[7]);
        assert_eq!(hashing.queue(&[0xff; 60], 4), Some(3));
        hashing.set_entries(2);
        assert_eq!(
            hashing.queue(&[0xff; 60], 4),
            Some(0),
            "the new table selects queue 0"
        );
    }
}
