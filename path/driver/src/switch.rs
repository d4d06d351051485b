//! The switch: it carries a batch of frames from a port over the bridge to the ports that get them.
//!
//! A batch is taken, decided on, sorted by the ports it goes out by, made fit for each, sent, and
//! given back, all here and in one go. A frame stays for later only where large receive offload
//! holds it, or in the queue of the guest that it is for.

use crate::capture::Capture;
use crate::dirty_ports::DirtyPorts;
use crate::egress::EgressBatch;
use crate::firewall::Firewall;
use crate::outbox::Outbox;
use crate::ports::{Port, Ports};
use crate::queueing::{Queueing, Way};
use net::bridge::{Bridge, DropReason, Verdict};
use net::fair::QUANTUM_MIN;
use nic::Frame;
use runtime::ledger::{Hop, Ledger};
use runtime::trace::{Trace, dropped_by_bridge};
use std::rc::Rc;
use std::slice;

/// Ports, the bridge between them, and what a batch needs on its way.
#[derive(Debug)]
pub struct Switch {
    /// All ports, numbered as the bridge numbers them.
    pub ports: Ports,
    /// Who gets a frame.
    pub bridge: Bridge,
    /// The names of the bridge's rules.
    pub firewall: Firewall,
    /// What ports cannot do by themselves.
    pub outbox: Outbox,
    /// Which frames of the batch under way go out by which port; empty between batches.
    pub egress: EgressBatch,
    /// The frame that is followed, if there is one.
    pub trace: Trace,
    /// What ports see, if somebody asks.
    pub capture: Capture,
    /// Guests that are to be shown what was done.
    pub dirty: DirtyPorts,
    /// Frames that wait for guests.
    pub queueing: Queueing,
    /// Where time goes.
    pub ledger: Rc<Ledger>,
    /// Room for a batch; empty between batches.
    frames: Vec<Frame>,
    /// One for each frame of the batch carried last.
    verdicts: Vec<Verdict>,
}

/// What a port's batch was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Frames that the port had to do with.
    pub packets: usize,
    /// Bytes that they count for.
    pub bytes: u64,
}

impl Switch {
    /// A switch that has carried nothing yet.
    #[must_use]
    pub fn new(
        ports: Ports,
        bridge: Bridge,
        firewall: Firewall,
        queueing: Queueing,
        ledger: Rc<Ledger>,
    ) -> Self {
        let mut egress = EgressBatch::default();
        for (number, _) in ports.iter() {
            egress.make_room(number);
        }
        Self {
            ports,
            bridge,
            firewall,
            outbox: Outbox::default(),
            egress,
            trace: Trace::default(),
            capture: Capture::default(),
            dirty: DirtyPorts::default(),
            queueing,
            ledger,
            frames: Vec::new(),
            verdicts: Vec::new(),
        }
    }

    /// Carries a batch of up to `budget` frames that came in by a port.
    ///
    /// A frame that is cut in software counts for at least as many full frames as it becomes. The
    /// work is per frame, and a guest that asks for tiny segments is to gain nothing by it.
    pub fn carry(&mut self, in_port: usize, now_ns: u64, budget: usize) -> Carried {
        self.verdicts.clear();
        let Some(port) = self.ports.get_mut(in_port) else {
            return Carried::default();
        };
        let mut frames = std::mem::take(&mut self.frames);
        let packets = port.take(now_ns, budget, &mut frames, &self.ledger);
        let mut bytes = 0;
        // What large receive offload held may go on without anything new, and the other way round.
        if !frames.is_empty() {
            let segmented = self.outbox.segmented;
            bytes = frames.iter().map(|frame| frame.len() as u64).sum();
            self.forward(in_port, now_ns, &mut frames);
            let cut = self.outbox.segmented.saturating_sub(segmented);
            bytes = bytes.max(cut.saturating_mul(QUANTUM_MIN.into()));
        }
        if let Some(port) = self.ports.get_mut(in_port) {
            port.done(&mut frames, &self.ledger);
            self.dirty.mark(in_port);
        }
        self.frames = frames;
        Carried { packets, bytes }
    }

    /// What the bridge has decided on each frame of the batch carried last; empty if there was
    /// none.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// Decides where each frame of a batch goes, and sends it there.
    pub fn forward(&mut self, in_port: usize, now_ns: u64, frames: &mut [Frame]) {
        let before = self.ledger.enter(Hop::Bridge);
        let mut verdicts = std::mem::take(&mut self.verdicts);
        self.decide(in_port, now_ns, frames, &mut verdicts);
        for (frame, verdict) in (0..).zip(&verdicts) {
            match verdict {
                Verdict::Unicast(port) => self.egress.add(*port, [frame]),
                Verdict::Many(set) => set.iter().for_each(|port| self.egress.add(port, [frame])),
                Verdict::Drop(_) => {}
            }
        }
        self.verdicts = verdicts;
        self.send(in_port, now_ns, frames);
        self.trace.end();
        self.ledger.enter(before);
    }

