//! Ports of NICs, which are devices of the driver domain.

pub mod buffers;

use crate::dynamic_threshold::QueueShare;
use crate::linearizer::Linearizer;
use crate::port_common::PortCommon;
use crate::traffic::PortTraffic;
use buffers::NicBuffers;
use config::domain::LroConfig;
use net::packet::ack::pure_ack;
use net::packet::checksum::finish_outside_snapshot;
use nic::dma::RemoteQueue;
use nic::moderation::{ModerationPolicy, Moderator, Wake};
use nic::vmq::Vmq;
use nic::{Buffers, Caps, Frame, Nic, Pool};
use runtime::ledger::{Hop, Ledger};
use runtime::lro::LroStage;
use runtime::report::TxTotals;
use serde_json::Value;

/// Counters of pure acknowledgements sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PureAcks {
    /// All acknowledgements.
    pub all: u64,
    /// Acknowledgements with SACK options.
    pub selective: u64,
}

/// The port of a NIC: the NIC, its pool, and its moderation.
pub struct NicPort {
    /// Its name, for display.
    pub name: String,
    /// State that every port has.
    pub common: PortCommon,
    /// Traffic counters.
    pub traffic: PortTraffic,
    /// Results of sent frames.
    pub sent: TxTotals,
    /// Pure acknowledgements sent.
    pub acks: PureAcks,
    /// Large receive offload of received frames.
    pub lro: LroStage,
    /// Whether the driver polls the NIC only after all guests have connected once. Set for capture
    /// files, because a guest that connects later would miss the first frames.
    pub waits_for_guests: bool,
    nic: Box<dyn Nic>,
    pool: Pool,
    /// Pages outside the pool, into which the NIC receives if one is free.
    pages: Option<Box<dyn Buffers>>,
    linearizer: Linearizer,
    /// The pool's buffers that frames in guests' queues use.
    queued: QueueShare,
    moderator: Moderator,
    /// Scratch list for received frames; empty between polls.
    arrived: Vec<Frame>,
    /// Result of polling the shared queue in the last [`NicPort::take`].
    poll_result: PollResult,
}

