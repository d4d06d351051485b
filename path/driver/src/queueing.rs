//! Egress queues of all guests. The queues track the owners of the buffers of queued frames.
//!
//! A frame bypasses the queue if the queue is empty and the guest has receive buffers and tokens
//! for the frame. Otherwise the frame joins the guest's [`EgressQueue`]. A queued frame from a NIC
//! stays in the NIC's buffers. A queued frame from a guest is copied, so that the sender gets its
//! pages back immediately.
//!
//! Dynamic thresholds divide the buffers among the queues (Choudhury and Hahne 1998): a queue may
//! occupy up to twice the number of buffers that are free. Queues share three quarters of a pool;
//! the last quarter of a NIC's pool remains for receiving. A full queue drops from its longest
//! flow; before it is full, it signals congestion.
//!
//! [`EgressQueue`]: crate::egress_queue::EgressQueue

use crate::capture::CaptureSet;
use crate::dirty_ports::DirtyPorts;
use crate::dynamic_threshold::QueueShare;
use crate::egress_queue::{Blocked, Queued};
use crate::path_mtu::PathMtu;
use crate::ports::{BridgePort, BridgePorts};
use crate::software_offload::{PortOffloads, SoftwareOffloads, TxError};
use crate::vifs::VifPort;
use config::domain::BUFFER_BYTES;
use net::packet::flow::flow_hash;
use net::queue::QueueDropReason;
use nic::{Frame, Pool};
use runtime::ledger::Ledger;
use shmem::Area;

/// Maximum number of queued frames sent to a guest in one batch.
const BATCH_MAX: usize = 64;

/// State of the switch that sending needs.
pub struct SendContext<'a> {
    /// All ports.
    pub ports: &'a mut BridgePorts,
    /// Software offloads.
    pub software_offload: &'a mut SoftwareOffloads,
    /// Active packet captures.
    pub capture: &'a mut CaptureSet,
    /// Ports whose rings must be published.
    pub dirty: &'a mut DirtyPorts,
    /// Errors to senders of frames that are too long.
    pub errors: &'a mut PathMtu,
    /// Ledger to charge.
    pub ledger: &'a Ledger,
    /// The current time.
    pub now_ns: u64,
}

/// The queues of all guests.
#[derive(Debug)]
pub struct Queueing {
    /// Buffers for queued frames from guests.
    pool: Pool,
    share: QueueShare,
    /// Ports with queued frames.
    waiting: Vec<usize>,
    // Scratch, empty between calls.
    lost: Vec<(QueueDropReason, Box<Queued>)>,
    #[expect(clippy::vec_box, reason = "frames stay in the boxes of the queue")]
    batch: Vec<Box<Queued>>,
    frames: Vec<Frame>,
    pick: Vec<u32>,
    rest: Vec<u32>,
}

impl Queueing {
    /// Creates empty queues. `area` is the memory for copies of queued frames from guests.
    #[must_use]
    pub fn new(area: Area) -> Self {
        Self {
            pool: Pool::new(area, BUFFER_BYTES as usize),
            share: QueueShare::default(),
            waiting: Vec::new(),
            lost: Vec::new(),
            batch: Vec::new(),
            frames: Vec::new(),
            pick: Vec::new(),
            rest: Vec::new(),
        }
    }

    /// Returns a frame with these bytes in a buffer of the queues' pool, or `None` if no buffer is
    /// free.
    #[must_use]
    pub fn frame(&mut self, bytes: &[u8]) -> Option<Frame> {
        Frame::from_bytes(bytes, &mut self.pool).ok()
    }

    /// Frees the buffer of a frame from [`Queueing::frame`].
    pub fn recycle(&mut self, frame: &mut Frame) {
        frame.recycle(&mut self.pool);
    }

