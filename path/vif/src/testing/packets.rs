//! Packets for tests.

use super::memory::TestMemory;
use nic::{BufferId, Frame, Piece};
use shmem::Span;

/// Returns `len` bytes that start like an Ethernet frame of an unknown type. The other bytes depend
/// on `seed` and on their positions.
#[must_use]
pub fn packet(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len as u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) ^ seed.wrapping_mul(0x85eb_ca6b) ^ (n >> 8)) as u8)
        .collect();
    for (at, byte) in [(12, 0x88), (13, 0xb5)] {
        if let Some(to) = bytes.get_mut(at) {
            *to = byte;
        }
    }
    bytes
}

/// Returns a TCP over IPv4 packet with `payload` bytes; its checksums are invalid.
#[must_use]
pub fn ipv4_tcp(payload: usize, seed: u64) -> Vec<u8> {
    let mut bytes = packet(14 + 20 + 20 + payload, seed);
    let total = (bytes.len() - 14) as u16;
    let [high, low] = total.to_be_bytes();
    for (at, byte) in [
        (12, 0x08),
        (13, 0x00),
        (14, 0x45),
        (16, high),
        (17, low),
        (20, 0x40),
        (21, 0),
        (23, 6),
        (46, 0x50),
    ] {
        bytes[at] = byte;
    }
    bytes
}

/// Returns a frame with `bytes` at `offset` of `memory`, in pieces of at most `piece` bytes.
///
/// # Panics
/// Panics if it does not fit.
#[must_use]
pub fn frame_at(memory: &TestMemory, offset: usize, bytes: &[u8], piece: usize) -> Frame {
    let whole = memory.area().at(offset, bytes.len()).expect("a frame fits");
    whole.write(bytes).expect("own memory");
    let mut frame = Frame::empty();
    let mut rest: Span = whole;
    while !rest.is_empty() {
        frame.push(Piece {
            span: rest.take(piece),
            buffer: BufferId::NONE,
        });
        rest = rest.skip(piece);
    }
    frame.snapshot().expect("own memory");
    frame
}
