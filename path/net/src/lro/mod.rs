//! Large receive offload: consecutive TCP segments of a flow become one packet.
//!
//! | module | job |
//! |---|---|
//! | [`settings`] | what can be chosen |
//! | [`rules`] | what may be merged: the table, and its compiled form |
//! | `entry`, `verify` | what a packet must be by itself |
//! | `layout` | where its headers lie, whose it is |
//! | `held` | an aggregate while it grows |
//! | `next` | the packet that nearly always continues it, recognized without reading the rules again |
//! | `table`, `lists`, `wheel` | which aggregate is whose, which is oldest, which is due |
//! | `adaptive` | when waiting pays |
//! | [`counters`], [`latency`], [`reason`] | what happened, how long it took, why |
//!
//! The engine is pure: frames in, frames out, time passed in. It moves no payload: an aggregate is
//! an ordinary [`Frame`] whose pieces are all the buffers that it consists of, header rewritten,
//! checksum blank, with [`nic::Gso`]; who gives its buffers back gives back all. Work per packet is
//! bounded whatever the packets are. The clauses LR-… are in `specs/lro.md`.

pub mod counters;
pub mod latency;
pub mod reason;
pub mod rules;
pub mod settings;

mod adaptive;
mod entry;
mod held;
mod layout;
mod lists;
mod next;
mod policy;
mod table;
mod verify;
mod wheel;

pub use counters::Counters;
pub use latency::Latency;
pub use reason::Reason;
pub use settings::{Flush, Form, Psh, Rules, Settings};

use crate::packet::flags;
use adaptive::History;
use entry::Entry;
use held::{Held, Tests};
use layout::{Layout, Seen, Segment};
use lists::Lists;
use next::Next;
use nic::Frame;
use rules::Programs;
use table::Table;
use wheel::Wheel;

/// The only list of the aggregates by age.
const AGE: u32 = 0;
/// Packets that are looked up at a time.
const AHEAD: usize = 16;
/// No slot's number.
const NOWHERE: u32 = u32::MAX;

/// One engine: for one NIC queue, or one vif.
#[derive(Debug)]
pub struct Lro {
    settings: Settings,
    /// Settings that are in force once what is held has gone.
    changed: Option<Settings>,
    tests: Tests,
    entry: Entry,
    /// [`Settings::waits`].
    waits: bool,
    /// [`Settings::segments_max`].
    segments_max: u32,
    seed: u64,
    table: Table,
    programs: Programs,
    /// Slots; those in `free` hold nothing.
    held: Vec<Held>,
    /// By slot: what continues it.
    next: Vec<Next>,
    free: Vec<u32>,
    age: Lists,
    wheel: Wheel,
    history: History,
    /// The slot that a packet came to last, or [`NOWHERE`]: the next one is often of the same flow.
    recent: u32,
    /// Slots that the end of the poll has to decide about.
    touched: Vec<u32>,
    /// Room for slots that are due.
    due: Vec<u32>,
    polls: u64,
    /// The poll, where it matters which polls an aggregate's packets came in; 0 otherwise.
    round: u32,
    /// Pieces of all held frames.
    buffers: usize,
    /// Pieces that are still to be put into them.
    unsettled: u32,
    counters: Counters,
    latency: Latency,
}

impl Lro {
    /// An engine that holds nothing. `hash_seed` is a secret, lest somebody choose flows that
    /// collide.
    #[must_use]
    pub fn new(settings: Settings, hash_seed: u64) -> Self {
        Self {
            settings,
            changed: None,
            tests: Tests::new(settings.rules),
            entry: Entry::new(settings.rules),
            waits: settings.waits(),
            segments_max: settings.segments_max(),
            seed: hash_seed,
            table: Table::new(settings.flows),
            programs: Programs::new(settings.rules),
            held: Vec::new(),
            next: Vec::new(),
            free: Vec::new(),
            age: Lists::new(1),
            wheel: Wheel::new(settings.hold_ns()),
            history: policy::history(&settings),
            recent: NOWHERE,
            touched: Vec::new(),
            due: Vec::new(),
            polls: 0,
            round: 0,
            buffers: 0,
            unsettled: 0,
            counters: Counters::default(),
            latency: Latency::default(),
        }
    }

    /// The settings, those of the last [`Lro::set`].
    #[must_use]
    pub fn settings(&self) -> &Settings {
        self.changed.as_ref().unwrap_or(&self.settings)
    }

    /// Changes the settings while traffic runs. What is held goes out at the next poll (or
    /// [`Lro::expire`]), before anything that comes with it; the latency histogram begins anew.
    pub fn set(&mut self, settings: Settings) {
        if settings != *self.settings() {
            self.changed = Some(settings);
        }
    }

    /// One poll's frames, in order of arrival. `frames` is emptied; what may go on now is appended
    /// to `out`, the rest is held. A batch without frames is a poll, too.
    pub fn poll(&mut self, now_ns: u64, frames: &mut Vec<Frame>, out: &mut Vec<Frame>) {
        self.poll_timed(now_ns, || now_ns, frames, out);
    }

