//! The data path of an AF_XDP socket: rings in shared memory, without system calls while frames
//! arrive.
//!
//! Crate `netdev` sets up socket, memory (UMEM) and rings. The memory is divided into chunks, each
//! of which is either a buffer of the receive supply or a chunk for sending. The kernel copies
//! received frames on the sender's processor, or the NIC writes them. This code copies each sent
//! frame once.
//!
//! ```text
//!   chunk:   in the supply ──► fill ring ──► receive ring ──► frame ──► in the supply
//!            ours ──► transmit ring ──► completion ring ──► ours
//! ```
//!
//! The kernel is trusted to write packets only into the chunks it was given. This code still checks
//! that, and rejects a chunk that the kernel does not own.
//!
//! A socket may have belonged to an earlier domain that has ended. Its rings are in the state that
//! the earlier domain left, and packets have arrived since, which are received like any others. The
//! chunks that the dead domain held are discovered over time.

mod queue;
mod ring;
mod unreclaimed;

pub use queue::{DedicatedXdpQueue, QueueParts};

use abi::xdp::{Ring, RingLayout};
use nic::frame::HOT;
use nic::{Buffer, BufferId, Buffers, Caps, Frame, Nic, Piece, TxReport};
use ring::{XdpConsumer, XdpDescriptor, XdpProducer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shmem::Span;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use unreclaimed::Unreclaimed;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes at the start of a chunk that the kernel reserves before a packet.
pub const HEADROOM: usize = 256;
/// Prefetch distance in frames. A frame's first cache lines lie in the sender's cache.
const AHEAD: u32 = 8;
/// Delay before the next poll if the kernel has left work undone that no descriptor signals.
const RETRY_NS: u64 = 50_000;

/// Components of a socket's data path.
#[derive(Debug)]
pub struct SocketParts {
    /// The socket.
    pub fd: OwnedFd,
    /// Its memory.
    pub umem: Span,
    /// Bytes of a chunk, of which the first [`HEADROOM`] hold no packet.
    pub chunk_bytes: usize,
    /// Number of leading chunks for sending. Each other chunk is one buffer of [`Nic::rx`]'s
    /// supply.
    pub send_chunks: usize,
    /// The rings, [`Ring::slots`] pages each, in the order of [`Ring::ALL`].
    pub rings: Span,
    /// Layout of each ring.
    pub layouts: [RingLayout; 4],
    /// Entries of each ring.
    pub entries: u32,
    /// Bytes of IP in the longest frame.
    pub mtu: usize,
}

/// Called when another domain could take over the socket, because no value remains that an earlier
/// domain may have forged.
pub type ReleaseCallback = Box<dyn FnOnce()>;

/// Returns the kernel's counters of a socket, by name, through the domain's platform.
pub type KernelCounters = Box<dyn Fn() -> Vec<(&'static str, u64)>>;

#[derive(Debug, Default)]
struct XdpCounters {
    malformed: u64,
    fault: u64,
    foreign: u64,
    wakeups: u64,
}

/// An AF_XDP socket as a NIC. It has no offloads.
pub struct XdpNic {
    fd: OwnedFd,
    umem: Span,
    chunk_bytes: usize,
    mtu: usize,
    receive: XdpConsumer,
    transmit: XdpProducer,
    fill: XdpProducer,
    completion: XdpConsumer,
    /// By chunk: the supply's buffer, while the kernel has the chunk for receiving.
    mark_posted: Vec<BufferId>,
    /// Number of chunks that the kernel has for receiving.
    lent_chunks: u32,
    /// Chunks for sending, by state.
    sending: Vec<Sending>,
    /// Idle chunks for sending.
    idle: Vec<u32>,
    /// Unreclaimed chunks that the previous domain left with the kernel; `None`: there was no such
    /// domain, or all chunks are known.
    unreclaimed: Option<Unreclaimed>,
    /// Idle chunks that must not be lent yet.
    withheld: Vec<BufferId>,
    /// Whether another domain had the socket before.
    had_owner: bool,
    /// The kernel's count of entries taken from the fill ring, and the number of packets since it
    /// last changed.
    filled: (u32, usize),
    counters: XdpCounters,
    kernel: KernelCounters,
    /// Called once, when rings and chunks are in a valid state.
    is_sound: Option<ReleaseCallback>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Idle,
    Kernel,
}

impl std::fmt::Debug for XdpNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpNic")
            .field("mark_posted", &self.lent_chunks)
            .field("idle", &self.idle.len())
            .finish_non_exhaustive()
    }
}

