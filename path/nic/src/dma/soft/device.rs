//! The software device, which takes posted descriptors and moves frames between their buffers and
//! the wire.

use super::interrupt::{InterruptModeration, QueueInterrupt};
use super::merger::{Arrival, MergeStage};
use super::wire::Wire;
use crate::dma::addr::IoAddr;
use crate::dma::checksum;
use crate::dma::control::QueueControl;
use crate::dma::layout::{Completion, Descriptor, MappedMemory};
use crate::dma::queue::{DeviceQueue, QueueName};
use crate::dma::table::{IoFault, IoMemory};
use crate::frame::SNAPSHOT_MAX;
use abi::machine::ALL_MACS;
use shmem::{Fault, Span};
use std::collections::{BTreeMap, VecDeque};

/// Maximum bytes of frames that wait in the device for buffers of a receive queue.
pub(super) const FIFO_BYTES: usize = 512 << 10;
/// Maximum number of frames that the device sends per call, and maximum that it receives.
pub(super) const BATCH: usize = 256;

/// Counters of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Received frames lost because too many frames were waiting for buffers of their queue.
    pub missed: u64,
    /// Received frames lost because they exceed the maximum length or, with a split header, their
    /// buffer.
    pub too_long: u64,
    /// Number of accesses to pages that are not mapped.
    pub faults: u64,
    /// Number of posted buffers of length 0.
    pub empty_buffers: u64,
    /// Number of raised interrupts.
    pub interrupts: u64,
}

/// The device's end of a queue, with its address.
#[derive(Debug)]
pub(super) struct MappedQueue {
    name: QueueName,
    base: IoAddr,
    entries: u32,
    pub(super) queue: DeviceQueue,
    /// Whether the device ignores the queue, because an access to its memory failed.
    pub(super) is_stopped: bool,
}

impl MappedQueue {
    fn new(name: QueueName, base: IoAddr, entries: u32) -> Self {
        Self {
            name,
            base,
            entries,
            queue: DeviceQueue::new(entries, 0),
            is_stopped: false,
        }
    }

    /// Discards all posted descriptors, and expects the next one at index `start`.
    pub(super) fn reset(&mut self, start: u32) {
        self.queue = DeviceQueue::new(self.entries, start);
    }

    pub(super) fn memory<'m, M>(&self, io: &'m M) -> MappedMemory<'m, M> {
        MappedMemory {
            io,
            base: self.base,
            entries: self.entries,
        }
    }
}

/// A receive queue, and the frames that wait for its buffers.
#[derive(Debug)]
pub(super) struct ReceiveFifo {
    pub(super) mapped: MappedQueue,
    pub(super) fifo: VecDeque<Arrival>,
    pub(super) fifo_bytes: usize,
    /// The control word in effect. Only a dedicated queue of a driver in another domain has one.
    pub(super) control: QueueControl,
    /// Number of bytes of the first frame that are already stored in buffers.
    pub(super) stored: usize,
    /// State of the queue's interrupt, if the driver is in another process.
    pub(super) interrupt: QueueInterrupt,
}

/// A software device with wire `W`. It makes progress only when the caller calls it.
#[derive(Debug)]
pub struct SoftDevice<W> {
    pub(super) wire: W,
    pub(super) receive: Vec<ReceiveFifo>,
    pub(super) transmit: MappedQueue,
    /// Number of entries of each queue.
    entries: u32,
    /// Receive queue by destination MAC; frames for other MACs use queue 0.
    pub(super) filter: BTreeMap<[u8; 6], usize>,
    longest: usize,
    pub(super) interrupts: InterruptModeration,
    pub(super) merging: Option<MergeStage>,
    /// Whether the interrupt must be raised without moderation, because merged frames have waited
    /// long enough.
    pub(super) is_late: bool,
    /// Arrival time of the first frame since the last [`SoftDevice::acknowledge`].
    since_ns: Option<u64>,
    /// Number of frames that arrived since the last [`SoftDevice::acknowledge`].
    arrived: usize,
    is_stopped: bool,
    pub(super) counters: DeviceCounters,
    last_fault: Option<(QueueName, IoFault)>,
}

impl<W: Wire> SoftDevice<W> {
    /// Creates a device whose queues have `entries` entries. `receive` and `transmit` are the I/O
    /// addresses of the queues' memory; receive queue 0 is the shared queue. Frames of more than
    /// `longest` bytes are lost.
    #[must_use]
    pub fn new(
        wire: W,
        entries: u32,
        receive: &[IoAddr],
        transmit: IoAddr,
        longest: usize,
        interrupts: InterruptModeration,
    ) -> Self {
        let mut device = Self {
            wire,
            receive: Vec::new(),
            transmit: MappedQueue::new(QueueName::Transmit, transmit, entries),
            entries,
            filter: BTreeMap::new(),
            longest,
            interrupts,
            merging: None,
            is_late: false,
            since_ns: None,
            arrived: 0,
            is_stopped: false,
            counters: DeviceCounters::default(),
            last_fault: None,
        };
        device.set_queues(receive, transmit);
        device
    }

