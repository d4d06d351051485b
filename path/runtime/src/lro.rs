//! Large receive offload between a source of frames (a NIC, a netfront) and their consumer (the
//! bridge, an endpoint): the engine and its limit on held buffers.

use config::lro::{FlushConfig, FormKey, LroConfig, PshConfig, RulesKey};
use net::lro::{self, HoldLatency, Lro, LroCounters, Settings};
use nic::Frame;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Position of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LroSide {
    /// A NIC of the driver domain.
    Physical,
    /// A guest's interface.
    Virtual,
}

/// Large receive offload of one NIC or interface.
#[derive(Debug)]
pub struct LroStage {
    side: LroSide,
    config: LroConfig,
    /// Maximum number of held buffers. It is low enough that the source never has to wait for a
    /// held buffer.
    hold_max: usize,
    /// The engine, which is created on first use.
    engine: Option<Box<Lro>>,
}

impl LroStage {
    /// Creates an engine that holds at most `hold_max` buffers between polls.
    #[must_use]
    pub fn new(side: LroSide, config: &LroConfig, hold_max: usize) -> Self {
        let mut lro_stage = Self {
            side,
            config: *config,
            hold_max,
            engine: None,
        };
        lro_stage.set(config);
        lro_stage
    }

    fn is_on(&self) -> bool {
        match self.side {
            LroSide::Physical => self.config.at.physical(),
            LroSide::Virtual => self.config.at.is_virtual(),
        }
    }

    /// Changes the settings. Held frames are flushed by the next [`LroStage::pass`].
    pub fn set(&mut self, config: &LroConfig) {
        self.config = *config;
        let settings = settings(config);
        let is_on = self.is_on();
        match &mut self.engine {
            Some(engine) => engine.set(settings),
            None if is_on => {
                // The seed is unpredictable, so that a sender cannot choose which flows share a
                // table entry.
                let seed = shmem::time::tsc().rotate_left(32) ^ shmem::time::monotonic_ns();
                self.engine = Some(Box::new(Lro::new(settings, seed)));
            }
            None => {}
        }
    }

    /// Returns whether frames must pass through the engine.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_on() || self.held() > 0
    }

    /// Takes all received frames, and appends flushed frames to `out`. With `polled`, the call
    /// counts as a poll even without frames.
    pub fn pass(
        &mut self,
        now_ns: u64,
        polled: bool,
        arrived: &mut Vec<Frame>,
        out: &mut Vec<Frame>,
    ) {
        let is_on = self.is_on();
        let Some(engine) = &mut self.engine else {
            out.append(arrived);
            return;
        };
        if !is_on {
            engine.drain(now_ns, out);
            out.append(arrived);
            return;
        }
        if polled || !arrived.is_empty() {
            engine.poll_timed(now_ns, shmem::time::monotonic_ns, arrived, out);
        } else if engine.next_due().is_some_and(|due| due <= now_ns) {
            engine.expire(now_ns, out);
        }
        if let Some(surplus) = engine.held().checked_sub(self.hold_max)
            && surplus > 0
        {
            engine.flush_oldest(surplus, now_ns, out);
        }
    }

    /// Flushes all held frames, because no further poll follows.
    pub fn drain(&mut self, now_ns: u64, out: &mut Vec<Frame>) {
        if let Some(engine) = &mut self.engine {
            engine.drain(now_ns, out);
        }
    }

    /// Flushes all held frames, because their owner may have revoked their buffers.
    pub fn flush_revoked(&mut self, now_ns: u64, out: &mut Vec<Frame>) {
        if let Some(engine) = &mut self.engine {
            engine.flush_revoked(now_ns, out);
        }
    }

    /// Flushes the oldest aggregates until at most `buffers` buffers and `aggregates` aggregates
    /// are held, because buffers run low.
    pub fn limit_held(
        &mut self,
        (buffers, aggregates): (usize, usize),
        now_ns: u64,
        out: &mut Vec<Frame>,
    ) {
        let Some(engine) = &mut self.engine else {
            return;
        };
        if let Some(surplus) = engine.held().checked_sub(buffers) {
            engine.flush_oldest(surplus, now_ns, out);
        }
        while engine.aggregates() > aggregates {
            engine.flush_oldest(1, now_ns, out);
        }
    }

    /// Returns the number of held aggregates.
    #[must_use]
    pub fn aggregates(&self) -> usize {
        self.engine.as_ref().map_or(0, |engine| engine.aggregates())
    }

    /// Returns the number of held buffers.
    #[must_use]
    pub fn held(&self) -> usize {
        self.engine.as_ref().map_or(0, |engine| engine.held())
    }

    /// Returns the time at which [`LroStage::pass`] is due even without new frames.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        let engine = self.engine.as_ref()?;
        if self.is_on() {
            engine.next_due()
        } else {
            (engine.held() > 0).then_some(0)
        }
    }

    /// Returns the settings in effect and the counters, as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        self.stat_with([])
    }

    /// Returns the settings in effect, and the counters of this engine and of `others` together, as
    /// JSON.
    #[must_use]
    pub fn stat_with<'a>(&'a self, others: impl IntoIterator<Item = &'a Self>) -> Value {
        let config = &self.config;
        let mut stat = json!({
            "on": self.is_on(),
            "rules": config.rules,
            "psh": config.psh,
            "buffers": config.buffers,
            "flush": config.flush,
        });
        let stages = std::iter::once(self).chain(others);
        let engines = stages.filter_map(|stage| stage.engine.as_deref());
        let summed = engines.map(EngineCounters::of).reduce(EngineCounters::plus);
        if let (Some(summed), Some(all)) = (summed, stat.as_object_mut()) {
            all.extend(summed.report());
        }
        stat
    }

    /// Adds the engine's counters to a domain's sums.
    pub fn add_to(&self, sums: &mut Sums) {
        let Some(engine) = &self.engine else { return };
        sums.segments += engine.counters().segments;
        sums.aggregates += engine.counters().aggregates;
        for (ns, count) in engine.latency().buckets() {
            *sums.waits.entry(ns).or_default() += count;
        }
        sums.wait_sum_ns = sums.wait_sum_ns.wrapping_add(engine.latency().sum_ns());
    }
}

