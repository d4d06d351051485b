//! Which socket a frame goes to, on an interface with a queue for each of some guests.
//!
//! ```text
//!   station ─► egress program ─► veth queue n ─► XDP program ─► socket of queue n
//!              MAC → queue                       MAC → queue = n, or dropped
//! ```
//!
//! Both programs look into one map from MACs to queues, which stays with the process that set the
//! interface up. The first one chooses; on a NIC of the system's own its user does (`ethtool -N`).
//! The second one looks again, because a sender's own socket remembers a queue for as long as it
//! likes: no frame for another MAC gets into a guest's queue. Queue 0 is the shared one and takes
//! everything.
//!
//! A guest's queue has a program of its own, with which the second one goes on: what firewall rules
//! deny is dropped by it (`rules`). Where there is no such program everything is dropped.

use super::rules;
use super::shared::{QUEUE, RingPages, XDP_DROP};
use super::socket::Socket;
use crate::bpf::{
    Assembler, Counters, Kind, Label, MAP_LOOKUP_ELEM, Map, R0, R1, R2, R3, R4, R6, R7, R10,
    REDIRECT_MAP, TAIL_CALL, attach_egress, is_removed,
};
use crate::netlink::Netlink;
use crate::steering::{self, KEY, look_up};
use abi::machine::XdpQueue;
use abi::xdp::Ring;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_QUEUE: i16 = 16;
/// Offset of `queue_mapping` in `struct __sk_buff`. Written as the queue's number and one, it is
/// what the kernel chooses the queue by.
const SKB_QUEUE_MAPPING: i16 = 12;
/// What comes next decides.
const TCX_NEXT: i32 = -1;
/// Bytes of an Ethernet header.
const ETHERNET: i32 = 14;
const OTHERWISE: Label = Label(0);
const CHOSEN: Label = Label(1);
const SHARED: Label = Label(2);

/// Where an interface's frames go, as long as this lives.
#[derive(Debug)]
pub(super) struct Paths {
    /// By queue, its socket.
    sockets: Map,
    /// By MAC, the queue.
    macs: Map,
    /// By queue of a guest's, the program that its frames have to pass.
    programs: Map,
    /// The programs' links to their interfaces.
    links: Vec<OwnedFd>,
}

impl Paths {
    /// For an interface with `queues` queues beside the shared one; nothing goes anywhere yet.
    pub(super) fn new(queues: u32) -> io::Result<Self> {
        if queues > 0 {
            steering::check_grace()?;
        }
        Ok(Self {
            sockets: Map::sockets(QUEUE + 1 + queues)?,
            macs: Map::new(queues)?,
            programs: Map::programs(QUEUE + 1 + queues)?,
            links: Vec::new(),
        })
    }

    /// The XDP program. What has no socket is dropped, and never reaches the system's own stack.
    pub(super) fn program(&self, queues: u32) -> io::Result<OwnedFd> {
        let mut program = Assembler::default();
        program.mov(R6, R1).load_u32(R7, R6, MD_QUEUE);
        if queues > 0 {
            program.jump_eq_imm(R7, QUEUE as i32, SHARED);
            program
                .load_u32(R2, R6, MD_DATA)
                .load_u32(R3, R6, MD_DATA_END)
                .mov(R4, R2)
                .add_imm(R4, ETHERNET)
                .jump_gt(R4, R3, OTHERWISE)
                .store_u64_imm(R10, KEY, 0)
                .load_u32(R4, R2, 0)
                .store_u32(R10, KEY, R4)
                .load_u16(R4, R2, 4)
                .store_u32(R10, KEY + 4, R4)
                .load_map(R1, &self.macs)
                .mov(R2, R10)
                .add_imm(R2, KEY.into())
                .call(MAP_LOOKUP_ELEM)
                .jump_eq_imm(R0, 0, OTHERWISE)
                .load_u32(R0, R0, 0)
                .jump_ne(R0, R7, OTHERWISE)
                .mov(R1, R6)
                .load_map(R2, &self.programs)
                .mov(R3, R7)
                .call(TAIL_CALL)
                .label(OTHERWISE)
                .mov_imm(R0, XDP_DROP)
                .exit()
                .label(SHARED);
        }
        self.hand_over(&mut program);
        program.load(Kind::Xdp)
    }

    /// To the socket of the queue that the frame in r6 came by.
    fn hand_over(&self, program: &mut Assembler) {
        program
            .load_map(R1, &self.sockets)
            .load_u32(R2, R6, MD_QUEUE)
            .mov_imm(R3, XDP_DROP)
            .call(REDIRECT_MAP)
            .exit();
    }

    /// From now on the other end of a pair, in the calling thread's namespace, chooses queues.
    pub(super) fn choose_at(&mut self, far: &str) -> io::Result<()> {
        let mut program = Assembler::default();
        program.mov(R6, R1);
        look_up(&mut program, &self.macs, OTHERWISE)
            .load_u32(R7, R0, 0)
            .jump_ne_imm(R7, QUEUE as i32, CHOSEN)
            .label(OTHERWISE)
            .mov_imm(R7, QUEUE as i32)
            .label(CHOSEN)
            .add_imm(R7, 1)
            .store_u32(R6, SKB_QUEUE_MAPPING, R7)
            .mov_imm(R0, TCX_NEXT)
            .exit();
        let program = program.load(Kind::SchedCls)?;
        let index = Netlink::open()?.index(far)?;
        self.links.push(attach_egress(&program, index)?);
        Ok(())
    }

