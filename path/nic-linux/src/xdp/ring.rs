//! The rings of a socket, which the kernel and this domain share.
//!
//! ```text
//!   producer ──► counts written entries    (release after the entries, acquire before them)
//!   consumer ──► counts taken entries
//!   entry n is at index n mod entries
//! ```
//!
//! OWNERSHIP: in each ring this domain writes one of the two words, and the kernel writes the
//! other. The producer writes the entries. The kernel is trusted, but memory safety does not depend
//! on it: this code compares counts without overflow, and its callers check the entries that they
//! read.

use abi::xdp::{NEED_WAKEUP, RingLayout};
use shmem::Span;
use std::sync::atomic::{AtomicU32, Ordering};

/// The words and entries of a ring, common to producers and consumers.
#[derive(Debug)]
struct RingWords {
    producer: &'static AtomicU32,
    consumer: &'static AtomicU32,
    flags: &'static AtomicU32,
    entries: Span,
    /// Number of entries, a power of two.
    count: u32,
    entry_bytes: usize,
}

impl RingWords {
    fn new(ring: Span, layout: RingLayout, count: u32, entry_bytes: usize) -> Option<Self> {
        let word = |offset: u16| ring.u32(usize::from(offset));
        let words = Self {
            producer: word(layout.producer)?,
            consumer: word(layout.consumer)?,
            flags: word(layout.flags)?,
            entries: ring.sub(usize::from(layout.entries), count as usize * entry_bytes)?,
            count,
            entry_bytes,
        };
        // An earlier domain may have written these words.
        let published = words.producer.load(Ordering::Relaxed);
        let published = published.wrapping_sub(words.consumer.load(Ordering::Relaxed));
        (count.is_power_of_two() && published <= count).then_some(words)
    }

    fn at(&self, number: u32) -> usize {
        (number & (self.count - 1)) as usize * self.entry_bytes
    }

    /// Returns an iterator over the addresses in `count` entries from `first`.
    fn addresses(&self, first: u32, count: u32) -> impl Iterator<Item = u64> {
        (0..count).filter_map(move |n| {
            let entry = self.entries.u64(self.at(first.wrapping_add(n)))?;
            Some(entry.load(Ordering::Relaxed))
        })
    }
}

/// A ring of which this domain is the producer.
#[derive(Debug)]
pub(super) struct XdpProducer {
    words: RingWords,
    /// Number of written entries, published or not.
    written: u32,
}

impl XdpProducer {
    /// Opens the ring in `ring`, which need not be empty. Returns `None` if the ring does not fit
    /// its memory, `count` is not a power of two, or the counts claim more entries than the ring
    /// has.
    pub(super) fn new(
        ring: Span,
        layout: RingLayout,
        count: u32,
        entry_bytes: usize,
    ) -> Option<Self> {
        let words = RingWords::new(ring, layout, count, entry_bytes)?;
        let written = words.producer.load(Ordering::Relaxed);
        Some(Self { words, written })
    }

    /// Returns the number of entries that the kernel has not taken yet.
    pub(super) fn pending(&self) -> u32 {
        // Acquire pairs with the kernel's release store of the count, which follows its reads of
        // the entries.
        let taken = self.words.consumer.load(Ordering::Acquire);
        self.written.wrapping_sub(taken).min(self.words.count)
    }

    /// Returns the index of the next entry to write, and the index of the first entry that the
    /// kernel has not reported as taken.
    pub(super) fn indices(&self) -> [u32; 2] {
        [self.written, self.written.wrapping_sub(self.pending())]
    }

    /// Returns the capacity of the ring in entries.
    pub(super) fn entries(&self) -> usize {
        self.words.count as usize
    }

    /// Returns whether the ring was ever used.
    pub(super) fn was_used(&self) -> bool {
        self.written != 0
    }

    /// Returns an iterator over the addresses that the kernel has not reported as taken. The kernel
    /// reports the entries that it has taken only when it has taken all entries that its last read
    /// of the ring found.
    pub(super) fn pending_addresses(&self) -> impl Iterator<Item = u64> {
        let pending = self.pending();
        let words = &self.words;
        words.addresses(self.written.wrapping_sub(pending), pending)
    }

    /// Returns the number of entries that can be written.
    pub(super) fn free(&self) -> u32 {
        self.words.count - self.pending()
    }

