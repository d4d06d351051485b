//! The driver's side of a NIC whose device is in another domain.

use super::addr::IoAddr;
use super::dedicated::RemoteQueue;
use super::layout::{OwnMemory, queue_bytes};
use super::queue::DmaError;
use super::receive::{ReceiveQueue, ReceiveSetup};
use super::remote_link::{DeviceDoorbell, RemoteLink, RemoteSetup};
use super::table::IoTable;
use super::transmit::TransmitQueue;
use crate::buffer::Buffers;
use crate::device::{Caps, Nic, TxReport};
use crate::frame::{ETHERNET_BYTES, Frame};
use shmem::{Area, Span};
use std::fmt::Debug;
use std::rc::Rc;

/// The shared receive queue, the transmit queue, and the I/O addresses for the device.
#[derive(Debug)]
struct QueuePair {
    receive: ReceiveQueue,
    transmit: TransmitQueue,
    addresses: QueueAddresses,
}

/// I/O addresses of the queues' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueAddresses {
    /// The shared receive queue.
    pub receive: IoAddr,
    /// The transmit queue.
    pub transmit: IoAddr,
    /// The first dedicated queue.
    pub dedicated: IoAddr,
}

/// A NIC whose device is in another domain. Its link is down until [`RemoteNic::connect`].
#[derive(Debug)]
pub struct RemoteNic {
    setup: RemoteSetup,
    memory: Area,
    /// The I/O addresses of the memory and the pool. The monitor, not this table, determines which
    /// pages the device may access.
    table: IoTable,
    queues: QueuePair,
    link: Rc<RemoteLink>,
    /// Whether the driver takes completions without an interrupt, because the last poll left some.
    polls: bool,
}

impl RemoteNic {
    /// Creates a NIC over `memory` of [`RemoteSetup::bytes`]. `pool` holds the buffers of
    /// [`Nic::rx`]. The whole pages of `memory`, followed by those of `pool`, have consecutive I/O
    /// addresses from 0. Returns `None` if a size is wrong.
    #[must_use]
    pub fn new(setup: RemoteSetup, memory: Area, pool: Area) -> Option<Self> {
        let mut table = IoTable::default();
        table.add(memory);
        table.add(pool);
        Some(Self {
            setup,
            memory,
            table,
            queues: QueuePair::new(setup, memory)?,
            link: Rc::default(),
            polls: false,
        })
    }

    /// Empties all queues for a new device, and returns their I/O addresses. The link must be down.
    #[must_use]
    pub fn lay_out(&mut self) -> Option<QueueAddresses> {
        self.queues = QueuePair::new(self.setup, self.memory)?;
        for queue in 0..self.setup.queues {
            OwnMemory::new(self.dedicated_memory(queue)?, self.setup.entries)?;
        }
        self.link.close_reason.set(None);
        Some(self.queues.addresses)
    }

    fn dedicated_memory(&self, queue: u32) -> Option<Span> {
        let at = self.setup.dedicated_at(queue);
        self.memory.at(at, queue_bytes(self.setup.entries))
    }

    /// Returns the driver's end of dedicated queue `number` (the first is 1), or `None` if it does
    /// not exist. The link must be down.
    #[must_use]
    pub fn dedicated(&self, number: u32) -> Option<RemoteQueue> {
        let queue = number
            .checked_sub(1)
            .filter(|queue| *queue < self.setup.queues)?;
        let memory = self.dedicated_memory(queue)?;
        let headers = self.setup.headers(number, self.memory);
        RemoteQueue::new(
            number,
            &self.setup,
            (memory, headers),
            Rc::clone(&self.link),
        )
    }

    /// Returns the number of dedicated queues.
    #[must_use]
    pub fn dedicated_queues(&self) -> u32 {
        self.setup.queues
    }

    /// Sets the link up. The device must know the queues; `bell` wakes it.
    pub fn connect(&mut self, bell: Rc<dyn DeviceDoorbell>) {
        self.link.doorbell.replace(Some(bell));
    }

    /// Sets the link down, and returns all posted buffers to their supply. The device must no
    /// longer be able to access them.
    pub fn disconnect(&mut self, buffers: &mut dyn Buffers) {
        self.link.doorbell.replace(None);
        self.link
            .connection
            .set(self.link.connection().wrapping_add(1));
        self.polls = false;
        let receive = &mut self.queues.receive;
        receive.withdraw(&mut self.table, |id| buffers.put(id));
    }

