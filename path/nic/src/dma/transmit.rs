//! The driver's transmit queue.

use super::addr::IoAddr;
use super::chunks::Chunks;
use super::layout::{Descriptor, OwnMemory};
use super::queue::{DmaError, DriverQueue, QueueName};
use crate::device::TxReport;
use crate::frame::Frame;
use crate::offload::Checksum;
use shmem::Span;

/// A transmit queue and the memory of its frames.
#[derive(Debug)]
pub struct TransmitQueue {
    queue: DriverQueue<OwnMemory, u32>,
    chunks: Chunks,
    io_errors: u64,
}

impl TransmitQueue {
    /// Creates a queue of `entries` entries over `memory`. `chunks` is the memory, with its I/O
    /// address, of one frame of up to `chunk_bytes` bytes per entry. Returns `None` if a size is
    /// wrong.
    #[must_use]
    pub fn new(
        entries: u32,
        memory: Span,
        chunks: (Span, IoAddr),
        chunk_bytes: usize,
    ) -> Option<Self> {
        let memory = OwnMemory::new(memory, entries)?;
        Some(Self {
            queue: DriverQueue::new(QueueName::Transmit, memory, entries, 0),
            chunks: Chunks::new(entries, chunks, chunk_bytes)?,
            io_errors: 0,
        })
    }

    /// Returns the number of frames that the device could not read.
    #[must_use]
    pub fn io_errors(&self) -> u64 {
        self.io_errors
    }

    /// Copies a frame into the queue, and counts it in `report`. The device sees it after
    /// [`TransmitQueue::publish`].
    pub fn send(&mut self, frame: &Frame, report: &mut TxReport) {
        let queue = &mut self.queue;
        self.chunks.send(&[], frame, report, |chunk| {
            let descriptor = Descriptor {
                address: chunk.address,
                len: chunk.memory.len() as u32,
                header: None,
                checksum: match frame.offload.checksum {
                    Checksum::Blank { start, offset } => Some((start, offset)),
                    Checksum::Unknown | Checksum::Valid => None,
                },
            };
            queue.post(chunk.number, descriptor)
        });
    }

    /// Publishes all frames to the device.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn publish(&mut self) -> Result<(), DmaError> {
        self.queue.publish()
    }

    /// See [`DriverQueue::needs_wakeup`].
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn needs_wakeup(&mut self) -> Result<bool, DmaError> {
        self.queue.needs_wakeup()
    }

    /// Frees the memory of sent frames.
    ///
    /// # Errors
    /// Returns an error if the device violates the rules of the queue. The caller must then reset
    /// the device and stop sending.
    pub fn reap(&mut self) -> Result<(), DmaError> {
        while let Some((chunk, _, completion)) = self.queue.take()? {
            self.io_errors += u64::from(completion.error);
            self.chunks.put(chunk);
        }
        Ok(())
    }
}
