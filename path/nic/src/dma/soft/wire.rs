//! The wire of a software device. Frames on it have no pending offloads.

/// One end of a wire.
pub trait Wire: std::fmt::Debug {
    /// Returns whether the wire can accept a frame of `len` bytes now.
    fn has_room(&self, len: usize) -> bool;

    /// Sends a frame.
    fn send(&mut self, now_ns: u64, bytes: Vec<u8>);

    /// Returns the next frame that has arrived, or `None`.
    fn receive(&mut self, now_ns: u64) -> Option<Vec<u8>>;

    /// Returns the arrival time of the `n`th frame in transit (the first is 0), or `None` if fewer
    /// frames are in transit.
    fn due_ns(&self, n: usize) -> Option<u64>;

    /// Returns the counters, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
