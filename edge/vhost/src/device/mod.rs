//! A virtual machine's queue pairs as devices, one for each queue of its interface.
//!
//! [`nic::Nic::rx`] returns the frames that the driver transmits, and [`nic::Nic::tx`] fills the
//! buffers that the driver has posted. Both copy, and neither keeps a frame, a chain or a buffer
//! between two calls. Frames that lie in one buffer each and need no offload take a fast path in
//! both directions ([`nic::SmallFrames`]).

mod from_vm;
mod parts;
mod small_frames;
mod steering;
mod to_vm;

use crate::backend::VhostBackend;
use crate::connection::VmmConnection;
use crate::memory::VmMemory;
use crate::queue::{RingError, SplitRing};
use crate::system::VhostSystem;
use from_vm::FromVm;
use net::packet::flow::flow_hash;
use nic::{Buffers, Caps, Frame, Nic, Notified, SmallFrames, TxReport};
use parts::{ETHERNET, RunningRing};
use std::cell::RefCell;
use std::rc::Rc;
use steering::{QueueSteering, rx_ring, tx_ring};
use to_vm::ToVm;

/// Result of a pass over a ring. An error stops the ring.
type RingResult = Result<(), RingError>;

/// The device of one queue of the interface. All of them share one [`VhostBackend`].
#[derive(Debug)]
pub struct QueueDevice<S> {
    backend: Rc<RefCell<VhostBackend<S>>>,
    steering: QueueSteering,
    caps: Caps,
    from_vm: FromVm,
    /// Number of calls of [`Nic::rx`], each of which begins with another pair.
    turn: usize,
    to_vm: ToVm,
    /// The receive queue that lacks buffers for the next frame, and the index of its available ring
    /// at that time.
    short: Option<(usize, u16)>,
}

impl<S: VhostSystem> QueueDevice<S> {
    /// Returns the devices of an interface with `queues` queues, in order.
    pub fn all(backend: VhostBackend<S>, queues: usize) -> Vec<Self> {
        let offer = *backend.offer();
        let backend = Rc::new(RefCell::new(backend));
        let caps = Caps {
            checksum: offer.checksum,
            tso: offer.checksum && offer.tso,
            max_frame: usize::from(offer.mtu) + ETHERNET,
        };
        let pairs = usize::from(offer.queue_pairs);
        let port = |number| Self {
            backend: Rc::clone(&backend),
            steering: QueueSteering::new(number, queues, pairs),
            caps,
            from_vm: FromVm::default(),
            turn: 0,
            to_vm: ToVm::default(),
            short: None,
        };
        (0..queues).map(port).collect()
    }

    /// Runs `act` on a ring if it runs, and stops the ring if it breaks.
    fn with_ring<T>(
        backend: &mut VhostBackend<S>,
        number: usize,
        act: impl FnOnce(&mut SplitRing, &VmMemory) -> Result<T, RingError>,
    ) -> Option<T> {
        let connection = backend.connection.as_mut()?;
        let queue = connection.vrings.get_mut(number)?.queue.as_mut()?;
        match act(queue, &connection.memory) {
            Ok(done) => Some(done),
            Err(broken) => {
                backend.fail(number, broken);
                None
            }
        }
    }

    /// Returns whether this is the first port, which serves the connection of all ports.
    const fn is_first(&self) -> bool {
        self.steering.number == 0
    }

    /// Returns the control queue, for the first port.
    fn control_ring(&self, backend: &VhostBackend<S>) -> Option<usize> {
        let connection = backend.connection.as_ref().filter(|_| self.is_first());
        connection.and_then(VmmConnection::control_ring)
    }

    /// Announces the virtual machine's MAC, if an announcement is due. After a migration or a
    /// restart, switches with a stale entry learn the new port from the frame's source address.
    fn announce(&mut self, buffers: &mut dyn Buffers, out: &mut Vec<Frame>) {
        if !self.is_first() {
            return;
        }
        let mut backend = self.backend.borrow_mut();
        let Some(bytes) = backend.announcement() else {
            return;
        };
        match Frame::from_bytes(&bytes, buffers) {
            Ok(frame) => {
                out.push(frame);
                backend.record_announcement();
            }
            Err(_) => self.from_vm.starved = true,
        }
    }

