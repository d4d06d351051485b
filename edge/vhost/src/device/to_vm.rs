//! Writes frames to the buffers that the driver has posted.

use super::parts::{BadChains, Cursor, GSO_FRAME_MAX, HEADER_MAX, RunningRing};
use crate::features::{VirtioFeatures, virtio};
use crate::memory::VmMemory;
use crate::queue::{
    ChainSegment, CopyDirection, DescriptorChain, RingError, ShortChain, SplitRing,
};
use net::packet::{checksum, segment};
use nic::virtio as header;
use nic::{Caps, Checksum, Frame, TxReport};
use shmem::{Fault, Span};

/// Maximum number of chains of one frame.
const CHAINS_MAX: usize = 256;

/// Offset of the flags in a TCP header.
const TCP_FLAGS: usize = 13;
/// TCP's flag CWR, which only the first segment keeps.
const CWR: u8 = 0x80;
/// Bit of a header's segmentation type: the segments carry ECN congestion marks.
const GSO_ECN: u8 = 0x80;
const GSO_TYPE: usize = 1;

/// Writes frames to a receive queue.
#[derive(Debug, Default)]
pub(super) struct ToVm {
    /// Scratch list of the chains of the current frame.
    chains: Vec<DescriptorChain>,
    /// Scratch list of the segments of a frame that the driver does not accept unsegmented.
    segments: Vec<Frame>,
    /// Scratch list of the chains of a batch on the fast path.
    pub(super) short_chains: Vec<ShortChain>,
    pub(super) bad: BadChains,
    /// Frames dropped because they exceed the buffers of a chain, without mergeable buffers.
    too_small: u64,
    /// Index of the available ring at which the buffers did not suffice for the next frame.
    pub(super) short_at: Option<u16>,
    /// Frames dropped because no driver runs.
    pub(super) no_driver: u64,
}

/// The outcome of a frame.
pub(super) enum Delivery {
    Sent,
    /// The driver has posted too few buffers. The device has taken none.
    NoBuffers,
    /// The frame, or a part of it, was dropped, and chains may be lost.
    Dropped,
    Fault,
    Refused,
}

impl Delivery {
    /// Counts a frame of `bytes` bytes, unless it must wait; returns whether it must.
    pub(super) fn count(&self, bytes: usize, report: &mut TxReport) -> bool {
        match self {
            Self::Sent => {
                report.sent += 1;
                report.bytes += bytes as u64;
            }
            Self::NoBuffers => return true,
            Self::Dropped => report.full += 1,
            Self::Fault => report.fault += 1,
            Self::Refused => report.refused += 1,
        }
        false
    }
}

