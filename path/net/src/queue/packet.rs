//! Packets in a queue.

/// A packet that the queue can hold.
pub trait QueuedPacket: Sized {
    /// Returns its length in bytes.
    fn bytes(&self) -> u64;
    /// Returns the units of memory that the packet holds.
    fn units(&self) -> usize;
    /// Sets the ECN mark *congestion experienced*; returns false if the packet is not ECN-capable.
    fn mark(&mut self) -> bool;
    /// Splits off the part that a single drop discards. Returns `None` if the packet is not an
    /// aggregate.
    fn shed(&mut self) -> Option<Self>;
}

/// Bytes of a packet, and its units of memory.
pub(super) type Size = (u64, usize);

/// A packet, and the time at which it was pushed.
#[derive(Debug)]
pub(super) struct QueuedItem<P> {
    pub(super) packet: P,
    pub(super) since_ns: u64,
}

/// Result of a congestion signal.
pub(super) enum Signal<P> {
    /// The packet was marked.
    Marked,
    /// The packet can be neither marked nor split: it must be dropped.
    Dropped,
    /// A part was removed, which must be dropped.
    Shed {
        part: P,
        /// Size of the whole packet.
        before: Size,
        /// Size of its rest.
        after: Size,
    },
}

impl<P: QueuedPacket> QueuedItem<P> {
    pub(super) fn size(&self) -> Size {
        (self.packet.bytes(), self.packet.units())
    }

    /// Signals congestion to the packet's sender.
    pub(super) fn signal(&mut self) -> Signal<P> {
        if self.packet.mark() {
            return Signal::Marked;
        }
        let before = self.size();
        match self.packet.shed() {
            None => Signal::Dropped,
            Some(part) => Signal::Shed {
                part,
                before,
                after: self.size(),
            },
        }
    }
}
