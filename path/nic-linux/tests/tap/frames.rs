//! Helpers that supply buffers, and build and receive frames.

use crate::{OURS, THEIRS};
use nic::{Buffer, BufferId, Buffers, Frame, Nic, Piece, Pool};
use nic_linux::TapNic;
use shmem::Area;
use testing::wait_for;

/// A supply of small and large buffers, which counts the buffers in use.
pub(crate) struct Supply {
    small: Pool,
    large: Pool,
    smalls: u32,
    pub(crate) in_use: i64,
}

impl Supply {
    pub(crate) fn new(smalls: usize, larges: usize) -> Self {
        Self {
            small: Pool::new(Area::anonymous(smalls.max(1) * 2048).unwrap(), 2048),
            large: Pool::new(Area::anonymous(larges.max(1) * 4096).unwrap(), 4096),
            smalls: smalls as u32,
            in_use: 0,
        }
    }
}

impl Buffers for Supply {
    fn take(&mut self) -> Option<Buffer> {
        let buffer = self.small.take();
        self.in_use += i64::from(buffer.is_some());
        buffer
    }
    fn take_large(&mut self) -> Option<Buffer> {
        let buffer = self.large.take()?;
        self.in_use += 1;
        Some(Buffer {
            id: BufferId(buffer.id.0 + self.smalls),
            span: buffer.span,
        })
    }
    fn put(&mut self, id: BufferId) {
        self.in_use -= 1;
        match id.0.checked_sub(self.smalls) {
            Some(large) => self.large.put(BufferId(large)),
            None => self.small.put(id),
        }
    }
}

/// Returns a frame with the contents `bytes` in separate memory, in pieces of up to `piece` bytes.
pub(crate) fn frame_of(bytes: &[u8], piece: usize) -> Frame {
    let area = Area::anonymous(bytes.len().next_multiple_of(4096)).unwrap();
    let span = area.at(0, bytes.len()).unwrap();
    span.write(bytes).unwrap();
    let mut frame = Frame::empty();
    let mut at = 0;
    while at < bytes.len() {
        let len = piece.min(bytes.len() - at);
        frame.push(Piece {
            span: span.sub(at, len).unwrap(),
            buffer: BufferId::NONE,
        });
        at += len;
    }
    frame.snapshot().unwrap();
    frame
}

/// Receives frames until one of them satisfies `is_expected`, and returns it with its bytes.
pub(crate) fn expect(
    nic: &mut TapNic,
    supply: &mut Supply,
    is_expected: impl Fn(&[u8]) -> bool,
) -> (Frame, Vec<u8>) {
    wait_for("the expected frame has not arrived", || {
        let mut frames = Vec::new();
        nic.rx(0, 64, supply, &mut frames);
        let mut found = None;
        for mut frame in frames {
            let bytes = frame.to_vec().unwrap();
            if found.is_none() && is_expected(&bytes) {
                found = Some((frame, bytes));
            } else {
                frame.recycle(supply);
            }
        }
        found
    })
}

pub(crate) fn sum(bytes: &[u8], initial: u32) -> u16 {
    let mut sum = bytes.chunks(2).fold(initial, |sum, pair| {
        sum + (u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b)))
    });
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns a frame with a UDP packet to 10.9.0.1:`port` with payload `data`. The checksum is valid,
/// or blank (the sum of the pseudo-header) if `blank` is true.
pub(crate) fn udp4(port: u16, data: &[u8], blank: bool) -> Vec<u8> {
    let udp_len = 8 + data.len() as u16;
    let mut bytes = [&THEIRS[..], &OURS[..], &[8, 0]].concat();
    let mut ip = vec![
        0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1,
    ];
    ip[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
    let check = !sum(&ip, 0);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let pseudo = sum(&ip[12..20], 17 + u32::from(udp_len));
    let mut udp = [
        5u16.to_be_bytes(),
        port.to_be_bytes(),
        udp_len.to_be_bytes(),
        [0, 0],
    ]
    .concat();
    udp.extend_from_slice(data);
    let check = if blank {
        pseudo
    } else {
        !sum(&udp, u32::from(pseudo))
    };
    udp[6..8].copy_from_slice(&check.to_be_bytes());
    bytes.extend_from_slice(&ip);
    bytes.extend_from_slice(&udp);
    bytes
}