    /// Returns the number of entries of each queue.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.setup.entries
    }

    /// Returns why the NIC is closed, or `None` if it works.
    #[must_use]
    pub fn close_reason(&self) -> Option<DmaError> {
        self.link.close_reason.get()
    }

    /// Returns the doorbell if the link is up and the NIC is not closed.
    fn bell(&self) -> Option<Rc<dyn DeviceDoorbell>> {
        let bell = self.link.doorbell.borrow().clone();
        bell.filter(|_| self.link.is_usable())
    }

    fn poll(
        &mut self,
        bell: &dyn DeviceDoorbell,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> Result<usize, DmaError> {
        let Self { table, queues, .. } = self;
        let receive = &mut queues.receive;
        receive.post(table, usize::MAX, true, buffers)?;
        if receive.needs_wakeup()? {
            bell.ring();
        }
        if !receive.is_raised()? && !self.polls {
            return Ok(0);
        }
        let taken = receive.receive(table, budget, buffers, out)?;
        self.polls = taken >= budget || receive.acknowledge()?;
        Ok(taken)
    }

    fn send(
        &mut self,
        bell: &dyn DeviceDoorbell,
        frames: &[Frame],
        pick: &[u32],
    ) -> Result<TxReport, DmaError> {
        let caps = self.caps();
        let transmit = &mut self.queues.transmit;
        transmit.reap()?;
        let mut report = TxReport::default();
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            if caps.takes(frame) {
                transmit.send(frame, &mut report);
            } else {
                report.refused += 1;
            }
        }
        transmit.publish()?;
        if transmit.needs_wakeup()? {
            bell.ring();
        }
        Ok(report)
    }
}

impl QueuePair {
    /// Creates empty queues at the start of `memory`, whose I/O address is 0.
    fn new(setup: RemoteSetup, memory: Area) -> Option<Self> {
        let entries = setup.entries;
        let start = IoAddr::of_page(0);
        let bytes = queue_bytes(entries);
        let part = |at, bytes| Some((memory.at(at, bytes)?, start.add(at)?));
        let (receive, receive_at) = part(0, bytes)?;
        let (transmit, transmit_at) = part(bytes, bytes)?;
        let chunks = part(2 * bytes, setup.chunks_bytes())?;
        let of_receive = ReceiveSetup {
            number: 0,
            entries,
            maps: false,
            longest: setup.longest_received(),
            merges: setup.merges,
        };
        Some(Self {
            receive: ReceiveQueue::new(of_receive, receive, setup.headers(0, memory))?,
            transmit: TransmitQueue::new(entries, transmit, chunks, setup.chunk_bytes())?,
            addresses: QueueAddresses {
                receive: receive_at,
                transmit: transmit_at,
                dedicated: start.add(setup.dedicated_at(0))?,
            },
        })
    }
}

impl Nic for RemoteNic {
    fn caps(&self) -> Caps {
        Caps {
            checksum: true,
            tso: false,
            max_frame: self.setup.mtu + ETHERNET_BYTES,
        }
    }

    fn rx(
        &mut self,
        _: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let Some(bell) = self.bell() else {
            return 0;
        };
        let before = out.len();
        let polled = self.poll(&*bell, budget, buffers, out);
        polled.unwrap_or_else(|error| {
            self.link.close(error);
            out.len() - before
        })
    }

    fn tx(&mut self, _: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let refused = TxReport::all_refused(pick);
        let Some(bell) = self.bell() else {
            return refused;
        };
        let sent = self.send(&*bell, frames, pick);
        sent.unwrap_or_else(|error| {
            self.link.close(error);
            refused
        })
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        // A closed NIC needs a poll, so that its owner disconnects it.
        (self.polls || self.close_reason().is_some()).then_some(now_ns)
    }

    fn dedicated(&mut self, number: u32) -> Option<RemoteQueue> {
        Self::dedicated(self, number)
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        self.disconnect(buffers);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let receive = &self.queues.receive;
        vec![
            ("link", self.link.is_up().into()),
            ("rx_io_error", receive.counters().io_error),
            ("rx_malformed", receive.counters().malformed),
            ("rx_foreign", receive.counters().foreign),
            ("rx_posted", receive.posted() as u64),
            ("tx_io_error", self.queues.transmit.io_errors()),
            ("closed", self.close_reason().is_some().into()),
        ]
    }
}
