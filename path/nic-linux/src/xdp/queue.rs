//! A queue of an AF_XDP interface that is one guest's alone: the kernel writes what comes into
//! chunks that lie in pages of this guest's, and nobody copies it.
//!
//! ```text
//!   chunk:   posted by the guest ──► fill ring ──► receive ring ──► frame ──► answered
//! ```
//!
//! The socket's memory is the guest's and not mapped here as such: a chunk is seen where its page's
//! grant shows it. Only lent chunks matter: a descriptor that names another chunk is
//! counted and forgotten.

use super::ring::{Consumer, Descriptor, Producer};
use super::{AHEAD, ETHERNET, KernelCounters};
use abi::xdp::{Ring, RingLayout};
use nic::frame::HOT;
use nic::{Buffer, BufferId, Frame, Piece};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shmem::Span;
use std::os::fd::OwnedFd;

/// What the data path of a queue is made of.
#[derive(Debug)]
pub struct QueueParts {
    /// The socket.
    pub fd: OwnedFd,
    /// Where the rings lie, [`Ring::slots`] pages each: the receive ring, then the fill ring.
    pub rings: Span,
    /// Where the parts of each lie.
    pub layouts: [RingLayout; 2],
    /// Entries of each.
    pub entries: u32,
    /// Bytes of a chunk, of which the first [`HEADROOM`](super::HEADROOM) hold no packet.
    pub chunk_bytes: usize,
    /// Chunks of its memory.
    pub chunks: usize,
}

#[derive(Debug, Default)]
struct QueueCounters {
    malformed: u64,
    fault: u64,
    foreign: u64,
}

/// The queue.
pub struct XdpQueue {
    fd: OwnedFd,
    chunk_bytes: usize,
    receive: Consumer,
    fill: Producer,
    /// By chunk, the buffer that it is while the kernel has it.
    lent: Vec<Option<Buffer>>,
    lent_chunks: usize,
    counters: QueueCounters,
    kernel: KernelCounters,
}

impl std::fmt::Debug for XdpQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpQueue")
            .field("lent", &self.lent_chunks)
            .finish_non_exhaustive()
    }
}

impl XdpQueue {
    /// None if the rings do not lie where they are said to.
    #[must_use]
    pub fn new(parts: QueueParts, kernel: KernelCounters) -> Option<Self> {
        let QueueParts {
            fd,
            rings,
            layouts: [receive, fill],
            entries,
            chunk_bytes,
            chunks,
        } = parts;
        let bytes = Ring::slots(entries) as usize * abi::PAGE;
        let entry = |ring: Ring| ring.entry_bytes();
        let (first, second) = (rings.sub(0, bytes)?, rings.sub(bytes, bytes)?);
        Some(Self {
            fd,
            chunk_bytes: (chunk_bytes > 0).then_some(chunk_bytes)?,
            receive: Consumer::new(first, receive, entries, entry(Ring::Receive))?,
            fill: Producer::new(second, fill, entries, entry(Ring::Fill))?,
            lent: vec![None; chunks],
            lent_chunks: 0,
            counters: QueueCounters::default(),
            kernel,
        })
    }

    /// Chunks that the kernel has.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.lent_chunks
    }

    /// Chunks that can be lent now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.fill.free() as usize
    }

    /// Lends the kernel the chunk `offset` bytes into its memory, which `buffer` shows; shown to it
    /// by [`XdpQueue::show`]. Whether it is a chunk that the kernel does not have, and there is
    /// room.
    pub fn lend(&mut self, offset: usize, buffer: Buffer) -> bool {
        let whole =
            offset.is_multiple_of(self.chunk_bytes) && buffer.span.len() >= self.chunk_bytes;
        match self.lent.get_mut(offset / self.chunk_bytes) {
            Some(lent @ None) if whole && self.fill.free() > 0 => *lent = Some(buffer),
            _ => {
                self.counters.foreign += 1;
                return false;
            }
        }
        self.fill.put_address(offset as u64);
        self.lent_chunks += 1;
        true
    }

    /// Shows the kernel what was lent.
    pub fn show(&mut self) {
        self.fill.publish();
        if self.fill.needs_wakeup() && self.lent_chunks > 0 {
            // See `XdpNic::rx`.
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&Timespec::default()));
        }
    }

    /// Takes up to `budget` frames, each of which lies in one lent buffer, and appends them to
    /// `out`. Buffers that hold no frame come to `failed`. The kernel is done with both. How many
    /// entries were taken.
    pub fn receive(
        &mut self,
        budget: usize,
        out: &mut Vec<Frame>,
        failed: &mut Vec<BufferId>,
    ) -> usize {
        let batch = self.receive.look_for(budget);
        for ahead in 0..batch.min(AHEAD) {
            self.prefetch(ahead);
        }
        for _ in 0..batch {
            self.prefetch(AHEAD);
            let Some(packet) = self.receive.take_packet() else {
                break;
            };
            let Some((buffer, span)) = self.take(packet) else {
                self.counters.malformed += 1;
                continue;
            };
            let piece = span.map(|span| Piece {
                span,
                buffer: buffer.id,
            });
            match piece.map(|piece| Frame::new(piece, piece.span.len())) {
                Some(Ok(frame)) => out.push(frame),
                Some(Err(_)) => {
                    self.counters.fault += 1;
                    failed.push(buffer.id);
                }
                None => {
                    self.counters.malformed += 1;
                    failed.push(buffer.id);
                }
            }
        }
        if batch > 0 {
            self.receive.release();
        }
        batch as usize
    }

    /// The buffer that a packet lies in, and its bytes, if they are a frame.
    fn take(&mut self, packet: Descriptor) -> Option<(Buffer, Option<Span>)> {
        let (address, len) = (usize::try_from(packet.address).ok()?, packet.len as usize);
        let buffer = self.lent.get_mut(address / self.chunk_bytes)?.take()?;
        self.lent_chunks -= 1;
        let span = buffer.span.sub(address % self.chunk_bytes, len);
        Some((buffer, span.filter(|_| len >= ETHERNET)))
    }

    /// Asks for the header of a packet that is still to be taken.
    fn prefetch(&self, ahead: u32) {
        let packet = self.receive.peek_packet(ahead);
        if let Some(packet) = packet
            && let Ok(address) = usize::try_from(packet.address)
            && let Some(Some(buffer)) = self.lent.get(address / self.chunk_bytes)
        {
            let within = address % self.chunk_bytes;
            buffer.span.skip(within).take(HOT).prefetch();
        }
    }

    /// QueueCounters by name.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let QueueCounters {
            malformed,
            fault,
            foreign,
        } = self.counters;
        let mut all = vec![
            ("rx_malformed", malformed),
            ("rx_fault", fault),
            ("rx_foreign_buffer", foreign),
        ];
        all.extend((self.kernel)());
        all
    }
}