    /// Calls `read` for the transmit queue of each pair, while budget and buffers remain. `read`
    /// gets the rest of the budget, and returns the number of frames that it has taken, even on an
    /// error.
    fn rx_pairs(
        &mut self,
        budget: usize,
        mut read: impl FnMut(&mut FromVm, RunningRing<'_>, usize) -> (usize, RingResult),
    ) {
        self.turn = self.turn.wrapping_add(1);
        let mut taken = 0;
        for pair in self.steering.own_pairs(self.turn) {
            let left = budget.saturating_sub(taken);
            if left == 0 || self.from_vm.has_stopped() {
                break;
            }
            let backend = &mut *self.backend.borrow_mut();
            let number = tx_ring(pair);
            let Some(connection) = &mut backend.connection else {
                return;
            };
            let (features, memory) = (connection.features, &connection.memory);
            let vring = connection.vrings.get_mut(number);
            let Some((notifier, queue)) = vring.and_then(|vring| vring.running()) else {
                continue;
            };
            let ring = RunningRing {
                queue,
                memory,
                features,
                caps: self.caps,
            };
            let (count, took) = read(&mut self.from_vm, ring, left);
            taken += count;
            backend.moved |= count > 0;
            // The queue is published even after a fault, because earlier chains have been returned.
            match took.and(queue.publish(memory)) {
                Ok(true) => notifier.call(),
                Ok(false) => {}
                Err(broken) => backend.fail(number, broken),
            }
        }
    }

    /// Splits `items` into runs for one pair each, by flow hash, and calls `write` for each run.
    fn tx_pairs<T>(
        &mut self,
        items: &[T],
        flow: impl Fn(&T) -> u32,
        mut write: impl FnMut(&mut ToVm, RunningRing<'_>, &[T], &mut TxReport) -> RingResult,
    ) -> TxReport {
        let mut report = TxReport::default();
        let done = |report: &TxReport| report.sent + report.full + report.fault + report.refused;
        let backend = &mut *self.backend.borrow_mut();
        self.short = None;
        let mut rest = items;
        while let Some(connection) = &mut backend.connection
            && !rest.is_empty()
        {
            let in_use = connection.pairs_in_use();
            let (pair, count) = self.steering.run_of(rest, &flow, in_use);
            let number = rx_ring(pair);
            let (features, tso) = (connection.features, connection.takes_tso());
            let vring = connection.vrings.get_mut(number);
            let Some((notifier, queue)) = vring.and_then(|vring| vring.running()) else {
                break;
            };
            let memory = &connection.memory;
            let (run, behind) = rest.split_at(count);
            rest = behind;
            let ring = RunningRing {
                queue,
                memory,
                features,
                caps: to_vm::caps(self.caps.max_frame, features, tso),
            };
            let gave = write(&mut self.to_vm, ring, run, &mut report);
            match gave.and(queue.publish(memory)) {
                Ok(called) => {
                    if called {
                        notifier.call();
                    }
                    if let Some(seen) = self.to_vm.short_at {
                        self.short = Some((number, seen));
                        report.waiting = items.len() as u32 - done(&report);
                        backend.moved |= report.sent > 0;
                        return report;
                    }
                }
                Err(broken) => {
                    // Count the frame at which the ring broke, and all later ones, in `full`.
                    report.full += (items.len() - rest.len()) as u32 - done(&report);
                    backend.fail(number, broken);
                }
            }
        }
        backend.moved |= report.sent > 0;
        self.to_vm.no_driver += rest.len() as u64;
        report.full += rest.len() as u32;
        report
    }
}

impl<S: VhostSystem> Nic for QueueDevice<S> {
    /// Returns the capabilities that the device offers to the driver. The device performs in
    /// software the offloads that the driver has not accepted.
    fn caps(&self) -> Caps {
        self.caps
    }

    fn rx(
        &mut self,
        _now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let before = out.len();
        self.from_vm.resume();
        self.announce(buffers, out);
        let left = budget.saturating_sub(out.len() - before);
        self.rx_pairs(left, |from_vm, ring, budget| {
            let before = out.len();
            let took = from_vm.run(ring, budget, buffers, out);
            (out.len() - before, took)
        });
        out.len() - before
    }

    fn tx(&mut self, _now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let frame = |index: &u32| frames.get(*index as usize);
        let flow = |index: &u32| flow_hash(frame(index).map_or(&[][..], Frame::header));
        self.tx_pairs(pick, flow, |to_vm, ring, run, report| {
            to_vm.run(ring, run.iter().map(frame), report)
        })
    }

    fn next_due(&self, _now_ns: u64) -> Option<u64> {
        let backend = self.is_first().then(|| self.backend.borrow())?;
        backend.due_ns()
    }

    fn starved(&self) -> bool {
        self.from_vm.starved
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.from_vm.counters();
        all.extend(self.to_vm.counters());
        if self.is_first() {
            let backend = self.backend.borrow();
            let counters = backend.counters;
            all.extend(backend.state());
            all.extend([
                ("vm_connections", counters.connections),
                ("vm_refused", counters.refused),
                ("vm_broken_rings", counters.broken_rings),
            ]);
        }
        all
    }

    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        Some(self)
    }

    fn notified(&mut self) -> Option<&mut dyn Notified> {
        Some(self)
    }
}

impl<S: VhostSystem> Notified for QueueDevice<S> {
    fn serve(&mut self, now_ns: u64) -> bool {
        self.is_first() && self.backend.borrow_mut().serve(now_ns)
    }

    fn set_link(&mut self, is_up: bool, now_ns: u64) {
        if self.is_first() {
            self.backend.borrow_mut().set_link(is_up, now_ns);
        }
    }

    fn arm(&mut self) {
        let backend = &mut self.backend.borrow_mut();
        let control = self.control_ring(backend);
        let transmit = self.steering.own_pairs(0).map(tx_ring);
        let short = self.short.map(|(ring, _)| ring);
        for ring in transmit.chain(control).chain(short) {
            Self::with_ring(backend, ring, |queue, memory| queue.arm(memory));
        }
    }

    fn disarm(&mut self) {
        let backend = &mut self.backend.borrow_mut();
        let control = self.control_ring(backend);
        let own = self.steering.own_pairs(0);
        let rings = own.flat_map(|pair| [rx_ring(pair), tx_ring(pair)]);
        for ring in rings.chain(control) {
            Self::with_ring(backend, ring, |queue, memory| queue.disarm(memory));
        }
        if self.is_first() {
            backend.record_wake();
        }
    }

    fn has_work(&mut self) -> bool {
        let backend = &mut self.backend.borrow_mut();
        let control = self.control_ring(backend);
        let transmit = self.steering.own_pairs(0).map(tx_ring);
        for ring in transmit.chain(control) {
            let chains = Self::with_ring(backend, ring, |queue, _| queue.count());
            if chains.is_some_and(|chains| chains > 0) {
                return true;
            }
        }
        let Some((ring, short_at)) = self.short else {
            return false;
        };
        let has_more = Self::with_ring(backend, ring, |queue, _| {
            queue.count()?;
            Ok(queue.last_avail() != short_at)
        });
        // A stopped ring accepts frames and drops them.
        has_more.unwrap_or(true)
    }
}
