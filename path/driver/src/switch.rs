//! The switch forwards a batch of frames from a port over the bridge to the egress ports.
//!
//! In one pass, the switch takes a batch from a port, gets the bridge's verdicts, groups the frames
//! by egress port, adapts them to each port, sends them, and returns the batch to the port. Only
//! large receive offload and egress queues hold frames longer.

use crate::capture::CaptureSet;
use crate::dirty_ports::DirtyPorts;
use crate::egress::EgressBatch;
use crate::firewall::KernelFirewall;
use crate::path_mtu::PathMtu;
use crate::ports::{BridgePort, BridgePorts};
use crate::queueing::{Queueing, SendContext};
use crate::software_offload::SoftwareOffloads;
use net::bridge::{self, Bridge, DropReason, Verdict};
use net::fair::QUANTUM_MIN;
use nic::Frame;
use runtime::ledger::{Hop, Ledger};
use runtime::trace::{Trace, dropped};
use std::rc::Rc;
use std::slice;

/// Ingress port number of frames that the driver creates.
const NO_PORT: usize = usize::MAX;

/// The ports, the bridge between them, and the state of a batch.
#[derive(Debug)]
pub struct Switch {
    /// All ports, by the bridge's port numbers.
    pub ports: BridgePorts,
    /// The bridge, with its forwarding table, guards and rules.
    pub bridge: Bridge,
    /// Firewall rules that the kernel enforces.
    pub firewall: KernelFirewall,
    /// Software offloads.
    pub software_offload: SoftwareOffloads,
    /// Egress ports of the current batch's frames; empty between batches.
    pub egress: EgressBatch,
    /// Trace of a frame, if active.
    pub trace: Trace,
    /// Active packet captures.
    pub capture: CaptureSet,
    /// Ports whose rings must be published.
    pub dirty: DirtyPorts,
    /// Egress queues of guests.
    pub queueing: Queueing,
    /// Pending errors to senders of frames that exceed a NIC's MTU.
    pub errors: PathMtu,
    /// The ledger to charge.
    pub ledger: Rc<Ledger>,
    /// Scratch list for a batch; empty between batches.
    frames: Vec<Frame>,
    /// Verdict on each frame of the last batch.
    verdicts: Vec<Verdict>,
}

/// Size of a port's batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStats {
    /// Number of frames that the port handled.
    pub packets: usize,
    /// Number of bytes that rate limits and turns charge for these frames.
    pub bytes: u64,
}

impl Switch {
    /// Creates a switch without ports.
    #[must_use]
    pub fn new(bridge: Bridge, queueing: Queueing, ledger: Rc<Ledger>) -> Self {
        Self {
            ports: BridgePorts::default(),
            bridge,
            firewall: KernelFirewall::default(),
            software_offload: SoftwareOffloads::default(),
            egress: EgressBatch::default(),
            trace: Trace::default(),
            capture: CaptureSet::default(),
            dirty: DirtyPorts::default(),
            queueing,
            errors: PathMtu::default(),
            ledger,
            frames: Vec::new(),
            verdicts: Vec::new(),
        }
    }

    /// Adds a port to the bridge with the guards of `guarded`; returns the port's number.
    ///
    /// # Errors
    /// Returns the reason as text if the bridge rejects the port. Nothing has then changed.
    pub fn add(&mut self, port: BridgePort, guarded: &bridge::PortConfig) -> Result<usize, String> {
        let number = self.ports.insert(port);
        if let Err(error) = self.bridge.add(number, guarded) {
            self.ports.remove(number);
            return Err(error.to_string());
        }
        self.egress.make_room(number);
        Ok(number)
    }

    /// Removes a port and its state, and drops its queued frames.
    pub fn remove(&mut self, number: usize, now_ns: u64) {
        self.forget_queue(number, now_ns);
        self.bridge.remove(number);
        self.firewall.remove(number);
        self.errors.remove(number, &self.ports);
        self.ports.remove(number);
    }