/// Result of polling the shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollResult {
    /// Not polled, because of moderation.
    Nothing,
    /// It may contain more frames.
    Some,
    /// It is empty, and large receive offload holds no frames.
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
    /// Creates a port.
    #[must_use]
    pub fn new(
        name: String,
        nic: Box<dyn Nic>,
        pool: Pool,
        policy: ModerationPolicy,
        lro: LroStage,
        linearizer: Linearizer,
    ) -> Self {
        Self {
            name,
            common: PortCommon::default(),
            traffic: PortTraffic::default(),
            sent: TxTotals::default(),
            acks: PureAcks::default(),
            lro,
            waits_for_guests: false,
            nic,
            pool,
            pages: None,
            linearizer,
            queued: QueueShare::default(),
            moderator: Moderator::new(policy),
            arrived: Vec::new(),
            poll_result: PollResult::Nothing,
        }
    }

    /// Sets pages outside the pool into which the NIC receives if one is free. The NIC must be able
    /// to write to any memory of this domain.
    pub fn set_pages(&mut self, pages: Option<Box<dyn Buffers>>) {
        self.pages = pages;
    }

    /// Returns the supplies of all buffers that a frame of this port may use.
    fn buffers(&mut self) -> NicBuffers<'_> {
        NicBuffers {
            large: Some(self.linearizer.pool_mut()),
            ..NicBuffers::received(&mut self.pool, self.pages.as_deref_mut())
        }
    }

    /// Returns the NIC's dedicated queues, if it has any, and the pool.
    pub fn vmq(&mut self) -> Option<(&mut dyn Vmq, &mut Pool)> {
        Some((self.nic.vmq()?, &mut self.pool))
    }

    /// Returns the driver's end of dedicated queue `number` of a device in another domain.
    pub fn dedicated(&mut self, number: u32) -> Option<RemoteQueue> {
        self.nic.dedicated(number)
    }

    /// Returns the result of polling the shared queue in the last [`NicPort::take`].
    #[must_use]
    pub fn poll_result(&self) -> PollResult {
        match self.poll_result {
            // Large receive offload still holds frames.
            PollResult::All if self.lro.next_due().is_some() => PollResult::Some,
            poll_result => poll_result,
        }
    }

    /// Returns whether each poll counts for the flush policy of large receive offload, even without
    /// frames: with the policy `Tick`, a poll is a tick. Otherwise empty polls do not count,
    /// because any guest's notification causes one.
    #[must_use]
    pub fn counts_polls(&self) -> bool {
        matches!(self.moderator.policy(), ModerationPolicy::Tick { .. })
    }

    /// Makes the next poll due immediately, because a dedicated queue contains more frames.
    pub fn has_more(&mut self) {
        self.moderator.has_more();
    }

    /// Returns the NIC's capabilities.
    #[must_use]
    pub fn caps(&self) -> Caps {
        self.nic.caps()
    }

    /// Returns the counters of the NIC's device.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.nic.counters()
    }

    /// Returns the number of free buffers of the pool.
    #[must_use]
    pub fn buffers_free(&self) -> usize {
        self.pool.available()
    }

    /// Returns state and counters of large receive offload as JSON.
    #[must_use]
    pub fn lro_stat(&self) -> Value {
        let mut stat = self.lro.stat();
        if let Some(all) = stat.as_object_mut() {
            all.extend(self.linearizer.stat());
        }
        stat
    }

    /// Changes the settings of large receive offload.
    pub fn set_lro(&mut self, config: &LroConfig) {
        self.lro.set(config);
        self.linearizer.set(config.backend);
    }

    /// Polls the NIC if a poll is due, and appends the frames to forward to `out`. Returns the
    /// number of frames received or the number forwarded, whichever is larger.
    pub fn take(
        &mut self,
        now_ns: u64,
        budget: usize,
        out: &mut Vec<Frame>,
        ledger: &Ledger,
    ) -> usize {
        let is_due = self.moderator.due(now_ns);
        self.poll_result = PollResult::Nothing;
        if !self.lro.is_active() {
            return match is_due {
                true => self.poll(now_ns, budget, out, ledger),
                false => 0,
            };
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        let taken = match is_due {
            true => self.poll(now_ns, budget, &mut arrived, ledger),
            false => 0,
        };
        let polled = is_due && self.counts_polls();
        ledger.charge_to(Hop::Lro, || {
            self.lro.pass(now_ns, polled, &mut arrived, out);
        });
        self.arrived = arrived;
        if self.linearizer.is_on() && !out.is_empty() {
            let mut small = NicBuffers::received(&mut self.pool, self.pages.as_deref_mut());
            ledger.charge_to(Hop::Bridge, || self.linearizer.copy(out, &mut small));
        }
        taken.max(out.len())
    }

    fn poll(&mut self, now_ns: u64, budget: usize, out: &mut Vec<Frame>, ledger: &Ledger) -> usize {
        let before = out.len();
        let taken = ledger.charge_to(Hop::Nic, || {
            let taken = match &mut self.pages {
                None => self.nic.rx(now_ns, budget, &mut self.pool, out),
                pages => {
                    let mut buffers = NicBuffers::received(&mut self.pool, pages.as_deref_mut());
                    self.nic.rx(now_ns, budget, &mut buffers, out)
                }
            };
            out.iter_mut()
                .skip(before)
                .for_each(finish_outside_snapshot);
            taken
        });
        self.moderator.polled(now_ns, taken, budget);
        self.poll_result = if taken < budget {
            PollResult::All
        } else {
            PollResult::Some
        };
        self.traffic.in_packets += taken as u64;
        self.traffic.in_bytes += out.iter().map(|frame| frame.len() as u64).sum::<u64>();
        taken
    }

    /// Returns the buffers of taken frames to the pool.
    pub fn release_taken(&mut self, frames: &mut Vec<Frame>, ledger: &Ledger) {
        ledger.charge_to(Hop::Nic, || {
            let mut buffers = self.buffers();
            for frame in &mut *frames {
                frame.recycle(&mut buffers);
            }
            frames.clear();
        });
    }

    /// Returns the number of buffers that queued frames use, and the pool's capacity.
    #[must_use]
    pub fn queue_share(&self) -> (QueueShare, usize) {
        (self.queued, self.pool.capacity())
    }

    /// Keeps the buffers of a frame of the batch for a queue. Returns false if the frame's memory
    /// does not belong to the NIC.
    pub fn keep_queued(&mut self, frame: &Frame) -> bool {
        let kept = frame.add_owner(&mut self.buffers());
        self.queued.add(if kept { frame.pieces.len() } else { 0 });
        kept
    }

    /// Returns the buffers of a kept frame to the pool.
    pub fn release_queued(&mut self, frame: &mut Frame, units: usize) {
        self.queued.remove(units);
        frame.recycle(&mut self.buffers());
    }

    /// Sends frames.
    pub fn send(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32], ledger: &Ledger) {
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            if let Some(ack) = pure_ack(frame) {
                self.acks.all += 1;
                self.acks.selective += u64::from(ack.selective);
            }
        }
        let report = ledger.charge_to(Hop::Nic, || self.nic.tx(now_ns, frames, pick));
        self.traffic.out_packets += u64::from(report.sent);
        self.traffic.out_bytes += report.bytes;
        self.sent.add(&report);
    }

    /// Continues the handshake with a device in another domain.
    pub fn connection_changed(&mut self) {
        self.nic.connection_changed(&mut self.pool);
    }

    /// Returns why the NIC has failed, or `None` if it works.
    #[must_use]
    pub fn failure(&self) -> Option<&'static str> {
        self.nic.failure()
    }

    /// Returns the condition for the next poll.
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
