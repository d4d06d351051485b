//! Ports that are devices of the driver domain's own.

use crate::linear::Linear;
use crate::share::QueueShare;
use crate::traffic::Traffic;
use config::domain::Lro;
use net::packet::ack::pure_ack;
use net::packet::checksum::finish_beyond_reach;
use nic::moderation::{Moderator, Policy, Wake};
use nic::vmq::Vmq;
use nic::{Caps, Frame, Nic, Pool};
use runtime::ledger::{Hop, Ledger};
use runtime::lro::Merger;
use runtime::report::Given;
use serde_json::Value;

/// Pure acknowledgements that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acks {
    /// All.
    pub all: u64,
    /// Those that report what arrived out of order.
    pub selective: u64,
}

/// A NIC, its pool, and when it is looked at.
pub struct NicPort {
    /// Its name, for people.
    pub name: String,
    /// What it has done.
    pub traffic: Traffic,
    /// What became of what was sent by it.
    pub sent: Given,
    /// Acknowledgements that were sent by it.
    pub acks: Acks,
    /// Large receive offload of what it yields.
    pub lro: Merger,
    /// Whether it is not looked at before every guest has been connected once: what it yields at
    /// the start does not come again.
    pub waits_for_guests: bool,
    nic: Box<dyn Nic>,
    pool: Pool,
    linear: Linear,
    /// Buffers that frames in queues of guests hold.
    queued: QueueShare,
    moderator: Moderator,
    /// Room for what a look finds; empty between two.
    arrived: Vec<Frame>,
    /// What the last [`NicPort::take`] has seen of the shared queue.
    seen: Seen,
}

/// What a look into the shared queue has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was not looked into: moderation.
    Nothing,
    /// There may be more in it.
    Some,
    /// Everything that was in it has gone on.
    All,
}