impl XdpNic {
    /// Returns `None` if the rings are misplaced or hold impossible values.
    #[must_use]
    pub fn new(
        parts: SocketParts,
        kernel: KernelCounters,
        is_sound: ReleaseCallback,
    ) -> Option<Self> {
        let SocketParts {
            fd,
            umem,
            chunk_bytes,
            send_chunks,
            rings,
            layouts,
            entries,
            mtu,
        } = parts;
        let bytes = Ring::slots(entries) as usize * abi::PAGE;
        let place = |ring: Ring| {
            let span = rings.sub(ring.place() as usize * bytes, bytes)?;
            let layout = *layouts.get(ring.place() as usize)?;
            Some((span, layout, entries, ring.entry_bytes()))
        };
        let producer = |ring| {
            let (span, layout, entries, bytes) = place(ring)?;
            XdpProducer::new(span, layout, entries, bytes)
        };
        let consumer = |ring| {
            let (span, layout, entries, bytes) = place(ring)?;
            XdpConsumer::new(span, layout, entries, bytes)
        };
        let chunks = umem.len().checked_div(chunk_bytes)?;
        let send_chunks = send_chunks.min(chunks);
        let (fill, transmit) = (producer(Ring::Fill)?, producer(Ring::Transmit)?);
        let had_owner = fill.was_used() || transmit.was_used();
        let [end, _] = fill.ends();
        let left = fill.pending_addresses();
        let left = left.map(|address| address / chunk_bytes as u64);
        let unreclaimed = had_owner.then(|| Unreclaimed::new(chunks, left, end));
        // If all chunks fit into a ring, the kernel never withholds one for lack of space.
        if had_owner && chunks - send_chunks > entries as usize {
            return None;
        }
        Some(Self {
            fd,
            umem,
            chunk_bytes,
            mtu,
            receive: consumer(Ring::Receive)?,
            transmit,
            fill,
            completion: consumer(Ring::Completion)?,
            mark_posted: vec![BufferId::NONE; chunks],
            lent_chunks: 0,
            sending: vec![Sending::Idle; send_chunks],
            idle: (0..send_chunks as u32).rev().collect(),
            unreclaimed,
            withheld: Vec::new(),
            had_owner,
            filled: (0, 0),
            counters: XdpCounters::default(),
            kernel,
            is_sound: Some(is_sound),
        })
    }

    /// Takes over the previous domain's state at the first poll: sends its queued frames, and
    /// assumes that the kernel may have any of the supply's chunks.
    fn take_over(&mut self, unreclaimed: &mut Unreclaimed, buffers: &mut dyn Buffers) {
        self.kick();
        self.completion.skip();
        let mut foreign = Vec::new();
        while let Some(buffer) = buffers.take() {
            let place = self.chunk_of(&buffer).map(|(chunk, _)| chunk);
            match place.and_then(|chunk| Some((chunk, self.mark_posted.get_mut(chunk)?))) {
                Some((chunk, mark_posted)) => {
                    unreclaimed.mark_posted(chunk);
                    *mark_posted = buffer.id;
                    self.lent_chunks += 1;
                }
                None => foreign.push(buffer.id),
            }
        }
        foreign.into_iter().for_each(|id| buffers.put(id));
    }

    /// Returns the chunk of a supply's buffer, and its index; `None` if it lies in other memory.
    fn chunk_of(&self, buffer: &Buffer) -> Option<(usize, usize)> {
        let offset = buffer.span.addr().wrapping_sub(self.umem.addr());
        let chunk = offset / self.chunk_bytes;
        let whole = offset.is_multiple_of(self.chunk_bytes)
            && buffer.span.len() >= self.chunk_bytes
            && (self.sending.len()..self.mark_posted.len()).contains(&chunk);
        whole.then_some((chunk, offset))
    }

