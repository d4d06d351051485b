//! A simulated cable with a device at each end. The cable has a rate, a delay and seeded loss. A
//! device may have dedicated queues for guests.

mod rings;
mod wire;

use crate::buffer::Buffers;
use crate::device::{Caps, Nic, TxReport};
use crate::dma::Wire;
use crate::frame::Frame;
use crate::frame::copy::CopyError;
use crate::offload::Offload;
use crate::vmq::{MultiQueue, Vmq};
use rings::{MacTable, SimReceiver, SimRings};
use std::cell::RefCell;
use std::rc::Rc;
use wire::{FrameInFlight, OneWay};

/// Properties of a cable, equal in both directions.
#[derive(Clone, Copy, Debug)]
pub struct SimCable {
    /// Rate in frame bytes per second; `None` means unlimited.
    pub bytes_per_s: Option<u64>,
    /// Delay from one end to the other in nanoseconds.
    pub delay_ns: u64,
    /// Fraction of lost frames, from 0.0 to 1.0.
    pub loss: f64,
    /// Seed of the random losses.
    pub seed: u64,
    /// Maximum bytes per direction that are in transit or wait to be received. The sending device
    /// drops frames that exceed it.
    pub capacity_bytes: usize,
    /// Offloads of both devices.
    pub caps: Caps,
}

impl Default for SimCable {
    fn default() -> Self {
        Self {
            bytes_per_s: None,
            delay_ns: 0,
            loss: 0.0,
            seed: 0,
            capacity_bytes: 4 << 20,
            caps: Caps {
                checksum: false,
                tso: false,
                max_frame: 1518,
            },
        }
    }
}

impl SimCable {
    /// Returns the two ends.
    #[must_use]
    pub fn ends(self) -> (SimNic, SimNic) {
        let forward = Rc::new(RefCell::new(OneWay::new(self.seed)));
        let reverse = Rc::new(RefCell::new(OneWay::new(self.seed.wrapping_add(1))));
        let end = |from: &Rc<_>, to: &Rc<_>| SimNic {
            cable: self,
            inbound: Rc::clone(from),
            outbound: Rc::clone(to),
            no_buffer: 0,
            queues: None,
        };
        (end(&reverse, &forward), end(&forward, &reverse))
    }
}

/// One end of a [`SimCable`].
#[derive(Debug)]
pub struct SimNic {
    cable: SimCable,
    inbound: Rc<RefCell<OneWay>>,
    outbound: Rc<RefCell<OneWay>>,
    no_buffer: u64,
    queues: Option<SimQueues>,
}

/// Dedicated queues of a device.
#[derive(Debug)]
struct SimQueues {
    rings: Rc<RefCell<SimRings>>,
    vmq: MultiQueue<MacTable, SimReceiver>,
}

impl SimNic {
    /// Adds `queues` dedicated queues for guests. Each queue, including the shared one, holds up to
    /// `depth` received frames; a frame for a full queue is lost.
    #[must_use]
    pub fn with_queues(mut self, queues: usize, depth: usize) -> Self {
        let rings = Rc::new(RefCell::new(SimRings::new(queues, depth)));
        let receive = SimReceiver {
            inbound: Rc::clone(&self.inbound),
            rings: Rc::clone(&rings),
        };
        let vmq = MultiQueue::new(MacTable(Rc::clone(&rings)), receive);
        self.queues = Some(SimQueues { rings, vmq });
        self
    }

    /// Returns the next frame of the shared queue, which holds every frame if no dedicated queue
    /// exists.
    fn pop(&mut self, now_ns: u64) -> Option<FrameInFlight> {
        let mut inbound = self.inbound.borrow_mut();
        match &self.queues {
            None => inbound.pop_due(now_ns),
            Some(queues) => queues.rings.borrow_mut().pop_shared(&mut inbound, now_ns),
        }
    }

    fn transmit(&self, now_ns: u64, frame: &Frame, report: &mut TxReport) {
        if !self.cable.caps.takes(frame) {
            report.refused += 1;
            return;
        }
        let len = frame.len();
        if !self.has_room(len) {
            report.full += 1;
            return;
        }
        let Ok(bytes) = frame.to_vec() else {
            report.fault += 1;
            return;
        };
        report.sent += 1;
        report.bytes += len as u64;
        self.put(now_ns, bytes, frame.offload);
    }

    /// Puts a frame on the cable.
    fn put(&self, now_ns: u64, bytes: Vec<u8>, offload: Offload) {
        let SimCable {
            bytes_per_s,
            delay_ns,
            loss,
            ..
        } = self.cable;
        let mut out = self.outbound.borrow_mut();
        let len = bytes.len();
        let rate = bytes_per_s.unwrap_or(u64::MAX).max(1);
        let takes_ns = u128::from(len as u64) * 1_000_000_000 / u128::from(rate);
        let start_ns = out.busy_until_ns.max(now_ns);
        out.busy_until_ns = start_ns.saturating_add(takes_ns as u64);
        // A lost frame also occupies the cable.
        if out.chance.chance(loss) {
            out.lost += 1;
            return;
        }
        out.held_bytes += len;
        let due_ns = out.busy_until_ns.saturating_add(delay_ns);
        out.in_flight.push_back(FrameInFlight {
            due_ns,
            bytes,
            offload,
        });
    }
}

/// An end of a cable without offloads can also be the wire of a software device.
impl Wire for SimNic {
    fn has_room(&self, len: usize) -> bool {
        let held = self.outbound.borrow().held_bytes;
        held.saturating_add(len) <= self.cable.capacity_bytes
    }

    fn send(&mut self, now_ns: u64, bytes: Vec<u8>) {
        self.put(now_ns, bytes, Offload::default());
    }

    fn receive(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        Some(self.pop(now_ns)?.bytes)
    }

    fn due_ns(&self, n: usize) -> Option<u64> {
        let inbound = self.inbound.borrow();
        inbound.in_flight.get(n).map(|flight| flight.due_ns)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("lost", self.outbound.borrow().lost)]
    }
}

impl Nic for SimNic {
    fn caps(&self) -> Caps {
        self.cable.caps
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let mut taken = 0;
        while taken < budget {
            let Some(flight) = self.pop(now_ns) else {
                break;
            };
            match Frame::from_bytes(&flight.bytes, buffers) {
                Ok(mut frame) => {
                    frame.offload = flight.offload;
                    out.push(frame);
                    taken += 1;
                }
                // The frame is lost, as on a NIC without posted descriptors.
                Err(CopyError::NoBuffer | CopyError::Fault(_)) => self.no_buffer += 1,
            }
        }
        taken
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let mut report = TxReport::default();
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            self.transmit(now_ns, frame, &mut report);
        }
        report
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        if let Some(queues) = &self.queues
            && queues.rings.borrow().has_frames()
        {
            return Some(now_ns);
        }
        self.inbound
            .borrow()
            .in_flight
            .front()
            .map(|flight| flight.due_ns)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = vec![
            ("lost", self.outbound.borrow().lost),
            ("no_buffer", self.no_buffer),
        ];
        all.extend(self.queues.iter().flat_map(|queues| queues.vmq.counters()));
        all
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        self.queues.as_mut().map(|queues| &mut queues.vmq as _)
    }
}
