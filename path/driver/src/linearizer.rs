//! The linearizer copies each aggregate into one buffer before the bridge handles it, as the papers
//! describe for Xen. If no buffer is free, the aggregate remains a chain of buffers.

use crate::nics::buffers::FIRST_LARGE;
use config::lro::AggregateDelivery;
use nic::{Buffers, Frame, Pool};
use serde_json::{Map, Value};
use shmem::Area;

/// The linearizer of one NIC, with its large buffers.
#[derive(Debug)]
pub struct Linearizer {
    pool: Pool,
    backend: AggregateDelivery,
    /// Number of aggregates copied.
    copied: u64,
    /// Number of aggregates not copied because no buffer was free.
    exhausted: u64,
}

impl Linearizer {
    /// Creates a linearizer with buffers of `bytes` bytes in `area`.
    #[must_use]
    pub fn new(area: Area, bytes: usize, backend: AggregateDelivery) -> Self {
        Self {
            pool: Pool::new(area, bytes).numbered_from(FIRST_LARGE),
            backend,
            copied: 0,
            exhausted: 0,
        }
    }

    /// Enables or disables copying.
    pub fn set(&mut self, backend: AggregateDelivery) {
        self.backend = backend;
    }

    /// Returns whether copying is enabled.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.backend == AggregateDelivery::Linearize
    }

    /// Copies each chain in `frames` into one buffer, and immediately returns the chain's buffers
    /// to `small`.
    pub fn copy(&mut self, frames: &mut [Frame], small: &mut dyn Buffers) {
        if !self.is_on() {
            return;
        }
        for frame in frames.iter_mut().filter(|frame| frame.pieces.len() > 1) {
            if let Ok(whole) = frame.copied(&mut self.pool) {
                frame.recycle(small);
                *frame = whole;
                self.copied += 1;
            } else {
                self.exhausted += 1;
            }
        }
    }

    /// Returns the large buffers.
    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Returns the state and the counters.
    #[must_use]
    pub fn stat(&self) -> Map<String, Value> {
        let backend = serde_json::to_value(self.backend).unwrap_or_default();
        [
            ("backend", backend),
            ("linearized", self.copied.into()),
            ("not_linearized", self.exhausted.into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nics::buffers::NicBuffers;
    use nic::{CopyError, Gso, GsoKind};

    const BYTES: usize = 64 << 10;

    fn chain(small: &mut Pool, bytes: &[u8]) -> Frame {
        let mut frame = Frame::from_bytes(bytes, small).unwrap();
        assert!(frame.pieces.len() > 1);
        frame.offload.gso = Some(Gso {
            kind: GsoKind::Tcp4,
            size: 1448,
        });
        frame
    }

    #[test]
    fn chain_is_linearized_and_buffers_return() {
        let mut small = Pool::new(Area::anonymous(64 * 2048).unwrap(), 2048);
        let area = Area::anonymous(2 * BYTES).unwrap();
        let mut linear = Linearizer::new(area, BYTES, AggregateDelivery::Linearize);
        let bytes: Vec<u8> = (0..30_000u32).map(|n| (n * 7) as u8).collect();
        let mut frames = vec![
            chain(&mut small, &bytes),
            Frame::from_bytes(&bytes[..1500], &mut small).unwrap(),
            chain(&mut small, &bytes[..5000]),
            chain(&mut small, &bytes[..9000]),
        ];
        linear.copy(&mut frames, &mut small);
        let lengths: Vec<_> = frames.iter().map(|f| f.pieces.len()).collect();
        assert_eq!(lengths, [1, 1, 1, 5], "there are only two large buffers");
        assert_eq!(small.available(), 64 - 1 - 5);
        assert_eq!((linear.copied, linear.exhausted), (2, 1));
        for (frame, length) in frames.iter().zip([30_000, 1500, 5000, 9000]) {
            assert_eq!(frame.to_vec().unwrap(), bytes[..length]);
        }
        assert!(frames[0].offload.gso.is_some() && frames[1].offload.gso.is_none());
        let mut buffers = NicBuffers {
            large: Some(linear.pool_mut()),
            ..NicBuffers::received(&mut small, None)
        };
        frames
            .iter_mut()
            .for_each(|frame| frame.recycle(&mut buffers));
        assert_eq!((small.available(), linear.pool.available()), (64, 2));
    }

    #[test]
    fn scatter_mode_does_not_copy_chains() {
        let mut small = Pool::new(Area::anonymous(8 * 2048).unwrap(), 2048);
        let area = Area::anonymous(BYTES).unwrap();
        let mut linear = Linearizer::new(area, BYTES, AggregateDelivery::Scatter);
        let mut frames = vec![chain(&mut small, &[7; 6000])];
        linear.copy(&mut frames, &mut small);
        assert_eq!((frames[0].pieces.len(), linear.copied), (3, 0));
        linear.set(AggregateDelivery::Linearize);
        linear.copy(&mut frames, &mut small);
        assert_eq!((frames[0].pieces.len(), linear.copied), (1, 1));
        let mut none = Pool::new(Area::anonymous(4096).unwrap(), 1 << 20);
        let refused = Frame::from_bytes(&[1], &mut none).unwrap_err();
        assert_eq!(refused, CopyError::NoBuffer);
    }
}