    /// Discovers over time which of the previous domain's chunks the kernel still has.
    fn find_chunks(&mut self, now_ns: u64, buffers: &mut dyn Buffers) {
        if let Some(mut unreclaimed) = self.unreclaimed.take() {
            if unreclaimed.is_first_call(now_ns) {
                self.take_over(&mut unreclaimed, buffers);
            }
            let [_, taken] = self.fill.ends();
            if unreclaimed.kernel_passed(taken) {
                self.withheld.drain(..).for_each(|id| buffers.put(id));
            }
            if unreclaimed.is_due(now_ns) {
                let filled = self.fill.pending_addresses();
                let there = filled.chain(self.receive.addresses());
                let chunk_bytes = self.chunk_bytes as u64;
                for chunk in unreclaimed.look(now_ns, there.map(|address| address / chunk_bytes)) {
                    if let Some(mark_posted) = self.mark_posted.get_mut(chunk) {
                        buffers.put(std::mem::replace(mark_posted, BufferId::NONE));
                        self.lent_chunks -= 1;
                    }
                }
            }
            self.unreclaimed = (!unreclaimed.is_complete()).then_some(unreclaimed);
        }
        if self.unreclaimed.is_none()
            && let Some(is_sound) = self.is_sound.take()
        {
            is_sound();
        }
    }

    /// Lends the kernel as many buffers as the supply has and the ring can hold.
    fn post(&mut self, buffers: &mut dyn Buffers) {
        let mut room = self.fill.free();
        let before = room;
        while room > 0
            && let Some(buffer) = buffers.take()
        {
            let place = self.chunk_of(&buffer);
            let must_not_post = |(chunk, _): &(usize, usize)| {
                let unreclaimed = self.unreclaimed.as_ref();
                unreclaimed.is_some_and(|unreclaimed| unreclaimed.must_not_post(*chunk))
            };
            if place.as_ref().is_some_and(must_not_post) {
                self.withheld.push(buffer.id);
                continue;
            }
            let place = place.and_then(|(chunk, at)| Some((self.mark_posted.get_mut(chunk)?, at)));
            let Some((mark_posted, offset)) =
                place.filter(|(mark_posted, _)| **mark_posted == BufferId::NONE)
            else {
                // The buffer lies outside the socket's memory: no frame can be received into it.
                buffers.put(buffer.id);
                self.counters.foreign += 1;
                break;
            };
            *mark_posted = buffer.id;
            self.fill.put_address(offset as u64);
            self.lent_chunks += 1;
            room -= 1;
        }
        if room < before {
            self.fill.publish();
        }
        if self.fill.needs_wakeup() && self.lent_chunks > 0 {
            // A zero-copy driver that has run out of chunks takes new ones when a process polls the
            // socket.
            self.counters.wakeups += 1;
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&Timespec::default()));
        }
    }

    /// Returns the frame that a descriptor refers to, in the chunk that was lent for it.
    fn frame(&mut self, packet: XdpDescriptor, buffers: &mut dyn Buffers) -> Option<Frame> {
        let XdpDescriptor { address, len } = packet;
        let (address, len) = (usize::try_from(address).ok()?, len as usize);
        let chunk = address / self.chunk_bytes;
        if let Some(unreclaimed) = &mut self.unreclaimed {
            unreclaimed.mark_returned(chunk);
        }
        let mark_posted = self.mark_posted.get_mut(chunk)?;
        let id = std::mem::replace(mark_posted, BufferId::NONE);
        if id == BufferId::NONE {
            return None;
        }
        self.lent_chunks -= 1;
        let within = address % self.chunk_bytes + len <= self.chunk_bytes;
        let span = self.umem.sub(address, len);
        let Some(span) = span.filter(|_| within && len >= ETHERNET) else {
            buffers.put(id);
            return None;
        };
        let made = Frame::new(Piece { span, buffer: id }, len);
        if made.is_err() {
            // The chunk is reclaimed; its frame counts as malformed below.
            buffers.put(id);
            self.counters.fault += 1;
        }
        made.ok()
    }

    /// Reclaims chunks that were sent.
    fn reap(&mut self) {
        if self.completion.look() == 0 {
            return;
        }
        while let Some(address) = self.completion.take_address() {
            let chunk = usize::try_from(address).map_or(usize::MAX, |at| at / self.chunk_bytes);
            match self.sending.get_mut(chunk) {
                Some(sending @ Sending::Kernel) => {
                    *sending = Sending::Idle;
                    self.idle.push(chunk as u32);
                }
                _ => self.counters.malformed += 1,
            }
        }
        self.completion.release();
    }

    /// Publishes pending frames to the kernel and wakes it. In copy mode the kernel sends them
    /// within the call, a few dozen at a time.
    fn kick(&mut self) {
        self.transmit.publish();
        let mut pending = self.transmit.pending();
        while pending > 0 && self.transmit.needs_wakeup() {
            self.counters.wakeups += 1;
            // An empty write: the equivalent of `sendto`, which a domain may not call.
            let _ = rustix::io::write(&self.fd, &[]);
            let left = self.transmit.pending();
            if left >= pending {
                break;
            }
            pending = left;
        }
    }

    /// Returns a chunk for sending; if none is idle, first sends pending ones.
    fn chunk(&mut self) -> Option<u32> {
        if self.idle.is_empty() || self.transmit.free() == 0 {
            self.kick();
            self.reap();
        }
        if self.transmit.free() == 0 {
            return None;
        }
        self.idle.pop()
    }

    fn send(&mut self, frame: &Frame, report: &mut TxReport) {
        if !self.caps().takes(frame) || frame.header().len() < ETHERNET {
            report.refused += 1;
            return;
        }
        let Some(chunk) = self.chunk() else {
            report.full += 1;
            return;
        };
        let address = chunk as usize * self.chunk_bytes;
        let span = self.umem.sub(address, self.chunk_bytes);
        let copied = span.map(|span| frame.copy_to(span));
        let len = frame.len();
        if !matches!(copied, Some(Ok(done)) if done == len) {
            self.idle.push(chunk);
            report.fault += 1;
            return;
        }
        if let Some(sending) = self.sending.get_mut(chunk as usize) {
            *sending = Sending::Kernel;
        }
        self.transmit.put_packet(address as u64, len as u32);
        report.sent += 1;
        report.bytes += len as u64;
    }
}

