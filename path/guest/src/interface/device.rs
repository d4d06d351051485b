//! The endpoint behind a netfront, and what became of the frames given to it.

use nic::{Frame, Nic};
use runtime::report::Given;

/// An endpoint as its interface uses it.
pub(super) struct Device {
    pub endpoint: Box<dyn Nic>,
    pub given: Given,
    /// Room for the numbers of the frames that are given; all of them.
    numbers: Vec<u32>,
}

impl Device {
    pub(super) fn new(endpoint: Box<dyn Nic>) -> Self {
        Self {
            endpoint,
            given: Given::default(),
            numbers: Vec::new(),
        }
    }

    /// Gives frames to the endpoint, which never keeps any.
    pub(super) fn give(&mut self, now_ns: u64, frames: &[Frame]) {
        if frames.is_empty() {
            return;
        }
        self.numbers.clear();
        self.numbers.extend(0..frames.len() as u32);
        self.given
            .add(&self.endpoint.tx(now_ns, frames, &self.numbers));
    }
}
