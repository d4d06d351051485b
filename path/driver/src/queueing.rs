//! Frames that wait for a guest: which frames wait, in whose buffers, and how they go on.
//!
//! A frame goes straight to its guest while the guest has receive buffers and tokens for it and no
//! frame waits. Otherwise it joins the guest's [`EgressQueue`]. A frame of a NIC stays in the NIC's
//! buffers. A frame of a guest is copied, so that its sender has its pages back and is not held up.
//!
//! Buffers are shared by dynamic thresholds (Choudhury and Hahne 1998): a queue may hold twice what
//! all queues leave free of the part of a supply that queues may use. A full queue drops from its
//! longest flow; before it is full it signals congestion early. A quarter of each NIC's buffers is
//! never queued: the NIC goes on receiving.
//!
//! [`EgressQueue`]: crate::egress_queue::EgressQueue

use crate::capture::Capture;
use crate::dirty_ports::DirtyPorts;
use crate::egress_queue::{Blocked, Queued};
use crate::outbox::{Outbox, Takes};
use crate::ports::{Port, Ports};
use crate::share::QueueShare;
use crate::vifs::VifPort;
use config::domain::BUFFER_BYTES;
use net::packet::flow::flow_hash;
use net::queue::Cause;
use nic::{Frame, Pool};
use runtime::ledger::Ledger;
use shmem::Area;

/// Frames that go to a guest at once.
const BATCH: usize = 64;

/// What sending needs beside the queues.
pub struct Way<'a> {
    /// All ports.
    pub ports: &'a mut Ports,
    /// What ports cannot do by themselves.
    pub outbox: &'a mut Outbox,
    /// What ports see, if it is captured.
    pub capture: &'a mut Capture,
    /// Ports whose rings need publishing.
    pub dirty: &'a mut DirtyPorts,
    /// Where time goes.
    pub ledger: &'a Ledger,
    /// The time.
    pub now_ns: u64,
}

/// The queues of all guests.
#[derive(Debug)]
pub struct Queueing {
    /// Buffers for frames of guests.
    pool: Pool,
    share: QueueShare,
    /// Ports with frames that wait.
    waiting: Vec<usize>,
    // Scratch, empty between calls.
    lost: Vec<(Cause, Box<Queued>)>,
    #[expect(clippy::vec_box, reason = "frames stay in the boxes of the queue")]
    batch: Vec<Box<Queued>>,
    frames: Vec<Frame>,
    pick: Vec<u32>,
    rest: Vec<u32>,
}

impl Queueing {
    /// Empty queues. Frames of guests that wait lie in `area`.
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

    /// Whether no frame waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends those of `frames` that are in `pick` by port `number`, now or when it has room; they
    /// came in by `in_port`. Returns whether some of them wait or waited.
    #[inline]
    pub fn send(
        &mut self,
        way: &mut Way<'_>,
        (in_port, number): (usize, usize),
        frames: &[Frame],
        pick: &[u32],
    ) -> bool {
        let Some(port) = way.ports.get_mut(number) else {
            return false;
        };
        let (now_ns, ledger) = (way.now_ns, way.ledger);
        let chosen = || pick.iter().filter_map(|&index| frames.get(index as usize));
        let mut rest = std::mem::take(&mut self.rest);
        match (port, pick) {
            (_, []) => {}
            (Port::Vif(vif), _) => match vif.caps().map(Takes::of_guest) {
                // Counted there.
                None => vif.send(frames, pick, ledger),
                Some(takes) if vif.egress.is_open() && chosen().all(|frame| takes.takes(frame)) => {
                    vif.send_while_posted(frames, pick, ledger, &mut rest);
                }
                Some(takes) => {
                    let bytes = || chosen().map(Frame::len).sum();
                    if vif.egress.affords(now_ns, bytes) && vif.has_room(chosen()) {
                        vif.egress.charge(now_ns, bytes);
                        way.outbox.deliver(frames, pick, takes, |frames, pick| {
                            vif.send(frames, pick, ledger);
                        });
                    } else {
                        rest.extend(pick);
                    }
                }
            },
            (nic, _) => send_by(nic, way.outbox, now_ns, frames, pick, ledger),
        }
        let waits = !rest.is_empty();
        if waits {
            for index in rest.drain(..) {
                if let Some(frame) = frames.get(index as usize) {
                    self.enqueue(way, (in_port, number), frame);
                }
            }
            self.drain(way, number);
        }
        self.rest = rest;
        waits
    }

