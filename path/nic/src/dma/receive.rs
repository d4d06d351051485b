//! The driver's receive queue, which posts buffers and returns frames.

use super::addr::IoAddr;
use super::layout::{Completion, Descriptor, OwnMemory};
use super::queue::{DmaError, DriverQueue, Misuse, QueueName};
use super::table::IoTable;
use crate::buffer::{Buffer, BufferId, Buffers, Piece};
use crate::frame::ETHERNET_BYTES;
use crate::frame::{Frame, SNAPSHOT_MAX};
use crate::offload::Checksum;
use shmem::Span;

/// Counters of a receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Number of buffers that the device could not write.
    pub io_error: u64,
    /// Number of frames that are shorter than an Ethernet header, or whose memory is inaccessible.
    pub malformed: u64,
    /// Number of supplied buffers that lie outside the I/O page table.
    pub foreign: u64,
}

/// A receive queue with its posted buffers.
#[derive(Debug)]
pub struct ReceiveQueue {
    queue: DriverQueue<OwnMemory, Buffer>,
    /// Space for split headers, [`SNAPSHOT_MAX`] bytes for each entry, and its I/O address.
    headers: Option<(Span, IoAddr)>,
    /// Whether the queue maps each buffer while it is posted. Otherwise the whole supply stays
    /// mapped.
    maps: bool,
    /// Maximum length of a frame in bytes.
    longest: usize,
    /// Whether the device merges frames.
    merges: bool,
    /// The completed first parts of a frame.
    partial: Frame,
    /// Whether the current frame has an error completion. The queue then drops the frame.
    is_broken: bool,
    counters: ReceiveCounters,
}

/// Properties of a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveSetup {
    /// Number of the queue.
    pub number: u32,
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Whether the queue maps each buffer while it is posted.
    pub maps: bool,
    /// Maximum length of a frame in bytes.
    pub longest: usize,
    /// Whether the device merges frames.
    pub merges: bool,
}

impl ReceiveQueue {
    /// Creates a queue over `memory` of [`super::layout::queue_bytes`]. `headers` is the space for
    /// split headers with its I/O address. Returns `None` if the memory has a wrong size.
    #[must_use]
    pub fn new(setup: ReceiveSetup, memory: Span, headers: Option<(Span, IoAddr)>) -> Option<Self> {
        let entries = setup.entries;
        let needed = entries as usize * SNAPSHOT_MAX;
        if headers.is_some_and(|(span, _)| span.len() < needed) {
            return None;
        }
        let name = QueueName::Receive(setup.number);
        Some(Self {
            queue: DriverQueue::new(name, OwnMemory::new(memory, entries)?, entries, 0),
            headers,
            maps: setup.maps,
            longest: setup.longest,
            merges: setup.merges,
            partial: Frame::empty(),
            is_broken: false,
            counters: ReceiveCounters::default(),
        })
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> ReceiveCounters {
        self.counters
    }

    /// Returns the number of buffers that [`ReceiveQueue::withdraw`] would return.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.queue.posted() + self.partial.pieces.len()
    }

