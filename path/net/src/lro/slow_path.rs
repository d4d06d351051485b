//! The slow path, for a packet that was not predicted. The rules decide which aggregate it
//! continues or whether it begins one.

use super::aggregate::Aggregate;
use super::engine::{AGE, Lro, NO_SLOT, pair};
use super::layout::{self, PacketClass, TcpSegment};
use super::prediction::Prediction;
use super::reason::Reason;
use super::settings::{Flush, Psh};
use super::verify;
use crate::packet::flags;
use nic::Frame;

impl Lro {
    /// Processes any packet on the slow path.
    #[inline(never)]
    pub(super) fn receive_unpredicted(
        &mut self,
        now_ns: u64,
        frame: &mut Frame,
        out: &mut Vec<Frame>,
    ) {
        let segment = match layout::classify(frame) {
            PacketClass::Other => {
                out.push(frame.take());
                return;
            }
            PacketClass::Hidden => {
                self.flush_all(Reason::Hidden, now_ns, out);
                out.push(frame.take());
                return;
            }
            PacketClass::Tcp(segment) => segment,
        };
        self.counters.segments += u64::from(segment.payload > 0);
        let hash = layout::hash(frame, segment.layout, self.seed);
        let refusal = self.entry.refusal(frame, &segment);
        let (found, equal) = self.find(hash, frame, &segment);
        match (found, refusal) {
            (None, None) => self.begin(now_ns, hash, frame, &segment, out),
            (None, Some(_)) => self.pass(frame, &segment, out),
            (Some(slot), Some(reason)) => {
                self.close(slot, reason, now_ns, out);
                self.pass(frame, &segment, out);
            }
            (Some(slot), None) => match self.merge(now_ns, slot, equal, frame, &segment) {
                Ok(None) => {}
                Ok(Some(last)) => self.close(slot, last, now_ns, out),
                Err(reason @ (Reason::BadChecksum | Reason::Unverified)) => {
                    self.close(slot, reason, now_ns, out);
                    self.pass(frame, &segment, out);
                }
                Err(reason) => {
                    self.close(slot, reason, now_ns, out);
                    self.begin(now_ns, hash, frame, &segment, out);
                }
            },
        }
    }

    /// Returns the aggregate of the packet's flow, and whether the compiled rules allow the packet
    /// there.
    #[inline]
    fn find(&self, hash: u64, frame: &Frame, segment: &TcpSegment) -> (Option<u32>, bool) {
        for slot in self.table.find(hash) {
            let Some(held) = self.held.get(slot as usize) else {
                continue;
            };
            let program = self.programs.get(held.program);
            if program.is_some_and(|program| held.equal(program, frame, segment)) {
                return (Some(slot), true);
            }
            if layout::same_flow((&held.frame, held.layout), (frame, segment.layout)) {
                return (Some(slot), false);
            }
        }
        (None, false)
    }

    /// Appends a packet to the aggregate of its flow. Returns why the aggregate is complete, or
    /// `None` if it is not.
    ///
    /// # Errors
    /// Returns the reason why the packet cannot follow.
    fn merge(
        &mut self,
        now_ns: u64,
        slot: u32,
        equal: bool,
        frame: &mut Frame,
        segment: &TcpSegment,
    ) -> Result<Option<Reason>, Reason> {
        self.collect(slot);
        let Some((held, next)) = pair(&mut self.held, &mut self.predictions, slot) else {
            return Err(Reason::Sequence);
        };
        if !equal || held.follows(&self.tests, frame, segment).is_err() {
            return Err(held.first_broken_rule(&self.tests, frame, segment));
        }
        verify::verify(frame, segment)?;
        self.buffers -= held.frame.pieces.len();
        let learned = next.learn(held.program, frame, segment);
        let last = held.append(&self.tests, self.settings.form, frame, segment);
        self.buffers += held.frame.pieces.len();
        self.last_slot = slot;
        let last = self.appended(now_ns, slot, last);
        if last.is_none() && learned {
            self.predict(slot);
        }
        Ok(last)
    }