    /// Sends what can go on now; whether anything did.
    pub fn drain_all(&mut self, way: &mut Way<'_>) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&number) = self.waiting.get(at) {
            moved |= self.drain(way, number);
            // A port that waits no more has left the list.
            at += usize::from(self.waiting.get(at) == Some(&number));
        }
        moved
    }

    /// Drops what waits for the guest at `number`, which is not connected any more.
    pub fn forget(&mut self, way: &mut Way<'_>, number: usize) {
        if let Some(vif) = way.ports.vif_mut(number) {
            let all: Vec<_> = vif.egress.drain().collect();
            vif.not_connected += all.len() as u64;
            for queued in all {
                self.release(way.ports, queued);
            }
        }
        self.waiting.retain(|waiting| *waiting != number);
    }

    /// When the first queue is to be served although nothing happens.
    #[must_use]
    pub fn due_ns(&self, ports: &Ports, now_ns: u64) -> Option<u64> {
        let waiting = self.waiting.iter().filter_map(|port| ports.vif(*port));
        waiting.filter_map(|vif| vif.egress.due_ns(now_ns)).min()
    }

    /// The driver is about to sleep: guests whose frames wait for buffers are to notify it of
    /// these.
    pub fn arm(&self, ports: &mut Ports) {
        for number in &self.waiting {
            if let Some(vif) = ports.vif_mut(*number)
                && matches!(vif.egress.blocked(), Blocked::Buffers(..))
            {
                vif.arm_for_buffers();
            }
        }
    }

    /// Whether a frame that waits for buffers has them.
    pub fn has_work(&self, ports: &mut Ports) -> bool {
        self.waiting.iter().any(|number| {
            let vif = ports.vif_mut(*number);
            vif.is_none_or(|vif| match vif.egress.blocked() {
                Blocked::Buffers(wanted, _) => vif.posted(wanted) >= wanted,
                Blocked::Tokens(_) => false,
                Blocked::Nothing => true,
            })
        })
    }

    /// Puts a frame into the queue of the guest at `number`, or drops it.
    fn enqueue(&mut self, way: &mut Way<'_>, (in_port, number): (usize, usize), frame: &Frame) {
        let kept = self.keep(way, (in_port, number), frame);
        let Some(vif) = way.ports.vif_mut(number) else {
            return;
        };
        let Some(queued) = kept else {
            vif.egress.drops.count(Cause::Full, frame);
            return;
        };
        if vif.egress.is_empty() && !self.waiting.contains(&number) {
            self.waiting.push(number);
        }
        let hash = flow_hash(frame.header());
        vif.egress.push(queued, hash, way.now_ns);
    }

    /// A frame for the queue of the guest at `number`, in memory that stays. `None`: there is no
    /// room.
    fn keep(
        &mut self,
        way: &mut Way<'_>,
        (in_port, number): (usize, usize),
        frame: &Frame,
    ) -> Option<Box<Queued>> {
        let whole = None;
        if way.ports.nic(in_port).is_some() {
            let units = frame.pieces.len();
            self.make_room(way, Some(in_port), number, units)?;
            if way.ports.nic_mut(in_port)?.keep_queued(frame) {
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
        self.make_room(way, None, number, units)?;
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

    /// Makes room for `units` buffers of a NIC, or of this one's, in the queue of the guest at
    /// `number`, by drops from that queue. `None`: that is not enough.
    fn make_room(
        &mut self,
        way: &mut Way<'_>,
        nic: Option<usize>,
        number: usize,
        units: usize,
    ) -> Option<()> {
        loop {
            let has = way.ports.vif(number)?.egress.units();
            let (share, capacity) = match nic.and_then(|nic| way.ports.nic(nic)) {
                Some(nic) => nic.queue_share(),
                None => (self.share, self.pool.capacity()),
            };
            let vif = way.ports.vif_mut(number)?;
            if share.allows(capacity, has, units) {
                let quarters = share.quarters(capacity, has);
                vif.egress
                    .signal_early(way.now_ns, quarters, &mut self.lost);
                self.drop_lost(way, number);
                return Some(());
            }
            if !vif.egress.drop_from_longest(&mut self.lost) {
                return None;
            }
            self.drop_lost(way, number);
        }
    }

    /// Sends what waits for the guest at `number` and can go on; whether anything did.
    fn drain(&mut self, way: &mut Way<'_>, number: usize) -> bool {
        let mut moved = false;
        loop {
            let Some(vif) = way.ports.vif_mut(number).filter(|vif| vif.caps().is_some()) else {
                self.forget(way, number);
                return moved;
            };
            vif.egress.expire(way.now_ns, &mut self.lost);
            vif.take_queued(way.now_ns, BATCH, &mut self.batch, &mut self.lost);
            self.drop_lost(way, number);
            // A link that has ended meanwhile is seen above.
            let is_up = |vif: &VifPort| vif.caps().is_some();
            if self.batch.is_empty() && way.ports.vif(number).is_none_or(is_up) {
                break;
            }
            moved = true;
            self.deliver(way, number);
        }
        if way
            .ports
            .vif(number)
            .is_none_or(|vif| vif.egress.is_empty())
        {
            self.waiting.retain(|waiting| *waiting != number);
        }
        moved
    }

    /// Sends the batch.
    fn deliver(&mut self, way: &mut Way<'_>, number: usize) {
        let batch = self.batch.iter_mut();
        self.frames.extend(batch.map(|queued| queued.frame.take()));
        self.pick.extend(0..self.frames.len() as u32);
        if let Some(port) = way.ports.get_mut(number) {
            way.dirty.mark(number);
            // Frames that are captured go one by one: the counters tell what became of each.
            let captured = way.capture.sees(port.name());
            let at_once = if captured { 1 } else { BATCH };
            for pick in self.pick.chunks(at_once) {
                let before = captured.then(|| port.fate());
                send_by(port, way.outbox, way.now_ns, &self.frames, pick, way.ledger);
                if let (Some(before), [pick]) = (before, pick)
                    && let Some(frame) = self.frames.get(*pick as usize)
                {
                    let dropped = port.fate().dropped_since(&before);
                    way.capture
                        .went_out(port.name(), frame, dropped, way.now_ns);
                }
            }
        }
        self.pick.clear();
        let batch = std::mem::take(&mut self.batch);
        for (mut queued, frame) in batch.into_iter().zip(self.frames.drain(..)) {
            queued.frame = frame;
            release(way.ports, (&mut self.pool, &mut self.share), queued);
        }
    }

    /// Counts and releases what the queue of the guest at `number` has dropped.
    fn drop_lost(&mut self, way: &mut Way<'_>, number: usize) {
        while let Some((cause, queued)) = self.lost.pop() {
            if let Some(vif) = way.ports.vif_mut(number) {
                vif.egress.drops.count(cause, &queued.frame);
                if way.capture.sees(&vif.name) {
                    let reasons = vif.egress.drops.reasons();
                    let why = match (cause, reasons) {
                        (Cause::Full, [full, ..]) => full,
                        (Cause::Codel, [_, codel, _]) => codel,
                        (Cause::Late, [.., late]) => late,
                    };
                    let why = runtime::trace::dropped(why.0, why.1);
                    way.capture
                        .went_out(&vif.name, &queued.frame, Some(why), way.now_ns);
                }
            }
            self.release(way.ports, queued);
        }
    }

    fn release(&mut self, ports: &mut Ports, queued: Box<Queued>) {
        release(ports, (&mut self.pool, &mut self.share), queued);
    }
}

/// Gives the buffers of a frame that waits no more back to their owner.
fn release(ports: &mut Ports, (pool, share): (&mut Pool, &mut QueueShare), queued: Box<Queued>) {
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

/// Sends those of `frames` that are in `pick` by a port, which gets them as it can take them.
fn send_by(
    port: &mut Port,
    outbox: &mut Outbox,
    now_ns: u64,
    frames: &[Frame],
    pick: &[u32],
    ledger: &Ledger,
) {
    match port.caps() {
        Some(caps) => {
            let takes = Takes {
                caps,
                finds_checksum: matches!(port, Port::Vif(_)),
            };
            outbox.deliver(frames, pick, takes, |frames, pick| {
                port.send(now_ns, frames, pick, ledger);
            });
        }
        // A port that cannot send now counts them.
        None => port.send(now_ns, frames, pick, ledger),
    }
}

#[cfg(test)]
mod tests;