    /// Keeps a program's link for as long as this lives.
    pub(super) fn keep(&mut self, link: OwnedFd) {
        self.links.push(link);
    }

    /// Whether the interface was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.links.first().is_some_and(is_removed)
    }

    /// What comes by `queue` and may goes to `socket`.
    pub(super) fn lead(&self, queue: u32, socket: &impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd().as_raw_fd();
        self.sockets.set(&queue.to_ne_bytes(), socket as u32)
    }

    /// What another process needs to take them up.
    pub(super) fn kept(&self) -> Vec<BorrowedFd<'_>> {
        let maps = [&self.sockets, &self.macs, &self.programs].map(AsFd::as_fd);
        let links = self.links.iter().map(AsFd::as_fd);
        maps.into_iter().chain(links).collect()
    }

    /// The paths that another process has made; none: these are not what it had.
    pub(super) fn adopt(kept: Vec<OwnedFd>) -> Option<Self> {
        let mut kept = kept.into_iter();
        Some(Self {
            sockets: Map::adopt(kept.next()?, 4),
            macs: Map::adopt(kept.next()?, 8),
            programs: Map::adopt(kept.next()?, 4),
            links: kept.collect(),
        })
    }

    /// A queue with a socket of its own that another process has bound.
    pub(super) fn adopt_queue(
        self: &Arc<Self>,
        (socket, denied): (OwnedFd, OwnedFd),
        spec: &XdpQueue,
    ) -> io::Result<QueueSocket> {
        Ok(QueueSocket {
            socket: Socket::new(socket, spec.entries)?,
            queue: spec.queue,
            mac: spec.mac,
            ended: AtomicBool::new(false),
            denied: denied.into(),
            paths: Arc::clone(self),
        })
    }

    /// A queue with a socket of its own, which is bound to it. Nothing comes by it yet.
    pub(super) fn queue(
        self: &Arc<Self>,
        socket: OwnedFd,
        spec: &XdpQueue,
    ) -> io::Result<QueueSocket> {
        let denied = Counters::new(spec.rules.len() as u32)?;
        let passed = |program: &mut Assembler| self.hand_over(program);
        let program = rules::compile(&spec.rules, &denied, passed)?.load(Kind::Xdp)?;
        // Now, so that starting the machine fails if the kernel refuses it. No MAC leads
        // there yet.
        let queue = spec.queue.to_ne_bytes();
        self.programs.set(&queue, program.as_raw_fd() as u32)?;
        Ok(QueueSocket {
            socket: Socket::new(socket, spec.entries)?,
            queue: spec.queue,
            mac: spec.mac,
            ended: AtomicBool::new(false),
            denied,
            paths: Arc::clone(self),
        })
    }
}

/// A queue of an interface that is one guest's alone: a socket over the memory that this guest
/// receives into.
#[derive(Debug)]
pub struct QueueSocket {
    socket: Socket,
    queue: u32,
    mac: [u8; 6],
    ended: AtomicBool,
    /// Frames and bytes that each rule has denied.
    denied: Counters,
    paths: Arc<Paths>,
}

impl QueueSocket {
    /// The rings that its receiver needs, in the order of their places in the window.
    pub const RINGS: [Ring; 2] = [Ring::Receive, Ring::Fill];

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// What is to be mapped into the domain's window, for each ring.
    #[must_use]
    pub fn ring_pages(&self) -> [RingPages; 2] {
        Self::RINGS.map(|ring| self.socket.pages(ring))
    }

    /// What another process needs, beside the socket, to take the queue up.
    #[must_use]
    pub fn kept(&self) -> BorrowedFd<'_> {
        self.denied.as_fd()
    }

    /// From now on frames to the queue's MAC come by it.
    ///
    /// # Errors
    /// The kernel refused, or the queue has ended.
    pub fn enable(&self) -> io::Result<()> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
        }
        self.paths.lead(self.queue, &self.socket)?;
        self.paths.macs.set(&key(self.mac), self.queue)
    }

    /// Frames that a rule has denied, and their bytes: the rule of this number
    /// ([`abi::firewall::Rules`]).
    ///
    /// # Errors
    /// There is no such rule.
    pub fn denied(&self, rule: u32) -> io::Result<[u64; 2]> {
        self.denied.get(rule)
    }

    /// Frames to the queue's MAC come by the shared queue again, for good. When this returns none
    /// is written into the queue's memory any more, whatever is in its rings: the kernel copies.
    /// Nor is one counted. Takes a grace period, once; it and [`QueueSocket::enable`] are one
    /// thread's.
    pub fn end(&self) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        // A map that does not do what it is told is the kernel's own fault: the frames of this
        // queue were never anybody else's.
        let _ = self.paths.macs.remove(&key(self.mac));
        let _ = self.paths.sockets.remove(&self.queue.to_ne_bytes());
        let _ = self.paths.programs.remove(&self.queue.to_ne_bytes());
        steering::wait_grace();
    }
}

fn key([a, b, c, d, e, f]: [u8; 6]) -> [u8; 8] {
    [a, b, c, d, e, f, 0, 0]
}