    /// Replaces all queues with empty queues.
    pub(super) fn set_queues(&mut self, receive: &[IoAddr], transmit: IoAddr) {
        let entries = self.entries;
        let queue = |(number, base): (usize, &IoAddr)| ReceiveFifo {
            mapped: MappedQueue::new(QueueName::Receive(number as u32), *base, entries),
            fifo: VecDeque::new(),
            fifo_bytes: 0,
            control: QueueControl::default(),
            stored: 0,
            interrupt: QueueInterrupt::default(),
        };
        self.receive = receive.iter().enumerate().map(queue).collect();
        self.transmit = MappedQueue::new(QueueName::Transmit, transmit, entries);
        self.filter.clear();
        (self.since_ns, self.arrived) = (None, 0);
    }

    /// Returns the wire.
    #[must_use]
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// Returns the wire.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        self.counters
    }

    /// Returns the last I/O fault, and its queue.
    #[must_use]
    pub fn last_fault(&self) -> Option<(QueueName, IoFault)> {
        self.last_fault
    }

    /// Steers frames for `mac` to a receive queue, or to the shared queue if `queue` is `None`.
    /// [`ALL_MACS`] means all MACs. The change applies to frames that arrive later.
    pub fn steer(&mut self, mac: [u8; 6], queue: Option<usize>) {
        match queue {
            Some(queue) => _ = self.filter.insert(mac, queue),
            None if mac == ALL_MACS => self.filter.clear(),
            None => _ = self.filter.remove(&mac),
        }
    }

    /// Returns the number of frames that wait in the device for buffers of a receive queue.
    #[must_use]
    pub fn waiting(&self, queue: usize) -> usize {
        self.receive.get(queue).map_or(0, |queue| queue.fifo.len())
    }

    /// Stops the device. A stopped device accesses no memory.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Resets a receive queue: discards the posted buffers, and expects the next one at index
    /// `start`. The rest of a partially stored frame is lost.
    pub fn reset(&mut self, queue: usize, start: u32, io: &impl IoMemory) {
        let Some(receive) = self.receive.get_mut(queue) else {
            return;
        };
        receive.mapped.reset(start);
        if receive.stored > 0 {
            receive.drop_first();
        }
        let memory = receive.mapped.memory(io);
        if receive.mapped.queue.publish(&memory).is_err() {
            self.stop_queue(queue);
        }
    }

    /// Sends posted frames, and stores arrived frames in posted buffers.
    pub fn poll(&mut self, now_ns: u64, io: &impl IoMemory) {
        if self.is_stopped {
            return;
        }
        self.send(now_ns, io);
        self.sort(now_ns);
        for queue in 0..self.receive.len() {
            if self.fill(queue, io).is_err() {
                self.stop_queue(queue);
            }
        }
    }

    pub(super) fn stop_queue(&mut self, queue: usize) {
        if let Some(receive) = self.receive.get_mut(queue) {
            receive.mapped.is_stopped = true;
            self.counters.faults += 1;
        }
    }

    /// Sends frames of the transmit queue until the wire is full.
    fn send(&mut self, now_ns: u64, io: &impl IoMemory) {
        let mut sent = Ok(true);
        for _ in 0..BATCH {
            sent = self.send_one(now_ns, io);
            if !matches!(sent, Ok(true)) {
                break;
            }
        }
        let memory = self.transmit.memory(io);
        let published = self.transmit.queue.publish(&memory);
        if sent.is_err() || published.is_err() {
            self.stop_transmit();
        }
    }

    pub(super) fn stop_transmit(&mut self) {
        if !std::mem::replace(&mut self.transmit.is_stopped, true) {
            self.counters.faults += 1;
        }
    }

    /// Sends the next frame. Returns false if no frame is posted or the wire is full.
    fn send_one(&mut self, now_ns: u64, io: &impl IoMemory) -> Result<bool, Fault> {
        let transmit = &mut self.transmit;
        if transmit.is_stopped {
            return Ok(false);
        }
        let memory = transmit.memory(io);
        let Some(descriptor) = transmit.queue.peek(&memory)? else {
            return Ok(false);
        };
        let len = descriptor.len as usize;
        if len <= self.longest && !self.wire.has_room(len) {
            return Ok(false);
        }
        let frame = self.fetch(io, &descriptor);
        let completion = Completion {
            len: descriptor.len,
            error: frame.is_none(),
            ..Completion::default()
        };
        self.transmit.queue.complete(&memory, completion)?;
        if let Some(frame) = frame {
            self.wire.send(now_ns, frame);
        }
        Ok(true)
    }

    /// Reads the frame of a transmit descriptor. Returns `None` after an error.
    fn fetch(&mut self, io: &impl IoMemory, descriptor: &Descriptor) -> Option<Vec<u8>> {
        let len = descriptor.len as usize;
        if len > self.longest {
            return None;
        }
        let mut bytes = vec![0; len];
        let read = at(io, descriptor.address, len, |span| span.read(&mut bytes));
        self.counted(QueueName::Transmit, read)?.ok()?;
        let is_complete = descriptor
            .checksum
            .is_none_or(|offload| checksum::complete(&mut bytes, offload));
        is_complete.then_some(bytes)
    }

    /// Moves arrived frames from the wire to the waiting frames of their queues.
    fn sort(&mut self, now_ns: u64) {
        // A wire may deliver frames faster than this loop processes them.
        for _ in 0..BATCH {
            // A frame may have arrived before this call.
            let due_ns = self.wire.due_ns(0).unwrap_or(now_ns);
            let Some(bytes) = self.wire.receive(now_ns) else {
                break;
            };
            if bytes.len() > self.longest {
                self.counters.too_long += 1;
                continue;
            }
            let queue = self.queue_of(&bytes);
            let frame = Arrival {
                valid: checksum::is_valid(&bytes),
                bytes,
                merged: None,
            };
            if self.merges(queue)
                && let Some(stage) = &mut self.merging
            {
                stage.arrived.push(frame);
            } else {
                self.enqueue(queue, frame, due_ns);
            }
        }
        self.merge(now_ns);
    }

    /// Returns the receive queue of a frame.
    pub(super) fn queue_of(&self, bytes: &[u8]) -> usize {
        let queue = bytes.first_chunk().and_then(|mac| self.filter.get(mac));
        queue.copied().unwrap_or(0)
    }

    /// Appends a frame that arrived at `due_ns` to the waiting frames of a queue.
    pub(super) fn enqueue(&mut self, queue: usize, frame: Arrival, due_ns: u64) {
        let Some(receive) = self.receive.get_mut(queue) else {
            return;
        };
        if receive.fifo_bytes + frame.bytes.len() > FIFO_BYTES {
            self.counters.missed += 1;
            return;
        }
        receive.fifo_bytes += frame.bytes.len();
        receive.fifo.push_back(frame);
        self.since_ns.get_or_insert(due_ns);
        self.arrived += 1;
    }

    /// Stores the waiting frames of a queue in posted buffers.
    fn fill(&mut self, queue: usize, io: &impl IoMemory) -> Result<(), Fault> {
        let before = self
            .receive
            .get(queue)
            .map_or(0, |receive| receive.fifo.len());
        if before == 0 {
            return Ok(());
        }
        while self.store_one(queue, io)? {}
        let Some(receive) = self.receive.get(queue) else {
            return Ok(());
        };
        let memory = receive.mapped.memory(io);
        receive.mapped.queue.publish(&memory)
    }

    /// Stores the next part of the first waiting frame. Returns false if no frame waits or no
    /// buffer is posted.
    fn store_one(&mut self, queue: usize, io: &impl IoMemory) -> Result<bool, Fault> {
        let Some(receive) = self.receive.get_mut(queue) else {
            return Ok(false);
        };
        if receive.mapped.is_stopped || receive.fifo.is_empty() {
            return Ok(false);
        }
        let memory = receive.mapped.memory(io);
        let Some(descriptor) = receive.mapped.queue.peek(&memory)? else {
            return Ok(false);
        };
        let (name, stored) = (receive.mapped.name, receive.stored);
        let Some(frame) = receive.fifo.pop_front() else {
            return Ok(false);
        };
        let rest = frame.bytes.get(stored..).unwrap_or(&[]);
        let room = descriptor.len as usize;
        if descriptor.header.is_some() && rest.len() > room && room > 0 {
            self.counters.too_long += 1;
            let len = frame.bytes.len();
            if let Some(receive) = self.receive.get_mut(queue) {
                receive.fifo_bytes -= len;
                receive.stored = 0;
            }
            return Ok(true);
        }
        let room = room.min(frame.part_max(queue, stored));
        let part = rest.get(..room).unwrap_or(rest);
        let header_len = match descriptor.header {
            Some(_) => part.len().min(SNAPSHOT_MAX),
            None => 0,
        };
        let is_stored = match room {
            0 => {
                self.counters.empty_buffers += 1;
                false
            }
            _ => self.store(name, io, &descriptor, part, header_len),
        };
        let more = is_stored && stored + part.len() < frame.bytes.len();
        let completion = Completion {
            len: if is_stored { part.len() as u32 } else { 0 },
            header_len: if is_stored { header_len as u16 } else { 0 },
            more,
            valid: is_stored && !more && frame.valid,
            error: !is_stored,
            merged: frame.merged.filter(|_| is_stored && !more),
            ..Completion::default()
        };
        let (len, end) = (frame.bytes.len(), stored + part.len());
        let Some(receive) = self.receive.get_mut(queue) else {
            return Ok(false);
        };
        if more {
            receive.fifo.push_front(frame);
            receive.stored = end;
        } else {
            receive.fifo_bytes -= len;
            receive.stored = 0;
        }
        receive.mapped.queue.complete(&memory, completion)?;
        Ok(true)
    }

    /// Writes a part of a frame to its buffers, or writes nothing and returns false after an I/O
    /// fault.
    fn store(
        &mut self,
        name: QueueName,
        io: &impl IoMemory,
        descriptor: &Descriptor,
        part: &[u8],
        header_len: usize,
    ) -> bool {
        let (header, rest) = part.split_at(header_len);
        // If headers are not split, the header is empty, and its address is not accessed.
        let to_header = descriptor.header.unwrap_or(descriptor.address);
        let to_rest = descriptor.address.add(header_len);
        let to_rest = to_rest.unwrap_or(IoAddr::from_bits(u64::MAX));
        // The device checks both ranges before it writes to either.
        let stored = at(io, to_header, header.len(), |to_header| {
            at(io, to_rest, rest.len(), |to_rest| {
                to_header.write(header).and_then(|_| to_rest.write(rest))
            })
        });
        // This happens if a guest's page is not mapped.
        let fault = |Fault| IoFault {
            address: descriptor.address,
            len: part.len(),
        };
        let stored = stored.flatten().and_then(|written| written.map_err(fault));
        self.counted(name, stored).is_some()
    }

    /// Returns the result of an access, or counts its fault and returns `None`.
    fn counted<T>(&mut self, name: QueueName, accessed: Result<T, IoFault>) -> Option<T> {
        if let Err(fault) = accessed {
            self.counters.faults += 1;
            self.last_fault = Some((name, fault));
        }
        accessed.ok()
    }

    /// Returns the time of the next interrupt, or `None` if it is unknown.
    #[must_use]
    pub fn interrupt_ns(&self) -> Option<u64> {
        if self.is_stopped {
            return None;
        }
        let first_ns = self.since_ns.or_else(|| self.wire.due_ns(0))?;
        let by_time_ns = first_ns.saturating_add(self.interrupts.delay_ns);
        let by_count_ns = match self.interrupts.frames.checked_sub(self.arrived) {
            _ if self.interrupts.frames == 0 => None,
            None | Some(0) => Some(first_ns),
            Some(left) => self.wire.due_ns(left - 1),
        };
        Some(by_count_ns.map_or(by_time_ns, |ns| ns.min(by_time_ns)))
    }

    /// Acknowledges an interrupt, after the driver has taken all completions. Frames that wait for
    /// a buffer of the shared queue raise no interrupt; the device stores them when buffers are
    /// posted.
    pub fn acknowledge(&mut self) {
        if self.arrived > 0 {
            self.counters.interrupts += 1;
        }
        self.reset_moderation();
    }

    /// Excludes frames whose completions the driver has taken from interrupt moderation.
    fn reset_moderation(&mut self) {
        let dedicated = self.receive.iter().skip(1);
        self.arrived = dedicated.map(|receive| receive.fifo.len()).sum();
        self.since_ns = self.since_ns.filter(|_| self.arrived > 0);
    }
}

/// Accesses memory like [`IoMemory::access`], but an empty range is always accessible.
fn at<T>(
    io: &impl IoMemory,
    address: IoAddr,
    len: usize,
    act: impl FnOnce(Span) -> T,
) -> Result<T, IoFault> {
    match len {
        0 => Ok(act(Span::EMPTY)),
        _ => io.access(address, len, act),
    }
}

impl ReceiveFifo {
    pub(super) fn drop_first(&mut self) {
        if let Some(frame) = self.fifo.pop_front() {
            self.fifo_bytes -= frame.bytes.len();
        }
        self.stored = 0;
    }
}
