//! A front end, a back end and its buffers, in one thread.

use super::front::{FrontEnd, pair, send};
use super::session::Session;
use super::system::ProcessSystem;
use crate::{ConnectionSource, Offer, QueueDevice, VhostBackend};
use net::packet::Mac;
use net::packet::announce::reverse_request;
use nic::{Buffers, Frame, Nic, Notified, Offload, Piece, Pool, TxReport};
use rustix::net::SocketType;
use shmem::Area;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of a buffer of the pool.
pub const POOL_BUFFER: usize = 2048;

thread_local! {
    /// The memory of all pools of a thread: areas are never freed.
    static POOL: Area = Area::anonymous(256 * POOL_BUFFER).expect("memory");
}

/// A virtual machine, its back end, and the interface's devices and buffers.
#[derive(Debug)]
pub struct Rig {
    /// The virtual machine.
    pub front: FrontEnd,
    /// The devices of the interface's queues.
    pub ports: Vec<QueueDevice<ProcessSystem>>,
    /// Buffers to which frames from the virtual machine are copied.
    pub pool: Pool,
    /// Whether frames take the fast path if possible, as in a shim.
    pub fast: bool,
    /// The manager's end of the back end's connection source.
    manager: OwnedFd,
    offer: Offer,
    now_ns: u64,
}

impl Session for Rig {
    fn front(&mut self) -> &mut FrontEnd {
        &mut self.front
    }

    fn request(&mut self, request: u32, payload: &[u8], fds: &[OwnedFd]) -> Option<Vec<u8>> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.front.send(request, 0, payload, &fds);
        self.serve();
        self.front.reply()
    }
}

/// Returns an offer with all offloads and an MTU of 1500 bytes.
#[must_use]
pub fn offer(queue_pairs: u16) -> Offer {
    Offer {
        queue_pairs,
        mac: [2, 0, 0, 0, 0, 7],
        mtu: 1500,
        checksum: true,
        tso: true,
        memory_max: 1 << 30,
    }
}

/// Returns the frame in a buffer.
fn frame(piece: Piece) -> Frame {
    Frame::new(piece, piece.span.len()).expect("memory")
}

fn backend(offer: Offer, queues: usize) -> (Vec<QueueDevice<ProcessSystem>>, OwnedFd) {
    let (manager, source) = pair(SocketType::SEQPACKET);
    let system = ProcessSystem::default();
    let backend = VhostBackend::new(system, ConnectionSource::Manager(source), offer, |_| {});
    (QueueDevice::all(backend, queues), manager)
}

impl Rig {
    /// Returns a virtual machine that has connected and sent nothing.
    #[must_use]
    pub fn connected(offer: Offer, ring_size: u16) -> Self {
        Self::with_queues(offer, ring_size, offer.queue_pairs.into())
    }

    /// Like [`Rig::connected`], for an interface with this number of queues.
    #[must_use]
    pub fn with_queues(offer: Offer, ring_size: u16, queues: usize) -> Self {
        let (front, socket) = FrontEnd::new(offer.queue_pairs.into(), ring_size);
        let (ports, manager) = backend(offer, queues);
        let area = POOL.with(|area| *area);
        let mut rig = Self {
            front,
            ports,
            pool: Pool::new(area, POOL_BUFFER),
            fast: true,
            manager,
            offer,
            now_ns: 1,
        };
        assert!(send(&rig.manager, b"F", &[socket.as_fd()]));
        rig.serve();
        rig
    }

    /// Returns a virtual machine whose driver has negotiated `features` and runs.
    #[must_use]
    pub fn running(offer: Offer, ring_size: u16, features: u64) -> Self {
        let mut rig = Self::connected(offer, ring_size);
        rig.start(features).expect("replies");
        rig.announcement();
        rig
    }

    /// Replaces the back end. The virtual machine reconnects to the new one as QEMU does.
    pub fn restart(&mut self) {
        self.restart_with(self.front.features);
    }