    /// Forwards a batch of up to `budget` frames from a port.
    ///
    /// A frame with pending segmentation counts as its segments. If software segments frames, the
    /// batch counts as at least one full frame per segment. The work is per packet, so a guest that
    /// requests tiny segments gains nothing.
    pub fn forward_from(&mut self, in_port: usize, now_ns: u64, budget: usize) -> BatchStats {
        self.verdicts.clear();
        let Some(port) = self.ports.get_mut(in_port) else {
            return BatchStats::default();
        };
        let mut frames = std::mem::take(&mut self.frames);
        let packets = port.take(now_ns, budget, &mut frames, &self.ledger);
        let mut bytes = 0;
        // The numbers may differ: large receive offload may flush held frames, and hold received
        // ones.
        if !frames.is_empty() {
            let segmented = self.software_offload.segmented;
            bytes = frames.iter().map(|frame| frame.wire_bytes() as u64).sum();
            self.forward(in_port, now_ns, &mut frames);
            let cut = self.software_offload.segmented.saturating_sub(segmented);
            bytes = bytes.max(cut.saturating_mul(QUANTUM_MIN.into()));
        }
        if let Some(port) = self.ports.get_mut(in_port) {
            port.release_taken(&mut frames, &self.ledger);
            self.dirty.mark(in_port);
        }
        self.frames = frames;
        BatchStats { packets, bytes }
    }

    /// Records the destinations of the last batch for the backpressure on the guest at `number`.
    pub fn note_destination(&mut self, number: usize) {
        if let Some(vif) = self.ports.vif_mut(number) {
            vif.sender.sent(&self.verdicts);
        }
    }

    /// Returns the bridge's verdicts on the last batch; empty if the last batch was empty.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// Gets the verdict on each frame of a batch from port `in_port`, and sends the frames.
    pub fn forward(&mut self, in_port: usize, now_ns: u64, frames: &mut [Frame]) {
        let before = self.ledger.enter(Hop::Bridge);
        let mut verdicts = std::mem::take(&mut self.verdicts);
        self.decide(in_port, now_ns, frames, &mut verdicts);
        for (frame, verdict) in (0..).zip(&verdicts) {
            match verdict {
                Verdict::Unicast(port) => self.egress.add(*port, [frame]),
                Verdict::Multiple(set) => {
                    set.iter().for_each(|port| self.egress.add(port, [frame]))
                }
                Verdict::Drop(_) => {}
            }
        }
        self.verdicts = verdicts;
        self.send(in_port, now_ns, frames);
        self.trace.end();
        self.ledger.enter(before);
    }