    /// Posts up to `most` buffers of the supply, and returns the number of posted buffers. With
    /// `split`, the device stores the first [`SNAPSHOT_MAX`] bytes of a frame in the queue's header
    /// space, if the queue has one.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn post(
        &mut self,
        table: &mut IoTable,
        most: usize,
        split: bool,
        buffers: &mut dyn Buffers,
    ) -> Result<usize, DmaError> {
        let most = most.min(self.queue.free_entries());
        let mut posted = 0;
        while posted < most
            && let Some(buffer) = buffers.take()
        {
            let Some(address) = self.map(table, buffer.span) else {
                // The supply's other buffers are probably outside the table too.
                buffers.put(buffer.id);
                self.counters.foreign += 1;
                break;
            };
            let slot = self.queue.next_slot() as usize;
            let header = self.headers.filter(|_| split);
            let descriptor = Descriptor {
                address,
                len: buffer.span.len() as u32,
                header: header.and_then(|(_, base)| base.add(slot * SNAPSHOT_MAX)),
                checksum: None,
            };
            if let Err(buffer) = self.queue.post(buffer, descriptor) {
                self.unmap(table, &descriptor);
                buffers.put(buffer.id);
                break;
            }
            posted += 1;
        }
        if posted > 0 {
            self.queue.publish()?;
        }
        Ok(posted)
    }

    /// See [`DriverQueue::needs_wakeup`].
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn needs_wakeup(&mut self) -> Result<bool, DmaError> {
        self.queue.needs_wakeup()
    }

    /// See [`DriverQueue::is_raised`].
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn is_raised(&mut self) -> Result<bool, DmaError> {
        self.queue.is_raised()
    }

    /// See [`DriverQueue::acknowledge`].
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn acknowledge(&mut self) -> Result<bool, DmaError> {
        self.queue.acknowledge()
    }

    fn map(&self, table: &mut IoTable, span: Span) -> Option<IoAddr> {
        let address = table.address(span)?;
        if self.maps {
            table.map(address, span.len()).ok()?;
        }
        Some(address)
    }

    fn unmap(&self, table: &mut IoTable, descriptor: &Descriptor) {
        if self.maps {
            // This cannot fail: `map` has mapped the range, and only this call unmaps it.
            let _ = table.unmap(descriptor.address, descriptor.len as usize);
        }
    }

    /// Appends up to `budget` completed frames to `out`, and returns their number. Returns buffers
    /// without a frame to the supply.
    ///
    /// # Errors
    /// Returns an error if the device violates the rules of the queue. The caller must then reset
    /// the device and call [`ReceiveQueue::withdraw`].
    pub fn receive(
        &mut self,
        table: &mut IoTable,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> Result<usize, DmaError> {
        let mut frames = 0;
        while frames < budget {
            let index = self.queue.next_index();
            let Some((buffer, descriptor, completion)) = self.queue.take()? else {
                break;
            };
            self.unmap(table, &descriptor);
            if let Err(misuse) = self.check(&descriptor, &completion) {
                // The device may still write to the buffer, so it returns to the supply only after
                // the reset.
                self.partial.push(Piece {
                    span: buffer.span,
                    buffer: buffer.id,
                });
                return Err(self.queue.error(completion.index, misuse));
            }
            self.append(index, buffer, &completion, buffers);
            if !completion.more
                && let Some(frame) = self.finish(&completion, buffers)
            {
                out.push(frame);
                frames += 1;
            }
        }
        Ok(frames)
    }

    /// Checks the length, the header length and the continuation of a completion.
    fn check(&self, descriptor: &Descriptor, completion: &Completion) -> Result<(), Misuse> {
        let Completion {
            len, header_len, ..
        } = *completion;
        let total = self.partial.len().saturating_add(len as usize);
        if total > self.longest {
            return Err(Misuse::TooLong {
                len: total.min(u32::MAX as usize) as u32,
                most: self.longest as u32,
            });
        }
        // If every buffer except the last is full, the maximum length of a frame limits the number
        // of its buffers.
        if completion.more && len < descriptor.len {
            let most = descriptor.len;
            return Err(Misuse::PartialBuffer { len, most });
        }
        // A split frame fits one buffer.
        let is_split = descriptor.header.is_some();
        check_header(is_split, completion)?;
        let in_parts = completion.more || !self.partial.is_empty();
        if !completion.error && is_split && in_parts {
            return Err(Misuse::BadHeader(header_len));
        }
        Ok(())
    }

    /// Appends a completed buffer to the current frame.
    fn append(
        &mut self,
        index: u32,
        buffer: Buffer,
        completion: &Completion,
        buffers: &mut dyn Buffers,
    ) {
        let len = completion.len as usize;
        if completion.error {
            self.counters.io_error += 1;
            self.is_broken = true;
            buffers.put(buffer.id);
        } else if completion.header_len > 0 {
            match split(self.headers, self.queue.slot(index), buffer, completion) {
                Some(frame) => self.partial = frame,
                None => {
                    self.is_broken = true;
                    self.counters.malformed += 1;
                    buffers.put(buffer.id);
                }
            }
        } else {
            self.partial.push(Piece {
                span: buffer.span.take(len),
                buffer: buffer.id,
            });
        }
    }

    /// Returns the complete current frame, or `None` if it is invalid and was dropped.
    fn finish(&mut self, completion: &Completion, buffers: &mut dyn Buffers) -> Option<Frame> {
        let mut frame = self.partial.take();
        let is_broken = std::mem::take(&mut self.is_broken);
        if is_broken || complete_frame(&mut frame, completion, self.merges).is_none() {
            if !is_broken {
                self.counters.malformed += 1;
            }
            frame.recycle(buffers);
            return None;
        }
        Some(frame)
    }

    /// Passes all posted buffers, and those of an incomplete frame, to `put`, which returns them to
    /// the supply. The caller must have reset the device, which must start at the returned index.
    pub fn withdraw(&mut self, table: &mut IoTable, mut put: impl FnMut(BufferId)) -> u32 {
        let maps = self.maps;
        let start = self.queue.withdraw(|buffer, descriptor| {
            if maps {
                // This cannot fail: the buffer was mapped when it was posted.
                let _ = table.unmap(descriptor.address, descriptor.len as usize);
            }
            put(buffer.id);
        });
        let partial = self.partial.take();
        partial.pieces.iter().for_each(|piece| put(piece.buffer));
        self.is_broken = false;
        start
    }
}

/// Checks the header length of a completion. With split headers it must be [`SNAPSHOT_MAX`], or the
/// length of a shorter frame; otherwise it must be 0.
pub(super) fn check_header(is_split: bool, completion: &Completion) -> Result<(), Misuse> {
    let Completion {
        len, header_len, ..
    } = *completion;
    let expected = if is_split {
        len.min(SNAPSHOT_MAX as u32)
    } else {
        0
    };
    match completion.error || u32::from(header_len) == expected {
        true => Ok(()),
        false => Err(Misuse::BadHeader(header_len)),
    }
}

/// Returns the frame that consists of the split header in slot `slot` of `headers` and the rest in
/// `buffer`. Returns `None` if the header was not split, or its memory is inaccessible.
pub(super) fn split(
    headers: Option<(Span, IoAddr)>,
    slot: u32,
    buffer: Buffer,
    completion: &Completion,
) -> Option<Frame> {
    if completion.error || completion.header_len == 0 {
        return None;
    }
    let (headers, _) = headers?;
    let mut header = [0; SNAPSHOT_MAX];
    let header = header.get_mut(..usize::from(completion.header_len))?;
    let span = headers.sub(slot as usize * SNAPSHOT_MAX, header.len())?;
    span.read(header).ok()?;
    Frame::split(header, buffer, completion.len as usize)
}

/// Takes the snapshot of a complete frame, and sets its offload. Returns `None` if the frame is
/// malformed.
pub(super) fn complete_frame(
    frame: &mut Frame,
    completion: &Completion,
    merges: bool,
) -> Option<()> {
    if frame.len() < ETHERNET_BYTES {
        return None;
    }
    match completion.merged {
        Some(merged) if merges => {
            frame.offload = merged.offload(frame.len())?;
            frame.fixed_id = merged.fixed_id;
        }
        Some(_) => return None,
        None if completion.valid => frame.offload.checksum = Checksum::Valid,
        None => {}
    }
    frame.snapshot().ok()
}
