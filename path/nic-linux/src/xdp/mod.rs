//! The data path of an AF_XDP socket. It uses rings in shared memory, and makes no system call to
//! receive frames.
//!
//! Crate `netdev` sets up the socket, its memory (UMEM) and its rings. The memory is divided into
//! chunks. Each chunk is either a buffer of the receive supply or a chunk for sending. Received
//! frames are copied into chunks by the kernel, on the sender's CPU, or written by the NIC. This
//! code copies each sent frame once.
//!
//! ```text
//!   receive chunk:   supply ──► fill ring ──► receive ring ──► frame ──► supply
//!   send chunk:      idle ──► transmit ring ──► completion ring ──► idle
//! ```
//!
//! The kernel is trusted to write packets only into posted chunks. This code checks that
//! nevertheless, and rejects a chunk that is not posted.
//!
//! A socket may have belonged to an earlier domain that has exited. Its rings are then in the state
//! that the earlier domain left, and packets that have arrived since are received like all others.
//! The module `unreclaimed` finds the chunks that the earlier domain held.

mod queue;
mod ring;
mod unreclaimed;

pub use queue::{DedicatedXdpQueue, QueueParts};

use abi::xdp::{Ring, RingLayout};
use nic::frame::SNAPSHOT_MIN;
use nic::{Buffer, BufferId, Buffers, Caps, Frame, Nic, Piece, TxReport};
use ring::{XdpConsumer, XdpDescriptor, XdpProducer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shmem::Span;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use unreclaimed::Unreclaimed;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Number of bytes at the start of a chunk that the kernel keeps free before a packet.
pub const HEADROOM: usize = 256;
/// Prefetch distance in frames. The first cache lines of a frame are still in the sender's cache.
const PREFETCH_FRAMES: u32 = 8;
/// Delay in nanoseconds before the next poll if the kernel has unfinished work that no descriptor
/// signals.
const RETRY_NS: u64 = 50_000;

/// Components of a socket's data path.
#[derive(Debug)]
pub struct SocketParts {
    /// The socket.
    pub fd: OwnedFd,
    /// The socket's memory (UMEM).
    pub umem: Span,
    /// Size of a chunk in bytes. A packet begins after the first [`HEADROOM`] bytes.
    pub chunk_bytes: usize,
    /// Number of leading chunks for sending. Each other chunk is a buffer of [`Nic::rx`]'s supply.
    pub send_chunks: usize,
    /// The rings, [`Ring::slots`] pages each, in the order of [`Ring::ALL`].
    pub rings: Span,
    /// Layout of each ring.
    pub layouts: [RingLayout; 4],
    /// Number of entries of each ring.
    pub entries: u32,
    /// Maximum length of an IP packet in bytes.
    pub mtu: usize,
}

/// Called when the socket no longer depends on values that an earlier domain may have forged. From
/// then on another domain can take over the socket.
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

/// A NIC over an AF_XDP socket, without offloads.
pub struct XdpNic {
    fd: OwnedFd,
    umem: Span,
    chunk_bytes: usize,
    mtu: usize,
    receive: XdpConsumer,
    transmit: XdpProducer,
    fill: XdpProducer,
    completion: XdpConsumer,
    /// The supply's buffer of each chunk that is posted for receiving; [`BufferId::NONE`] for other
    /// chunks.
    posted: Vec<BufferId>,
    /// Number of chunks that are posted for receiving.
    posted_chunks: u32,
    /// State of each chunk for sending.
    sending: Vec<Sending>,
    /// Idle chunks for sending.
    idle: Vec<u32>,
    /// Chunks that the previous domain may have left with the kernel. `None` if no domain used the
    /// socket before, or all chunks are reclaimed.
    unreclaimed: Option<Unreclaimed>,
    /// Free chunks that must not be posted yet.
    withheld: Vec<BufferId>,
    /// Whether an earlier domain has used the socket.
    had_owner: bool,
    /// The kernel's count of entries taken from the fill ring, and the number of packets received
    /// since this count last changed.
    filled: (u32, usize),
    counters: XdpCounters,
    kernel: KernelCounters,
    /// Called once, when no forged value of an earlier domain remains.
    on_reclaimed: Option<ReleaseCallback>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Idle,
    Kernel,
}

impl std::fmt::Debug for XdpNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpNic")
            .field("posted", &self.posted_chunks)
            .field("idle", &self.idle.len())
            .finish_non_exhaustive()
    }
}

