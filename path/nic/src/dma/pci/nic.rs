//! A NIC over a PCI device of any kind.

use super::device::{CloseReason, PciDevice, QueueMemory, StartupError};
use super::setup::{PciSetup, queue_bytes};
use crate::buffer::{Buffer, Buffers, Piece};
use crate::device::{Caps, Nic, TxReport};
use crate::dma::addr::IoAddr;
use crate::dma::chunks::Chunks;
use crate::dma::queue::DmaError;
use crate::frame::{ETHERNET_BYTES, Frame};
use crate::offload::Offload;
use shmem::{Area, Span};

/// Counters of a NIC.
#[derive(Clone, Copy, Debug, Default)]
struct PciCounters {
    /// Frames that are too short or too long, or whose header is invalid.
    malformed: u64,
    /// Buffers that lie outside the pool.
    foreign: u64,
    /// Frames that the device reports as lost.
    missed: u64,
}

/// A NIC whose device is a PCI device of kind `D`.
#[derive(Debug)]
pub struct PciNic<D: PciDevice> {
    setup: PciSetup,
    registers: D::Registers,
    /// The memory of the buffers. Its first byte has the first I/O address.
    pool: Area,
    /// The memory of the queues and of frames to send.
    memory: Area,
    device: D,
    chunks: Chunks,
    /// Reason why the NIC is closed, or `None` if it works.
    closed: Option<CloseReason>,
    /// Whether the driver polls without an interrupt.
    polls: bool,
    counters: PciCounters,
}

/// The interface of a NIC whose device is a PCI device of any kind.
pub trait AnyPciNic: Nic + std::fmt::Debug {
    /// Returns why the NIC is closed, or `None` if it works.
    fn close_reason(&self) -> Option<CloseReason>;

    /// Restarts the device of a closed NIC after its [reset](PciDevice::reset). [`Nic::rx`] must
    /// have returned the posted buffers before.
    ///
    /// # Errors
    /// Returns the errors of [`PciNic::start`].
    fn restart(&mut self) -> Result<(), StartupError>;

    /// Reads the device's status, and closes the NIC if the device has failed.
    fn check(&mut self);
}

impl<D: PciDevice> PciNic<D> {
    /// Starts a device that was [reset](PciDevice::reset). `pool` holds the buffers of [`Nic::rx`].
    /// `memory` has [`PciSetup::bytes`] and lies after `pool`, at the same distance as in the
    /// device's address space.
    ///
    /// # Errors
    /// Returns an error if the device is unsuitable or violates its specification.
    pub fn start(
        setup: PciSetup,
        registers: D::Registers,
        pool: Area,
        memory: Area,
    ) -> Result<Self, StartupError> {
        let part = |at: usize, bytes: usize| {
            let span = memory.at(at, bytes)?;
            let distance = span.addr().checked_sub(pool.span().addr())?;
            Some((span, setup.base.add(distance)?))
        };
        let bytes = queue_bytes(setup.entries);
        let chunk_bytes = usize::from(setup.entries) * setup.chunk_bytes();
        let places = part(0, bytes)
            .zip(part(bytes, bytes))
            .zip(part(2 * bytes, chunk_bytes));
        let ((receive, transmit), chunks) = places.ok_or(StartupError::Memory)?;
        let entries = u32::from(setup.entries);
        let chunks =
            Chunks::new(entries, chunks, setup.chunk_bytes()).ok_or(StartupError::Memory)?;
        let queues = QueueMemory { receive, transmit };
        let device = D::start(registers.clone(), &setup, queues)?;
        Ok(Self {
            setup,
            registers,
            pool,
            memory,
            device,
            chunks,
            closed: None,
            polls: true,
            counters: PciCounters::default(),
        })
    }

    /// Closes the NIC. The next [`Nic::rx`] returns the posted buffers to their supply.
    fn close(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
        self.polls = true;
    }

    /// Stops the device, and then returns all posted buffers to their supply.
    pub fn stop(&mut self, buffers: &mut dyn Buffers) {
        let chunks = &mut self.chunks;
        let buffer = &mut |buffer: Buffer| buffers.put(buffer.id);
        self.device.stop(buffer, &mut |chunk| chunks.put(chunk));
        self.polls = false;
    }

