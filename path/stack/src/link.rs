//! Between smoltcp and frames.

use crate::file::Files;
use crate::inbox::Inbox;
use crate::lanes::Lanes;
use crate::supply::Supply;
use crate::tcp;
use nic::{Buffers, CopyError, Frame};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;
use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of the largest frame that is made with segmentation left undone. A little below the
/// limit of IP, so that it fits 16 large buffers.
const GSO_FRAME: usize = 65_226;
/// What is kept for frames on their way out of the stack.
#[derive(Debug)]
pub(crate) struct Outgoing {
    mtu: usize,
    /// Whether TCP checksums are left undone.
    checksum: bool,
    /// Whether cutting into segments is left undone.
    tso: bool,
    /// Where smoltcp writes a frame.
    scratch: Vec<u8>,
    no_buffer: u64,
    /// The file that streams send from where it lies.
    pub(crate) files: Rc<RefCell<Files>>,
    /// Whether the last turn could have sent more with more buffers.
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

    pub(crate) fn not_starved(&mut self) {
        self.starved = false;
    }

    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("stack_no_buffer", self.no_buffer)]
    }

    /// Bytes of the largest frame that smoltcp may write now.
    fn frame_max(&self) -> usize {
        if self.tso {
            GSO_FRAME
        } else {
            self.mtu + ETHERNET
        }
    }
}

/// smoltcp's device for one turn: frames out of the inbox, frames into `out`.
pub(crate) struct Link<'a> {
    inbox: &'a mut Inbox,
    output: Output<'a>,
}

struct Output<'a> {
    outgoing: &'a mut Outgoing,
    exit: Exit<'a>,
}

/// Where the frames of a turn go.
pub(crate) enum Exit<'a> {
    /// To the one queue that there is.
    Frames(Frames<'a>),
    /// To several queues.
    Lanes(&'a mut Lanes),
}

/// Frames for a single queue.
pub(crate) struct Frames<'a> {
    supply: Supply<'a>,
    out: &'a mut Vec<Frame>,
    /// Frames that may be in `out` when the turn ends.
    limit: usize,
}

impl<'a> Exit<'a> {
    /// At most `budget` frames, appended to `out`, in buffers of `buffers`.
    pub(crate) fn frames(
        buffers: &'a mut dyn Buffers,
        out: &'a mut Vec<Frame>,
        budget: usize,
    ) -> Self {
        let limit = out.len().saturating_add(budget);
        let supply = Supply::new(buffers);
        Self::Frames(Frames { supply, out, limit })
    }
}

impl Frames<'_> {
    /// The frame of a segment that a file's bytes stand behind; none, if none do. Its checksum is
    /// left undone: the bytes are looked at by nobody here.
    fn of_file(
        &mut self,
        bytes: &mut [u8],
        segment: Option<u16>,
        files: &mut Files,
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

impl<'a> Link<'a> {
    /// Frames will go to `exit`.
    pub(crate) fn new(inbox: &'a mut Inbox, outgoing: &'a mut Outgoing, exit: Exit<'a>) -> Self {
        outgoing.starved = false;
        Self {
            inbox,
            output: Output { outgoing, exit },
        }
    }

    /// Whether no frame can be made any more in this turn.
    pub(crate) fn is_full(&mut self) -> bool {
        let Output { outgoing, exit } = &mut self.output;
        match exit {
            Exit::Frames(Frames { supply, out, limit }) => {
                out.len() >= *limit || !supply.prepare(outgoing.frame_max())
            }
            Exit::Lanes(_) => false,
        }
    }

    /// Gives back what was taken and not used.
    pub(crate) fn finish(self) {
        if let Exit::Frames(frames) = self.output.exit {
            frames.supply.give_back();
        }
    }
}

impl Output<'_> {
    /// Whether the largest frame could be made now: smoltcp does not take a frame back that finds
    /// no buffer.
    fn has_room(&mut self) -> bool {
        let Exit::Frames(frames) = &mut self.exit else {
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
            Exit::Frames(frames) => frames,
            Exit::Lanes(lanes) => {
                let offload = tcp::finish(bytes, segment, self.outgoing.checksum);
                return lanes.put(bytes, offload);
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

/// A frame for the stack.
pub(crate) struct RxToken<'a> {
    bytes: Vec<u8>,
    inbox: &'a mut Inbox,
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.bytes);
        self.inbox.recycle(self.bytes);
        result
    }
}

/// Room for a frame of the stack.
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

impl<'b> Device for Link<'b> {
    type RxToken<'a>
        = RxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = TxToken<'a, 'b>
    where
        Self: 'a;

    /// Every frame may be answered, so none is taken while no answer could be sent.
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
        // Checked and filled in here, with a faster sum.
        caps.checksum.tcp = phy::Checksum::None;
        if self.output.outgoing.tso {
            // Over IPv6 smoltcp 0.14 would make such segments and drop them itself.
            caps.segmentation.tcpv4 = NonZeroUsize::new(GSO_FRAME);
        }
        caps
    }
}
