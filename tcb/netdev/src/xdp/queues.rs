//! Selects the socket of a frame, on an interface with dedicated queues for some guests.
//!
//! ```text
//!   station ─► egress program ─► veth queue n ─► XDP program ─► socket of queue n
//!              MAC → queue                       MAC → queue = n, or dropped
//! ```
//!
//! Both programs use one map from MACs to queues, which only the process that set the interface up
//! has. The first program selects the queue; for a NIC of the system, the administrator configures
//! the selection (`ethtool -N`). The second program checks it again, because the sender's socket
//! may cache a queue indefinitely. So no frame for another MAC enters a guest's queue. Queue 0 is
//! the shared queue and accepts all frames.
//!
//! Each dedicated queue has a separate program, which the second program tail-calls. It drops
//! frames that the firewall rules deny (`rules`). Without it, all frames of the queue are dropped.

use super::rules;
use super::shared::{QUEUE, RingPages, XDP_DROP};
use super::socket::XdpSocket;
use crate::bpf::{
    Assembler, CounterMap, Label, MAP_LOOKUP_ELEM, Map, ProgramType, R0, R1, R2, R3, R4, R6, R7,
    R10, REDIRECT_MAP, TAIL_CALL, attach_egress, is_removed,
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
/// Offset of `queue_mapping` in `struct __sk_buff`. The kernel selects the queue by this field,
/// which contains the queue's number plus one.
const SKB_QUEUE_MAPPING: i16 = 12;
/// Return code that leaves the decision to the next program.
const TCX_NEXT: i32 = -1;
/// Bytes of an Ethernet header.
const ETHERNET: i32 = 14;
const OTHERWISE: Label = Label(0);
const SELECTED: Label = Label(1);
const SHARED: Label = Label(2);

/// The programs and maps that direct an interface's frames. They exist as long as this value.
#[derive(Debug)]
pub(super) struct QueuePaths {
    /// The socket of each queue.
    sockets: Map,
    /// The queue of each MAC.
    macs: Map,
    /// The program that frames of a dedicated queue must pass, by queue.
    programs: Map,
    /// The links of the programs to their interfaces.
    links: Vec<OwnedFd>,
}

impl QueuePaths {
    /// Creates the maps for an interface with `queues` dedicated queues in addition to the shared
    /// one. All frames are dropped at first.
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

    /// Returns the XDP program. It drops frames whose queue has no socket, so these frames never
    /// enter the system's network stack.
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
        self.redirect_to_socket(&mut program);
        program.load(ProgramType::Xdp)
    }

    /// Emits the redirection of the frame in r6 to the socket of its receive queue.
    fn redirect_to_socket(&self, program: &mut Assembler) {
        program
            .load_map(R1, &self.sockets)
            .load_u32(R2, R6, MD_QUEUE)
            .mov_imm(R3, XDP_DROP)
            .call(REDIRECT_MAP)
            .exit();
    }

    /// Attaches the program that selects queues to the other end of a pair, `far`, in the calling
    /// thread's namespace.
    pub(super) fn select_queues_at(&mut self, far: &str) -> io::Result<()> {
        let mut program = Assembler::default();
        program.mov(R6, R1);
        look_up(&mut program, &self.macs, OTHERWISE)
            .load_u32(R7, R0, 0)
            .jump_ne_imm(R7, QUEUE as i32, SELECTED)
            .label(OTHERWISE)
            .mov_imm(R7, QUEUE as i32)
            .label(SELECTED)
            .add_imm(R7, 1)
            .store_u32(R6, SKB_QUEUE_MAPPING, R7)
            .mov_imm(R0, TCX_NEXT)
            .exit();
        let program = program.load(ProgramType::SchedCls)?;
        let index = Netlink::open()?.index(far)?;
        self.links.push(attach_egress(&program, index)?);
        Ok(())
    }

    /// Stores the link of a program, which remains attached for the lifetime of this value.
    pub(super) fn store_link(&mut self, link: OwnedFd) {
        self.links.push(link);
    }

    /// Returns whether the interface was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.links.first().is_some_and(is_removed)
    }

    /// Delivers the permitted frames of `queue` to `socket`.
    pub(super) fn redirect(&self, queue: u32, socket: &impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd().as_raw_fd();
        self.sockets.set(&queue.to_ne_bytes(), socket as u32)
    }

    /// Returns the descriptors that another process needs for [`QueuePaths::adopt`].
    pub(super) fn adoption_fds(&self) -> Vec<BorrowedFd<'_>> {
        let maps = [&self.sockets, &self.macs, &self.programs].map(AsFd::as_fd);
        let links = self.links.iter().map(AsFd::as_fd);
        maps.into_iter().chain(links).collect()
    }

    /// Adopts the maps and links that another process created. Returns `None` if the descriptors do
    /// not match.
    pub(super) fn adopt(kept: Vec<OwnedFd>) -> Option<Self> {
        let mut kept = kept.into_iter();
        Some(Self {
            sockets: Map::adopt(kept.next()?, 4),
            macs: Map::adopt(kept.next()?, 8),
            programs: Map::adopt(kept.next()?, 4),
            links: kept.collect(),
        })
    }

    /// Adopts a dedicated queue whose socket another process has bound.
    pub(super) fn adopt_queue(
        self: &Arc<Self>,
        (socket, denied): (OwnedFd, OwnedFd),
        spec: &XdpQueue,
    ) -> io::Result<QueueSocket> {
        Ok(QueueSocket {
            socket: XdpSocket::new(socket, spec.entries)?,
            queue: spec.queue,
            mac: spec.mac,
            ended: AtomicBool::new(false),
            denied: denied.into(),
            paths: Arc::clone(self),
        })
    }

    /// Creates a dedicated queue from a socket that is bound to it. It receives nothing yet.
    pub(super) fn queue(
        self: &Arc<Self>,
        socket: OwnedFd,
        spec: &XdpQueue,
    ) -> io::Result<QueueSocket> {
        let denied = CounterMap::new(spec.rules.len() as u32)?;
        let passed = |program: &mut Assembler| self.redirect_to_socket(program);
        let program = rules::compile(&spec.rules, &denied, passed)?.load(ProgramType::Xdp)?;
        // Add the program to the map now, so that the start of the machine fails if the kernel
        // refuses the program. No MAC is directed to the queue yet.
        let queue = spec.queue.to_ne_bytes();
        self.programs.set(&queue, program.as_raw_fd() as u32)?;
        Ok(QueueSocket {
            socket: XdpSocket::new(socket, spec.entries)?,
            queue: spec.queue,
            mac: spec.mac,
            ended: AtomicBool::new(false),
            denied,
            paths: Arc::clone(self),
        })
    }
}