    /// Returns whether all queues are empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends or queues the frames of `frames` whose indices are in `pick`, from port `in_port` to
    /// port `number`. Returns whether any of them was queued.
    #[inline]
    pub fn send(
        &mut self,
        context: &mut SendContext<'_>,
        (in_port, number): (usize, usize),
        frames: &[Frame],
        pick: &[u32],
    ) -> bool {
        let Some(port) = context.ports.get_mut(number) else {
            return false;
        };
        let (now_ns, ledger) = (context.now_ns, context.ledger);
        let chosen = || pick.iter().filter_map(|&index| frames.get(index as usize));
        let mut rest = std::mem::take(&mut self.rest);
        match (port, pick) {
            (_, []) => {}
            (BridgePort::Vif(vif), _) => match vif.caps().map(PortOffloads::of_guest) {
                // The port counts them as frames that it could not send.
                None => vif.send(frames, pick, ledger),
                Some(takes)
                    if vif.egress.can_be_bypassed() && chosen().all(|frame| takes.takes(frame)) =>
                {
                    vif.send_while_posted(frames, pick, ledger, &mut rest);
                }
                Some(takes) => {
                    let bytes = || chosen().map(Frame::len).sum();
                    if vif.egress.can_send_now(now_ns, bytes) && vif.has_room(chosen()) {
                        vif.egress.charge(now_ns, bytes);
                        context
                            .software_offload
                            .deliver(frames, pick, takes, |frames, pick| {
                                vif.send(frames, pick, ledger);
                            });
                    } else {
                        rest.extend(pick);
                    }
                }
            },
            (nic, _) => {
                let before = context.software_offload.tx_errors.get(TxError::TooLong);
                send_by(nic, context.software_offload, now_ns, frames, pick, ledger);
                if context.software_offload.tx_errors.get(TxError::TooLong) != before
                    && let Some(caps) = nic.caps()
                {
                    let sender = context.ports.get_mut(in_port);
                    if let Some(sender) = sender {
                        let sender = (in_port, sender);
                        context.errors.report(sender, chosen(), caps, now_ns);
                    }
                }
            }
        }
        let waits = !rest.is_empty();
        if waits {
            for index in rest.drain(..) {
                if let Some(frame) = frames.get(index as usize) {
                    self.enqueue(context, (in_port, number), frame);
                }
            }
            self.drain(context, number);
        }
        self.rest = rest;
        waits
    }

