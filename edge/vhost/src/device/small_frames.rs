//! The fast path: frames without offloads that lie in one buffer each, on both sides.
//!
//! The device reads the descriptors of a whole batch first. It then copies each frame while the
//! processor fetches the cache lines of later frames, which the virtual machine's processor wrote
//! last. The slow path handles and counts all other chains and every error.

use super::QueueDevice;
use super::from_vm::FromVm;
use super::parts::{ETHERNET, HEADER_MAX, RunningRing};
use super::to_vm::{Delivery, ToVm};
use crate::features::VirtioFeatures;
use crate::memory::VmMemory;
use crate::queue::{BATCH, ChainSegment, CopyDirection, RingError, ShortChain, SplitRing};
use crate::system::VhostSystem;
use net::packet::flow::flow_hash;
use nic::prefetch::{fetch_ahead, frames_ahead};
use nic::small_frame::HEAD_BYTES;
use nic::{Buffers, Frame, Piece, SmallFrames, TxReport};
use shmem::{Fault, Span};

impl<S: VhostSystem> SmallFrames for QueueDevice<S> {
    fn rx_small_frames(
        &mut self,
        _now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Piece>,
    ) -> usize {
        let before = out.len();
        self.from_vm.resume();
        // The announcement precedes the driver's frames.
        self.from_vm.has_other = self.is_first() && self.backend.borrow().announcement().is_some();
        self.rx_pairs(budget, |from_vm, ring, budget| {
            let before = out.len();
            let took = from_vm.run_small_frames(ring, budget, buffers, out);
            (out.len() - before, took)
        });
        out.len() - before
    }

    fn has_other(&self) -> bool {
        self.from_vm.has_other
    }

    fn tx_small_frames(&mut self, _now_ns: u64, frames: &[Piece]) -> TxReport {
        let flow = |piece: &Piece| {
            let mut head = [0; HEAD_BYTES];
            // If the page faults, any flow is acceptable.
            let _ = piece.span.read(&mut head);
            flow_hash(head.get(..piece.span.len()).unwrap_or(&head))
        };
        self.tx_pairs(frames, flow, ToVm::run_small_frames)
    }
}

impl FromVm {
    /// Like [`FromVm::run`], for the small frames at the head of the ring, up to [`BATCH`].
    fn run_small_frames(
        &mut self,
        ring: RunningRing<'_>,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Piece>,
    ) -> Result<(), RingError> {
        let RunningRing {
            queue,
            memory,
            features,
            caps,
        } = ring;
        let header_bytes = features.header_bytes();
        let plain =
            |chain: &ShortChain| plain_frame(chain.segment.span, header_bytes, caps.max_frame);
        let chains = &mut self.short_chains;
        if self.is_fruitless {
            queue.peek_short_chains(memory, CopyDirection::Read, 1, chains)?;
            if chains.first().and_then(plain).is_none() {
                self.has_other = queue.known_chains() > 0;
                return Ok(());
            }
        }
        queue.peek_short_chains(memory, CopyDirection::Read, budget, chains)?;
        let found = chains.len();
        self.has_other = found < budget.min(BATCH) && found < queue.known_chains().into();
        let first = out.len();
        buffers.take_many(found, out);
        self.starved = out.len() - first < found;

        let longest = header_bytes + caps.max_frame;
        let fetch = |chain: &ShortChain| chain.segment.span.take(longest).prefetch();
        let ahead = ahead(chains, longest);
        let (mut count, mut answered) = (0, Ok(()));
        for (chain, piece) in chains.iter().zip(out.iter_mut().skip(first)) {
            fetch_ahead(chains, count, ahead, fetch);
            let Some(frame) = plain(chain) else {
                self.has_other = true;
                break;
            };
            let room = piece.span.take(frame.len());
            if room.len() < frame.len() || shmem::copy(room, frame).is_err() {
                self.has_other = true;
                break;
            }
            piece.span = room;
            answered = queue.answer(memory, *chain, 0);
            if answered.is_err() {
                break;
            }
            count += 1;
        }
        for piece in out.drain(first + count..) {
            buffers.put(piece.buffer);
        }
        self.is_fruitless = self.has_other && count == 0;
        answered
    }
}

