//! A NIC that combines a software device and its driver in one process.

use super::device::SoftDevice;
use super::interrupt::InterruptModeration;
use super::local::LocalDevice;
use super::queues::{DedicatedRings, MacFilter};
use super::wire::Wire;
use crate::buffer::Buffers;
use crate::device::{Caps, Nic, TxReport};
use crate::dma::addr::IoAddr;
use crate::dma::layout::queue_bytes;
use crate::dma::queue::{DmaError, QueueName};
use crate::dma::receive::{ReceiveQueue, ReceiveSetup};
use crate::dma::table::{IoFault, IoTable};
use crate::dma::transmit::TransmitQueue;
use crate::frame::{ETHERNET_BYTES, TAG_BYTES};
use crate::frame::{Frame, SNAPSHOT_MAX};
use crate::vmq::{MultiQueue, Vmq};
use abi::PAGE;
use shmem::Area;
use std::cell::RefCell;
use std::rc::Rc;

/// Properties of the NIC.
#[derive(Clone, Copy, Debug)]
pub struct SoftSetup {
    /// Number of entries of each queue, a power of two.
    pub entries: u32,
    /// Number of dedicated queues.
    pub queues: usize,
    /// Maximum length of a frame in bytes, without the Ethernet header and a VLAN tag.
    pub mtu: usize,
    /// Interrupt moderation.
    pub interrupts: InterruptModeration,
}

impl SoftSetup {
    /// Returns the size in bytes of a chunk, which holds a frame to send.
    const fn chunk_bytes(&self) -> usize {
        (self.mtu + ETHERNET_BYTES + TAG_BYTES).next_multiple_of(64)
    }

    /// Returns the size in bytes of a dedicated queue's space for split headers.
    const fn header_bytes(&self) -> usize {
        (self.entries as usize * SNAPSHOT_MAX).next_multiple_of(PAGE)
    }

    /// Returns the size in bytes of the NIC's memory: queues, split headers and frames to send.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let queues = queue_bytes(self.entries) * (self.queues + 2);
        let chunks = (self.entries as usize * self.chunk_bytes()).next_multiple_of(PAGE);
        queues + self.header_bytes() * self.queues + chunks
    }
}

/// An event for the log of the NIC's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SoftEvent {
    /// The NIC is closed.
    #[error("{0}; the NIC is closed")]
    Closed(DmaError),
    /// The first I/O fault. Later faults are only counted.
    #[error("{0}: {1}; later faults are only counted")]
    Fault(QueueName, IoFault),
}

/// A NIC whose device is a [`SoftDevice`]. The device shares the driver's thread: it works whenever
/// the driver polls or sends, and its time counts as the driver's.
#[derive(Debug)]
pub struct SoftNic<W> {
    core: Rc<RefCell<LocalDevice<W>>>,
    shared: ReceiveQueue,
    transmit: TransmitQueue,
    vmq: Option<MultiQueue<MacFilter<W>, DedicatedRings<W>>>,
    caps: Caps,
    /// Whether the driver polls without an interrupt, because the last poll used its whole budget.
    polls: bool,
    has_logged_fault: bool,
    has_logged_close: bool,
}

/// Memory from which parts with I/O addresses are allocated.
struct MemoryParts {
    area: Area,
    base: IoAddr,
    used: usize,
}

impl MemoryParts {
    fn take(&mut self, bytes: usize) -> Option<(shmem::Span, IoAddr)> {
        let span = self.area.at(self.used, bytes)?;
        let address = self.base.add(self.used)?;
        self.used += bytes.next_multiple_of(PAGE);
        Some((span, address))
    }
}

impl<W: Wire> SoftNic<W> {
    /// Creates a NIC over `memory`, which has [`SoftSetup::bytes`] zeroed bytes. `pool` holds the
    /// buffers of [`Nic::rx`], and stays mapped. `guests` holds the buffers of dedicated queues;
    /// each is mapped only while it is posted. Returns `None` if a size is wrong.
    #[must_use]
    pub fn new(setup: SoftSetup, wire: W, memory: Area, pool: Area, guests: Area) -> Option<Self> {
        let entries = setup.entries;
        let mut table = IoTable::default();
        let (own, of_pool) = (table.add(memory), table.add(pool));
        table.add(guests);
        table.map(own, memory.len() / PAGE * PAGE).ok()?;
        table.map(of_pool, pool.len() / PAGE * PAGE).ok()?;
        let mut parts = MemoryParts {
            area: memory,
            base: own,
            used: 0,
        };
        let longest = setup.mtu + ETHERNET_BYTES + TAG_BYTES;
        let mut queue = |number: usize, maps, headers| {
            let (memory, address) = parts.take(queue_bytes(entries))?;
            let headers = match headers {
                true => Some(parts.take(setup.header_bytes())?),
                false => None,
            };
            let of_queue = ReceiveSetup {
                number: number as u32,
                entries,
                maps,
                longest,
                merges: false,
            };
            Some((ReceiveQueue::new(of_queue, memory, headers)?, address))
        };
        let (shared, first) = queue(0, false, false)?;
        let dedicated = (1..=setup.queues).map(|number| queue(number, true, true));
        let (dedicated, others) = dedicated.collect::<Option<(Vec<_>, Vec<_>)>>()?;
        let (memory, transmit_at) = parts.take(queue_bytes(entries))?;
        let chunks = parts.take(entries as usize * setup.chunk_bytes())?;
        let transmit = TransmitQueue::new(entries, memory, chunks, setup.chunk_bytes())?;
        let receive = [&[first], &others[..]].concat();
        let interrupts = setup.interrupts;
        let device = SoftDevice::new(wire, entries, &receive, transmit_at, longest, interrupts);
        let core = Rc::new(RefCell::new(LocalDevice {
            table,
            device,
            dedicated,
            close_reason: None,
        }));
        let vmq = (setup.queues > 0).then(|| {
            let rings = DedicatedRings::new(Rc::clone(&core));
            MultiQueue::new(MacFilter(Rc::clone(&core)), rings)
        });
        Some(Self {
            core,
            shared,
            transmit,
            vmq,
            caps: Caps {
                checksum: true,
                tso: false,
                max_frame: setup.mtu + ETHERNET_BYTES,
            },
            polls: false,
            has_logged_fault: false,
            has_logged_close: false,
        })
    }

