//! A generator as the wire behind a device.

use crate::rate::LinkRate;
use config::domain::FrameSource;
use nic::dma::Wire;

/// Header of all frames: a destination MAC that is set later, a locally administered source MAC,
/// and an experimental EtherType (IEEE 802, 9.2.4).
const HEADER: [u8; 14] = [0, 0, 0, 0, 0, 0, 0x02, 0x67, 0, 0, 0, 0xff, 0x88, 0xb5];

/// A wire that delivers identical frames as fast as its rate allows, and discards sent frames.
#[derive(Debug)]
pub struct SourceWire {
    frame: Vec<u8>,
    inbound: LinkRate,
    /// Time of the last call of [`Wire::receive`].
    now_ns: u64,
    /// Number of frames delivered.
    generated: u64,
    /// Number of sent frames, which are discarded.
    discarded: u64,
}

impl SourceWire {
    /// Creates a wire with a rate of `bytes_per_s`; `None`: as fast as the device receives.
    #[must_use]
    pub fn new(source: FrameSource, bytes_per_s: Option<u64>) -> Self {
        let mut frame = HEADER.to_vec();
        frame[..6].copy_from_slice(&source.to.0);
        frame.resize(frame.len().max(source.size as usize), 0);
        Self {
            frame,
            inbound: LinkRate::new(bytes_per_s),
            now_ns: 0,
            generated: 0,
            discarded: 0,
        }
    }
}

impl Wire for SourceWire {
    fn has_room(&self, _len: usize) -> bool {
        true
    }

    fn send(&mut self, _now_ns: u64, _bytes: Vec<u8>) {
        self.discarded += 1;
    }

    fn receive(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        self.now_ns = now_ns;
        if !self.inbound.is_free(now_ns) {
            return None;
        }
        self.inbound.start_frame(now_ns, self.frame.len());
        self.generated += 1;
        Some(self.frame.clone())
    }

    fn due_ns(&self, n: usize) -> Option<u64> {
        self.inbound.free_at(self.now_ns).filter(|_| n == 0)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("generated", self.generated), ("discarded", self.discarded)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::MacAddress;

    fn wire(bytes_per_s: Option<u64>) -> SourceWire {
        let source = FrameSource {
            to: MacAddress([2, 0, 0, 0, 0, 7]),
            size: 100,
        };
        SourceWire::new(source, bytes_per_s)
    }

    #[test]
    fn frames_have_the_destination_and_the_size() {
        let mut wire = wire(None);
        for _ in 0..300 {
            let frame = wire.receive(5).unwrap();
            assert_eq!((&frame[..6], frame.len()), (&[2, 0, 0, 0, 0, 7][..], 100));
        }
        wire.send(6, vec![0; 60]);
        assert_eq!(wire.counters(), [("generated", 300), ("discarded", 1)]);
        assert_eq!(wire.due_ns(0), Some(5));
    }

    #[test]
    fn frames_are_limited_to_the_rate() {
        const START_NS: u64 = 1_000_000_000;
        let mut wire = wire(Some(1_000_000));
        let mut received = 0;
        for now_ns in (START_NS..=START_NS + 1_000_000).step_by(10_000) {
            received += std::iter::from_fn(|| wire.receive(now_ns)).count();
            assert!(wire.due_ns(0).unwrap() > now_ns, "{now_ns}");
        }
        // A frame of 100 bytes takes 100 µs. The burst allows 200 µs more at the first call.
        assert_eq!(received, 13);
    }
}