impl AsFd for XdpNic {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Nic for XdpNic {
    fn caps(&self) -> Caps {
        Caps {
            checksum: false,
            tso: false,
            max_frame: self.mtu.saturating_add(ETHERNET),
        }
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        self.find_chunks(now_ns, buffers);
        if self.transmit.pending() > 0 {
            self.kick();
        }
        let before = out.len();
        let batch = self.receive.peek_up_to(budget);
        for ahead in 0..batch.min(AHEAD) {
            self.prefetch(ahead);
        }
        for _ in 0..batch {
            self.prefetch(AHEAD);
            let Some(packet) = self.receive.take_packet() else {
                break;
            };
            match self.frame(packet, buffers) {
                Some(frame) => out.push(frame),
                None => self.counters.malformed += 1,
            }
        }
        if batch > 0 {
            self.receive.release();
            let [_, taken] = self.fill.ends();
            let since = match taken == self.filled.0 {
                true => self.filled.1.saturating_add(batch as usize),
                false => 0,
            };
            self.filled = (taken, since);
        }
        self.post(buffers);
        out.len() - before
    }

    fn tx(&mut self, _now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let mut report = TxReport::default();
        self.reap();
        for &index in pick {
            match frames.get(index as usize) {
                Some(frame) => self.send(frame, &mut report),
                None => report.refused += 1,
            }
        }
        self.kick();
        report
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        let waits = self.transmit.pending() > 0 || self.lent_chunks == 0;
        let retry = waits.then(|| now_ns.saturating_add(RETRY_NS));
        let look = self
            .unreclaimed
            .as_ref()
            .map(|unreclaimed| unreclaimed.due_ns(now_ns));
        retry.into_iter().chain(look).min()
    }

    fn starved(&self) -> bool {
        self.lent_chunks == 0
    }

    fn failure(&self) -> Option<&'static str> {
        let is_wrong = self.receive.is_wrong() || self.completion.is_wrong();
        // The kernel reports its progress at the latest when the ring is empty.
        let is_lost = self.filled.1 > 2 * self.fill.entries();
        (self.had_owner && (is_wrong || is_lost))
            .then_some("the previous domain has corrupted the rings of an AF_XDP socket")
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let XdpCounters {
            malformed,
            fault,
            foreign,
            wakeups,
        } = self.counters;
        let mut all = vec![
            ("rx_malformed", malformed),
            ("rx_fault", fault),
            ("rx_foreign_buffer", foreign),
            ("wakeups", wakeups),
        ];
        all.extend((self.kernel)());
        all
    }
}

impl XdpNic {
    /// Prefetches the header of a later packet.
    fn prefetch(&self, ahead: u32) {
        let packet = self.receive.peek_packet(ahead);
        if let Some(packet) = packet
            && let Ok(address) = usize::try_from(packet.address)
        {
            self.umem.skip(address).take(HOT).prefetch();
        }
    }
}