impl std::fmt::Debug for NicPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NicPort")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl NicPort {
    /// A port.
    #[must_use]
    pub fn new(
        name: String,
        nic: Box<dyn Nic>,
        pool: Pool,
        policy: Policy,
        lro: Merger,
        linear: Linear,
    ) -> Self {
        Self {
            name,
            traffic: Traffic::default(),
            sent: Given::default(),
            acks: Acks::default(),
            lro,
            waits_for_guests: false,
            nic,
            pool,
            linear,
            queued: QueueShare::default(),
            moderator: Moderator::new(policy),
            arrived: Vec::new(),
            seen: Seen::Nothing,
        }
    }

    /// The NIC's queues for single guests, if it has any, and the pool.
    pub fn vmq(&mut self) -> Option<(&mut dyn Vmq, &mut Pool)> {
        Some((self.nic.vmq()?, &mut self.pool))
    }

    /// What the last [`NicPort::take`] has seen of the shared queue.
    #[must_use]
    pub fn seen(&self) -> Seen {
        match self.seen {
            // What is held by large receive offload has not gone on.
            Seen::All if self.lro.next_due().is_some() => Seen::Some,
            seen => seen,
        }
    }

    /// A queue for a single guest has more: the next look is due at once.
    pub fn has_more(&mut self) {
        self.moderator.has_more();
    }

    /// What the NIC can do by itself.
    #[must_use]
    pub fn caps(&self) -> Caps {
        self.nic.caps()
    }

    /// Counters of the NIC's own.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.nic.counters()
    }

    /// Buffers of the pool that are free.
    #[must_use]
    pub fn buffers_free(&self) -> usize {
        self.pool.available()
    }

    /// What large receive offload does and has done, as JSON.
    #[must_use]
    pub fn lro_stat(&self) -> Value {
        let mut stat = self.lro.stat();
        if let Some(all) = stat.as_object_mut() {
            all.extend(self.linear.stat());
        }
        stat
    }

    /// Changes large receive offload.
    pub fn set_lro(&mut self, config: &Lro) {
        self.lro.set(config);
        self.linear.set(config.backend);
    }

    /// Looks for frames, if it is time to, and appends those that go on now; how many have
    /// arrived or go on, whichever is more.
    pub fn take(
        &mut self,
        now_ns: u64,
        budget: usize,
        out: &mut Vec<Frame>,
        ledger: &Ledger,
    ) -> usize {
        let look = self.moderator.due(now_ns);
        self.seen = Seen::Nothing;
        if !self.lro.is_active() {
            return match look {
                true => self.look(now_ns, budget, out, ledger),
                false => 0,
            };
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        let taken = match look {
            true => self.look(now_ns, budget, &mut arrived, ledger),
            false => 0,
        };
        // A tick is a poll in any case; otherwise a look that finds nothing is none, because the
        // driver looks whenever a guest has woken it.
        let polled = look && matches!(self.moderator.policy(), Policy::Tick { .. });
        ledger.at(Hop::Lro, || {
            self.lro.pass(now_ns, polled, &mut arrived, out);
        });
        self.arrived = arrived;
        if self.linear.is_on() && !out.is_empty() {
            ledger.at(Hop::Bridge, || self.linear.copy(out, &mut self.pool));
        }
        taken.max(out.len())
    }

    fn look(&mut self, now_ns: u64, budget: usize, out: &mut Vec<Frame>, ledger: &Ledger) -> usize {
        let before = out.len();
        let taken = ledger.at(Hop::Nic, || {
            let taken = self.nic.rx(now_ns, budget, &mut self.pool, out);
            out.iter_mut().skip(before).for_each(finish_beyond_reach);
            taken
        });
        self.moderator.looked(now_ns, taken, budget);
        self.seen = if taken < budget {
            Seen::All
        } else {
            Seen::Some
        };
        self.traffic.in_packets += taken as u64;
        self.traffic.in_bytes += out.iter().map(|frame| frame.len() as u64).sum::<u64>();
        taken
    }

    /// Gives the buffers of what was taken back.
    pub fn done(&mut self, frames: &mut Vec<Frame>, ledger: &Ledger) {
        ledger.at(Hop::Nic, || {
            for frame in &mut *frames {
                frame.recycle(&mut self.linear.with(&mut self.pool));
            }
            frames.clear();
        });
    }

    /// Buffers that frames in queues hold, and how many there are in all.
    #[must_use]
    pub fn queue_share(&self) -> (QueueShare, usize) {
        (self.queued, self.pool.capacity())
    }

    /// Keeps a frame of the batch for a queue; false: its memory is not the NIC's.
    pub fn keep_queued(&mut self, frame: &Frame) -> bool {
        let kept = frame.keep(&mut self.linear.with(&mut self.pool));
        self.queued.add(if kept { frame.pieces.len() } else { 0 });
        kept
    }

    /// Takes the buffers of a frame back that was kept.
    pub fn release_queued(&mut self, frame: &mut Frame, units: usize) {
        self.queued.remove(units);
        frame.recycle(&mut self.linear.with(&mut self.pool));
    }

    /// Sends frames.
    pub fn send(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32], ledger: &Ledger) {
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            if let Some(ack) = pure_ack(frame) {
                self.acks.all += 1;
                self.acks.selective += u64::from(ack.selective);
            }
        }
        let report = ledger.at(Hop::Nic, || self.nic.tx(now_ns, frames, pick));
        self.traffic.out_packets += u64::from(report.sent);
        self.traffic.out_bytes += report.bytes;
        self.sent.add(&report);
    }

    /// Why it is of no use any more, if it is not.
    #[must_use]
    pub fn failure(&self) -> Option<&'static str> {
        self.nic.failure()
    }

    /// What to wait for before the next look.
    #[must_use]
    pub fn wake(&self, now_ns: u64) -> Wake {
        let held = self.lro.next_due();
        match self.moderator.wake(now_ns, self.nic.next_due(now_ns)) {
            Wake::Now => Wake::Now,
            Wake::At(at) => Wake::At(held.map_or(at, |held| held.min(at))),
            Wake::Event(due) => Wake::Event(due.into_iter().chain(held).min()),
        }
    }
}

#[cfg(test)]
mod tests;
