//! Between smoltcp and frames.

use crate::lanes::Lanes;
use net::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
use net::packet::{Network, Packet, Transport};
use nic::{Buffer, BufferId, Buffers, Checksum, Frame, Gso, GsoKind, Offload, TxReport};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;
use std::collections::VecDeque;
use std::num::NonZeroUsize;

/// Frames that wait for the stack at the most.
const WAITING_FRAMES: usize = 1024;
/// Bytes of them at the most.
const WAITING_BYTES: usize = 4 << 20;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Bytes of the largest frame that is made with segmentation left undone. A little below the
/// limit of IP, so that it fits 16 large buffers.
const GSO_FRAME: usize = 65_226;
/// Where the checksum is in a TCP header.
const TCP_CHECKSUM: u16 = 16;

/// Frames on their way into the stack, in private memory.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    bad_checksum: u64,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Copies a frame out of memory that a peer can write. Its TCP checksum is checked here,
    /// unless somebody vouches for the frame (it was never on a wire, or was checked).
    pub(crate) fn add(&mut self, frame: &Frame, report: &mut TxReport) {
        if self.waiting.len() >= WAITING_FRAMES || self.bytes >= WAITING_BYTES {
            report.full += 1;
            return;
        }
        if frame.len() > crate::FRAME_MAX {
            report.refused += 1;
            return;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(frame.len(), 0);
        if frame.prefix(&mut bytes).is_err() {
            report.fault += 1;
            self.spare.push(bytes);
            return;
        }
        report.sent += 1;
        report.bytes += frame.len() as u64;
        if frame.offload.checksum == Checksum::Unknown && !tcp_checksum_is_right(&bytes) {
            self.bad_checksum += 1;
            self.spare.push(bytes);
            return;
        }
        self.bytes += bytes.len();
        self.waiting.push_back(bytes);
    }

    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("stack_bad_checksum", self.bad_checksum)]
    }
}

/// Where TCP lies in a frame.
struct TcpAt {
    /// First byte of its header.
    start: usize,
    /// The byte behind its payload.
    end: usize,
    /// Sum of the pseudo header.
    pseudo: u32,
    kind: GsoKind,
}

/// Finds TCP in a frame that is no fragment.
fn tcp(bytes: &[u8]) -> Option<TcpAt> {
    let packet = Packet::parse(bytes).ok()?;
    let Ok(Transport::Tcp(tcp)) = packet.transport(bytes) else {
        return None;
    };
    let (end, kind) = match packet.network {
        Network::Ipv4(ip) if !ip.is_fragment() => (packet.network_at + ip.total_len, GsoKind::Tcp4),
        Network::Ipv6(ip) if ip.fragment.is_none() => {
            (packet.network_at + 40 + ip.payload_len, GsoKind::Tcp6)
        }
        _ => return None,
    };
    let len = end.checked_sub(tcp.at)?;
    let pseudo = match packet.network {
        Network::Ipv4(ip) => pseudo_v4(ip.source, ip.destination, ip.protocol, len),
        Network::Ipv6(ip) => pseudo_v6(ip.source, ip.destination, ip.protocol, len),
        _ => return None,
    };
    (end <= bytes.len()).then_some(TcpAt {
        start: tcp.at,
        end,
        pseudo,
        kind,
    })
}

/// False only for a TCP segment whose checksum is wrong; the rest is smoltcp's to judge.
fn tcp_checksum_is_right(bytes: &[u8]) -> bool {
    tcp(bytes).is_none_or(|at| {
        let mut sum = Sum::new(at.pseudo);
        sum.add_bytes(bytes.get(at.start..at.end).unwrap_or(&[]));
        sum.folded() == 0xffff
    })
}

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
        let supply = Supply {
            first: None,
            more: Vec::new(),
            more_bytes: 0,
            buffers,
        };
        Self::Frames(Frames { supply, out, limit })
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
        let offload = finish_tcp(bytes, segment, self.outgoing.checksum);
        let frames = match &mut self.exit {
            Exit::Frames(frames) => frames,
            Exit::Lanes(lanes) => return lanes.put(bytes, offload),
        };
        match Frame::from_bytes(bytes, &mut frames.supply) {
            Ok(mut frame) => {
                frame.offload = offload;
                frames.out.push(frame);
            }
            Err(_) => self.outgoing.no_buffer += 1,
        }
    }
}