/// A dedicated queue of an interface: a socket that receives into the memory of one guest.
#[derive(Debug)]
pub struct QueueSocket {
    socket: XdpSocket,
    queue: u32,
    mac: [u8; 6],
    ended: AtomicBool,
    /// Frames and bytes that each rule denied.
    denied: CounterMap,
    paths: Arc<QueuePaths>,
}

impl QueueSocket {
    /// The rings that the receiver needs, in the order of their window slots.
    pub const RINGS: [Ring; 2] = [Ring::Receive, Ring::Fill];

    /// Returns the socket.
    #[must_use]
    pub fn socket(&self) -> &XdpSocket {
        &self.socket
    }

    /// Returns the pages of each ring to map into the domain's window.
    #[must_use]
    pub fn ring_pages(&self) -> [RingPages; 2] {
        Self::RINGS.map(|ring| self.socket.pages(ring))
    }

    /// Returns the descriptor that another process needs, in addition to the socket, to adopt the
    /// queue.
    #[must_use]
    pub fn adoption_fd(&self) -> BorrowedFd<'_> {
        self.denied.as_fd()
    }

    /// Directs frames for the queue's MAC to the queue.
    ///
    /// # Errors
    /// Returns an error if the kernel rejected the change, or the queue was stopped.
    pub fn enable(&self) -> io::Result<()> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
        }
        self.paths.redirect(self.queue, &self.socket)?;
        self.paths.macs.set(&key(self.mac), self.queue)
    }

    /// Returns the numbers of frames and bytes that the rule with this number
    /// ([`abi::firewall::RuleLists`]) denied.
    ///
    /// # Errors
    /// Returns an error if the rule does not exist.
    pub fn denied(&self, rule: u32) -> io::Result<[u64; 2]> {
        self.denied.get(rule)
    }

    /// Permanently directs frames for the queue's MAC to the shared queue. When this function
    /// returns, the kernel no longer writes frames into the queue's memory, regardless of the
    /// rings' contents (the kernel copies), and no longer counts frames. The first call waits for
    /// one grace period. Call this and [`QueueSocket::enable`] from one thread only.
    pub fn end(&self) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        // These calls fail only because of a kernel bug. Even then, the queue receives only frames
        // for its MAC.
        let _ = self.paths.macs.remove(&key(self.mac));
        let _ = self.paths.sockets.remove(&self.queue.to_ne_bytes());
        let _ = self.paths.programs.remove(&self.queue.to_ne_bytes());
        steering::wait_grace();
    }
}

fn key([a, b, c, d, e, f]: [u8; 6]) -> [u8; 8] {
    [a, b, c, d, e, f, 0, 0]
}