    /// Decides where each frame of a batch goes, one verdict for each. [`Trace::end`] follows.
    pub fn decide(
        &mut self,
        in_port: usize,
        now_ns: u64,
        frames: &mut [Frame],
        verdicts: &mut Vec<Verdict>,
    ) {
        if let Some(port) = self.ports.get(in_port) {
            let hop = port.hop();
            self.trace.begin(hop, port.name(), frames);
            if let (Hop::Nic, Some(gso)) = (hop, frames.first().and_then(|f| f.offload.gso)) {
                self.trace.step(Hop::Lro, || {
                    format!("merged of packets with {} bytes each", gso.size)
                });
            }
        }
        verdicts.clear();
        self.bridge.forward_batch(frames, in_port, now_ns, verdicts);
        if let (Some(verdict), Some(frame)) = (verdicts.first(), frames.first()) {
            let Self {
                trace,
                bridge,
                firewall,
                ports,
                ..
            } = self;
            trace.step(Hop::Bridge, || match verdict {
                Verdict::Drop(DropReason::Firewall) => {
                    let denied = firewall.denied_by(bridge, frame.header(), in_port, now_ns);
                    denial(denied, ports)
                }
                _ => decision(verdict, ports),
            });
        }
        if self.capture.is_on()
            && let Some(port) = self.ports.get(in_port)
        {
            self.capture.came_in(port.name(), frames, verdicts, now_ns);
        }
    }

    /// Sends each frame of a batch by the ports that it goes out by.
    fn send(&mut self, in_port: usize, now_ns: u64, frames: &[Frame]) {
        let Self {
            ports,
            egress,
            outbox,
            ledger,
            trace,
            capture,
            dirty,
            queueing,
            ..
        } = self;
        let mut way = Way {
            ports,
            outbox,
            capture,
            dirty,
            ledger,
            now_ns,
        };
        for (number, all) in egress.all() {
            let Some(port) = way.ports.get(number) else {
                continue;
            };
            way.dirty.mark(number);
            // The frame that is followed and those that are captured go by themselves, so that what
            // is counted is what became of each.
            let captured = way.capture.sees(port.name());
            let alone = match all {
                all if captured => all.len(),
                [0, ..] if trace.is_running() => 1,
                _ => 0,
            };
            let (alone, rest) = all.split_at_checked(alone).unwrap_or((&[], all));
            for pick in alone {
                let fate = |way: &Way<'_>| {
                    let fate = way.ports.get(number).map(Port::fate).unwrap_or_default();
                    fate.with(way.outbox.unfit.reasons())
                };
                let before = fate(&way);
                let one = slice::from_ref(pick);
                let queued = queueing.send(&mut way, (in_port, number), frames, one);
                let after = fate(&way);
                let Some(port) = way.ports.get(number) else {
                    continue;
                };
                if *pick == 0 {
                    trace.step(port.hop(), || match queued {
                        true => format!("waits in the queue towards {}", port.name()),
                        false => after.since(&before, port.name()),
                    });
                }
                // A frame that was queued is captured when it leaves the queue.
                if captured
                    && !queued
                    && let Some(frame) = frames.get(*pick as usize)
                {
                    let dropped = after.dropped_since(&before);
                    let name = port.name();
                    way.capture.went_out(name, frame, dropped, now_ns);
                }
            }
            queueing.send(&mut way, (in_port, number), frames, rest);
        }
        egress.clear();
    }

    /// Sends frames that have waited for guests and can go on; whether there were any.
    pub fn drain_queues(&mut self, now_ns: u64) -> bool {
        let before = self.ledger.enter(Hop::Netback);
        let (queueing, mut way) = self.queues(now_ns);
        let moved = queueing.drain_all(&mut way);
        self.ledger.enter(before);
        moved
    }

    /// Drops what waits for the guest at `port`.
    pub fn forget_queue(&mut self, port: usize, now_ns: u64) {
        let (queueing, mut way) = self.queues(now_ns);
        queueing.forget(&mut way, port);
    }

    fn queues(&mut self, now_ns: u64) -> (&mut Queueing, Way<'_>) {
        let way = Way {
            ports: &mut self.ports,
            outbox: &mut self.outbox,
            capture: &mut self.capture,
            dirty: &mut self.dirty,
            ledger: &self.ledger,
            now_ns,
        };
        (&mut self.queueing, way)
    }
}

/// What the bridge decided, in words.
fn decision(verdict: &Verdict, ports: &Ports) -> String {
    let name = |port: usize| ports.name(port).unwrap_or("?");
    match verdict {
        Verdict::Unicast(port) => format!("goes to {}", name(*port)),
        Verdict::Many(set) => {
            let names: Vec<_> = set.iter().map(name).collect();
            format!("goes to {}", names.join(", "))
        }
        Verdict::Drop(reason) => dropped_by_bridge(*reason),
    }
}

/// In words, that a rule, if it is known which, denies a frame.
fn denial(rule: Option<(usize, &str)>, ports: &Ports) -> String {
    let why = dropped_by_bridge(DropReason::Firewall);
    match rule {
        Some((port, rule)) => {
            let port = ports.name(port).unwrap_or("");
            format!("{why} (rule {rule} of {port})")
        }
        None => why,
    }
}

#[cfg(test)]
mod tests;
