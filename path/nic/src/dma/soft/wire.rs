//! The wire behind a device in software. Frames on it are complete: no offload is pending.

/// One end of a wire.
pub trait Wire: std::fmt::Debug {
    /// Returns whether the wire accepts a frame of `len` bytes now.
    fn has_room(&self, len: usize) -> bool;

    /// Sends a frame.
    fn send(&mut self, now_ns: u64, bytes: Vec<u8>);

    /// Returns the next frame that has arrived.
    fn receive(&mut self, now_ns: u64) -> Option<Vec<u8>>;

    /// Returns the time at which the `n`th frame on its way (from 0) arrives, or `None` if there
    /// are fewer.
    fn due_ns(&self, n: usize) -> Option<u64>;

    /// Returns the counters, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