impl ToVm {
    /// Writes frames in order, up to the first one for which the posted buffers do not suffice.
    pub(super) fn run<'a>(
        &mut self,
        ring: RunningRing<'_>,
        frames: impl Iterator<Item = Option<&'a Frame>>,
        report: &mut TxReport,
    ) -> Result<(), RingError> {
        let RunningRing {
            queue,
            memory,
            features,
            caps,
        } = ring;
        self.short_at = None;
        for frame in frames {
            let fate = match frame {
                Some(frame) if accepts_unchanged(caps, features, frame) => {
                    self.write_frame((queue, memory), features, frame)?
                }
                Some(frame) => self.mend((queue, memory), features, caps, frame)?,
                None => Delivery::Refused,
            };
            let bytes = frame.map_or(0, Frame::len);
            if fate.count(bytes, report) {
                self.short_at = Some(queue.last_avail());
                return Ok(());
            }
        }
        Ok(())
    }

    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("tx_malformed", self.bad.malformed),
            ("tx_fault", self.bad.fault),
            ("tx_too_small", self.too_small),
            ("tx_no_driver", self.no_driver),
        ]
    }

    /// Performs in software the offloads that the driver lacks, and writes the resulting frames.
    #[cold]
    fn mend(
        &mut self,
        ring: (&mut SplitRing, &VmMemory),
        features: VirtioFeatures,
        caps: Caps,
        frame: &Frame,
    ) -> Result<Delivery, RingError> {
        let (queue, memory) = ring;
        if frame.offload.gso.is_none() {
            let mut mended = frame.clone();
            if caps.is_too_long(frame) || checksum::finish(&mut mended).is_err() {
                return Ok(Delivery::Refused);
            }
            return self.write_frame((queue, memory), features, &mended);
        }
        let mut segments = std::mem::take(&mut self.segments);
        let cut = segment::segment(frame, caps, &mut segments);
        let mut fate = match cut {
            Ok(()) => Delivery::Sent,
            Err(_) => Delivery::Refused,
        };
        for (given, segment) in segments.drain(..).enumerate() {
            fate = match (
                self.write_frame((queue, memory), features, &segment)?,
                given,
            ) {
                (Delivery::Sent, _) => Delivery::Sent,
                // The driver has received the first segments, and TCP retransmits the others.
                (Delivery::NoBuffers, 1..) => Delivery::Dropped,
                (other, _) => other,
            };
            if !matches!(fate, Delivery::Sent) {
                break;
            }
        }
        segments.clear();
        self.segments = segments;
        Ok(fate)
    }

    /// Writes one frame.
    #[inline]
    pub(super) fn write_frame(
        &mut self,
        (queue, memory): (&mut SplitRing, &VmMemory),
        features: VirtioFeatures,
        frame: &Frame,
    ) -> Result<Delivery, RingError> {
        let header_bytes = features.header_bytes();
        let needed = header_bytes + frame.len();
        let count = match self.gather((queue, memory), needed, features)? {
            Ok(count) => count,
            Err(fate) => return Ok(fate),
        };
        let mut header = [0; HEADER_MAX];
        encode(&mut header, frame, features, count);
        let chains = self.chains.get(..count).unwrap_or(&[]);
        let header = header.get(..header_bytes).unwrap_or(&[]);
        let written = write(chains, memory, header, frame);
        let mut left = match written {
            Ok(()) => needed,
            Err(Fault) => 0,
        };
        for chain in chains {
            let here = left.min(chain.bytes());
            queue.put(memory, chain.head(), here as u32)?;
            left -= here;
        }
        Ok(match written {
            Ok(()) => Delivery::Sent,
            Err(Fault) => {
                self.bad.fault += 1;
                Delivery::Fault
            }
        })
    }

    /// Takes chains for `needed` bytes and returns their number. If it returns the inner error, it
    /// has taken no chain.
    #[inline]
    fn gather(
        &mut self,
        (queue, memory): (&mut SplitRing, &VmMemory),
        needed: usize,
        features: VirtioFeatures,
    ) -> Result<Result<usize, Delivery>, RingError> {
        let mergeable = features.has(virtio::MRG_RXBUF);
        // The first chain holds at least the header.
        let first = features.header_bytes();
        let (mut count, mut bytes) = (0, 0);
        while bytes < needed {
            if count == self.chains.len() {
                self.chains.push(DescriptorChain::default());
            }
            let Some(chain) = self.chains.get_mut(count) else {
                break;
            };
            match queue.take(memory, CopyDirection::Write, chain)? {
                None => {
                    queue.put_back_chains(count as u16);
                    return Ok(Err(Delivery::NoBuffers));
                }
                Some(Ok(())) => {
                    bytes += chain.bytes();
                    count += 1;
                }
                Some(Err(bad)) => {
                    self.bad.count(bad);
                    self.give_back((queue, memory), count + 1)?;
                    return Ok(Err(Delivery::Dropped));
                }
            }
            let is_last = !mergeable || count == CHAINS_MAX;
            if is_last && bytes < needed || bytes < first {
                self.too_small += 1;
                self.give_back((queue, memory), count)?;
                return Ok(Err(Delivery::Refused));
            }
        }
        Ok(Ok(count))
    }

    /// Returns the first `count` chains to the driver, with no bytes written. A driver that posts
    /// unusable chains loses them.
    #[cold]
    fn give_back(
        &mut self,
        (queue, memory): (&mut SplitRing, &VmMemory),
        count: usize,
    ) -> Result<(), RingError> {
        let mut chains = self.chains.iter().take(count);
        chains.try_for_each(|chain| queue.put(memory, chain.head(), 0))
    }
}

