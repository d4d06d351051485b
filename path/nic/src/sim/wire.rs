//! Frames in transit on a simulated cable.

use crate::offload::Offload;
use crate::seed::SeededRng;
use std::collections::VecDeque;

/// One direction of a cable, with its frames in transit.
#[derive(Debug)]
pub(super) struct OneWay {
    pub(super) in_flight: VecDeque<FrameInFlight>,
    pub(super) held_bytes: usize,
    /// Time at which the sending end finishes its current transmission.
    pub(super) busy_until_ns: u64,
    pub(super) lost: u64,
    pub(super) chance: SeededRng,
}

/// A frame in transit.
#[derive(Debug)]
pub(super) struct FrameInFlight {
    pub(super) due_ns: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) offload: Offload,
}

impl OneWay {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            in_flight: VecDeque::new(),
            held_bytes: 0,
            busy_until_ns: 0,
            lost: 0,
            chance: SeededRng::new(seed),
        }
    }

    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<FrameInFlight> {
        self.in_flight
            .front()
            .filter(|flight| flight.due_ns <= now_ns)?;
        let flight = self.in_flight.pop_front()?;
        self.held_bytes = self.held_bytes.saturating_sub(flight.bytes.len());
        Some(flight)
    }
}
