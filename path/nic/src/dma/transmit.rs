//! The driver's transmit queue. Each frame is copied once, into memory of the queue: a caller of
//! [`crate::Nic::tx`] keeps its frames, so the device must not read them later.

use super::addr::IoAddr;
use super::layout::{Descriptor, OwnMemory};
use super::queue::{DmaError, DriverQueue, QueueName};
use crate::device::TxReport;
use crate::frame::Frame;
use crate::offload::Checksum;
use shmem::Span;

/// A transmit queue with its memory for frames.
#[derive(Debug)]
pub struct TransmitQueue {
    queue: DriverQueue<OwnMemory, u32>,
    /// Memory for frames, and its I/O address.
    chunks: (Span, IoAddr),
    chunk_bytes: usize,
    idle: Vec<u32>,
    io_errors: u64,
}

impl TransmitQueue {
    /// Creates a queue of `entries` entries over `memory`. `chunks` holds one frame of at most
    /// `chunk_bytes` bytes per entry, and has an I/O address. Returns `None` if a size is wrong.
    #[must_use]
    pub fn new(
        entries: u32,
        memory: Span,
        chunks: (Span, IoAddr),
        chunk_bytes: usize,
    ) -> Option<Self> {
        if (entries as usize).checked_mul(chunk_bytes)? > chunks.0.len() {
            return None;
        }
        let memory = OwnMemory::new(memory, entries)?;
        Some(Self {
            queue: DriverQueue::new(QueueName::Transmit, memory, entries, 0),
            chunks,
            chunk_bytes,
            idle: (0..entries).rev().collect(),
            io_errors: 0,
        })
    }

    /// Returns the number of frames that the device could not read.
    #[must_use]
    pub fn io_errors(&self) -> u64 {
        self.io_errors
    }

    /// Copies a frame into the queue, and adds it to `report`. [`TransmitQueue::publish`] shows it
    /// to the device.
    pub fn send(&mut self, frame: &Frame, report: &mut TxReport) {
        let len = frame.len();
        if len > self.chunk_bytes {
            report.refused += 1;
            return;
        }
        let Some(chunk) = self.idle.pop() else {
            report.full += 1;
            return;
        };
        let (span, base) = self.chunks;
        let at = chunk as usize * self.chunk_bytes;
        let copied = span.sub(at, len).map(|span| frame.copy_to(span));
        let address = base.add(at);
        let (Some(Ok(done)), Some(address)) = (copied, address) else {
            self.idle.push(chunk);
            report.fault += 1;
            return;
        };
        let descriptor = Descriptor {
            address,
            len: done as u32,
            header: None,
            checksum: match frame.offload.checksum {
                Checksum::Blank { start, offset } => Some((start, offset)),
                Checksum::Unknown | Checksum::Valid => None,
            },
        };
        match self.queue.post(chunk, descriptor) {
            Ok(()) => {
                report.sent += 1;
                report.bytes += len as u64;
            }
            Err(chunk) => {
                self.idle.push(chunk);
                report.full += 1;
            }
        }
    }

    /// Shows all frames to the device.
    ///
    /// # Errors
    /// The queue's memory is inaccessible.
    pub fn publish(&mut self) -> Result<(), DmaError> {
        self.queue.publish()
    }

    /// See [`DriverQueue::wakes`].
    ///
    /// # Errors
    /// The queue's memory is inaccessible.
    pub fn wakes(&mut self) -> Result<bool, DmaError> {
        self.queue.wakes()
    }

    /// Takes back the memory of sent frames.
    ///
    /// # Errors
    /// The device violates the rules. The caller resets the device and sends nothing any more.
    pub fn reap(&mut self) -> Result<(), DmaError> {
        while let Some((chunk, _, completion)) = self.queue.take()? {
            self.io_errors += u64::from(completion.error);
            self.idle.push(chunk);
        }
        Ok(())
    }
}