    /// [`Lro::poll`] that began at `now_ns` and takes its time: `clock` is read when the poll ends, if
    /// aggregates go on for that reason, so that [`Lro::latency`] has the time that they waited for
    /// the rest of their poll.
    pub fn poll_timed(
        &mut self,
        now_ns: u64,
        clock: impl FnOnce() -> u64,
        frames: &mut Vec<Frame>,
        out: &mut Vec<Frame>,
    ) {
        self.renew(now_ns, out);
        self.polls += 1;
        if self.settings.flush == Flush::Adaptive {
            self.round = self.polls as u32;
        }
        for frames in frames.chunks_mut(AHEAD) {
            let slots = self.look_up(frames);
            for (frame, slot) in frames.iter_mut().zip(slots) {
                if !self.receive_expected(now_ns, slot, frame, out) {
                    self.receive_any(now_ns, frame, out);
                }
            }
        }
        frames.clear();
        self.end_of_poll(now_ns, clock, out);
    }

    /// Buffers held: the pieces of all frames that have not gone on.
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffers + self.unsettled as usize
    }

    /// What was counted since the engine was made.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How long first segments waited since the settings changed last.
    #[must_use]
    pub fn latency(&self) -> &Latency {
        &self.latency
    }

    /// Where each of these packets probably belongs, or [`NOWHERE`]. None is looked at closely, so none
    /// has to wait for another one's cache misses.
    #[inline]
    fn look_up(&self, frames: &[Frame]) -> [u32; AHEAD] {
        let mut slots = [NOWHERE; AHEAD];
        let (mut last_ends, mut last) = ((0, 0), NOWHERE);
        for (slot, frame) in slots.iter_mut().zip(frames) {
            // With IPv4 these tell flows from each other.
            let ends = layout::ends_v4(frame);
            if ends != last_ends {
                let usual = Layout::usual(frame);
                let hash = usual.map(|usual| layout::hash(frame, usual, self.seed));
                last = hash
                    .and_then(|hash| self.table.find(hash).next())
                    .unwrap_or(NOWHERE);
                last_ends = match usual {
                    Some(usual) if !usual.v6 => ends,
                    _ => (0, 0),
                };
            }
            *slot = last;
        }
        slots
    }

    /// Nearly every packet: the one that a slot expects, probably this slot. False: it is not, and
    /// nothing has happened.
    #[inline]
    fn receive_expected(
        &mut self,
        now_ns: u64,
        mut slot: u32,
        frame: &Frame,
        out: &mut Vec<Frame>,
    ) -> bool {
        if !self.may_take(slot, frame) {
            slot = self.changed_slot(frame);
        }
        self.take(now_ns, slot, frame, out)
    }

    /// The slot that expects a packet, if that is another one than it was a few packets before.
    #[inline(never)]
    fn changed_slot(&self, frame: &Frame) -> u32 {
        if self.may_take(self.recent, frame) {
            return self.recent;
        }
        let Some(usual) = Layout::usual(frame) else {
            return NOWHERE;
        };
        let mut slots = self.table.find(layout::hash(frame, usual, self.seed));
        let slot = slots.find(|slot| self.may_take(*slot, frame));
        slot.unwrap_or(NOWHERE)
    }

    /// Whether a slot may expect this packet.
    #[inline]
    fn may_take(&self, slot: u32, frame: &Frame) -> bool {
        let next = self.next.get(slot as usize);
        next.is_some_and(|next| next.may_be(frame))
    }

    /// Takes the packet that a slot expects. False: this is not the one.
    #[inline(always)]
    fn take(&mut self, now_ns: u64, slot: u32, frame: &Frame, out: &mut Vec<Frame>) -> bool {
        let Some(next) = self.next.get_mut(slot as usize) else {
            return false;
        };
        let Some(program) = self.programs.get(next.program) else {
            return false;
        };
        let Some(piece) = next.is(&program.twins, frame) else {
            return false;
        };
        next.append(piece);
        self.recent = slot;
        self.counters.segments += 1;
        self.unsettled += 1;
        if next.room == 0 || next.round != self.round {
            self.note(now_ns, slot, out);
        }
        true
    }

    /// What is left to do for packets that were taken, once in a poll and when no more fit.
    #[cold]
    #[inline(never)]
    fn note(&mut self, now_ns: u64, slot: u32, out: &mut Vec<Frame>) {
        if let Some(last) = self.appended(now_ns, slot, None) {
            self.close(slot, last, now_ns, out);
        }
    }

    /// Any packet.
    #[inline(never)]
    fn receive_any(&mut self, now_ns: u64, frame: &mut Frame, out: &mut Vec<Frame>) {
        let segment = match layout::see(frame) {
            Seen::Other => {
                out.push(frame.take());
                return;
            }
            Seen::Hidden => {
                self.flush_all(Reason::Hidden, now_ns, out);
                out.push(frame.take());
                return;
            }
            Seen::Tcp(segment) => segment,
        };
        self.counters.segments += u64::from(segment.payload > 0);
        let hash = layout::hash(frame, segment.layout, self.seed);
        let bar = self.entry.bar(frame, &segment);
        let (found, equal) = self.find(hash, frame, &segment);
        match (found, bar) {
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

    /// What is held of the packet's flow, and whether their headers are equal where they must be.
    #[inline]
    fn find(&self, hash: u64, frame: &Frame, segment: &Segment) -> (Option<u32>, bool) {
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

    /// Appends a packet to what is held of its flow; why it was the last, if it was.
    ///
    /// # Errors
    /// Why it cannot follow.
    fn merge(
        &mut self,
        now_ns: u64,
        slot: u32,
        equal: bool,
        frame: &mut Frame,
        segment: &Segment,
    ) -> Result<Option<Reason>, Reason> {
        self.settle(slot);
        let Some((held, next)) = pair(&mut self.held, &mut self.next, slot) else {
            return Err(Reason::Sequence);
        };
        if !equal || held.follows(&self.tests, frame, segment).is_err() {
            return Err(held.why_not(&self.tests, frame, segment));
        }
        verify::verify(frame, segment)?;
        self.buffers -= held.frame.pieces.len();
        let learned = next.learn(held.program, frame, segment);
        let last = held.append(&self.tests, self.settings.form, frame, segment);
        self.buffers += held.frame.pieces.len();
        self.recent = slot;
        let last = self.appended(now_ns, slot, last);
        if last.is_none() && learned {
            self.expect(slot);
        }
        Ok(last)
    }

    /// Puts packets that came the short way into their aggregate.
    pub(super) fn settle(&mut self, slot: u32) {
        let Some((held, next)) = pair(&mut self.held, &mut self.next, slot) else {
            return;
        };
        self.unsettled -= next.pieces.len() as u32;
        self.buffers -= held.frame.pieces.len();
        held.settle(next, self.settings.form);
        self.buffers += held.frame.pieces.len();
    }

    /// Expects twins of the last packet.
    fn expect(&mut self, slot: u32) {
        if let Some((held, next)) = pair(&mut self.held, &mut self.next, slot) {
            held.expect(next, self.segments_max);
            next.round = self.round;
        }
    }

    /// Packets were appended; why the last of them is the last, if it is.
    fn appended(&mut self, now_ns: u64, slot: u32, mut last: Option<Reason>) -> Option<Reason> {
        self.settle(slot);
        let (held, next) = pair(&mut self.held, &mut self.next, slot)?;
        next.round = self.round;
        if held.segments >= self.segments_max {
            last = Some(Reason::Segments);
        }
        if held.pushed && self.settings.psh == Psh::Flush {
            last = Some(Reason::Push);
        }
        if !self.waits {
            return last;
        }
        if self.settings.flush != Flush::Adaptive {
            // When it is due was decided with its first segment.
            if held.is_full() {
                self.touched.push(slot);
            }
        } else if held.poll != self.polls {
            held.poll = self.polls;
            let hash = held.hash;
            self.touched.push(slot);
            self.history.hit(hash, now_ns);
            self.history.arrived(hash, now_ns);
        }
        last
    }

    /// A packet that nothing held can take: it is held, or passes.
    fn begin(
        &mut self,
        now_ns: u64,
        hash: u64,
        frame: &mut Frame,
        segment: &Segment,
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
            self.held.push(Held::default());
            self.next.push(Next::default());
            self.held.len() as u32 - 1
        });
        let Some((held, next)) = pair(&mut self.held, &mut self.next, slot) else {
            return;
        };
        let learned = next.learn(program, frame, segment);
        let at = (now_ns, self.polls);
        held.begin(frame, segment, (program, hash), max_len, at);
        if learned {
            self.expect(slot);
        }
        self.table.insert(hash, slot);
        self.age.push(AGE, slot);
        self.recent = slot;
        if self.waits {
            self.touched.push(slot);
        }
    }

    /// Sees to it that a flow with this hash can be entered.
    fn make_room(&mut self, hash: u64, now_ns: u64, out: &mut Vec<Frame>) {
        let held = self.held.len() - self.free.len();
        if held >= self.settings.flows.max(1)
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

    /// A packet goes on as it came.
    fn pass(&mut self, frame: &mut Frame, segment: &Segment, out: &mut Vec<Frame>) {
        self.counters.aggregates += u64::from(segment.payload > 0);
        out.push(frame.take());
    }

    /// An aggregate goes on.
    fn close(&mut self, slot: u32, reason: Reason, now_ns: u64, out: &mut Vec<Frame>) {
        self.settle(slot);
        let Some((held, next)) = pair(&mut self.held, &mut self.next, slot) else {
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
        if self.recent == slot {
            self.recent = NOWHERE;
        }
    }
}

/// A slot's two halves.
#[inline]
fn pair<'a>(
    held: &'a mut [Held],
    next: &'a mut [Next],
    slot: u32,
) -> Option<(&'a mut Held, &'a mut Next)> {
    let slot = slot as usize;
    Some((held.get_mut(slot)?, next.get_mut(slot)?))
}