    /// Sends as many queued frames as possible. Returns whether it sent any.
    pub fn drain_all(&mut self, context: &mut SendContext<'_>) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&number) = self.waiting.get(at) {
            moved |= self.drain(context, number);
            // `drain` removes a port from the list if the port's queue is empty.
            at += usize::from(self.waiting.get(at) == Some(&number));
        }
        moved
    }

    /// Drops the queued frames for the guest at `number`, which has disconnected.
    pub fn forget(&mut self, context: &mut SendContext<'_>, number: usize) {
        if let Some(vif) = context.ports.vif_mut(number) {
            let all: Vec<_> = vif.egress.drain().collect();
            vif.not_connected += all.len() as u64;
            for queued in all {
                self.release(context.ports, queued);
            }
        }
        self.waiting.retain(|waiting| *waiting != number);
    }

    /// Returns the time at which the first queue must be served even without an event.
    #[must_use]
    pub fn due_ns(&self, ports: &BridgePorts, now_ns: u64) -> Option<u64> {
        let waiting = self.waiting.iter().filter_map(|port| ports.vif(*port));
        waiting.filter_map(|vif| vif.egress.due_ns(now_ns)).min()
    }

    /// Before the driver sleeps, requests notifications of new receive buffers from the guests
    /// whose frames wait for buffers.
    pub fn arm(&self, ports: &mut BridgePorts) {
        for number in &self.waiting {
            if let Some(vif) = ports.vif_mut(*number)
                && matches!(vif.egress.blocked(), Blocked::Buffers(..))
            {
                vif.arm_for_buffers();
            }
        }
    }

    /// Returns whether any queue can now send its first frame, because its guest has posted enough
    /// buffers.
    pub fn has_work(&self, ports: &mut BridgePorts) -> bool {
        self.waiting.iter().any(|number| {
            let vif = ports.vif_mut(*number);
            vif.is_none_or(|vif| match vif.egress.blocked() {
                Blocked::Buffers(wanted, _) => vif.posted(wanted) >= wanted,
                Blocked::Tokens(_) => false,
                Blocked::Nothing => true,
            })
        })
    }

    /// Queues a frame for the guest at `number`, or drops it.
    fn enqueue(
        &mut self,
        context: &mut SendContext<'_>,
        (in_port, number): (usize, usize),
        frame: &Frame,
    ) {
        let kept = self.retain(context, (in_port, number), frame);
        // The driver creates a frame itself in response to a frame of this guest, so the guest
        // counts as its sender.
        let is_port = context.ports.get(in_port).is_some();
        let sender = if is_port { in_port } else { number };
        let Some(vif) = context.ports.vif_mut(number) else {
            return;
        };
        let Some(queued) = kept else {
            vif.egress.count_drop(QueueDropReason::Full, frame);
            return;
        };
        if vif.egress.is_empty() && !self.waiting.contains(&number) {
            self.waiting.push(number);
        }
        let hash = flow_hash(frame.header());
        vif.egress.push(queued, (sender, hash), context.now_ns);
    }

    /// Returns a frame for the queue of the guest at `number`, in memory that remains valid.
    /// Returns `None` if the queue may not occupy the buffers.
    fn retain(
        &mut self,
        context: &mut SendContext<'_>,
        (in_port, number): (usize, usize),
        frame: &Frame,
    ) -> Option<Box<Queued>> {
        let whole = None;
        if context.ports.nic(in_port).is_some() {
            let units = frame.pieces.len();
            self.make_room(context, Some(in_port), number, units)?;
            if context.ports.nic_mut(in_port)?.keep_queued(frame) {
                let frame = frame.clone();
                let owner = in_port;
                return Some(Box::new(Queued {
                    frame,
                    whole,
                    owner,
                    units,
                }));
            }
        }
        let units = frame.len().div_ceil(BUFFER_BYTES as usize);
        self.make_room(context, None, number, units)?;
        let frame = frame.copied(&mut self.pool).ok()?;
        let units = frame.pieces.len();
        self.share.add(units);
        let owner = Queued::COPIED;
        Some(Box::new(Queued {
            frame,
            whole,
            owner,
            units,
        }))
    }

    /// Drops frames from the queue of the guest at `number` until the queue may occupy `units` more
    /// buffers of `nic`'s pool, or of the queues' pool. Returns `None` if the queue becomes empty
    /// before.
    fn make_room(
        &mut self,
        context: &mut SendContext<'_>,
        nic: Option<usize>,
        number: usize,
        units: usize,
    ) -> Option<()> {
        loop {
            let has = context.ports.vif(number)?.egress.units();
            let (share, capacity) = match nic.and_then(|nic| context.ports.nic(nic)) {
                Some(nic) => nic.queue_share(),
                None => (self.share, self.pool.capacity()),
            };
            let vif = context.ports.vif_mut(number)?;
            if share.allows(capacity, has, units) {
                let quarters = share.quarters(capacity, has);
                vif.egress
                    .signal_early(context.now_ns, quarters, &mut self.lost);
                self.drop_lost(context, number);
                return Some(());
            }
            if !vif.egress.drop_from_longest(&mut self.lost) {
                return None;
            }
            self.drop_lost(context, number);
        }
    }

    /// Sends as many queued frames to the guest at `number` as possible. Returns whether it sent
    /// any.
    fn drain(&mut self, context: &mut SendContext<'_>, number: usize) -> bool {
        let mut moved = false;
        loop {
            let Some(vif) = context
                .ports
                .vif_mut(number)
                .filter(|vif| vif.caps().is_some())
            else {
                self.forget(context, number);
                return moved;
            };
            vif.egress.expire(context.now_ns, &mut self.lost);
            vif.take_queued(context.now_ns, BATCH_MAX, &mut self.batch, &mut self.lost);
            self.drop_lost(context, number);
            // If the link has ended meanwhile, the check above handles it in the next pass.
            let is_up = |vif: &VifPort| vif.caps().is_some();
            if self.batch.is_empty() && context.ports.vif(number).is_none_or(is_up) {
                break;
            }
            moved = true;
            self.deliver(context, number);
        }
        if context
            .ports
            .vif(number)
            .is_none_or(|vif| vif.egress.is_empty())
        {
            self.waiting.retain(|waiting| *waiting != number);
        }
        moved
    }

    /// Sends the frames of `batch`.
    fn deliver(&mut self, context: &mut SendContext<'_>, number: usize) {
        let batch = self.batch.iter_mut();
        self.frames.extend(batch.map(|queued| queued.frame.take()));
        self.pick.extend(0..self.frames.len() as u32);
        if let Some(port) = context.ports.get_mut(number) {
            context.dirty.mark(number);
            // Captured frames are sent one by one, so that the drop counters show the result of
            // each frame.
            let captured = context.capture.captures(port.name());
            let batch_size = if captured { 1 } else { BATCH_MAX };
            for pick in self.pick.chunks(batch_size) {
                let before = captured.then(|| port.drop_snapshot());
                send_by(
                    port,
                    context.software_offload,
                    context.now_ns,
                    &self.frames,
                    pick,
                    context.ledger,
                );
                if let (Some(before), [pick]) = (before, pick)
                    && let Some(frame) = self.frames.get(*pick as usize)
                {
                    let dropped = port.drop_snapshot().dropped_since(&before);
                    context
                        .capture
                        .sent_by(port.name(), frame, dropped, context.now_ns);
                }
            }
        }
        self.pick.clear();
        let batch = std::mem::take(&mut self.batch);
        for (mut queued, frame) in batch.into_iter().zip(self.frames.drain(..)) {
            queued.frame = frame;
            release(context.ports, (&mut self.pool, &mut self.share), queued);
        }
    }

    /// Counts and releases the frames that the queue of the guest at `number` has dropped.
    fn drop_lost(&mut self, context: &mut SendContext<'_>, number: usize) {
        while let Some((cause, queued)) = self.lost.pop() {
            if let Some(vif) = context.ports.vif_mut(number) {
                vif.egress.count_drop(cause, &queued.frame);
                if context.capture.captures(&vif.name) {
                    let why = runtime::trace::dropped(cause);
                    context
                        .capture
                        .sent_by(&vif.name, &queued.frame, Some(why), context.now_ns);
                }
            }
            self.release(context.ports, queued);
        }
    }

    fn release(&mut self, ports: &mut BridgePorts, queued: Box<Queued>) {
        release(ports, (&mut self.pool, &mut self.share), queued);
    }
}