/// Fills in the TCP checksum of a frame that smoltcp made (with `blank`, only the pseudo header's
/// sum), and says what is left to do.
fn finish_tcp(bytes: &mut [u8], segment: Option<u16>, blank: bool) -> Offload {
    let Some(at) = tcp(bytes) else {
        return Offload::default();
    };
    let field = at.start + usize::from(TCP_CHECKSUM);
    let mut sum = Sum::new(at.pseudo);
    let (value, checksum) = if blank {
        let start = at.start as u16;
        (
            sum.folded(),
            Checksum::Blank {
                start,
                offset: TCP_CHECKSUM,
            },
        )
    } else {
        put(bytes, field, 0);
        sum.add_bytes(bytes.get(at.start..at.end).unwrap_or(&[]));
        (sum.finish(), Checksum::Unknown)
    };
    put(bytes, field, value);
    Offload {
        checksum,
        gso: segment.map(|size| Gso {
            kind: at.kind,
            size,
        }),
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

/// A supply with some buffers already in hand.
struct Supply<'a> {
    /// The small one that the next frame begins in.
    first: Option<Buffer>,
    /// What continues it.
    more: Vec<Buffer>,
    /// Bytes of `more`.
    more_bytes: usize,
    buffers: &'a mut dyn Buffers,
}

impl Supply<'_> {
    /// Takes buffers in hand until a frame of `bytes` bytes fits; whether there are enough.
    fn prepare(&mut self, bytes: usize) -> bool {
        if self.first.is_none() {
            self.first = self.buffers.take();
        }
        let Some(first) = self.first else {
            return false;
        };
        while first.span.len().saturating_add(self.more_bytes) < bytes {
            let next = self.buffers.take_large().or_else(|| self.buffers.take());
            match next {
                Some(buffer) if !buffer.span.is_empty() => {
                    self.more_bytes += buffer.span.len();
                    self.more.push(buffer);
                }
                _ => return false,
            }
        }
        true
    }

    /// Gives everything in hand back.
    fn give_back(self) {
        for buffer in self.first.into_iter().chain(self.more) {
            self.buffers.put(buffer.id);
        }
    }
}

impl Buffers for Supply<'_> {
    fn take(&mut self) -> Option<Buffer> {
        self.first.take()
    }

    fn take_large(&mut self) -> Option<Buffer> {
        let buffer = self.more.pop()?;
        self.more_bytes -= buffer.span.len();
        Some(buffer)
    }

    fn put(&mut self, id: BufferId) {
        self.buffers.put(id);
    }
}

/// A supply of nothing, for the time before there is one.
pub(crate) struct NoBuffers;

impl Buffers for NoBuffers {
    fn take(&mut self) -> Option<Buffer> {
        None
    }

    fn take_large(&mut self) -> Option<Buffer> {
        None
    }

    fn put(&mut self, _id: BufferId) {}
}

/// A frame for the stack.
pub(crate) struct RxToken<'a> {
    bytes: Vec<u8>,
    spare: &'a mut Vec<Vec<u8>>,
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.bytes);
        self.spare.push(self.bytes);
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
        if self.inbox.waiting.is_empty() || !self.output.has_room() {
            return None;
        }
        let bytes = self.inbox.waiting.pop_front()?;
        self.inbox.bytes -= bytes.len();
        let rx = RxToken {
            bytes,
            spare: &mut self.inbox.spare,
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
