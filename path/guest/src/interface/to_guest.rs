//! Frames from the ring to the endpoint.

use super::device::Device;
use super::fast_path;
use super::memory::Memory;
use super::pass::{Outcome, Pass};
use config::domain::Lro;
use config::lro::At;
use nic::{Caps, Frame, Piece};
use runtime::ledger::Hop;
use runtime::lro::{Merger, Side};
use runtime::trace::Fate;
use vif::netfront::Netfront;

/// Large receive offload before the endpoint, and room for what a pass finds; empty between two.
pub(super) struct ToGuest {
    pub lro: Merger,
    /// Frames from the ring that have not been through large receive offload.
    arrived: Vec<Frame>,
    received: Vec<Frame>,
    /// The same for small frames on the fast path.
    small: Vec<Piece>,
}

impl ToGuest {
    /// For an endpoint with `caps`; large receive offload holds `held_max` buffers at the most.
    pub(super) fn new(caps: Caps, lro: &Lro, held_max: usize) -> Self {
        Self {
            lro: Merger::new(Side::Virtual, &for_endpoint(caps, lro), held_max),
            arrived: Vec::new(),
            received: Vec::new(),
            small: Vec::new(),
        }
    }

    /// Changes large receive offload.
    pub(super) fn set_lro(&mut self, caps: Caps, lro: &Lro) {
        self.lro.set(&for_endpoint(caps, lro));
    }

    /// Moves frames.
    pub(super) fn run(
        &mut self,
        netfront: &mut Netfront,
        device: &mut Device,
        memory: &mut Memory,
        pass: &mut Pass<'_>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        // Frames that are followed, or merged first, have a record of their own.
        let fast = match pass.trace.is_wanted() || self.lro.is_active() {
            true => 0,
            false => fast_path::to_guest(netfront, device, &mut self.small, pass, &mut outcome),
        };
        if outcome.fatal.is_some() || !self.lro.is_active() && !netfront.has_work() {
            return outcome;
        }
        let taken = self.receive(netfront, pass, pass.budget - fast, &mut outcome);
        if taken > 0 {
            // The driver domain goes on while the endpoint has these.
            memory.turn_over(netfront, pass.ledger, |netfront, granter| {
                netfront.refill(granter);
                netfront.publish();
            });
        }
        if !self.received.is_empty() {
            outcome.moved = true;
            outcome.touched = true;
            self.deliver(netfront, device, pass);
            memory.turn_over(netfront, pass.ledger, Netfront::release);
        }
        outcome
    }

    /// Takes up to `budget` frames out of the ring, through large receive offload if there is any;
    /// how many.
    fn receive(
        &mut self,
        netfront: &mut Netfront,
        pass: &Pass<'_>,
        budget: usize,
        outcome: &mut Outcome,
    ) -> usize {
        let Self {
            lro,
            arrived,
            received,
            ..
        } = self;
        let ledger = pass.ledger;
        let taken = if lro.is_active() {
            let taken = ledger.at(Hop::Netfront, || netfront.receive(budget, arrived));
            outcome.moved |= !arrived.is_empty();
            // A look that finds nothing is no poll: turns of this domain have many reasons.
            ledger.at(Hop::Lro, || {
                lro.pass(pass.now_ns, false, arrived, received);
            });
            taken
        } else {
            ledger.at(Hop::Netfront, || netfront.receive(budget, received))
        };
        taken.unwrap_or_else(|fatal| {
            outcome.fatal = Some(fatal);
            0
        })
    }

    /// Gives what was received to the endpoint, and its buffers back.
    fn deliver(&mut self, netfront: &mut Netfront, device: &mut Device, pass: &mut Pass<'_>) {
        let Pass {
            now_ns,
            ledger,
            ref mut trace,
            ..
        } = *pass;
        trace.begin(Hop::Netfront, "the ring", &self.received);
        let before = ledger.enter(Hop::Endpoint);
        let mut rest = self.received.as_slice();
        // A frame that is followed goes by itself, so that what is counted is what became of it.
        if trace.is_running()
            && let Some((first, others)) = rest.split_at_checked(1)
        {
            rest = others;
            let before = Fate::of_device(&device.given);
            device.give(now_ns, first);
            trace.step(Hop::Endpoint, || {
                Fate::of_device(&device.given).since(&before, "the endpoint")
            });
            trace.end();
        }
        device.give(now_ns, rest);
        ledger.enter(Hop::Netfront);
        netfront.receive_done(&mut self.received);
        ledger.enter(before);
    }

    /// Gives the endpoint what large receive offload holds: it was received, even if nobody can
    /// be told so any more.
    pub(super) fn drain(&mut self, now_ns: u64, device: &mut Device) {
        let mut held = Vec::new();
        self.lro.drain(now_ns, &mut held);
        device.give(now_ns, &held);
    }
}

/// Large receive offload before an endpoint: none if it takes packets only.
fn for_endpoint(endpoint: Caps, config: &Lro) -> Lro {
    let takes = endpoint.tso && endpoint.checksum;
    Lro {
        at: if takes { config.at } else { At::None },
        ..*config
    }
}
