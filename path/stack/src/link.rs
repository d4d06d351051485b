//! Converts between smoltcp's packets and frames.

use crate::file::SentFiles;
use crate::rx_queue::RxQueue;
use crate::tcp;
use crate::tx_buffers::PreparedBuffers;
use crate::tx_queues::TxQueues;
use nic::{Buffers, CopyError, Frame};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;
use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Maximum length of a frame with pending segmentation. It is slightly below the limit of IP, so
/// that the frame fits 16 large buffers.
const GSO_FRAME: usize = 65_226;
/// State of the transmit direction.
#[derive(Debug)]
pub(crate) struct Outgoing {
    mtu: usize,
    /// Whether the device completes TCP checksums.
    checksum: bool,
    /// Whether the device segments frames.
    tso: bool,
    /// Scratch buffer into which smoltcp writes a frame.
    scratch: Vec<u8>,
    no_buffer: u64,
    /// The file that streams send in place, and the streams.
    pub(crate) files: Rc<RefCell<SentFiles>>,
    /// Whether the last turn sent fewer frames because no buffer was free.
    starved: bool,
}

impl Outgoing {
    pub(crate) fn new(mtu: usize, checksum: bool, tso: bool) -> Self {
        Self {
            mtu,
            checksum,
            tso,
            scratch: Vec::new(),
            no_buffer: 0,
            files: Rc::default(),
            starved: false,
        }
    }

    pub(crate) fn starved(&self) -> bool {
        self.starved
    }

    pub(crate) fn clear_starved(&mut self) {
        self.starved = false;
    }

    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("stack_no_buffer", self.no_buffer)]
    }

    /// Returns the maximum length of a frame that smoltcp may write.
    fn frame_max(&self) -> usize {
        if self.tso {
            GSO_FRAME
        } else {
            self.mtu + ETHERNET
        }
    }
}

/// smoltcp's device for one turn. It takes frames from the receive queue and sends frames to a
/// sink.
pub(crate) struct StackDevice<'a> {
    inbox: &'a mut RxQueue,
    output: Output<'a>,
}

struct Output<'a> {
    outgoing: &'a mut Outgoing,
    sink: FrameSink<'a>,
}

/// Destination of a turn's frames.
pub(crate) enum FrameSink<'a> {
    /// The queue of a station with one queue.
    Frames(QueueFrames<'a>),
    /// The queues of a station with several queues.
    TxQueues(&'a mut TxQueues),
}

/// Destination of frames for a single queue.
pub(crate) struct QueueFrames<'a> {
    supply: PreparedBuffers<'a>,
    out: &'a mut Vec<Frame>,
    /// Maximum length of `out` at the end of the turn.
    limit: usize,
}

impl<'a> FrameSink<'a> {
    /// Creates a sink for a single queue, which appends up to `budget` frames to `out`, in buffers
    /// from `buffers`.
    pub(crate) fn frames(
        buffers: &'a mut dyn Buffers,
        out: &'a mut Vec<Frame>,
        budget: usize,
    ) -> Self {
        let limit = out.len().saturating_add(budget);
        let supply = PreparedBuffers::new(buffers);
        Self::Frames(QueueFrames { supply, out, limit })
    }
}

impl QueueFrames<'_> {
    /// Returns the frame of a segment with bytes of a file, or `None` if the segment has no bytes
    /// of a file. The checksum stays blank, because the bytes are not read here.
    fn of_file(
        &mut self,
        bytes: &mut [u8],
        segment: Option<u16>,
        files: &mut SentFiles,
    ) -> Option<Result<Frame, CopyError>> {
        if files.is_empty() {
            return None;
        }
        let tcp = tcp::segment(bytes)?;
        let pieces = files.pieces(&tcp)?;
        let offload = tcp::finish(bytes, segment, true);
        let header = bytes.get(..tcp.header)?;
        let mut frame = match Frame::from_bytes(header, &mut self.supply) {
            Ok(frame) => frame,
            Err(error) => return Some(Err(error)),
        };
        pieces.for_each(|piece| frame.push(piece));
        frame.offload = offload;
        if let Err(fault) = frame.snapshot() {
            frame.recycle(&mut self.supply);
            return Some(Err(fault.into()));
        }
        Some(Ok(frame))
    }
}

