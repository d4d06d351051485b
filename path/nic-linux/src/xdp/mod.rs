//! The data path of an AF_XDP socket: frames by rings in memory, without system calls while they
//! come.
//!
//! Socket, memory (UMEM) and rings come set up (crate `netdev`). The memory is cut into
//! chunks, each of which is one buffer of the supply that frames are received into, or one of
//! ours that frames are sent from. The kernel copies what comes (or the NIC does by itself), on
//! the sender's processor; what is sent is copied once, by us.
//!
//! ```text
//!   chunk:   in the supply ──► fill ring ──► receive ring ──► frame ──► in the supply
//!            ours ──► transmit ring ──► completion ring ──► ours
//! ```
//!
//! What the kernel writes is trusted to be a packet in the chunk that it was given, and checked all
//! the same: a chunk that is not the kernel's to give is not taken from it.
//!
//! A socket may have been another domain's before, which has ended: its rings are as that left
//! them, and packets have come meanwhile. They are taken like any others; which chunks the dead
//! domain had is found out by and by.

mod owed;
mod queue;
mod ring;

pub use queue::{QueueParts, XdpQueue};

use abi::xdp::{Ring, RingLayout};
use nic::frame::HOT;
use nic::{Buffer, BufferId, Buffers, Caps, Frame, Nic, Piece, TxReport};
use owed::Owed;
use ring::{Consumer, Descriptor, Producer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shmem::Span;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of a chunk in front of a packet that the kernel keeps for itself.
pub const HEADROOM: usize = 256;
/// How many frames ahead their first lines are asked for: they lie in the sender's
/// cache.
const AHEAD: u32 = 8;
/// When the kernel has left something undone that no descriptor tells about, it is looked for again
/// after this.
const RETRY_NS: u64 = 50_000;

/// What a socket's data path is made of.
#[derive(Debug)]
pub struct Parts {
    /// The socket.
    pub fd: OwnedFd,
    /// Its memory.
    pub umem: Span,
    /// Bytes of a chunk, of which the first [`HEADROOM`] hold no packet.
    pub chunk_bytes: usize,
    /// How many chunks, the first ones, frames are sent from. The others are the buffers of the
    /// supply that [`Nic::rx`] is given, one each.
    pub send_chunks: usize,
    /// Where the rings lie, [`Ring::slots`] pages each, in the order of [`Ring::ALL`].
    pub rings: Span,
    /// Where the parts of each lie.
    pub layouts: [RingLayout; 4],
    /// Entries of each.
    pub entries: u32,
    /// Bytes of IP in the longest frame.
    pub mtu: usize,
}

/// Hears that another domain could go on with the socket: nothing that one before may have lied
/// about is left.
pub type Sound = Box<dyn FnOnce()>;

/// What the kernel counts of a socket, by name: asked through the domain's platform.
pub type KernelCounters = Box<dyn Fn() -> Vec<(&'static str, u64)>>;

#[derive(Debug, Default)]
struct Counters {
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
    receive: Consumer,
    transmit: Producer,
    fill: Producer,
    completion: Consumer,
    /// By chunk, which buffer of the supply it is while the kernel has it to receive into.
    lent: Vec<BufferId>,
    /// Chunks that the kernel has to receive into.
    lent_chunks: u32,
    /// Chunks to send from, by what they do.
    sending: Vec<Sending>,
    /// Those that are idle.
    idle: Vec<u32>,
    /// What the domain before has left with the kernel; none: there was none, or all is known.
    owed: Option<Owed>,
    /// Chunks that are not lent yet although they are idle.
    withheld: Vec<BufferId>,
    /// Whether another domain had the socket before.
    had_owner: bool,
    /// What the kernel has said that it has taken out of the fill ring, and how many packets have
    /// come since it last did.
    filled: (u32, usize),
    counters: Counters,
    kernel: KernelCounters,
    /// Told once: rings and chunks are as they are to be.
    is_sound: Option<Sound>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Idle,
    Kernel,
}

impl std::fmt::Debug for XdpNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpNic")
            .field("lent", &self.lent_chunks)
            .field("idle", &self.idle.len())
            .finish_non_exhaustive()
    }
}

