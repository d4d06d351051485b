//! Flush policies of held aggregates.

use super::adaptive::{Decision, History};
use super::aggregate::MergeTests;
use super::eligibility::Eligibility;
use super::engine::{AGE, Lro, NO_SLOT};
use super::reason::Reason;
use super::rules::Programs;
use super::settings::Flush;
use super::table::FlowTable;
use super::timer_wheel::TimerWheel;
use nic::Frame;

impl Lro {
    /// Flushes the due aggregates between polls.
    pub fn expire(&mut self, now_ns: u64, out: &mut Vec<Frame>) {
        self.renew(now_ns, out);
        self.flush_due(now_ns, false, out);
    }

    /// Flushes the oldest aggregates until held aggregates occupy at least `buffers` buffers less
    /// than before. The caller does this when a pool runs low.
    pub fn flush_oldest(&mut self, buffers: usize, now_ns: u64, out: &mut Vec<Frame>) {
        let goal = self.held().saturating_sub(buffers);
        while self.held() > goal
            && let Some(oldest) = self.age.first(AGE)
        {
            self.close(oldest, Reason::NoDescriptor, now_ns, out);
        }
    }

    /// Flushes everything. The caller does this when an interface closes.
    pub fn drain(&mut self, now_ns: u64, out: &mut Vec<Frame>) {
        self.flush_all(Reason::Drain, now_ns, out);
    }

    /// Flushes everything. The caller does this when the owner of held buffers may have revoked
    /// them.
    pub fn flush_revoked(&mut self, now_ns: u64, out: &mut Vec<Frame>) {
        self.flush_all(Reason::Revoked, now_ns, out);
    }

    /// Returns the monotonic time in nanoseconds at which [`Lro::expire`] is due; `None` if no
    /// aggregate waits for a time.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        match self.changed {
            Some(_) if self.held() > 0 => Some(0),
            _ => self.wheel.next_due(),
        }
    }

    /// Applies changed settings.
    pub(super) fn renew(&mut self, now_ns: u64, out: &mut Vec<Frame>) {
        let Some(settings) = self.changed.take() else {
            return;
        };
        self.flush_all(Reason::Settings, now_ns, out);
        self.settings = settings;
        self.tests = MergeTests::new(settings.rules);
        self.entry = Eligibility::new(settings.rules);
        self.waits = settings.waits();
        self.segments_max = settings.segments_max();
        self.table = FlowTable::new(settings.flows);
        self.programs = Programs::new(settings.rules);
        self.wheel = TimerWheel::new(settings.hold_ns());
        self.history = History::new(&settings);
        self.held.clear();
        self.predictions.clear();
        self.free.clear();
        self.last_slot = NO_SLOT;
        self.round = 0;
        self.latency.reset();
    }

    /// Flushes all aggregates, oldest first.
    pub(super) fn flush_all(&mut self, reason: Reason, now_ns: u64, out: &mut Vec<Frame>) {
        while let Some(oldest) = self.age.first(AGE) {
            self.close(oldest, reason, now_ns, out);
        }
    }

    /// Holds or flushes the aggregates at the end of the poll. `clock` returns the current time.
    pub(super) fn end_of_poll(
        &mut self,
        now_ns: u64,
        clock: impl FnOnce() -> u64,
        out: &mut Vec<Frame>,
    ) {
        let all = match self.settings.flush {
            Flush::Poll => true,
            Flush::Polls(n) => self.polls.is_multiple_of(n.max(1).into()),
            Flush::After { .. } | Flush::Adaptive => false,
        };
        if !all {
            self.flush_due(now_ns, true, out);
            self.hold(now_ns, out);
        } else if self.age.first(AGE).is_some() {
            self.flush_all(Reason::Poll, clock().max(now_ns), out);
        }
        self.touched.clear();
    }

    /// Holds or flushes every aggregate that received segments in this poll.
    fn hold(&mut self, now_ns: u64, out: &mut Vec<Frame>) {
        let touched = std::mem::take(&mut self.touched);
        for &slot in &touched {
            self.collect(slot);
            let Some(held) = self.held.get_mut(slot as usize) else {
                continue;
            };
            // The aggregate was closed in this poll, or closed and begun again, and then the slot
            // is listed twice.
            if held.frame.is_empty() || held.decided == self.polls {
                continue;
            }
            held.decided = self.polls;
            let end = held.first_ns.saturating_add(self.settings.hold_ns());
            let (hash, first_ns, pushed) = (held.hash, held.first_ns, held.pushed);
            let decision = if held.is_full() {
                Decision::Flush(Reason::Bytes)
            } else if self.settings.flush == Flush::Adaptive {
                self.history.ended(hash, now_ns, pushed);
                self.history.decide(hash, now_ns, first_ns)
            } else {
                Decision::Hold(end)
            };
            match decision {
                Decision::Hold(until) if self.wheel.schedule(slot, until) => {}
                Decision::Hold(_) => self.close(slot, Reason::Time, now_ns, out),
                Decision::Flush(reason) => self.close(slot, reason, now_ns, out),
            }
        }
        self.touched = touched;
    }

    /// Flushes the due aggregates. At the end of a poll (`polled`) it skips those that grew in the
    /// poll: [`Lro::hold`] holds or flushes them.
    fn flush_due(&mut self, now_ns: u64, polled: bool, out: &mut Vec<Frame>) {
        let adaptive = self.settings.flush == Flush::Adaptive;
        let mut due = std::mem::take(&mut self.due);
        self.wheel.advance(now_ns, &mut due);
        for slot in due.drain(..) {
            let Some(held) = self.held.get(slot as usize) else {
                continue;
            };
            if adaptive && polled && held.poll == self.polls {
                continue;
            }
            let end = held.first_ns.saturating_add(self.settings.hold_ns());
            let in_time = now_ns.saturating_add(self.wheel.tick_ns()) < end;
            if adaptive {
                self.history.missed(held.hash, now_ns);
            }
            let reason = match adaptive && in_time {
                true => Reason::Silence,
                false => Reason::Time,
            };
            self.close(slot, reason, now_ns, out);
        }
        self.due = due;
    }
}