impl XdpNic {
    /// Creates the data path of a socket. Returns `None` if a ring does not fit its memory or holds
    /// impossible values.
    #[must_use]
    pub fn new(
        parts: SocketParts,
        kernel: KernelCounters,
        on_reclaimed: ReleaseCallback,
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
            let span = rings.sub(ring.index() as usize * bytes, bytes)?;
            let layout = *layouts.get(ring.index() as usize)?;
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
        let [end, _] = fill.indices();
        let listed = fill.pending_addresses();
        let listed = listed.map(|address| address / chunk_bytes as u64);
        let unreclaimed = had_owner.then(|| Unreclaimed::new(chunks, listed, end));
        // If all chunks fit into a ring, the kernel never has to keep a chunk because a ring is
        // full.
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
            posted: vec![BufferId::NONE; chunks],
            posted_chunks: 0,
            sending: vec![Sending::Idle; send_chunks],
            idle: (0..send_chunks as u32).rev().collect(),
            unreclaimed,
            withheld: Vec::new(),
            had_owner,
            filled: (0, 0),
            counters: XdpCounters::default(),
            kernel,
            on_reclaimed: Some(on_reclaimed),
        })
    }

    /// Takes over the previous domain's state at the first poll: sends its queued frames, and marks
    /// all of the supply's chunks as possibly posted.
    fn take_over(&mut self, unreclaimed: &mut Unreclaimed, buffers: &mut dyn Buffers) {
        self.kick();
        self.completion.skip();
        let mut foreign = Vec::new();
        while let Some(buffer) = buffers.take() {
            let place = self.chunk_of(&buffer).map(|(chunk, _)| chunk);
            match place.and_then(|chunk| Some((chunk, self.posted.get_mut(chunk)?))) {
                Some((chunk, posted)) => {
                    unreclaimed.mark_posted(chunk);
                    *posted = buffer.id;
                    self.posted_chunks += 1;
                }
                None => foreign.push(buffer.id),
            }
        }
        foreign.into_iter().for_each(|id| buffers.put(id));
    }

    /// Returns the chunk of a supplied buffer and its offset, or `None` if the buffer is not a
    /// receive chunk.
    fn chunk_of(&self, buffer: &Buffer) -> Option<(usize, usize)> {
        let offset = buffer.span.addr().wrapping_sub(self.umem.addr());
        let chunk = offset / self.chunk_bytes;
        let whole = offset.is_multiple_of(self.chunk_bytes)
            && buffer.span.len() >= self.chunk_bytes
            && (self.sending.len()..self.posted.len()).contains(&chunk);
        whole.then_some((chunk, offset))
    }

    /// Continues to reclaim the previous domain's chunks.
    fn reclaim_chunks(&mut self, now_ns: u64, buffers: &mut dyn Buffers) {
        if let Some(mut unreclaimed) = self.unreclaimed.take() {
            if unreclaimed.is_first_call(now_ns) {
                self.take_over(&mut unreclaimed, buffers);
            }
            let [_, taken] = self.fill.indices();
            if unreclaimed.record_taken(taken) {
                self.withheld.drain(..).for_each(|id| buffers.put(id));
            }
            if unreclaimed.is_due(now_ns) {
                let filled = self.fill.pending_addresses();
                let in_rings = filled.chain(self.receive.addresses());
                let chunk_bytes = self.chunk_bytes as u64;
                for chunk in
                    unreclaimed.check(now_ns, in_rings.map(|address| address / chunk_bytes))
                {
                    if let Some(posted) = self.posted.get_mut(chunk) {
                        buffers.put(std::mem::replace(posted, BufferId::NONE));
                        self.posted_chunks -= 1;
                    }
                }
            }
            self.unreclaimed = (!unreclaimed.is_complete()).then_some(unreclaimed);
        }
        if self.unreclaimed.is_none()
            && let Some(on_reclaimed) = self.on_reclaimed.take()
        {
            on_reclaimed();
        }
    }

    /// Posts buffers until the supply is empty or the fill ring is full.
    fn post(&mut self, buffers: &mut dyn Buffers) {
        let mut free = self.fill.free();
        let before = free;
        while free > 0
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
            let place = place.and_then(|(chunk, at)| Some((self.posted.get_mut(chunk)?, at)));
            let Some((posted, offset)) = place.filter(|(posted, _)| **posted == BufferId::NONE)
            else {
                // The buffer lies outside the socket's memory, so it cannot receive a frame.
                buffers.put(buffer.id);
                self.counters.foreign += 1;
                break;
            };
            *posted = buffer.id;
            self.fill.put_address(offset as u64);
            self.posted_chunks += 1;
            free -= 1;
        }
        if free < before {
            self.fill.publish();
        }
        if self.fill.needs_wakeup() && self.posted_chunks > 0 {
            // A zero-copy driver that has run out of chunks takes new chunks when a process polls
            // the socket.
            self.counters.wakeups += 1;
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&Timespec::default()));
        }
    }

    /// Returns the frame of a receive descriptor, or `None` if the descriptor is invalid.
    fn frame(&mut self, packet: XdpDescriptor, buffers: &mut dyn Buffers) -> Option<Frame> {
        let XdpDescriptor { address, len } = packet;
        let (address, len) = (usize::try_from(address).ok()?, len as usize);
        let chunk = address / self.chunk_bytes;
        if let Some(unreclaimed) = &mut self.unreclaimed {
            unreclaimed.mark_returned(chunk);
        }
        let posted = self.posted.get_mut(chunk)?;
        let id = std::mem::replace(posted, BufferId::NONE);
        if id == BufferId::NONE {
            return None;
        }
        self.posted_chunks -= 1;
        let within = address % self.chunk_bytes + len <= self.chunk_bytes;
        let span = self.umem.sub(address, len);
        let Some(span) = span.filter(|_| within && len >= ETHERNET) else {
            buffers.put(id);
            return None;
        };
        let made = Frame::new(Piece { span, buffer: id }, len);
        if made.is_err() {
            // The buffer returns to the supply. The caller counts the frame as malformed.
            buffers.put(id);
            self.counters.fault += 1;
        }
        made.ok()
    }

    /// Frees the chunks of sent frames.
    fn reap(&mut self) {
        if self.completion.refresh() == 0 {
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

    /// Publishes pending frames to the kernel and wakes it. In copy mode the kernel sends a few
    /// dozen frames during each call.
    fn kick(&mut self) {
        self.transmit.publish();
        let mut pending = self.transmit.pending();
        while pending > 0 && self.transmit.needs_wakeup() {
            self.counters.wakeups += 1;
            // An empty write has the same effect as `sendto`, which a domain may not call.
            let _ = rustix::io::write(&self.fd, &[]);
            let remaining = self.transmit.pending();
            if remaining >= pending {
                break;
            }
            pending = remaining;
        }
    }

    /// Returns a chunk for sending. If none is free, first sends pending frames.
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
        self.reclaim_chunks(now_ns, buffers);
        if self.transmit.pending() > 0 {
            self.kick();
        }
        let before = out.len();
        let batch = self.receive.peek_up_to(budget);
        for ahead in 0..batch.min(PREFETCH_FRAMES) {
            self.prefetch(ahead);
        }
        for _ in 0..batch {
            self.prefetch(PREFETCH_FRAMES);
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
            let [_, taken] = self.fill.indices();
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
        let waits = self.transmit.pending() > 0 || self.posted_chunks == 0;
        let retry = waits.then(|| now_ns.saturating_add(RETRY_NS));
        let look = self
            .unreclaimed
            .as_ref()
            .map(|unreclaimed| unreclaimed.due_ns(now_ns));
        retry.into_iter().chain(look).min()
    }

    fn starved(&self) -> bool {
        self.posted_chunks == 0
    }

    fn failure(&self) -> Option<&'static str> {
        let is_wrong = self.receive.is_corrupt() || self.completion.is_corrupt();
        // The kernel updates its count at the latest when the fill ring is empty.
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
    /// Prefetches the header of the packet `ahead` entries after the next one.
    fn prefetch(&self, ahead: u32) {
        let packet = self.receive.peek_packet(ahead);
        if let Some(packet) = packet
            && let Ok(address) = usize::try_from(packet.address)
        {
            self.umem.skip(address).take(SNAPSHOT_MIN).prefetch();
        }
    }
}
