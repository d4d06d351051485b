//! Frames from the ring to the endpoint.

use super::device::EndpointDevice;
use super::fast_path::SmallFramesToGuest;
use super::memory::InterfaceMemory;
use super::pass::{PassInput, PassOutcome};
use config::domain::LroConfig;
use config::lro::Placement;
use nic::{Caps, Frame};
use runtime::ledger::Hop;
use runtime::lro::{LroSide, LroStage};
use vif::netfront::Netfront;

/// State of the direction to the endpoint: large receive offload, and scratch lists.
pub(super) struct RxPath {
    pub lro: LroStage,
    /// Frames from the ring that have not passed large receive offload.
    arrived: Vec<Frame>,
    /// Frames for the endpoint. Frames that wait for room in the endpoint stay here between two
    /// passes.
    received: Vec<Frame>,
    /// Frames that the endpoint has processed, while others wait.
    delivered: Vec<Frame>,
    /// The fast path.
    small: SmallFramesToGuest,
}

impl RxPath {
    /// Creates the state for an endpoint with `caps`. Large receive offload holds at most
    /// `held_max` buffers.
    pub(super) fn new(caps: Caps, lro: &LroConfig, held_max: usize) -> Self {
        Self {
            lro: LroStage::new(LroSide::Virtual, &for_endpoint(caps, lro), held_max),
            arrived: Vec::new(),
            received: Vec::new(),
            delivered: Vec::new(),
            small: SmallFramesToGuest::default(),
        }
    }

    /// Changes the settings of large receive offload.
    pub(super) fn set_lro(&mut self, caps: Caps, lro: &LroConfig) {
        self.lro.set(&for_endpoint(caps, lro));
    }

    /// Moves frames.
    pub(super) fn run(
        &mut self,
        netfront: &mut Netfront,
        device: &mut EndpointDevice,
        memory: &mut InterfaceMemory,
        pass: &mut PassInput<'_>,
    ) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        if self.is_waiting() {
            self.small
                .send_waiting(netfront, device, pass, &mut outcome);
            if !self.received.is_empty() {
                self.hand_over(netfront, device, memory, pass, &mut outcome);
            }
            if self.is_waiting() {
                return outcome;
            }
        }
        // Traced or merged frames need full frame records.
        let fast = match pass.trace.is_wanted() || self.lro.is_active() {
            true => 0,
            false => self.small.run(netfront, device, pass, &mut outcome),
        };
        let is_over = self.small.is_waiting() || !self.lro.is_active() && !netfront.has_work();
        if outcome.fatal.is_some() || is_over {
            return outcome;
        }
        let taken = self.receive(netfront, pass, pass.budget - fast, &mut outcome);
        if taken > 0 {
            // More buffers are posted, so that the driver domain can continue while the endpoint
            // has these frames.
            memory.recycle_pages(netfront, pass.ledger, |netfront, granter| {
                netfront.refill(granter);
                netfront.publish();
            });
        }
        if !self.received.is_empty() {
            self.hand_over(netfront, device, memory, pass, &mut outcome);
        }
        outcome
    }

    /// Returns whether frames wait for room in the endpoint.
    pub(super) fn is_waiting(&self) -> bool {
        self.small.is_waiting() || !self.received.is_empty()
    }

    /// Delivers frames, and removes surplus pages from the pool.
    fn hand_over(
        &mut self,
        netfront: &mut Netfront,
        device: &mut EndpointDevice,
        memory: &mut InterfaceMemory,
        pass: &mut PassInput<'_>,
        outcome: &mut PassOutcome,
    ) {
        let before = self.received.len();
        self.deliver(netfront, device, pass);
        if self.received.len() < before {
            outcome.moved = true;
            outcome.touched = true;
            memory.recycle_pages(netfront, pass.ledger, Netfront::release);
        }
    }

    /// Removes up to `budget` frames from the ring, through large receive offload if it is active;
    /// returns their number.
    fn receive(
        &mut self,
        netfront: &mut Netfront,
        pass: &PassInput<'_>,
        budget: usize,
        outcome: &mut PassOutcome,
    ) -> usize {
        let Self {
            lro,
            arrived,
            received,
            ..
        } = self;
        let ledger = pass.ledger;
        let taken = if lro.is_active() {
            let taken = ledger.charge_to(Hop::Netfront, || netfront.receive(budget, arrived));
            outcome.moved |= !arrived.is_empty();
            // This check does not count as a poll, because a turn of this domain may have other
            // causes than packets.
            ledger.charge_to(Hop::Lro, || {
                lro.pass(pass.now_ns, false, arrived, received);
            });
            taken
        } else {
            ledger.charge_to(Hop::Netfront, || netfront.receive(budget, received))
        };
        taken.unwrap_or_else(|fatal| {
            outcome.fatal = Some(fatal);
            0
        })
    }

    /// Sends received frames to the endpoint, and returns the buffers of those that it has
    /// processed.
    fn deliver(
        &mut self,
        netfront: &mut Netfront,
        device: &mut EndpointDevice,
        pass: &mut PassInput<'_>,
    ) {
        let PassInput {
            now_ns,
            ledger,
            ref mut trace,
            ..
        } = *pass;
        trace.begin(Hop::Netfront, "the ring", &self.received);
        let before = ledger.enter(Hop::Endpoint);
        let mut rest = self.received.as_slice();
        let mut waiting = 0;
        // A traced frame is sent alone, so that the counters show its result.
        if trace.is_running()
            && let Some((first, others)) = rest.split_at_checked(1)
        {
            rest = others;
            let before = device.drop_snapshot();
            waiting += device.send(now_ns, first);
            trace.step(Hop::Endpoint, || {
                device.drop_snapshot().since(&before, "the endpoint")
            });
            trace.end();
        }
        // No frame may overtake one that waits.
        waiting += match waiting {
            0 => device.send(now_ns, rest),
            _ => rest.len(),
        };
        ledger.enter(Hop::Netfront);
        if waiting == 0 {
            netfront.receive_done(&mut self.received);
        } else {
            let delivered = self.received.len().saturating_sub(waiting);
            self.delivered.extend(self.received.drain(..delivered));
            netfront.receive_done(&mut self.delivered);
        }
        ledger.enter(before);
    }

    /// Sends the waiting frames, and those that large receive offload holds, to the endpoint. They
    /// count as received even if the connection has ended.
    pub(super) fn drain(&mut self, now_ns: u64, device: &mut EndpointDevice) {
        self.small.drain(now_ns, device);
        let mut held = std::mem::take(&mut self.received);
        self.lro.drain(now_ns, &mut held);
        device.send_final(now_ns, &held);
    }
}

/// Returns the settings of large receive offload before an endpoint: disabled if the endpoint does
/// not accept aggregates.
fn for_endpoint(endpoint: Caps, config: &LroConfig) -> LroConfig {
    let takes = endpoint.tso && endpoint.checksum;
    LroConfig {
        at: if takes { config.at } else { Placement::None },
        ..*config
    }
}
