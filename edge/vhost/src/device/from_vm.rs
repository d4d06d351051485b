//! Frames that the driver transmits.

use super::parts::{BadChains, Cursor, ETHERNET, GSO_FRAME_MAX, HEADER_MAX, RunningRing, VLAN_TAG};
use crate::features::{VirtioFeatures, virtio};
use crate::queue::{BadChain, CopyDirection, DescriptorChain, RingError, ShortChain};
use nic::virtio as header;
use nic::{Buffers, Caps, Frame, GsoKind, Piece};

/// Bit of a header's segmentation type: the segments carry ECN congestion marks.
const GSO_ECN: u8 = 0x80;
/// Offset of the segmentation type in a header.
const GSO_TYPE: usize = 1;

/// Converts chains of a transmit queue to frames.
#[derive(Debug, Default)]
pub(super) struct FromVm {
    chain: DescriptorChain,
    bad: BadChains,
    /// Scratch list of the chains of a batch on the fast path.
    pub(super) short_chains: Vec<ShortChain>,
    /// Whether the last run ended because it lacked buffers.
    pub(super) starved: bool,
    /// Whether the last run on the fast path stopped at a frame that only [`FromVm::run`] can
    /// handle.
    pub(super) has_other: bool,
    /// Whether the last run on the fast path moved no frame. If so, the next run begins with a
    /// single chain.
    pub(super) is_fruitless: bool,
}

/// Reason why a chain yields no frame.
enum DroppedChain {
    NoBuffer,
    Bad(BadChain),
    Malformed,
}

impl From<shmem::Fault> for DroppedChain {
    fn from(_: shmem::Fault) -> Self {
        Self::Bad(BadChain::Fault)
    }
}

impl FromVm {
    /// Clears the reason for which the last run ended.
    pub(super) fn resume(&mut self) {
        self.starved = false;
        self.has_other = false;
    }

    /// Returns whether the last run ended before its budget was used. The next run would end
    /// immediately.
    pub(super) fn has_stopped(&self) -> bool {
        self.starved || self.has_other
    }

    /// Takes at most `budget` chains and appends their frames to `out`, each in buffers from
    /// `buffers`.
    pub(super) fn run(
        &mut self,
        ring: RunningRing<'_>,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> Result<(), RingError> {
        let RunningRing {
            queue,
            memory,
            features,
            caps,
        } = ring;
        for _ in 0..budget {
            let taken = queue.take(memory, CopyDirection::Read, &mut self.chain)?;
            let made = match taken {
                None => return Ok(()),
                Some(Err(bad)) => Err(DroppedChain::Bad(bad)),
                Some(Ok(())) => frame(&self.chain, features, caps, buffers),
            };
            match made {
                Ok(frame) => out.push(frame),
                Err(DroppedChain::NoBuffer) => {
                    queue.put_back_chains(1);
                    self.starved = true;
                    return Ok(());
                }
                Err(DroppedChain::Bad(bad)) => self.bad.count(bad),
                Err(DroppedChain::Malformed) => self.bad.malformed += 1,
            }
            queue.put(memory, self.chain.head(), 0)?;
        }
        Ok(())
    }

    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("rx_malformed", self.bad.malformed),
            ("rx_fault", self.bad.fault),
        ]
    }
}

/// Copies the frame in a chain to buffers, and returns it.
#[inline]
fn frame(
    chain: &DescriptorChain,
    features: VirtioFeatures,
    caps: Caps,
    buffers: &mut dyn Buffers,
) -> Result<Frame, DroppedChain> {
    let header_bytes = features.header_bytes();
    let len = chain.bytes().checked_sub(header_bytes);
    let len = len.filter(|len| (ETHERNET..=GSO_FRAME_MAX).contains(len));
    let len = len.ok_or(DroppedChain::Malformed)?;
    let segments = |at: usize| chain.segments().get(at).map(|segment| segment.span);
    let mut cursor = Cursor::START;
    let mut header = [0; HEADER_MAX];
    let mut left = header.get_mut(..header_bytes).unwrap_or(&mut []);
    while !left.is_empty() {
        let part = cursor
            .next(segments, left.len())
            .ok_or(DroppedChain::Malformed)?;
        let (to, rest) = left.split_at_mut(part.len());
        part.read(to)?;
        left = rest;
    }
    let offload = decode(&header, len, features)?;
    if offload.gso.is_none() && len > caps.max_frame + VLAN_TAG {
        return Err(DroppedChain::Malformed);
    }
    let mut frame = Frame::empty();
    match fill(&mut frame, len, &mut cursor, &segments, buffers) {
        Ok(()) => {
            frame.offload = offload;
            Ok(frame)
        }
        Err(dropped) => {
            frame.recycle(buffers);
            Err(dropped)
        }
    }
}

/// Copies `len` bytes into buffers, which become pieces of `frame`.
#[inline]
fn fill(
    frame: &mut Frame,
    len: usize,
    cursor: &mut Cursor,
    segments: &impl Fn(usize) -> Option<shmem::Span>,
    buffers: &mut dyn Buffers,
) -> Result<(), DroppedChain> {
    let mut left = len;
    while left > 0 {
        let large = match left < len {
            true => buffers.take_large(),
            false => None,
        };
        let buffer = large
            .or_else(|| buffers.take())
            .ok_or(DroppedChain::NoBuffer)?;
        let mut room = buffer.span.take(left);
        frame.push(Piece {
            span: room,
            buffer: buffer.id,
        });
        if room.is_empty() {
            return Err(DroppedChain::NoBuffer);
        }
        left -= room.len();
        while !room.is_empty() {
            let part = cursor
                .next(segments, room.len())
                .ok_or(DroppedChain::Malformed)?;
            shmem::copy(room, part)?;
            room = room.skip(part.len());
        }
    }
    Ok(frame.snapshot()?)
}

/// Returns the offloads that a header requests. A header must not request an offload that the
/// driver has not negotiated.
#[inline]
fn decode(
    bytes: &[u8; HEADER_MAX],
    len: usize,
    features: VirtioFeatures,
) -> Result<nic::Offload, DroppedChain> {
    let mut known = [0; header::HEADER_BYTES];
    if let Some(first) = bytes.first_chunk() {
        known = *first;
    }
    if let Some(kind) = known.get_mut(GSO_TYPE)
        && features.has(virtio::HOST_ECN)
    {
        // The frame's TCP flags contain the same information.
        *kind &= !GSO_ECN;
    }
    let tso = features.has(virtio::HOST_TSO4) || features.has(virtio::HOST_TSO6);
    let offload = header::decode(&known, len, features.has(virtio::CSUM), tso);
    let offload = offload.map_err(|header::MalformedHeader| DroppedChain::Malformed)?;
    let needed = match offload.gso.map(|gso| gso.kind) {
        None => 0,
        Some(GsoKind::Tcp4) => virtio::HOST_TSO4,
        Some(GsoKind::Tcp6) => virtio::HOST_TSO6,
    };
    match features.has(needed) {
        true => Ok(offload),
        false => Err(DroppedChain::Malformed),
    }
}
