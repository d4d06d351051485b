//! Memory for frames to send. Each frame is copied once, into a chunk, because the caller of
//! [`crate::Nic::tx`] keeps its frames and the device must not read them later.

use super::addr::IoAddr;
use crate::device::TxReport;
use crate::frame::Frame;
use shmem::{Fault, Span};

/// A chunk with a frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Number of the chunk.
    pub number: u32,
    /// The device's header and the frame.
    pub memory: Span,
    /// I/O address of this memory.
    pub address: IoAddr,
}

/// The chunks of a transmit queue, one per entry.
#[derive(Debug)]
pub(super) struct Chunks {
    memory: Span,
    address: IoAddr,
    chunk_bytes: usize,
    idle: Vec<u32>,
}

impl Chunks {
    /// Divides memory with an I/O address into `entries` chunks of `chunk_bytes` bytes. Returns
    /// `None` if the memory is too small.
    pub(super) fn new(
        entries: u32,
        (memory, address): (Span, IoAddr),
        chunk_bytes: usize,
    ) -> Option<Self> {
        if (entries as usize).checked_mul(chunk_bytes)? > memory.len() {
            return None;
        }
        Some(Self {
            memory,
            address,
            chunk_bytes,
            idle: (0..entries).rev().collect(),
        })
    }

    /// Copies `header` and a frame into a chunk, passes the chunk to `post`, and counts the frame
    /// in `report`. If the queue is full, `post` returns the chunk's number as its error.
    pub(super) fn send(
        &mut self,
        header: &[u8],
        frame: &Frame,
        report: &mut TxReport,
        post: impl FnOnce(Chunk) -> Result<(), u32>,
    ) {
        let bytes = header.len() + frame.len();
        if bytes > self.chunk_bytes {
            report.refused += 1;
            return;
        }
        let Some(number) = self.idle.pop() else {
            report.full += 1;
            return;
        };
        let at = number as usize * self.chunk_bytes;
        let place = self.memory.sub(at, bytes).zip(self.address.add(at));
        let place = place.filter(|(span, _)| write(header, frame, *span).is_ok());
        let Some((memory, address)) = place else {
            self.idle.push(number);
            report.fault += 1;
            return;
        };
        let chunk = Chunk {
            number,
            memory,
            address,
        };
        match post(chunk) {
            Ok(()) => {
                report.sent += 1;
                report.bytes += frame.len() as u64;
            }
            Err(number) => {
                self.idle.push(number);
                report.full += 1;
            }
        }
    }

    /// Frees the chunk of a sent frame.
    pub(super) fn put(&mut self, chunk: u32) {
        self.idle.push(chunk);
    }
}

fn write(header: &[u8], frame: &Frame, to: Span) -> Result<(), Fault> {
    to.write(header)?;
    frame.copy_to(to.skip(header.len())).map(drop)
}