    /// Holds a packet that continues no aggregate, or passes it unchanged.
    fn begin(
        &mut self,
        now_ns: u64,
        hash: u64,
        frame: &mut Frame,
        segment: &TcpSegment,
        out: &mut Vec<Frame>,
    ) {
        let pushed = segment.flags & flags::PSH != 0;
        let adaptive = self.settings.flush == Flush::Adaptive;
        if adaptive {
            self.history.arrived(hash, now_ns);
        }
        let max_len = (segment.layout.network() + 65_535).min(self.settings.bytes);
        let complete = pushed && self.settings.psh == Psh::Flush
            || segment.flags & flags::FIN != 0
            || self.segments_max < 2
            || frame.len() > max_len;
        if complete {
            if adaptive {
                self.history.ended(hash, now_ns, pushed);
            }
            self.pass(frame, segment, out);
            return;
        }
        if let Err(reason) = verify::verify(frame, segment) {
            self.counters.bad_checksums += u64::from(reason == Reason::BadChecksum);
            self.pass(frame, segment, out);
            return;
        }
        self.make_room(hash, now_ns, out);
        let program = self.programs.number(segment.layout);
        self.buffers += frame.pieces.len();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.held.push(Aggregate::default());
            self.predictions.push(Prediction::default());
            self.held.len() as u32 - 1
        });
        let Some((held, next)) = pair(&mut self.held, &mut self.predictions, slot) else {
            return;
        };
        let learned = next.learn(program, frame, segment);
        let at = (now_ns, self.polls);
        held.begin(frame, segment, (program, hash), max_len, at);
        if learned {
            self.predict(slot);
        }
        self.table.insert(hash, slot);
        self.age.push(AGE, slot);
        self.last_slot = slot;
        if self.waits {
            self.touched.push(slot);
        }
    }

    /// Frees a slot for a flow with this hash.
    fn make_room(&mut self, hash: u64, now_ns: u64, out: &mut Vec<Frame>) {
        if self.aggregates() >= self.settings.flows.max(1)
            && let Some(oldest) = self.age.first(AGE)
        {
            self.close(oldest, Reason::TableFull, now_ns, out);
        }
        if !self.table.has_room(hash) {
            let age = |slot: &u32| self.held.get(*slot as usize).map(|held| held.first_ns);
            if let Some(oldest) = self.table.neighbours(hash).into_iter().min_by_key(age) {
                self.close(oldest, Reason::TableFull, now_ns, out);
            }
        }
    }

    /// Passes a packet unchanged.
    fn pass(&mut self, frame: &mut Frame, segment: &TcpSegment, out: &mut Vec<Frame>) {
        self.counters.aggregates += u64::from(segment.payload > 0);
        out.push(frame.take());
    }

    /// Flushes an aggregate.
    pub(super) fn close(&mut self, slot: u32, reason: Reason, now_ns: u64, out: &mut Vec<Frame>) {
        self.collect(slot);
        let Some((held, next)) = pair(&mut self.held, &mut self.predictions, slot) else {
            return;
        };
        self.buffers -= held.frame.pieces.len();
        next.room = 0;
        self.counters.aggregates += 1;
        self.counters.merged += u64::from(held.segments) - 1;
        self.counters.bad_checksums += u64::from(reason == Reason::BadChecksum);
        self.counters.count(reason);
        self.latency.record(now_ns.saturating_sub(held.first_ns));
        if self.settings.flush == Flush::Adaptive {
            self.history.ended(held.hash, now_ns, held.pushed);
        }
        out.push(held.finish(&self.tests));
        self.table.remove(held.hash, slot);
        self.age.remove(slot);
        self.wheel.remove(slot);
        self.free.push(slot);
        if self.last_slot == slot {
            self.last_slot = NO_SLOT;
        }
    }
}