/// Returns the buffers of a frame that is no longer queued to their owner.
fn release(
    ports: &mut BridgePorts,
    (pool, share): (&mut Pool, &mut QueueShare),
    queued: Box<Queued>,
) {
    let Queued {
        frame,
        whole,
        owner,
        units,
    } = *queued;
    let mut frame = whole.unwrap_or(frame);
    if owner == Queued::COPIED {
        share.remove(units);
        frame.recycle(pool);
    } else if let Some(nic) = ports.nic_mut(owner) {
        nic.release_queued(&mut frame, units);
    }
}

/// Sends the frames of `frames` whose indices are in `pick` through a port, with software offloads.
fn send_by(
    port: &mut BridgePort,
    software_offload: &mut SoftwareOffloads,
    now_ns: u64,
    frames: &[Frame],
    pick: &[u32],
    ledger: &Ledger,
) {
    match port.caps() {
        Some(caps) => {
            let takes = PortOffloads {
                caps,
                finds_checksum: matches!(port, BridgePort::Vif(_)),
            };
            software_offload.deliver(frames, pick, takes, |frames, pick| {
                port.send(now_ns, frames, pick, ledger);
            });
        }
        // If the port cannot send now, it only counts the frames.
        None => port.send(now_ns, frames, pick, ledger),
    }
}

#[cfg(test)]
mod tests;
