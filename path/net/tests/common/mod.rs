//! Builds packets for tests byte by byte.
#![allow(dead_code, unreachable_pub)]

use net::packet::{Mac, protocol};
use nic::{BufferId, Frame, Piece, SmallBatch};
use proptest::prelude::*;
use shmem::{Area, Span};
use std::cell::Cell;

pub const SRC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const DST: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const SRC4: [u8; 4] = [10, 0, 0, 1];
pub const DST4: [u8; 4] = [10, 0, 0, 2];
pub const SRC6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub const DST6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// A packet to be built.
#[derive(Clone, Debug)]
pub struct Build {
    pub v6: bool,
    pub source: Mac,
    pub destination: Mac,
    pub source4: [u8; 4],
    pub source6: [u8; 16],
    pub tags: usize,
    pub ip_options: usize,
    /// IPv6 extension headers: type, and the bytes behind the first two.
    pub extensions: Vec<(u8, Vec<u8>)>,
    pub protocol: u8,
    pub id: u16,
    /// Transport header and payload.
    pub transport: Vec<u8>,
}

/// Returns a TCP header with `options` bytes of options, and a payload; without a checksum.
pub fn tcp(sequence: u32, flags: u8, options: usize, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x30, 0x39, 0, 80];
    header.extend(sequence.to_be_bytes());
    header.extend([
        0,
        0,
        0,
        9,
        (((20 + options) / 4) << 4) as u8,
        flags,
        0xff,
        0xff,
        0,
        0,
        0,
        0,
    ]);
    header.extend(vec![1; options]);
    header.extend(payload);
    header
}

impl Build {
    pub fn tcp4(payload: &[u8]) -> Self {
        Self {
            v6: false,
            source: SRC,
            destination: DST,
            source4: SRC4,
            source6: SRC6,
            tags: 0,
            ip_options: 0,
            extensions: Vec::new(),
            protocol: protocol::TCP,
            id: 0x1234,
            transport: tcp(1000, 0x10, 0, payload),
        }
    }

    pub fn tcp6(payload: &[u8]) -> Self {
        Self {
            v6: true,
            ..Self::tcp4(payload)
        }
    }

    /// Returns ICMPv6 with these bytes.
    pub fn icmp6(bytes: Vec<u8>) -> Self {
        Self {
            protocol: protocol::ICMPV6,
            transport: bytes,
            ..Self::tcp6(&[])
        }
    }

    pub fn tags(mut self, tags: usize) -> Self {
        self.tags = tags;
        self
    }

    pub fn options(mut self, bytes: usize) -> Self {
        self.ip_options = bytes;
        self
    }

    pub fn network_at(&self) -> usize {
        14 + 4 * self.tags
    }

    pub fn transport_at(&self) -> usize {
        let extensions: usize = self.extensions.iter().map(|(_, rest)| rest.len() + 2).sum();
        self.network_at()
            + if self.v6 {
                40 + extensions
            } else {
                20 + self.ip_options
            }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.destination.0, self.source.0].concat();
        for tag in 0..self.tags {
            bytes.extend(if tag == 0 && self.tags == 2 {
                [0x88, 0xa8]
            } else {
                [0x81, 0]
            });
            bytes.extend([0, tag as u8 + 1]);
        }
        if self.v6 {
            self.ipv6(&mut bytes)
        } else {
            self.ipv4(&mut bytes)
        }
        bytes.extend(&self.transport);
        bytes
    }

    fn ipv4(&self, bytes: &mut Vec<u8>) {
        let header = 20 + self.ip_options;
        bytes.extend([8, 0, 0x40 | (header / 4) as u8, 0]);
        bytes.extend(((header + self.transport.len()) as u16).to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        bytes.extend([0x40, 0, 64, self.protocol, 0, 0]);
        bytes.extend(self.source4);
        bytes.extend(DST4);
        bytes.extend(vec![1; self.ip_options]);
    }

    fn ipv6(&self, bytes: &mut Vec<u8>) {
        let kinds: Vec<u8> = self
            .extensions
            .iter()
            .map(|(kind, _)| *kind)
            .chain([self.protocol])
            .collect();
        let length = self.transport_at() - self.network_at() - 40 + self.transport.len();
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend((length as u16).to_be_bytes());
        bytes.extend([kinds[0], 64]);
        bytes.extend(self.source6);
        bytes.extend(DST6);
        for ((_, rest), next) in self.extensions.iter().zip(&kinds[1..]) {
            bytes.extend([*next, ((rest.len() + 2) / 8).saturating_sub(1) as u8]);
            bytes.extend(rest);
        }
    }
}