    /// Writes an address. The ring must not be full.
    pub(super) fn put_address(&mut self, address: u64) {
        let at = self.words.at(self.written);
        if let Some(entry) = self.words.entries.u64(at) {
            entry.store(address, Ordering::Relaxed);
        }
        self.written = self.written.wrapping_add(1);
    }

    /// Writes a packet's descriptor. The ring must not be full.
    pub(super) fn put_packet(&mut self, address: u64, len: u32) {
        let at = self.words.at(self.written);
        if let (Some(start), Some(rest)) =
            (self.words.entries.u64(at), self.words.entries.u64(at + 8))
        {
            start.store(address, Ordering::Relaxed);
            // This word contains the length, and options of 0.
            rest.store(u64::from(len), Ordering::Relaxed);
        }
        self.written = self.written.wrapping_add(1);
    }

    /// Publishes the written entries to the kernel.
    pub(super) fn publish(&self) {
        self.words.producer.store(self.written, Ordering::Release);
    }

    /// Returns whether the kernel needs a wake-up to process the ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.words.flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// A ring of which the kernel is the producer.
#[derive(Debug)]
pub(super) struct XdpConsumer {
    words: RingWords,
    taken: u32,
    /// The producer's count at the last read.
    cached: u32,
}

/// Descriptor of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct XdpDescriptor {
    pub(super) address: u64,
    pub(super) len: u32,
}

impl XdpConsumer {
    /// Opens the ring like [`XdpProducer::new`].
    pub(super) fn new(
        ring: Span,
        layout: RingLayout,
        count: u32,
        entry_bytes: usize,
    ) -> Option<Self> {
        let words = RingWords::new(ring, layout, count, entry_bytes)?;
        let taken = words.consumer.load(Ordering::Relaxed);
        Some(Self {
            words,
            taken,
            cached: taken,
        })
    }

    /// Reads the producer's count again, and returns the number of entries that can be taken.
    pub(super) fn refresh(&mut self) -> u32 {
        // Acquire makes the entries visible that the count includes.
        self.cached = self.words.producer.load(Ordering::Acquire);
        self.available()
    }

    /// Returns whether the kernel claims more entries than the ring has. An earlier domain has then
    /// overwritten the count that the kernel uses.
    pub(super) fn is_corrupt(&self) -> bool {
        self.cached.wrapping_sub(self.taken) > self.words.count
    }

    /// Reads the producer's count like [`XdpConsumer::refresh`], but returns at most `budget`.
    pub(super) fn peek_up_to(&mut self, budget: usize) -> u32 {
        (budget.min(u32::MAX as usize) as u32).min(self.refresh())
    }

    /// Reads the producer's count again, and returns an iterator over the addresses that can be
    /// taken.
    pub(super) fn addresses(&mut self) -> impl Iterator<Item = u64> {
        let available = self.refresh();
        self.words.addresses(self.taken, available)
    }

    fn available(&self) -> u32 {
        self.cached.wrapping_sub(self.taken).min(self.words.count)
    }

    /// Returns the packet `ahead` entries after the next one, if it is published.
    pub(super) fn peek_packet(&self, ahead: u32) -> Option<XdpDescriptor> {
        if ahead >= self.available() {
            return None;
        }
        let at = self.words.at(self.taken.wrapping_add(ahead));
        let address = self.words.entries.u64(at)?.load(Ordering::Relaxed);
        let len = self.words.entries.u32(at + 8)?.load(Ordering::Relaxed);
        Some(XdpDescriptor { address, len })
    }

    /// Takes the next packet.
    pub(super) fn take_packet(&mut self) -> Option<XdpDescriptor> {
        let packet = self.peek_packet(0)?;
        self.taken = self.taken.wrapping_add(1);
        Some(packet)
    }

    /// Takes the next address.
    pub(super) fn take_address(&mut self) -> Option<u64> {
        if self.available() == 0 {
            return None;
        }
        let at = self.words.at(self.taken);
        let address = self.words.entries.u64(at)?.load(Ordering::Relaxed);
        self.taken = self.taken.wrapping_add(1);
        Some(address)
    }

    /// Takes and releases all published entries.
    pub(super) fn skip(&mut self) {
        self.refresh();
        self.taken = self.cached;
        self.release();
    }

