//! The receive side of a simulated NIC with queues. The NIC selects a frame's queue when the frame
//! arrives.

use super::wire::{FrameInFlight, OneWay};
use crate::buffer::Buffers;
use crate::frame::copy::CopyError;
use crate::frame::{Frame, SNAPSHOT_MAX};
use crate::vmq::{QueueId, ReceiveSide, Steering, VmqError, VmqReceived};
use abi::machine::ALL_MACS;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Received frames by queue.
#[derive(Debug)]
pub(super) struct SimRings {
    table: BTreeMap<[u8; 6], QueueId>,
    queues: Vec<VecDeque<FrameInFlight>>,
    shared: VecDeque<FrameInFlight>,
    depth: usize,
    full: u64,
    no_buffer: u64,
}

impl SimRings {
    pub(super) fn new(queues: usize, depth: usize) -> Self {
        Self {
            table: BTreeMap::new(),
            queues: (0..queues).map(|_| VecDeque::new()).collect(),
            shared: VecDeque::new(),
            depth,
            full: 0,
            no_buffer: 0,
        }
    }

    /// Moves arrived frames into their queues.
    fn sort(&mut self, inbound: &mut OneWay, now_ns: u64) {
        while let Some(flight) = inbound.pop_due(now_ns) {
            let mac = flight.bytes.first_chunk::<6>();
            let queue = mac.and_then(|mac| self.table.get(mac));
            let ring = queue.and_then(|queue| self.queues.get_mut(queue.0 as usize));
            let ring = ring.unwrap_or(&mut self.shared);
            if ring.len() < self.depth {
                ring.push_back(flight);
            } else {
                self.full += 1;
            }
        }
    }

    pub(super) fn pop_shared(
        &mut self,
        inbound: &mut OneWay,
        now_ns: u64,
    ) -> Option<FrameInFlight> {
        self.sort(inbound, now_ns);
        self.shared.pop_front()
    }

    pub(super) fn has_frames(&self) -> bool {
        !self.shared.is_empty() || self.queues.iter().any(|ring| !ring.is_empty())
    }
}

/// The NIC's MAC table. A change applies to every frame that arrives later.
#[derive(Debug)]
pub(super) struct MacTable(pub(super) Rc<RefCell<SimRings>>);

impl Steering for MacTable {
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError> {
        let table = &mut self.0.borrow_mut().table;
        match queue {
            Some(queue) => _ = table.insert(mac, queue),
            None if mac == ALL_MACS => table.clear(),
            None => _ = table.remove(&mac),
        }
        Ok(0)
    }

    fn effective(&mut self) -> u64 {
        0
    }
}

/// The receive side of the queues, for [`MultiQueue`](crate::vmq::MultiQueue).
#[derive(Debug)]
pub(super) struct SimReceiver {
    pub(super) inbound: Rc<RefCell<OneWay>>,
    pub(super) rings: Rc<RefCell<SimRings>>,
}

impl ReceiveSide for SimReceiver {
    fn queues(&self) -> usize {
        self.rings.borrow().queues.len()
    }

    fn receive(
        &mut self,
        queue: QueueId,
        now_ns: u64,
        budget: usize,
        split: bool,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> VmqReceived {
        let mut rings = self.rings.borrow_mut();
        rings.sort(&mut self.inbound.borrow_mut(), now_ns);
        let mut received = VmqReceived::default();
        while received.frames < budget {
            let ring = rings.queues.get_mut(queue.0 as usize);
            let Some(flight) = ring.and_then(VecDeque::pop_front) else {
                received.empty = true;
                break;
            };
            let stored = match split {
                true => store_split(&flight.bytes, buffers),
                false => Frame::from_bytes(&flight.bytes, buffers),
            };
            match stored {
                Ok(mut frame) => {
                    frame.offload = flight.offload;
                    out.push(frame);
                    received.frames += 1;
                }
                // The frame is lost, as on a NIC without posted descriptors.
                Err(_) => rings.no_buffer += 1,
            }
        }
        received
    }

    fn release(&mut self, _queue: QueueId, _buffers: &mut dyn Buffers) {}

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let rings = self.rings.borrow();
        vec![
            ("queue_full", rings.full),
            ("queue_no_buffer", rings.no_buffer),
        ]
    }
}

/// Stores a frame with a split header in a buffer.
fn store_split(bytes: &[u8], buffers: &mut dyn Buffers) -> Result<Frame, CopyError> {
    let (header, rest) = bytes.split_at(bytes.len().min(SNAPSHOT_MAX));
    let buffer = buffers.take().ok_or(CopyError::NoBuffer)?;
    let stored = match Frame::split(header, buffer, bytes.len()) {
        Some(frame) => match buffer.span.skip(header.len()).write(rest) {
            Ok(()) => return Ok(frame),
            Err(fault) => fault.into(),
        },
        None => CopyError::NoBuffer,
    };
    buffers.put(buffer.id);
    Err(stored)
}
