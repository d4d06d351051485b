//! Batches of chains of one descriptor.
//!
//! Drivers place a frame with its header in one buffer where possible. The device reads all chains
//! of a batch before it moves their bytes. The waits for cache lines that the virtual machine's
//! processor wrote last then overlap.

use super::chain::{ChainSegment, CopyDirection};
use super::{RingError, SplitRing};
use crate::memory::VmMemory;

/// Maximum number of chains of a batch.
pub const BATCH: usize = 64;

/// A chain of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortChain {
    head: u16,
    /// Its buffer.
    pub segment: ChainSegment,
}

impl SplitRing {
    /// Fills `chains` with up to `most` of the ring's next chains. Stops at the first chain that
    /// has several descriptors, lies in several regions, or is bad. The chains stay in the ring
    /// until [`SplitRing::answer`].
    ///
    /// # Errors
    /// Returns an error if the ring is broken.
    #[inline]
    pub fn peek_short_chains(
        &mut self,
        memory: &VmMemory,
        direction: CopyDirection,
        most: usize,
        chains: &mut Vec<ShortChain>,
    ) -> Result<(), RingError> {
        chains.clear();
        let most = most.min(BATCH);
        if usize::from(self.known_chains()) < most {
            self.count()?;
        }
        let count = self.known_chains().min(most as u16);
        self.prefetch_used(count);
        let mut heads = [0; BATCH];
        let table = self.table();
        for (n, head) in (0..count).zip(&mut heads) {
            *head = self.head(self.next_avail.wrapping_add(n))?;
            table.prefetch(*head);
        }
        for &head in heads.iter().take(count.into()) {
            let entry = table.entry(head).ok();
            let Some(segment) = entry.and_then(|entry| entry.single_buffer(memory, direction))
            else {
                break;
            };
            chains.push(ShortChain { head, segment });
        }
        Ok(())
    }

    /// Takes the next chain, which [`SplitRing::peek_short_chains`] has read, and returns it to the
    /// driver with `bytes` bytes written. The driver sees it after [`SplitRing::publish`].
    ///
    /// # Errors
    /// Returns an error if the ring is broken.
    #[inline]
    pub fn answer(
        &mut self,
        memory: &VmMemory,
        chain: ShortChain,
        bytes: usize,
    ) -> Result<(), RingError> {
        self.next_avail = self.next_avail.wrapping_add(1);
        self.put(memory, chain.head, bytes as u32)
    }
}