pub fn arp(operation: u8, sender: [u8; 6], spa: [u8; 4], target: [u8; 6], tpa: [u8; 4]) -> Vec<u8> {
    let mut bytes = [[0xff; 6], sender].concat();
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    bytes.extend(sender);
    bytes.extend(spa);
    bytes.extend(target);
    bytes.extend(tpa);
    bytes
}

/// TCP packets of every supported form.
pub fn any_build() -> impl Strategy<Value = Build> {
    let payload = prop::collection::vec(any::<u8>(), 0..60);
    let extensions = prop::collection::vec(prop::sample::select(vec![0u8, 60]), 0..3);
    (
        any::<bool>(),
        0usize..=2,
        0usize..=10,
        0usize..=10,
        any::<u32>(),
        any::<u8>(),
        payload,
        extensions,
    )
        .prop_map(
            |(v6, tags, ip_options, options, sequence, flags, payload, extensions)| {
                // Hop-by-hop options must be first.
                let mut extensions: Vec<_> = extensions
                    .into_iter()
                    .map(|k| (k, vec![1, 4, 0, 0, 0, 0]))
                    .collect();
                extensions.sort_by_key(|(kind, _)| *kind);
                extensions.dedup_by_key(|(kind, _)| *kind);
                Build {
                    v6,
                    tags,
                    ip_options: if v6 { 0 } else { ip_options * 4 },
                    extensions: if v6 { extensions } else { Vec::new() },
                    transport: tcp(sequence, flags, options * 4, &payload),
                    ..Build::tcp4(&[])
                }
            },
        )
}

/// Bytes of memory that a test's thread reuses, far more than are in use at a time.
const STORAGE_SIZE: usize = 16 << 20;

pub fn area_of(bytes: &[u8]) -> Span {
    thread_local! {
        static MEMORY: (Area, Cell<usize>) = (Area::anonymous(STORAGE_SIZE).unwrap(), Cell::new(0));
    }
    MEMORY.with(|(area, next)| {
        let at = match next.get() + bytes.len() {
            end if end > STORAGE_SIZE => 0,
            _ => next.get(),
        };
        // The next frame begins at least a cache line later, so that no two frames are contiguous
        // by chance.
        next.set((at + bytes.len() + 64).next_multiple_of(64));
        let span = area.at(at, bytes.len()).unwrap();
        span.write(bytes).unwrap();
        span
    })
}

/// Returns a frame of these bytes, in pieces that end at `cuts`.
pub fn frame_of(bytes: &[u8], cuts: &[usize]) -> Frame {
    let mut frame = Frame::empty();
    let memory = area_of(bytes);
    let mut at = 0;
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        let end = cut.clamp(at, bytes.len());
        let span = memory.sub(at, end - at).unwrap();
        frame.push(Piece {
            span,
            buffer: BufferId::NONE,
        });
        at = end;
    }
    frame.snapshot().unwrap();
    frame
}

/// Returns these frames as a batch of small frames. The next call reuses the memory.
pub fn small_frames(frames: &[&[u8]]) -> SmallBatch {
    const EACH: usize = 2048;
    thread_local! {
        static MEMORY: Area = Area::anonymous(64 * EACH).expect("memory for a test");
    }
    let memory = MEMORY.with(|memory| *memory);
    let mut batch = SmallBatch::default();
    for (number, bytes) in frames.iter().enumerate() {
        let bytes = &bytes[..bytes.len().min(EACH)];
        let span = memory.at(number * EACH, bytes.len()).expect("few frames");
        span.write(bytes).expect("own memory");
        batch.push(span).expect("own memory");
    }
    batch
}
