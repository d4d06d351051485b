//! The driver's end of a guest's dedicated queue whose device is in another domain. The guest's
//! buffers stay posted across polls until frames arrive.
//!
//! | state | the device | next state |
//! |---|---|---|
//! | stopped | ignores the queue | started, by [`RemoteQueue::start`] |
//! | started | stores frames for the guest's MAC | stopping, or stopped when the link is down |
//! | stopping | may still use posted buffers | stopped, when the device confirms it |

use super::addr::IoAddr;
use super::control::QueueControl;
use super::layout::{Completion, Descriptor, MERGED_MAX, OwnMemory};
use super::queue::{DmaError, DriverQueue, Misuse, QueueName};
use super::receive::{check_header, complete_frame, split};
use super::remote_link::{RemoteLink, RemoteSetup};
use crate::buffer::{Buffer, BufferId, Piece};
use crate::frame::{Frame, SNAPSHOT_MAX};
use crate::small_frame::HEAD_BYTES;
use shmem::Span;
use std::mem;
use std::rc::Rc;

/// Number of frames behind the next one whose heads are prefetched. The device wrote them last, so
/// loading them takes some hundred cycles each.
const HEADS_AHEAD: usize = 8;

/// Counters of a dedicated queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounters {
    /// Number of buffers that the device could not write.
    pub io_error: u64,
    /// Number of frames that are shorter than an Ethernet header, or whose memory is inaccessible.
    pub malformed: u64,
    /// Number of buffers that were too short to be posted.
    pub foreign: u64,
}

/// The driver's end of a dedicated queue.
#[derive(Debug)]
pub struct RemoteQueue {
    pub(super) link: Rc<RemoteLink>,
    memory: OwnMemory,
    name: QueueName,
    entries: u32,
    pub(super) queue: DriverQueue<OwnMemory, Buffer>,
    control: QueueControl,
    /// The link's connection number to which the control word belongs.
    connection: u32,
    /// Space for split headers, [`SNAPSHOT_MAX`] bytes for each entry, and its I/O address.
    headers: Option<(Span, IoAddr)>,
    /// Maximum length of a frame on the wire in bytes.
    longest: usize,
    /// Whether the device can merge frames.
    can_merge: bool,
    /// The completed first parts of a merged frame.
    pub(super) partial: Frame,
    /// Whether the device failed to write a part of `partial`.
    is_broken: bool,
    /// Whether the driver takes completions without an interrupt, because the last poll left some.
    pub(super) polls: bool,
    counters: RemoteCounters,
}

impl RemoteQueue {
    /// Creates queue `number` (the first is 1) over memory of [`super::layout::queue_bytes`]. If
    /// headers are split, `headers` is the space for them with its I/O address. Returns `None` if
    /// the memory has a wrong size.
    #[must_use]
    pub fn new(
        number: u32,
        setup: &RemoteSetup,
        (memory, headers): (Span, Option<(Span, IoAddr)>),
        link: Rc<RemoteLink>,
    ) -> Option<Self> {
        let name = QueueName::Receive(number);
        let entries = setup.entries;
        let memory = OwnMemory::new(memory, entries)?;
        Some(Self {
            connection: link.connection(),
            link,
            memory,
            name,
            entries,
            queue: DriverQueue::new(name, memory, entries, 0),
            control: QueueControl::default(),
            headers,
            longest: setup.longest(),
            can_merge: setup.merges,
            partial: Frame::empty(),
            is_broken: false,
            polls: false,
            counters: RemoteCounters::default(),
        })
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> RemoteCounters {
        self.counters
    }

    /// Returns the number of posted buffers plus the number of buffers of an incomplete frame.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.queue.posted() + self.partial.pieces.len()
    }

    /// Returns whether the device can merge frames.
    #[must_use]
    pub fn can_merge(&self) -> bool {
        self.can_merge
    }

    /// Returns the number of buffers that can be posted.
    #[must_use]
    pub fn free_entries(&self) -> usize {
        self.queue.free_entries()
    }

    /// Returns the link's connection number, which changes with each device.
    #[must_use]
    pub fn connection(&self) -> u32 {
        self.link.connection()
    }