    /// Like [`Rig::restart`], with other features.
    pub fn restart_with(&mut self, features: u64) {
        (self.ports, self.manager) = backend(self.offer, self.ports.len());
        let socket = self.front.reconnect();
        assert!(send(&self.manager, b"F", &[socket.as_fd()]));
        self.serve();
        self.start(features).expect("replies");
        self.announcement();
    }

    /// Receives the announcement of the MAC, which precedes the driver's frames.
    fn announcement(&mut self) {
        let mut frames = self.rx(0, 1);
        for frame in &mut frames {
            let bytes = frame.to_vec().expect("memory");
            assert_eq!(bytes, reverse_request(Mac(self.offer.mac)));
            frame.recycle(&mut self.pool);
        }
        assert_eq!(frames.len(), 1);
    }

    /// Serves the connection, as the shim does after a sleep.
    pub fn serve(&mut self) {
        for _ in 0..4 {
            self.now_ns += 2_000_000;
            for port in &mut self.ports {
                port.serve(self.now_ns);
            }
        }
    }

    /// Returns the frames that the driver has sent to a queue, as the netfront receives them.
    pub fn rx(&mut self, port: usize, budget: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        if !self.fast || self.rx_small_frames(port, budget, &mut frames) {
            let left = budget - frames.len();
            self.ports[port].rx(0, left, &mut self.pool, &mut frames);
        }
        frames
    }

    /// Receives on the fast path; returns whether it stopped at a frame for the slow path.
    fn rx_small_frames(&mut self, port: usize, budget: usize, frames: &mut Vec<Frame>) -> bool {
        let device = self.ports[port].small_frames().expect("a fast path");
        let mut pieces = Vec::new();
        loop {
            let left = budget - frames.len();
            device.rx_small_frames(0, left, &mut self.pool, &mut pieces);
            if pieces.is_empty() || device.has_other() {
                break;
            }
            frames.extend(pieces.drain(..).map(frame));
        }
        frames.extend(pieces.into_iter().map(frame));
        device.has_other() && frames.len() < budget
    }

    /// Returns the frames as bytes, and their buffers to the pool.
    pub fn rx_bytes(&mut self, port: usize) -> Vec<Vec<u8>> {
        let mut frames = self.rx(port, usize::MAX);
        let bytes = frames.iter().map(|frame| frame.to_vec().expect("memory"));
        let bytes = bytes.collect();
        frames
            .iter_mut()
            .for_each(|frame| frame.recycle(&mut self.pool));
        bytes
    }

    /// Sends frames of a queue to the driver.
    pub fn tx(&mut self, port: usize, frames: &[Frame]) -> TxReport {
        let device = &mut self.ports[port];
        let longest = device.caps().max_frame;
        let small = |frame: &Frame| match *frame.pieces {
            [piece] if frame.len() <= longest && frame.offload == Offload::default() => Some(piece),
            _ => None,
        };
        let small = frames.iter().map(small).collect::<Option<Vec<Piece>>>();
        if let Some(pieces) = small.filter(|_| self.fast) {
            let fast = device.small_frames().expect("a fast path");
            return fast.tx_small_frames(0, &pieces);
        }
        let pick: Vec<u32> = (0..frames.len() as u32).collect();
        device.tx(0, frames, &pick)
    }

    /// Sends one frame of these bytes from a queue to the driver.
    pub fn tx_bytes(&mut self, port: usize, bytes: &[u8]) -> TxReport {
        let mut frame = Frame::from_bytes(bytes, &mut self.pool).expect("a buffer");
        let report = self.tx(port, std::slice::from_ref(&frame));
        frame.recycle(&mut self.pool);
        report
    }

    /// Returns a counter of the first queue.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.ports[0].counters();
        let found = counters.iter().find(|(known, _)| *known == name);
        found.expect("a counter of this name").1
    }

    /// Returns the number of buffers taken from the pool.
    #[must_use]
    pub fn buffers_out(&self) -> usize {
        self.pool.capacity() - self.pool.free().unwrap_or(0)
    }
}
