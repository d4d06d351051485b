//! The record that describes a driver domain's queues to a device in another domain.

use super::addr::IoAddr;
use super::layout::queue_bytes;
use abi::{Handle, RECORD_BYTES};

/// Version of the layouts of records and queues.
const VERSION: u32 = 3;

/// The I/O addresses of a driver's queues, and their sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    /// The table of counted grants whose entries are the I/O pages.
    pub table: Handle,
    /// Number of entries of the table.
    pub pages: u32,
    /// Number of entries of each queue.
    pub descriptors: u32,
    /// Address of the shared receive queue.
    pub receive: IoAddr,
    /// Address of the transmit queue.
    pub transmit: IoAddr,
    /// Address of the first dedicated receive queue. The others follow it without gaps.
    pub dedicated: IoAddr,
    /// Number of dedicated receive queues.
    pub queues: u32,
}

impl QueueRecord {
    /// Returns the I/O addresses of all receive queues, the shared queue first. The address is 0
    /// for a queue beyond the end of the address space.
    #[must_use]
    pub fn receive_queues(&self) -> Vec<IoAddr> {
        let bytes = queue_bytes(self.descriptors);
        let dedicated = (0..self.queues as usize).map(|queue| {
            let offset = queue.checked_mul(bytes);
            let address = offset.and_then(|offset| self.dedicated.add(offset));
            address.unwrap_or(IoAddr::of_page(0))
        });
        std::iter::once(self.receive).chain(dedicated).collect()
    }

    /// Encodes the record as little-endian words.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let addresses = [self.receive, self.transmit, self.dedicated];
        let [receive, transmit, dedicated] = addresses.map(IoAddr::bits);
        let words = [
            VERSION,
            self.table.0,
            self.pages,
            self.descriptors,
            receive as u32,
            (receive >> 32) as u32,
            transmit as u32,
            (transmit >> 32) as u32,
            dedicated as u32,
            (dedicated >> 32) as u32,
            self.queues,
        ];
        let mut body = [0; RECORD_BYTES];
        for (to, word) in body.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        body
    }

    /// Decodes a record. Returns `None` if it has another version. Does not check the values.
    #[must_use]
    pub fn decode(body: &[u8; RECORD_BYTES]) -> Option<Self> {
        let mut words = body.chunks_exact(4).map(|word| {
            let word = word.try_into().unwrap_or_default();
            u32::from_le_bytes(word)
        });
        let mut next = || words.next().unwrap_or_default();
        if next() != VERSION {
            return None;
        }
        let (table, pages, descriptors) = (Handle(next()), next(), next());
        let mut address = || IoAddr::from_bits(u64::from(next()) | u64::from(next()) << 32);
        let (receive, transmit, dedicated) = (address(), address(), address());
        Some(Self {
            table,
            pages,
            descriptors,
            receive,
            transmit,
            dedicated,
            queues: next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// D-23.
        #[test]
        fn record_decodes_as_encoded(
            (table, pages, descriptors) in any::<(u32, u32, u32)>(),
            (receive, transmit, dedicated, queues) in any::<(u64, u64, u64, u32)>(),
        ) {
            let record = QueueRecord {
                table: Handle(table),
                pages,
                descriptors,
                receive: IoAddr::from_bits(receive),
                transmit: IoAddr::from_bits(transmit),
                dedicated: IoAddr::from_bits(dedicated),
                queues,
            };
            let mut body = record.encode();
            prop_assert_eq!(QueueRecord::decode(&body), Some(record));
            body[0] ^= 1;
            prop_assert_eq!(QueueRecord::decode(&body), None);
        }
    }
}