impl<'a> StackDevice<'a> {
    /// Creates the device of a turn that sends frames to `sink`.
    pub(crate) fn new(
        inbox: &'a mut RxQueue,
        outgoing: &'a mut Outgoing,
        sink: FrameSink<'a>,
    ) -> Self {
        outgoing.starved = false;
        Self {
            inbox,
            output: Output { outgoing, sink },
        }
    }

    /// Returns whether this turn has reached its limit of frames or lacks buffers for the next
    /// frame.
    pub(crate) fn is_full(&mut self) -> bool {
        let Output { outgoing, sink } = &mut self.output;
        match sink {
            FrameSink::Frames(QueueFrames { supply, out, limit }) => {
                out.len() >= *limit || !supply.prepare(outgoing.frame_max())
            }
            FrameSink::TxQueues(_) => false,
        }
    }

    /// Returns unused buffers to their supply.
    pub(crate) fn finish(self) {
        if let FrameSink::Frames(frames) = self.output.sink {
            frames.supply.release();
        }
    }
}

impl Output<'_> {
    /// Returns whether the sink can accept a frame of the maximum length. The device checks this in
    /// advance, because smoltcp does not take back a frame that does not fit.
    fn has_room(&mut self) -> bool {
        let FrameSink::Frames(frames) = &mut self.sink else {
            return true;
        };
        if frames.out.len() >= frames.limit {
            return false;
        }
        let room = frames.supply.prepare(self.outgoing.frame_max());
        self.outgoing.starved |= !room;
        room
    }

    fn send(&mut self, len: usize, segment: Option<u16>) {
        let Some(bytes) = self.outgoing.scratch.get_mut(..len) else {
            return;
        };
        let frames = match &mut self.sink {
            FrameSink::Frames(frames) => frames,
            FrameSink::TxQueues(tx_queues) => {
                let offload = tcp::finish(bytes, segment, self.outgoing.checksum);
                return tx_queues.put(bytes, offload);
            }
        };
        let files = &mut *self.outgoing.files.borrow_mut();
        let made = match frames.of_file(bytes, segment, files) {
            Some(made) => made,
            None => {
                let offload = tcp::finish(bytes, segment, self.outgoing.checksum);
                Frame::from_bytes(bytes, &mut frames.supply).map(|mut frame| {
                    frame.offload = offload;
                    frame
                })
            }
        };
        match made {
            Ok(frame) => frames.out.push(frame),
            Err(_) => self.outgoing.no_buffer += 1,
        }
    }
}

/// A received frame for the stack.
pub(crate) struct RxToken<'a> {
    bytes: Vec<u8>,
    inbox: &'a mut RxQueue,
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.bytes);
        self.inbox.recycle(self.bytes);
        result
    }
}

/// Permission for the stack to send a frame.
pub(crate) struct TxToken<'a, 'b> {
    output: &'a mut Output<'b>,
    segment: Option<u16>,
}

impl phy::TxToken for TxToken<'_, '_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let scratch = &mut self.output.outgoing.scratch;
        if scratch.len() < len {
            scratch.resize(len, 0);
        }
        let result = f(scratch.get_mut(..len).unwrap_or(&mut []));
        self.output.send(len, self.segment);
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment = meta
            .segmentation_offload_size
            .map(std::num::NonZeroU16::get);
    }
}

impl<'b> Device for StackDevice<'b> {
    type RxToken<'a>
        = RxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = TxToken<'a, 'b>
    where
        Self: 'a;

    /// Takes a received frame only if the sink can accept a reply, because every frame may cause a
    /// reply.
    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, TxToken<'_, 'b>)> {
        if self.inbox.is_empty() || !self.output.has_room() {
            return None;
        }
        let rx = RxToken {
            bytes: self.inbox.take()?,
            inbox: self.inbox,
        };
        Some((
            rx,
            TxToken {
                output: &mut self.output,
                segment: None,
            },
        ))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_, 'b>> {
        let room = self.output.has_room();
        room.then_some(TxToken {
            output: &mut self.output,
            segment: None,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = self.output.outgoing.mtu + ETHERNET;
        // This crate checks and computes TCP checksums itself, with a faster sum.
        caps.checksum.tcp = phy::Checksum::None;
        if self.output.outgoing.tso {
            // IPv6 is excluded, because smoltcp 0.14 would create these segments and then drop
            // them.
            caps.segmentation.tcpv4 = NonZeroUsize::new(GSO_FRAME);
        }
        caps
    }
}