    fn poll(
        &mut self,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> Result<usize, DmaError> {
        self.device.set_interrupts(false)?;
        self.post(buffers)?;
        let mut frames = 0;
        while frames < budget
            && let Some(received) = self.device.take()?
        {
            let frame = received.frame;
            match frame.and_then(|content| self.frame(received.buffer, content)) {
                Some(frame) => {
                    out.push(frame);
                    frames += 1;
                }
                None => {
                    self.counters.malformed += 1;
                    buffers.put(received.buffer.id);
                }
            }
        }
        self.polls = frames >= budget || self.device.set_interrupts(true)?;
        Ok(frames)
    }

    /// Posts buffers until the queue is full.
    fn post(&mut self, buffers: &mut dyn Buffers) -> Result<(), DmaError> {
        while self.device.free_receive_entries() > 0
            && let Some(buffer) = buffers.take()
        {
            let Some(address) = self.address(buffer.span) else {
                // The supply's other buffers are probably outside the pool too.
                buffers.put(buffer.id);
                self.counters.foreign += 1;
                break;
            };
            if let Err(buffer) = self.device.post(buffer, address) {
                buffers.put(buffer.id);
                break;
            }
        }
        self.device.publish_buffers()
    }

    /// Returns the I/O address of a part of the pool.
    fn address(&self, span: Span) -> Option<IoAddr> {
        let offset = span.addr().checked_sub(self.pool.span().addr())?;
        self.pool.at(offset, span.len())?;
        self.setup.base.add(offset)
    }

    /// Returns the frame of `bytes` bytes in a buffer, or `None` if the length is invalid.
    fn frame(&self, buffer: Buffer, (bytes, offload): (usize, Offload)) -> Option<Frame> {
        if bytes < ETHERNET_BYTES || bytes > self.setup.longest() {
            return None;
        }
        let mut frame = Frame::empty();
        frame.push(Piece {
            span: buffer.span.skip(size_of::<D::Header>()).take(bytes),
            buffer: buffer.id,
        });
        frame.snapshot().ok()?;
        frame.offload = offload;
        Some(frame)
    }

    fn send(&mut self, frames: &[Frame], pick: &[u32]) -> Result<TxReport, DmaError> {
        while let Some(chunk) = self.device.take_sent()? {
            self.chunks.put(chunk);
        }
        let (caps, mut report) = (self.caps(), TxReport::default());
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            if caps.takes(frame) && frame.len() >= D::SHORTEST {
                let device = &mut self.device;
                let header = D::header(frame);
                let post = |chunk| device.send(chunk, frame);
                self.chunks.send(header.as_ref(), frame, &mut report, post);
            } else {
                report.refused += 1;
            }
        }
        self.device.publish_sent()?;
        Ok(report)
    }
}

impl<D: PciDevice> AnyPciNic for PciNic<D> {
    fn close_reason(&self) -> Option<CloseReason> {
        self.closed
    }

    fn restart(&mut self) -> Result<(), StartupError> {
        let (registers, counters) = (self.registers.clone(), self.counters);
        let next = Self::start(self.setup, registers, self.pool, self.memory)?;
        *self = Self { counters, ..next };
        Ok(())
    }

    fn check(&mut self) {
        if self.closed.is_some() {
            return;
        }
        match self.device.check() {
            Ok(missed) => self.counters.missed += u64::from(missed),
            Err(reason) => self.close(reason),
        }
    }
}

impl<D: PciDevice> Nic for PciNic<D> {
    fn caps(&self) -> Caps {
        Caps {
            checksum: self.device.has_checksum(),
            tso: false,
            max_frame: self.setup.max_frame(),
        }
    }

    fn rx(
        &mut self,
        _: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        if self.closed.is_some() {
            if self.polls {
                self.stop(buffers);
            }
            return 0;
        }
        let before = out.len();
        let polled = self.poll(budget, buffers, out);
        polled.unwrap_or_else(|error| {
            self.closed = Some(error.into());
            self.stop(buffers);
            out.len() - before
        })
    }

    fn tx(&mut self, _: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let refused = TxReport::all_refused(pick);
        if self.closed.is_some() {
            return refused;
        }
        self.send(frames, pick).unwrap_or_else(|error| {
            self.close(error.into());
            refused
        })
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        self.polls.then_some(now_ns)
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        self.stop(buffers);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let missed = D::COUNTS_MISSED.then_some(("missed", self.counters.missed));
        let own = [
            ("rx_malformed", self.counters.malformed),
            ("rx_foreign", self.counters.foreign),
            ("rx_posted", self.device.posted() as u64),
            ("closed", self.closed.is_some().into()),
        ];
        missed.into_iter().chain(own).collect()
    }
}