impl XdpNic {
    /// None if the rings do not lie where they are said to, or hold what they cannot.
    #[must_use]
    pub fn new(parts: Parts, kernel: KernelCounters, is_sound: Sound) -> Option<Self> {
        let Parts {
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
            Producer::new(span, layout, entries, bytes)
        };
        let consumer = |ring| {
            let (span, layout, entries, bytes) = place(ring)?;
            Consumer::new(span, layout, entries, bytes)
        };
        let chunks = umem.len().checked_div(chunk_bytes)?;
        let send_chunks = send_chunks.min(chunks);
        let (fill, transmit) = (producer(Ring::Fill)?, producer(Ring::Transmit)?);
        let had_owner = fill.was_used() || transmit.was_used();
        let [end, _] = fill.ends();
        let left = fill.pending_addresses();
        let left = left.map(|address| address / chunk_bytes as u64);
        let owed = had_owner.then(|| Owed::new(chunks, left, end));
        // Where all chunks fit into a ring the kernel keeps none aside for want of room.
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
            lent: vec![BufferId::NONE; chunks],
            lent_chunks: 0,
            sending: vec![Sending::Idle; send_chunks],
            idle: (0..send_chunks as u32).rev().collect(),
            owed,
            withheld: Vec::new(),
            had_owner,
            filled: (0, 0),
            counters: Counters::default(),
            kernel,
            is_sound: Some(is_sound),
        })
    }

    /// Takes over what the domain before has left, at the first look: what it has handed over to be
    /// sent is sent, and the kernel may have any of the supply's chunks.
    fn take_over(&mut self, owed: &mut Owed, buffers: &mut dyn Buffers) {
        self.kick();
        self.completion.skip();
        let mut foreign = Vec::new();
        while let Some(buffer) = buffers.take() {
            let place = self.chunk_of(&buffer).map(|(chunk, _)| chunk);
            match place.and_then(|chunk| Some((chunk, self.lent.get_mut(chunk)?))) {
                Some((chunk, lent)) => {
                    owed.lent(chunk);
                    *lent = buffer.id;
                    self.lent_chunks += 1;
                }
                None => foreign.push(buffer.id),
            }
        }
        foreign.into_iter().for_each(|id| buffers.put(id));
    }

    /// The chunk that a buffer of the supply is, and its place; none: it is of other memory.
    fn chunk_of(&self, buffer: &Buffer) -> Option<(usize, usize)> {
        let offset = buffer.span.addr().wrapping_sub(self.umem.addr());
        let chunk = offset / self.chunk_bytes;
        let whole = offset.is_multiple_of(self.chunk_bytes)
            && buffer.span.len() >= self.chunk_bytes
            && (self.sending.len()..self.lent.len()).contains(&chunk);
        whole.then_some((chunk, offset))
    }

    /// Finds out, by and by, which chunks the kernel has of those that the domain before has lent
    /// it.
    fn find_chunks(&mut self, now_ns: u64, buffers: &mut dyn Buffers) {
        if let Some(mut owed) = self.owed.take() {
            if owed.begins(now_ns) {
                self.take_over(&mut owed, buffers);
            }
            let [_, taken] = self.fill.ends();
            if owed.passes(taken) {
                self.withheld.drain(..).for_each(|id| buffers.put(id));
            }
            if owed.is_due(now_ns) {
                let filled = self.fill.pending_addresses();
                let there = filled.chain(self.receive.addresses());
                let chunk_bytes = self.chunk_bytes as u64;
                for chunk in owed.look(now_ns, there.map(|address| address / chunk_bytes)) {
                    if let Some(lent) = self.lent.get_mut(chunk) {
                        buffers.put(std::mem::replace(lent, BufferId::NONE));
                        self.lent_chunks -= 1;
                    }
                }
            }
            self.owed = (!owed.is_complete()).then_some(owed);
        }
        if self.owed.is_none()
            && let Some(is_sound) = self.is_sound.take()
        {
            is_sound();
        }
    }

    /// Lends the kernel as many of the supply's buffers as it takes and there are.
    fn lend(&mut self, buffers: &mut dyn Buffers) {
        let mut room = self.fill.free();
        let before = room;
        while room > 0
            && let Some(buffer) = buffers.take()
        {
            let place = self.chunk_of(&buffer);
            let withholds = |(chunk, _): &(usize, usize)| {
                let owed = self.owed.as_ref();
                owed.is_some_and(|owed| owed.withholds(*chunk))
            };
            if place.as_ref().is_some_and(withholds) {
                self.withheld.push(buffer.id);
                continue;
            }
            let place = place.and_then(|(chunk, at)| Some((self.lent.get_mut(chunk)?, at)));
            let Some((lent, offset)) = place.filter(|(lent, _)| **lent == BufferId::NONE) else {
                // A supply of other memory: no frame can come into it.
                buffers.put(buffer.id);
                self.counters.foreign += 1;
                break;
            };
            *lent = buffer.id;
            self.fill.put_address(offset as u64);
            self.lent_chunks += 1;
            room -= 1;
        }
        if room < before {
            self.fill.publish();
        }
        if self.fill.needs_wakeup() && self.lent_chunks > 0 {
            // A driver that receives without a copy has run out of memory, and looks for more when
            // somebody waits for it.
            self.counters.wakeups += 1;
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&Timespec::default()));
        }
    }

    /// The frame of a descriptor, out of the chunk that was lent for it.
    fn frame(&mut self, packet: Descriptor, buffers: &mut dyn Buffers) -> Option<Frame> {
        let Descriptor { address, len } = packet;
        let (address, len) = (usize::try_from(address).ok()?, len as usize);
        let chunk = address / self.chunk_bytes;
        if let Some(owed) = &mut self.owed {
            owed.came(chunk);
        }
        let lent = self.lent.get_mut(chunk)?;
        let id = std::mem::replace(lent, BufferId::NONE);
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
            // The chunk is taken back without its frame, which counts as malformed below.
            buffers.put(id);
            self.counters.fault += 1;
        }
        made.ok()
    }

    /// Takes chunks back that were sent.
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

    /// Shows the kernel what is to be sent, and has it look. Where packets are copied it sends
    /// them within the call, a few dozen at a time.
    fn kick(&mut self) {
        self.transmit.publish();
        let mut pending = self.transmit.pending();
        while pending > 0 && self.transmit.needs_wakeup() {
            self.counters.wakeups += 1;
            // A write of nothing: what `sendto` would be, which a domain may not call.
            let _ = rustix::io::write(&self.fd, &[]);
            let left = self.transmit.pending();
            if left >= pending {
                break;
            }
            pending = left;
        }
    }

    /// A chunk to send from, if need be after sending what waits.
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
        let batch = self.receive.look_for(budget);
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
        self.lend(buffers);
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
        let look = self.owed.as_ref().map(|owed| owed.due_ns(now_ns));
        retry.into_iter().chain(look).min()
    }

    fn starved(&self) -> bool {
        self.lent_chunks == 0
    }

    fn failure(&self) -> Option<&'static str> {
        let is_wrong = self.receive.is_wrong() || self.completion.is_wrong();
        // The kernel says what it has taken at the latest when that is all that the ring holds.
        let is_lost = self.filled.1 > 2 * self.fill.entries();
        (self.had_owner && (is_wrong || is_lost))
            .then_some("the rings of an AF_XDP socket, which the domain before has left so")
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let Counters {
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
    /// Asks for the header of a packet that is still to be taken.
    fn prefetch(&self, ahead: u32) {
        let packet = self.receive.peek_packet(ahead);
        if let Some(packet) = packet
            && let Ok(address) = usize::try_from(packet.address)
        {
            self.umem.skip(address).take(HOT).prefetch();
        }
    }
}