    /// Gets the verdict on each frame of a batch, and traces and captures the verdicts. The caller
    /// must then call [`Trace::end`].
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
                    format!("merged from packets with {} bytes each", gso.size)
                });
            }
        }
        verdicts.clear();
        self.bridge.forward_batch(frames, in_port, now_ns, verdicts);
        let Self {
            trace,
            bridge,
            ports,
            capture,
            ..
        } = self;
        let ports = &*ports;
        let denied_by = |frame: &Frame, reason| match reason {
            DropReason::Firewall | DropReason::FirewallState => {
                bridge.denied_by(frame.header(), in_port, now_ns)
            }
            _ => None,
        };
        let drop_text = |frame: &Frame, reason| denial(reason, denied_by(frame, reason), ports);
        if let (Some(verdict), Some(frame)) = (verdicts.first(), frames.first()) {
            trace.step(Hop::Bridge, || match verdict {
                Verdict::Drop(reason) => drop_text(frame, *reason),
                Verdict::Unicast(port) => forwarded([*port], ports),
                Verdict::Multiple(set) => forwarded(set.iter(), ports),
            });
        }
        if capture.is_on()
            && let Some(port) = ports.get(in_port)
        {
            for (frame, verdict) in frames.iter().zip(verdicts) {
                let reason = match verdict {
                    Verdict::Drop(reason) => Some(*reason),
                    Verdict::Unicast(_) | Verdict::Multiple(_) => None,
                };
                let denied = reason.and_then(|reason| denied_by(frame, reason));
                let text = reason.map(|reason| move || denial(reason, denied, ports));
                capture.received_at(port.name(), frame, text, now_ns);
                // A capture of the receiver shows which of its rules denied the frame.
                if let (Some(text), Some((number, _))) = (text, denied)
                    && number != in_port
                    && let Some(receiver) = ports.name(number).filter(|name| capture.captures(name))
                {
                    capture.sent_by(receiver, frame, Some(text()), now_ns);
                }
            }
        }
    }

    /// Sends each frame of a batch to its egress ports.
    fn send(&mut self, in_port: usize, now_ns: u64, frames: &[Frame]) {
        let Self {
            ports,
            egress,
            software_offload,
            ledger,
            trace,
            capture,
            dirty,
            queueing,
            errors,
            ..
        } = self;
        let mut context = SendContext {
            ports,
            software_offload,
            capture,
            dirty,
            errors,
            ledger,
            now_ns,
        };
        for (number, all) in egress.all() {
            let Some(port) = context.ports.get(number) else {
                continue;
            };
            context.dirty.mark(number);
            // Traced and captured frames are sent one by one, so that the drop counters show the
            // result of each frame.
            let captured = context.capture.captures(port.name());
            let alone = match all {
                all if captured => all.len(),
                [0, ..] if trace.is_running() => 1,
                _ => 0,
            };
            let (alone, rest) = all.split_at_checked(alone).unwrap_or((&[], all));
            for pick in alone {
                let drop_snapshot = |context: &SendContext<'_>| {
                    let drop_snapshot = context
                        .ports
                        .get(number)
                        .map(BridgePort::drop_snapshot)
                        .unwrap_or_default();
                    drop_snapshot.with_counts(context.software_offload.tx_errors.iter())
                };
                let before = drop_snapshot(&context);
                let one = slice::from_ref(pick);
                let queued = queueing.send(&mut context, (in_port, number), frames, one);
                let after = drop_snapshot(&context);
                let Some(port) = context.ports.get(number) else {
                    continue;
                };
                if *pick == 0 {
                    trace.step(port.hop(), || match queued {
                        true => format!("waits in the queue towards {}", port.name()),
                        false => after.since(&before, port.name()),
                    });
                }
                // A queued frame is captured when the queue sends or drops it.
                if captured
                    && !queued
                    && let Some(frame) = frames.get(*pick as usize)
                {
                    let dropped = after.dropped_since(&before);
                    let name = port.name();
                    context.capture.sent_by(name, frame, dropped, now_ns);
                }
            }
            queueing.send(&mut context, (in_port, number), frames, rest);
        }
        egress.clear();
    }

    /// Sends the errors that this round's frames have caused; returns whether it sent any.
    pub fn send_errors(&mut self, now_ns: u64) -> bool {
        let before = self.ledger.enter(Hop::Netback);
        let errors = self.errors.take();
        for (port, bytes) in &errors {
            if let Some(mut frame) = self.queueing.frame(bytes) {
                self.egress.add(*port, [0]);
                self.send(NO_PORT, now_ns, slice::from_ref(&frame));
                self.queueing.recycle(&mut frame);
            }
        }
        self.ledger.enter(before);
        !errors.is_empty()
    }

    /// Sends as many queued frames as possible; returns whether it sent any.
    pub fn drain_queues(&mut self, now_ns: u64) -> bool {
        let before = self.ledger.enter(Hop::Netback);
        let (queueing, mut context) = self.queues(now_ns);
        let moved = queueing.drain_all(&mut context);
        self.ledger.enter(before);
        moved
    }

    /// Drops the queued frames for the guest at `port`.
    pub fn forget_queue(&mut self, port: usize, now_ns: u64) {
        let (queueing, mut context) = self.queues(now_ns);
        queueing.forget(&mut context, port);
    }

    fn queues(&mut self, now_ns: u64) -> (&mut Queueing, SendContext<'_>) {
        let context = SendContext {
            ports: &mut self.ports,
            software_offload: &mut self.software_offload,
            capture: &mut self.capture,
            dirty: &mut self.dirty,
            errors: &mut self.errors,
            ledger: &self.ledger,
            now_ns,
        };
        (&mut self.queueing, context)
    }
}

/// Describes the egress ports of a frame.
fn forwarded(to: impl IntoIterator<Item = usize>, ports: &BridgePorts) -> String {
    let names = to.into_iter().map(|port| ports.name(port).unwrap_or("?"));
    format!("forwarded to {}", names.collect::<Vec<_>>().join(", "))
}

/// Describes a drop, with the rule that denied the frame, if any.
fn denial(reason: DropReason, rule: Option<(usize, usize)>, ports: &BridgePorts) -> String {
    let why = dropped(reason);
    let port = |(number, rule)| Some((ports.get(number)?, rule));
    match rule.and_then(port) {
        Some((port, rule)) => {
            let rule = port
                .common()
                .rule_names
                .get(rule)
                .map_or("", String::as_str);
            format!("{why} (rule {rule} of {})", port.name())
        }
        None => why,
    }
}

#[cfg(test)]
mod tests;