fn settings(config: &LroConfig) -> Settings {
    Settings {
        rules: match config.rules {
            RulesKey::Gro => lro::MergeRules::Gro,
            RulesKey::Lro => lro::MergeRules::Lro,
        },
        psh: match config.psh {
            PshConfig::Flush => lro::Psh::Flush,
            PshConfig::Merge => lro::Psh::Merge,
        },
        form: match config.buffers {
            FormKey::Skb => lro::AggregateForm::Skb,
            FormKey::Page => lro::AggregateForm::Page,
        },
        flush: match config.flush {
            FlushConfig::Poll => lro::Flush::Poll,
            FlushConfig::Polls(polls) => lro::Flush::Polls(polls),
            FlushConfig::After(us) => lro::Flush::After { us },
            FlushConfig::Adaptive => lro::Flush::Adaptive,
        },
        hold_max_us: config.hold_max_us(),
        flows: config.flows as usize,
        segments: config.segments as usize,
        // This is the maximum length of a packet in a ring and of a TAP's packet.
        bytes: vif::netif::MAX_PACKET,
    }
}

/// Counters of one engine or of several.
struct EngineCounters {
    counters: LroCounters,
    latency: HoldLatency,
    /// Number of held buffers.
    held: usize,
}

impl EngineCounters {
    fn of(engine: &Lro) -> Self {
        Self {
            counters: engine.counters().clone(),
            latency: engine.latency().clone(),
            held: engine.held(),
        }
    }

    fn plus(mut self, other: Self) -> Self {
        self.counters.add(&other.counters);
        self.latency.add(&other.latency);
        self.held += other.held;
        self
    }

    fn report(&self) -> Map<String, Value> {
        let Self {
            counters, latency, ..
        } = self;
        let us = |ns: u64| ns as f64 / 1e3;
        let flushed: Map<String, Value> = counters
            .reasons()
            .map(|(reason, count)| (reason.to_owned(), count.into()))
            .collect();
        let all = json!({
            "segments": counters.segments,
            "aggregates": counters.aggregates,
            "rate": counters.rate(),
            "merged": counters.merged,
            "bad_checksums": counters.bad_checksums,
            "held": self.held,
            "flushed": flushed,
            "latency_us": {
                "count": latency.count(),
                "p50": us(latency.p50_ns()),
                "p99": us(latency.p99_ns()),
                "max": us(latency.max_ns()),
            },
        });
        match all {
            Value::Object(all) => all,
            _ => Map::new(),
        }
    }
}

/// Counters summed over all NICs or interfaces of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    segments: u64,
    aggregates: u64,
    /// Number of first segments by waiting time in nanoseconds, since the policy was set.
    waits: BTreeMap<u64, u64>,
    /// Sum of all waiting times.
    wait_sum_ns: u64,
}

impl From<Sums> for Value {
    fn from(sums: Sums) -> Self {
        let waits: Map<String, Self> = sums
            .waits
            .iter()
            .map(|(ns, count)| (ns.to_string(), (*count).into()))
            .collect();
        json!({
            "segments": sums.segments,
            "aggregates": sums.aggregates,
            "waits_ns": waits,
            "wait_sum_ns": sums.wait_sum_ns,
        })
    }
}

#[cfg(test)]
mod tests;
