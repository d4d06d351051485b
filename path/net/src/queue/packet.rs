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

/// A packet, and the time at which it was pushed.
#[derive(Debug)]
pub(super) struct QueuedItem<P> {
    pub(super) packet: P,
    pub(super) since_ns: u64,
}
