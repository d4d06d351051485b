//! Conversion between smoltcp and frames.

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
/// Length of the longest frame with pending segmentation. It is a little below IP's limit, so that
/// the frame fits 16 large buffers.
const GSO_FRAME: usize = 65_226;
/// State of the sending direction.
#[derive(Debug)]
pub(crate) struct Outgoing {
    mtu: usize,
    /// Whether TCP checksums are left blank.
    checksum: bool,
    /// Whether segmentation is left to the device.
    tso: bool,
    /// Scratch buffer into which smoltcp writes a frame.
    scratch: Vec<u8>,
    no_buffer: u64,
    /// The file that streams send in place, and these streams.
    pub(crate) files: Rc<RefCell<SentFiles>>,
    /// Whether the last turn would have sent more with more buffers.
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

    /// Returns the length of the longest frame that smoltcp may write now.
    fn frame_max(&self) -> usize {
        if self.tso {
            GSO_FRAME
        } else {
            self.mtu + ETHERNET
        }
    }
}

/// smoltcp's device for one turn, which receives frames from the inbox and sends frames to an exit.
pub(crate) struct StackDevice<'a> {
    inbox: &'a mut RxQueue,
    output: Output<'a>,
}

struct Output<'a> {
    outgoing: &'a mut Outgoing,
    exit: FrameSink<'a>,
}

/// Destination of a turn's frames.
pub(crate) enum FrameSink<'a> {
    /// The single queue.
    Frames(QueueFrames<'a>),
    /// Several queues.
    TxQueues(&'a mut TxQueues),
}

/// Frames for a single queue.
pub(crate) struct QueueFrames<'a> {
    supply: PreparedBuffers<'a>,
    out: &'a mut Vec<Frame>,
    /// Maximum length of `out` at the end of the turn.
    limit: usize,
}

impl<'a> FrameSink<'a> {
    /// Creates the exit for a single queue: appends up to `budget` frames to `out`, in buffers from
    /// `buffers`.
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
    /// Returns the frame of a segment with bytes of a file, or `None` if the segment has none. The
    /// checksum stays blank, because the bytes are not read here.
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
    /// Creates the device of a turn whose frames leave through `exit`.
    pub(crate) fn new(
        inbox: &'a mut RxQueue,
        outgoing: &'a mut Outgoing,
        exit: FrameSink<'a>,
    ) -> Self {
        outgoing.starved = false;
        Self {
            inbox,
            output: Output { outgoing, exit },
        }
    }

    /// Returns whether this turn can make no further frame.
    pub(crate) fn is_full(&mut self) -> bool {
        let Output { outgoing, exit } = &mut self.output;
        match exit {
            FrameSink::Frames(QueueFrames { supply, out, limit }) => {
                out.len() >= *limit || !supply.prepare(outgoing.frame_max())
            }
            FrameSink::TxQueues(_) => false,
        }
    }

    /// Returns unused buffers.
    pub(crate) fn finish(self) {
        if let FrameSink::Frames(frames) = self.output.exit {
            frames.supply.give_back();
        }
    }
}

impl Output<'_> {
    /// Returns whether there is room for the longest frame. Checked in advance, because smoltcp
    /// does not take back a frame for which there is no buffer.
    fn has_room(&mut self) -> bool {
        let FrameSink::Frames(frames) = &mut self.exit else {
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
        let frames = match &mut self.exit {
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

/// Space for a frame of the stack.
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

    /// Takes a received frame only if there is room for an answer, which every frame may cause.
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
            // Not for IPv6: smoltcp 0.14 would create these segments and then drop them.
            caps.segmentation.tcpv4 = NonZeroUsize::new(GSO_FRAME);
        }
        caps
    }
}