/// Returns the bytes behind the header in a buffer, if the header requests no offload and the
/// length is valid for a frame of up to `max_frame` bytes.
#[inline]
fn plain_frame(buffer: Span, header_bytes: usize, max_frame: usize) -> Option<Span> {
    /// Mask of the flags and the segmentation type. The other fields are ignored, because they
    /// belong to offloads.
    const OFFLOADS: u32 = 0xffff;
    let frame = buffer.skip(header_bytes);
    if !(ETHERNET..=max_frame).contains(&frame.len()) {
        return None;
    }
    let word = match buffer.addr().is_multiple_of(4) {
        true => buffer.load_u32(0).ok()?,
        false => {
            let mut word = [0; 4];
            buffer.read(&mut word).ok()?;
            u32::from_le_bytes(word)
        }
    };
    (word & OFFLOADS == 0).then_some(frame)
}

/// Returns the number of chains to prefetch ahead of the one that is copied.
fn ahead(chains: &[ShortChain], longest: usize) -> usize {
    let first = chains.first();
    frames_ahead(first.map_or(0, |chain| chain.segment.span.len().min(longest)))
}

impl ToVm {
    /// Like [`ToVm::run`], for small frames.
    fn run_small_frames(
        &mut self,
        ring: RunningRing<'_>,
        frames: &[Piece],
        report: &mut TxReport,
    ) -> Result<(), RingError> {
        let RunningRing {
            queue,
            memory,
            features,
            ..
        } = ring;
        self.short_at = None;
        let header_bytes = features.header_bytes();
        let (mut rest, mut most) = (frames, BATCH);
        while !rest.is_empty() {
            let wanted = most.min(rest.len());
            let chains = &mut self.short_chains;
            queue.peek_short_chains(memory, CopyDirection::Write, wanted, chains)?;
            let ahead = frames_ahead(rest.first().map_or(0, |piece| piece.span.len()));
            let mut count = 0;
            for (chain, piece) in chains.iter().zip(rest) {
                let needed = header_bytes + piece.span.len();
                fetch_ahead(rest, count, ahead, |piece| piece.span.prefetch());
                fetch_ahead(chains, count, ahead, |chain| {
                    chain.segment.span.take(needed).prefetch_write();
                });
                let ChainSegment { span, gpa } = chain.segment;
                if span.len() < needed {
                    break;
                }
                let written = write(span, features, piece.span);
                // The write is logged even after a fault, because a part may have been written.
                memory.log_write(gpa, needed);
                let (fate, bytes) = match written {
                    Ok(()) => (Delivery::Sent, needed),
                    Err(Fault) => (Delivery::Fault, 0),
                };
                self.bad.fault += u64::from(written.is_err());
                queue.answer(memory, *chain, bytes)?;
                fate.count(piece.span.len(), report);
                count += 1;
            }
            rest = rest.get(count..).unwrap_or(&[]);
            // A driver with other buffers is served frame by frame.
            most = if count < wanted { 1 } else { BATCH };
            if count < wanted
                && let Some((piece, behind)) = rest.split_first()
            {
                let fate = self.give_alone((queue, memory), features, *piece)?;
                if fate.count(piece.span.len(), report) {
                    self.short_at = Some(queue.last_avail());
                    return Ok(());
                }
                rest = behind;
            }
        }
        Ok(())
    }

    /// Writes a frame on the slow path.
    fn give_alone(
        &mut self,
        ring: (&mut SplitRing, &VmMemory),
        features: VirtioFeatures,
        piece: Piece,
    ) -> Result<Delivery, RingError> {
        match Frame::new(piece, piece.span.len()) {
            Ok(frame) => self.write_frame(ring, features, &frame),
            Err(Fault) => Ok(Delivery::Fault),
        }
    }
}

/// Writes a frame behind a header without offloads into a buffer, which is large enough.
#[inline]
fn write(buffer: Span, features: VirtioFeatures, frame: Span) -> Result<(), Fault> {
    /// Value of the header's last field: the frame lies in one buffer.
    const BUFFERS: u32 = 1 << 16;
    let header_bytes = features.header_bytes();
    if header_bytes == HEADER_MAX && buffer.addr().is_multiple_of(4) {
        buffer.store_words(0, [0, 0, BUFFERS])?;
    } else {
        let header = (u128::from(BUFFERS) << 64).to_le_bytes();
        buffer.write(header.get(..header_bytes).unwrap_or(&[]))?;
    }
    shmem::copy(buffer.skip(header_bytes), frame)
}
