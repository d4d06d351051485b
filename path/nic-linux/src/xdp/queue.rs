//! A dedicated AF_XDP queue of one guest. The kernel writes received frames directly into chunks in
//! the guest's pages.
//!
//! ```text
//!   chunk:   posted by the guest ──► fill ring ──► receive ring ──► frame ──► completed
//! ```
//!
//! The socket's memory belongs to the guest. This domain does not map all of it: it accesses a
//! chunk through the grant of the chunk's page. A descriptor of a chunk that is not posted is
//! counted and ignored.

use super::ring::{XdpConsumer, XdpDescriptor, XdpProducer};
use super::{ETHERNET, KernelCounters, PREFETCH_FRAMES};
use abi::xdp::{Ring, RingLayout};
use nic::frame::SNAPSHOT_MIN;
use nic::{Buffer, BufferId, Frame, Piece};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shmem::Span;
use std::os::fd::OwnedFd;

/// Components of a queue's data path.
#[derive(Debug)]
pub struct QueueParts {
    /// The socket.
    pub fd: OwnedFd,
    /// The receive ring, followed by the fill ring, [`Ring::slots`] pages each.
    pub rings: Span,
    /// Layout of each ring.
    pub layouts: [RingLayout; 2],
    /// Number of entries of each ring.
    pub entries: u32,
    /// Size of a chunk in bytes. A packet begins after the first [`HEADROOM`](super::HEADROOM)
    /// bytes.
    pub chunk_bytes: usize,
    /// Number of chunks in the socket's memory.
    pub chunks: usize,
}

#[derive(Debug, Default)]
struct QueueCounters {
    malformed: u64,
    fault: u64,
    foreign: u64,
}

/// A guest's dedicated queue.
pub struct DedicatedXdpQueue {
    fd: OwnedFd,
    chunk_bytes: usize,
    receive: XdpConsumer,
    fill: XdpProducer,
    /// The buffer of each posted chunk.
    posted: Vec<Option<Buffer>>,
    posted_chunks: usize,
    counters: QueueCounters,
    kernel: KernelCounters,
}

impl std::fmt::Debug for DedicatedXdpQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DedicatedXdpQueue")
            .field("posted", &self.posted_chunks)
            .finish_non_exhaustive()
    }
}

impl DedicatedXdpQueue {
    /// Creates the queue. Returns `None` if a ring does not fit its memory.
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
            receive: XdpConsumer::new(first, receive, entries, entry(Ring::Receive))?,
            fill: XdpProducer::new(second, fill, entries, entry(Ring::Fill))?,
            posted: vec![None; chunks],
            posted_chunks: 0,
            counters: QueueCounters::default(),
            kernel,
        })
    }

    /// Returns the number of posted chunks.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.posted_chunks
    }

    /// Returns the number of chunks that can be posted.
    #[must_use]
    pub fn free_entries(&self) -> usize {
        self.fill.free() as usize
    }

    /// Posts the chunk at `offset` in the socket's memory, which `buffer` maps;
    /// [`DedicatedXdpQueue::publish`] publishes it. Returns false if no chunk begins there, the
    /// chunk is already posted, or the ring is full.
    pub fn post(&mut self, offset: usize, buffer: Buffer) -> bool {
        let whole =
            offset.is_multiple_of(self.chunk_bytes) && buffer.span.len() >= self.chunk_bytes;
        match self.posted.get_mut(offset / self.chunk_bytes) {
            Some(posted @ None) if whole && self.fill.free() > 0 => *posted = Some(buffer),
            _ => {
                self.counters.foreign += 1;
                return false;
            }
        }
        self.fill.put_address(offset as u64);
        self.posted_chunks += 1;
        true
    }

    /// Publishes posted chunks to the kernel.
    pub fn publish(&mut self) {
        self.fill.publish();
        if self.fill.needs_wakeup() && self.posted_chunks > 0 {
            // See `XdpNic::post`.
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&Timespec::default()));
        }
    }

    /// Receives up to `budget` frames, each in one posted buffer, and appends them to `out`.
    /// Appends buffers without a valid frame to `failed`. The kernel no longer uses any of these
    /// buffers. Returns the number of taken entries.
    pub fn receive(
        &mut self,
        budget: usize,
        out: &mut Vec<Frame>,
        failed: &mut Vec<BufferId>,
    ) -> usize {
        let batch = self.receive.peek_up_to(budget);
        for ahead in 0..batch.min(PREFETCH_FRAMES) {
            self.prefetch(ahead);
        }
        for _ in 0..batch {
            self.prefetch(PREFETCH_FRAMES);
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

    /// Returns the buffer of a packet, with the packet's bytes if they are a valid frame. Returns
    /// `None` if the chunk is not posted.
    fn take(&mut self, packet: XdpDescriptor) -> Option<(Buffer, Option<Span>)> {
        let (address, len) = (usize::try_from(packet.address).ok()?, packet.len as usize);
        let buffer = self.posted.get_mut(address / self.chunk_bytes)?.take()?;
        self.posted_chunks -= 1;
        let span = buffer.span.sub(address % self.chunk_bytes, len);
        Some((buffer, span.filter(|_| len >= ETHERNET)))
    }

    /// Prefetches the header of the packet `ahead` entries after the next one.
    fn prefetch(&self, ahead: u32) {
        let packet = self.receive.peek_packet(ahead);
        if let Some(packet) = packet
            && let Ok(address) = usize::try_from(packet.address)
            && let Some(Some(buffer)) = self.posted.get(address / self.chunk_bytes)
        {
            let within = address % self.chunk_bytes;
            buffer.span.skip(within).take(SNAPSHOT_MIN).prefetch();
        }
    }

    /// Returns the counters, by name.
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