/// Writes header and frame into the buffers of `chains`, which are large enough.
#[inline]
fn write(
    chains: &[DescriptorChain],
    memory: &VmMemory,
    header: &[u8],
    frame: &Frame,
) -> Result<(), Fault> {
    let mut room = ChainBuffers::new(chains, memory);
    room.write(header)?;
    room.write(frame.header())?;
    for span in frame.payload() {
        room.copy(span)?;
    }
    Ok(())
}

/// The buffers of several chains, as one sequence.
struct ChainBuffers<'a> {
    chains: std::slice::Iter<'a, DescriptorChain>,
    chain: Option<&'a DescriptorChain>,
    cursor: Cursor,
    memory: &'a VmMemory,
}

impl<'a> ChainBuffers<'a> {
    fn new(chains: &'a [DescriptorChain], memory: &'a VmMemory) -> Self {
        let mut chains = chains.iter();
        Self {
            chain: chains.next(),
            chains,
            cursor: Cursor::START,
            memory,
        }
    }

    /// Returns up to `most` bytes of free space in one buffer, with their guest physical address.
    #[inline]
    fn next(&mut self, most: usize) -> Result<ChainSegment, Fault> {
        loop {
            let segments = self.chain.ok_or(Fault)?.segments();
            let spans = |at: usize| segments.get(at).map(|segment| segment.span);
            if let Some(span) = self.cursor.next(spans, most) {
                let segment = segments.get(self.cursor.at).ok_or(Fault)?;
                let at = self.cursor.used - span.len();
                let gpa = segment.gpa.wrapping_add(at as u64);
                return Ok(ChainSegment { span, gpa });
            }
            self.chain = self.chains.next();
            self.cursor = Cursor::START;
        }
    }

    #[inline]
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let ChainSegment { span, gpa } = self.next(bytes.len())?;
            let written = span.write(bytes);
            // The write is logged after it happens: otherwise the front end could send the page
            // before the write and never again. It is logged even after a fault, because a part may
            // have been written.
            self.memory.log_write(gpa, span.len());
            written?;
            bytes = bytes.get(span.len()..).unwrap_or(&[]);
        }
        Ok(())
    }

    #[inline]
    fn copy(&mut self, mut from: Span) -> Result<(), Fault> {
        while !from.is_empty() {
            let ChainSegment { span, gpa } = self.next(from.len())?;
            let copied = shmem::copy(span, from);
            self.memory.log_write(gpa, span.len());
            copied?;
            from = from.skip(span.len());
        }
        Ok(())
    }
}

/// The header of a frame that lies in `count` chains.
#[inline]
fn encode(to: &mut [u8; HEADER_MAX], frame: &Frame, features: VirtioFeatures, count: usize) {
    let mut offload = frame.offload;
    if offload.checksum == Checksum::Valid && !features.has(virtio::GUEST_CSUM) {
        offload.checksum = Checksum::Unknown;
    }
    let mut known = header::encode(offload, header::headers(frame));
    if let Some(kind) = known.get_mut(GSO_TYPE)
        && has_congestion_marks(frame)
    {
        *kind |= GSO_ECN;
    }
    let [low, high] = (count as u16).to_le_bytes();
    let (first, last) = to.split_at_mut(header::HEADER_BYTES);
    first.copy_from_slice(&known);
    last.copy_from_slice(&[low, high]);
}

/// Returns the capabilities of a driver.
pub(super) const fn caps(max_frame: usize, features: VirtioFeatures, tso: bool) -> Caps {
    Caps {
        checksum: features.has(virtio::GUEST_CSUM),
        tso,
        max_frame,
    }
}

/// Returns whether the driver accepts a frame unchanged.
#[inline]
fn accepts_unchanged(caps: Caps, features: VirtioFeatures, frame: &Frame) -> bool {
    caps.takes(frame)
        && frame.len() <= GSO_FRAME_MAX
        && (features.has(virtio::GUEST_ECN) || !has_congestion_marks(frame))
}

/// Returns whether an unsegmented frame has the flag CWR.
fn has_congestion_marks(frame: &Frame) -> bool {
    let Checksum::Blank { start, .. } = frame.offload.checksum else {
        return false;
    };
    let flags = frame.header().get(usize::from(start) + TCP_FLAGS);
    frame.offload.gso.is_some() && flags.is_some_and(|flags| flags & CWR != 0)
}
