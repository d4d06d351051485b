//! Common code of the hostile peers.

use crate::input::Input;
use net::packet::segment;
use nic::dma::DeviceDoorbell;
use nic::{Buffer, BufferId, Buffers, Caps, Checksum, Frame, Offload, Pool};
use shmem::{Area, Span};
use std::collections::BTreeSet;

/// Bytes of a buffer.
pub(super) const BUFFER: usize = 2048;
/// Maximum bytes of an IP packet on the wire.
pub(super) const MTU: usize = 1500;
/// The longest frame on the wire: Ethernet header, VLAN tag, and IP.
pub(super) const WIRE_MAX: usize = MTU + 18;
/// Capabilities of a wire without offloads.
pub(super) const PLAIN: Caps = Caps {
    checksum: false,
    tso: false,
    max_frame: MTU + 14,
};

/// A pool that panics if a returned buffer is not in use.
#[derive(Debug)]
pub(super) struct Supply {
    pool: Pool,
    pub(super) used: BTreeSet<u32>,
}

impl Supply {
    pub(super) fn new(area: Area) -> Self {
        Self {
            pool: Pool::new(area, BUFFER),
            used: BTreeSet::new(),
        }
    }
}

impl Buffers for Supply {
    fn take(&mut self) -> Option<Buffer> {
        let buffer = self.pool.take()?;
        assert!(self.used.insert(buffer.id.0), "handed out twice");
        Some(buffer)
    }

    fn take_large(&mut self) -> Option<Buffer> {
        None
    }

    fn put(&mut self, id: BufferId) {
        assert!(self.used.remove(&id.0), "returned twice");
        self.pool.put(id);
    }
}

/// A bell that wakes no device.
#[derive(Debug)]
pub(super) struct Silent;

impl DeviceDoorbell for Silent {
    fn ring(&self) {}
}

/// Checks frames that a driver has received: their lengths, and that the rest of the driver domain
/// can pass them on.
pub(super) fn check(frames: &[Frame], longest: usize) {
    for frame in frames {
        assert!((14..=longest).contains(&frame.len()));
        if !PLAIN.takes(frame) {
            let mut cut = Vec::new();
            let is_cut = segment::segment(frame, PLAIN, &mut cut).is_ok();
            assert_eq!(is_cut, !cut.is_empty());
        }
    }
}

/// Writes any word into memory.
pub(super) fn scribble(input: &mut Input<'_>, memory: Span) {
    let at = usize::from(input.u16()) * 4 % memory.len();
    let value = input.near(0);
    memory.store_u32(at & !3, value).expect("own memory");
}

/// Returns the offload of a frame to send.
pub(super) fn offload(input: &mut Input<'_>) -> Offload {
    let checksum = match input.below(3) {
        0 => Checksum::Unknown,
        1 => Checksum::Valid,
        _ => Checksum::Blank {
            start: match input.below(4) {
                0 => input.u16(),
                _ => 34,
            },
            offset: match input.below(4) {
                0 => input.u16(),
                1 => 6,
                _ => 16,
            },
        },
    };
    Offload {
        checksum,
        gso: None,
    }
}