    /// Returns why the NIC is closed, or `None` if it works.
    #[must_use]
    pub fn close_reason(&self) -> Option<DmaError> {
        self.core.borrow().close_reason
    }

    /// Returns an event to log. Returns each event once.
    pub fn event(&mut self) -> Option<SoftEvent> {
        let core = self.core.borrow();
        if let Some(error) = core.close_reason.filter(|_| !self.has_logged_close) {
            self.has_logged_close = true;
            return Some(SoftEvent::Closed(error));
        }
        let fault = core.device.last_fault().filter(|_| !self.has_logged_fault);
        let (queue, fault) = fault?;
        self.has_logged_fault = true;
        Some(SoftEvent::Fault(queue, fault))
    }

    /// Posts buffers, runs the device, and takes completed frames.
    fn poll(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> Result<usize, DmaError> {
        let LocalDevice { table, device, .. } = &mut *self.core.borrow_mut();
        self.shared.post(table, usize::MAX, false, buffers)?;
        device.poll(now_ns, table);
        // With dedicated queues every poll must read the shared queue, to keep the order of frames
        // between queues.
        let is_raised = device.interrupt_ns().is_some_and(|at_ns| at_ns <= now_ns);
        if !is_raised && !self.polls && self.vmq.is_none() {
            return Ok(0);
        }
        let taken = self.shared.receive(table, budget, buffers, out)?;
        self.polls = taken >= budget;
        if !self.polls {
            device.acknowledge();
        }
        Ok(taken)
    }

    fn send(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> Result<TxReport, DmaError> {
        let LocalDevice { table, device, .. } = &mut *self.core.borrow_mut();
        self.transmit.reap()?;
        let mut report = TxReport::default();
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            if self.caps.takes(frame) {
                self.transmit.send(frame, &mut report);
            } else {
                report.refused += 1;
            }
        }
        self.transmit.publish()?;
        device.poll(now_ns, table);
        Ok(report)
    }

    /// Returns the posted buffers to their supply.
    fn withdraw(&mut self, buffers: &mut dyn Buffers) {
        let LocalDevice { table, device, .. } = &mut *self.core.borrow_mut();
        let start = self.shared.withdraw(table, |id| buffers.put(id));
        device.reset(0, start, table);
    }
}

impl<W: Wire> Nic for SoftNic<W> {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        if self.close_reason().is_some() {
            self.withdraw(buffers);
            return 0;
        }
        let before = out.len();
        match self.poll(now_ns, budget, buffers, out) {
            Ok(taken) => taken,
            Err(error) => {
                self.core.borrow_mut().close(error);
                self.withdraw(buffers);
                out.len() - before
            }
        }
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let refused = TxReport::all_refused(pick);
        if self.close_reason().is_some() {
            return refused;
        }
        self.send(now_ns, frames, pick).unwrap_or_else(|error| {
            self.core.borrow_mut().close(error);
            refused
        })
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        match self.polls {
            true => Some(now_ns),
            false => self.core.borrow().device.interrupt_ns(),
        }
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        self.withdraw(buffers);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let core = self.core.borrow();
        let of_device = core.device.counters();
        let all = core.dedicated.iter().chain([&self.shared]);
        let sum = |count: fn(&ReceiveQueue) -> u64| all.clone().map(count).sum();
        let mut counters = vec![
            ("interrupts", of_device.interrupts),
            ("missed", of_device.missed),
            ("too_long", of_device.too_long),
            ("io_faults", of_device.faults),
            ("empty_buffers", of_device.empty_buffers),
            ("rx_io_error", sum(|queue| queue.counters().io_error)),
            ("rx_malformed", sum(|queue| queue.counters().malformed)),
            ("rx_foreign", sum(|queue| queue.counters().foreign)),
            ("rx_posted", sum(|queue| queue.posted() as u64)),
            ("tx_io_error", self.transmit.io_errors()),
            ("closed", core.close_reason.is_some().into()),
        ];
        counters.extend(core.device.wire().counters());
        counters
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        self.vmq.as_mut().map(|vmq| vmq as _)
    }
}