    /// Releases the taken entries to the kernel.
    pub(super) fn release(&self) {
        self.words.consumer.store(self.taken, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;

    const LAYOUT: RingLayout = RingLayout {
        producer: 0,
        consumer: 64,
        flags: 128,
        entries: 192,
    };

    fn ring() -> Span {
        Area::anonymous(4096).unwrap().span()
    }

    #[test]
    fn entries_pass_when_the_counts_wrap() {
        let span = ring();
        for word in [0, 64] {
            span.store_u32(word, u32::MAX - 2).unwrap();
        }
        let mut producer = XdpProducer::new(span, LAYOUT, 4, 16).unwrap();
        let mut consumer = XdpConsumer::new(span, LAYOUT, 4, 16).unwrap();
        for round in 0..5u32 {
            assert_eq!(producer.free(), 4);
            for n in 0..4 {
                producer.put_packet(u64::from(round) << 32, n);
            }
            assert_eq!((producer.free(), consumer.refresh()), (0, 0));
            producer.publish();
            assert_eq!(consumer.refresh(), 4);
            let (address, len) = (u64::from(round) << 32, 3);
            assert_eq!(
                consumer.peek_packet(3),
                Some(XdpDescriptor { address, len })
            );
            assert_eq!(consumer.peek_packet(4), None);
            for n in 0..4 {
                assert_eq!(consumer.take_packet().unwrap().len, n);
            }
            assert_eq!(consumer.take_packet(), None);
            assert_eq!(producer.free(), 0);
            consumer.release();
        }
    }

    #[test]
    fn address_entries_have_8_bytes() {
        let span = ring();
        let mut producer = XdpProducer::new(span, LAYOUT, 2, 8).unwrap();
        let mut consumer = XdpConsumer::new(span, LAYOUT, 2, 8).unwrap();
        producer.put_address(0x1000);
        producer.put_address(0x2000);
        producer.publish();
        assert_eq!(consumer.refresh(), 2);
        assert_eq!(consumer.take_address(), Some(0x1000));
        assert_eq!(consumer.take_address(), Some(0x2000));
        assert_eq!(consumer.take_address(), None);
    }

    #[test]
    fn invalid_counts_are_bounded_by_the_ring() {
        let span = ring();
        let producer = XdpProducer::new(span, LAYOUT, 4, 16).unwrap();
        let mut consumer = XdpConsumer::new(span, LAYOUT, 4, 16).unwrap();
        span.store_u32(64, 77).unwrap();
        assert_eq!((producer.pending(), producer.free()), (4, 0));
        span.store_u32(0, u32::MAX).unwrap();
        assert_eq!(consumer.refresh(), 4);
    }

    #[test]
    fn later_domain_sees_remaining_entries() {
        let span = ring();
        let mut before = XdpProducer::new(span, LAYOUT, 4, 8).unwrap();
        assert!(!before.was_used());
        (1..=3).for_each(|n| before.put_address(n << 11));
        before.publish();
        before.put_address(9 << 11);
        let mut taker = XdpConsumer::new(span, LAYOUT, 4, 8).unwrap();
        taker.refresh();
        taker.take_address();
        taker.release();
        // The entry that was not published is not included.
        let after = XdpProducer::new(span, LAYOUT, 4, 8).unwrap();
        assert!(after.was_used());
        assert_eq!(
            after.pending_addresses().collect::<Vec<_>>(),
            [2 << 11, 3 << 11]
        );
        assert_eq!(taker.addresses().collect::<Vec<_>>(), [2 << 11, 3 << 11]);
        assert_eq!(after.free(), 2);
        // The count exceeds the ring's size, so it is forged.
        span.store_u32(0, 9).unwrap();
        assert!(XdpProducer::new(span, LAYOUT, 4, 8).is_none());
        assert!(XdpConsumer::new(span, LAYOUT, 4, 8).is_none());
    }

    #[test]
    fn rings_that_do_not_fit_are_rejected() {
        let span = ring();
        assert!(XdpProducer::new(span, LAYOUT, 256, 16).is_none());
        assert!(XdpProducer::new(span, LAYOUT, 3, 16).is_none());
        assert!(XdpConsumer::new(span.take(100), LAYOUT, 4, 16).is_none());
    }
}