    /// Returns whether the link is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Returns whether the queue is started.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.control.mac.is_some()
    }

    /// Returns whether the last call that received frames left completions.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.polls
    }

    /// Handles a link that was set down since the last call: stops the queue, and passes each
    /// posted buffer to `back`. The device of the old connection can no longer access the queue's
    /// memory.
    pub fn sync_link(&mut self, back: impl FnMut(BufferId)) {
        if self.connection != self.link.connection() {
            self.connection = self.link.connection();
            self.control = QueueControl::default();
            self.clear(back);
        }
    }

    /// Returns whether [`RemoteQueue::start`] would start the queue.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.link.is_up()
            && self.connection == self.link.connection()
            && !self.is_started()
            && self.memory.effective() == self.control
    }

    /// Requests that the device store frames for `mac` in the queue. Has no effect if the queue is
    /// not [ready](RemoteQueue::is_ready). With `merges`, the device merges frames if it can, and a
    /// frame may have several buffers.
    pub fn start(&mut self, mac: [u8; 6], merges: bool) {
        if self.is_ready() {
            self.memory.reset();
            self.clear(|_| ());
            self.change(Some(mac), merges);
        }
    }

    /// Requests that the device store frames in the shared queue, and discards the list of posted
    /// buffers. The device may access these buffers until their pages are revoked.
    pub fn stop(&mut self) {
        self.sync_link(|_| ());
        if self.is_started() {
            self.change(None, false);
        }
        self.clear(|_| ());
    }

    fn change(&mut self, mac: Option<[u8; 6]>, merges: bool) {
        self.control = self.control.next(mac, merges && self.can_merge);
        self.memory.set_control(self.control);
        self.link.ring();
    }

    /// Resets the driver's end, and passes each posted buffer to `back`.
    fn clear(&mut self, mut back: impl FnMut(BufferId)) {
        let partial = self.partial.take();
        partial.pieces.iter().for_each(|piece| back(piece.buffer));
        self.is_broken = false;
        self.queue.withdraw(|buffer, _| back(buffer.id));
        self.queue = DriverQueue::new(self.name, self.memory, self.entries, 0);
        self.polls = false;
    }

    /// Posts a buffer at an I/O address; the device sees it after [`RemoteQueue::publish`]. Returns
    /// false if the buffer is too short, or the queue is full or not started.
    pub fn post(&mut self, address: IoAddr, buffer: Buffer) -> bool {
        if buffer.span.len() < self.longest {
            self.counters.foreign += 1;
            return false;
        }
        let slot = self.queue.next_slot() as usize;
        let descriptor = Descriptor {
            address,
            len: buffer.span.len() as u32,
            header: self.headers.and_then(|(_, at)| at.add(slot * SNAPSHOT_MAX)),
            checksum: None,
        };
        self.is_started() && self.queue.post(buffer, descriptor).is_ok()
    }

    /// Publishes all posted buffers, and wakes the device if frames wait for them.
    pub fn publish(&mut self) {
        let wakes = self
            .queue
            .publish()
            .and_then(|()| self.queue.needs_wakeup());
        match wakes {
            Ok(true) => self.link.ring(),
            Ok(false) => {}
            Err(error) => self.link.close(error),
        }
    }

    /// Receives up to `budget` completions: appends frames to `out`, and buffers without a valid
    /// frame to `failed`. Returns the number of completions. If it is below `budget`, the device
    /// raises an interrupt with the next completion, and the driver does not read the queue before
    /// that. A violation of the rules closes the NIC; its owner then sets the link down.
    pub fn receive(
        &mut self,
        budget: usize,
        out: &mut Vec<Frame>,
        failed: &mut Vec<BufferId>,
    ) -> usize {
        if !self.is_started() || !self.link.is_usable() {
            return 0;
        }
        let mut taken = 0;
        if let Err(error) = self.take_all(budget, &mut taken, out, failed) {
            self.link.close(error);
        }
        taken
    }

    /// Receives completions if an interrupt was raised or the last poll left some. Counts them in
    /// `taken`, which is valid also after an error.
    fn take_all(
        &mut self,
        budget: usize,
        taken: &mut usize,
        out: &mut Vec<Frame>,
        failed: &mut Vec<BufferId>,
    ) -> Result<(), DmaError> {
        if !self.is_readable()? {
            return Ok(());
        }
        while *taken < budget && self.take(out, failed)? {
            *taken += 1;
        }
        self.polls = *taken >= budget;
        Ok(())
    }

    /// Returns whether the queue may be read: the device has raised its interrupt, or the last poll
    /// left completions.
    pub(super) fn is_readable(&mut self) -> Result<bool, DmaError> {
        self.polls |= self.queue.is_raised()?;
        Ok(self.polls)
    }

    /// Returns the next completion. If none is available, acknowledges the previous completions.
    #[inline]
    pub(super) fn next_completion(&mut self) -> Result<Option<Completion>, DmaError> {
        let is_first = self.queue.completed(0).is_none();
        let completion = match self.queue.peek()? {
            // The device may have completed more before it read the acknowledgement.
            None if self.queue.acknowledge()? => self.queue.peek()?,
            found => found,
        };
        if completion.is_some() {
            let first = if is_first { 0 } else { HEADS_AHEAD };
            (first..=HEADS_AHEAD).for_each(|ahead| self.prefetch_head(ahead));
        }
        Ok(completion)
    }

    /// Prefetches the head of the frame that is `ahead` positions behind the next one, if the
    /// device is known to have completed it.
    #[inline]
    fn prefetch_head(&self, ahead: usize) {
        if let Some(buffer) = self.queue.completed(ahead) {
            let index = self.queue.next_index().wrapping_add(ahead as u32);
            let slot = self.queue.slot(index) as usize;
            let head = match self.headers {
                Some((headers, _)) => headers.skip(slot * SNAPSHOT_MAX),
                None => buffer.span,
            };
            head.take(HEAD_BYTES).prefetch();
        }
    }

    /// Takes the next completion. If none is available, acknowledges the previous completions and
    /// returns false.
    fn take(&mut self, out: &mut Vec<Frame>, failed: &mut Vec<BufferId>) -> Result<bool, DmaError> {
        let index = self.queue.next_index();
        let Some(completion) = self.next_completion()? else {
            return Ok(false);
        };
        let Some((buffer, descriptor)) = self.queue.pop() else {
            return Ok(false);
        };
        if let Err(misuse) = self.check(&descriptor, &completion) {
            failed.push(buffer.id);
            return Err(self.queue.error(index, misuse));
        }
        if completion.error {
            self.counters.io_error += 1;
            self.is_broken = true;
        }
        match split(self.headers, self.queue.slot(index), buffer, &completion) {
            Some(frame) => self.partial = frame,
            None => self.partial.push(Piece {
                span: buffer.span.take(completion.len as usize),
                buffer: buffer.id,
            }),
        }
        if !completion.more {
            self.finish(&completion, out, failed);
        }
        Ok(true)
    }

    /// Checks the header length and the continuation of a completion.
    fn check(&self, descriptor: &Descriptor, completion: &Completion) -> Result<(), Misuse> {
        let is_split = descriptor.header.is_some();
        check_header(is_split, completion)?;
        if completion.more && (is_split || !self.control.merges) {
            return Err(Misuse::UnexpectedContinuation);
        }
        let len = self.partial.len() + completion.len as usize;
        let is_first = self.partial.pieces.is_empty();
        // Only the first buffer may be filled partially (D-40), so the maximum length of a frame
        // limits the number of its buffers.
        let fewest = if is_first { 1 } else { descriptor.len };
        if completion.more && completion.len < fewest {
            return Err(Misuse::PartialBuffer {
                len: completion.len,
                most: descriptor.len,
            });
        }
        let in_parts = completion.more || !is_first;
        if in_parts && len > MERGED_MAX {
            return Err(Misuse::TooLong {
                len: len as u32,
                most: MERGED_MAX as u32,
            });
        }
        Ok(())
    }

    /// Appends the complete current frame to `out`, or its buffers to `failed` if it is invalid.
    fn finish(
        &mut self,
        completion: &Completion,
        out: &mut Vec<Frame>,
        failed: &mut Vec<BufferId>,
    ) {
        let mut frame = self.partial.take();
        let is_broken = mem::take(&mut self.is_broken);
        if !is_broken && complete_frame(&mut frame, completion, self.control.merges).is_some() {
            out.push(frame);
            return;
        }
        if !is_broken {
            self.counters.malformed += 1;
        }
        failed.extend(frame.pieces.iter().map(|piece| piece.buffer));
    }
}
