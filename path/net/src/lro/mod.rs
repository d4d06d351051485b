//! Large receive offload: consecutive TCP segments of a flow become one packet.
//!
//! | module | job |
//! |---|---|
//! | [`settings`] | what can be chosen |
//! | [`rules`] | what may be merged: the table, and its compiled form |
//! | `entry`, `verify` | what a packet must be by itself |
//! | `layout` | where its headers lie, whose it is |
//! | `held` | an aggregate while it grows |
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
use nic::Frame;
use nic::frame::SNAPSHOT;
use rules::Programs;
use table::Table;
use wheel::Wheel;

/// The only list of the aggregates by age.
const AGE: u32 = 0;
/// No slot's number.
const NOWHERE: u32 = u32::MAX;

/// One engine: for one NIC queue, or one vif.
#[derive(Debug)]
pub struct Lro {
    settings: Settings,
    /// Settings that are in force once what is held has gone.
    next: Option<Settings>,
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
    /// Pieces of all held frames.
    buffers: usize,
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
            next: None,
            tests: Tests::new(settings.rules),
            entry: Entry::new(settings.rules),
            waits: settings.waits(),
            segments_max: settings.segments_max(),
            seed: hash_seed,
            table: Table::new(settings.flows),
            programs: Programs::new(settings.rules),
            held: Vec::new(),
            free: Vec::new(),
            age: Lists::new(1),
            wheel: Wheel::new(settings.hold_ns()),
            history: policy::history(&settings),
            recent: NOWHERE,
            touched: Vec::new(),
            due: Vec::new(),
            polls: 0,
            buffers: 0,
            counters: Counters::default(),
            latency: Latency::default(),
        }
    }

    /// The settings, those of the last [`Lro::set`].
    #[must_use]
    pub fn settings(&self) -> &Settings {
        self.next.as_ref().unwrap_or(&self.settings)
    }

    /// Changes the settings while traffic runs. What is held goes out at the next poll (or
    /// [`Lro::expire`]), before anything that comes with it; the latency histogram begins anew.
    pub fn set(&mut self, settings: Settings) {
        if settings != *self.settings() {
            self.next = Some(settings);
        }
    }

    /// One poll's frames, in order of arrival. `frames` is emptied; what may go on now is appended
    /// to `out`, the rest is held. A batch without frames is a poll, too.
    pub fn poll(&mut self, now_ns: u64, frames: &mut Vec<Frame>, out: &mut Vec<Frame>) {
        self.renew(now_ns, out);
        self.polls += 1;
        for frame in frames.iter_mut() {
            self.receive(now_ns, frame, out);
        }
        frames.clear();
        self.end_of_poll(now_ns, out);
    }

    /// Buffers held: the pieces of all frames that have not gone on.
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffers
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

    /// One frame.
    #[inline]
    fn receive(&mut self, now_ns: u64, frame: &mut Frame, out: &mut Vec<Frame>) {
        let followed = match self.repeat(now_ns, self.recent, frame) {
            Some(last) => Some((self.recent, last)),
            None => self.follow(now_ns, frame),
        };
        match followed {
            Some((_, None)) => {}
            Some((slot, Some(last))) => self.close(slot, last, now_ns, out),
            None => self.receive_any(now_ns, frame, out),
        }
    }

    /// The usual packet of a bulk transfer: the one before it again, further on. Of all that the
    /// rules ask only the count is left to do. None: this is no such packet, and nothing has
    /// happened.
    #[inline]
    fn repeat(&mut self, now_ns: u64, slot: u32, frame: &mut Frame) -> Option<Option<Reason>> {
        let held = self.held.get(slot as usize)?;
        if self.settings.rules != Rules::Gro || !held.continues(frame) {
            return None;
        }
        if frame.header().len() < held.layout.payload() {
            frame.need(SNAPSHOT).ok()?;
            if frame.header().len() < held.layout.payload() {
                return None;
            }
        }
        if !held.is_next(self.programs.get(held.program)?, frame) {
            return None;
        }
        if !verify::taken(frame, held.layout) {
            verify::verify(frame, &held.next_segment()).ok()?;
        }
        self.counters.segments += 1;
        let held = self.held.get_mut(slot as usize)?;
        let pieces = held.frame.pieces.len();
        held.append_next(self.settings.form, frame);
        self.buffers += held.frame.pieces.len() - pieces;
        Some(self.appended(now_ns, slot, None))
    }

    /// Nearly every packet: it continues what is held of its flow. Then its headers need not be
    /// looked at one by one: that they are equal to the first packet's says all. None: this is no
    /// such packet, and nothing has happened.
    #[inline]
    fn follow(&mut self, now_ns: u64, frame: &mut Frame) -> Option<(u32, Option<Reason>)> {
        let usual = Layout::usual(frame)?;
        let hash = layout::hash(frame, usual, self.seed);
        let slot = self.table.find(hash).next()?;
        if let Some(last) = self.repeat(now_ns, slot, frame) {
            return Some((slot, last));
        }
        let held = self.held.get(slot as usize)?;
        let layout = held.layout;
        if frame.header().len() < layout.payload() {
            frame.need(SNAPSHOT).ok()?;
        }
        let program = self.programs.get(held.program)?;
        let equal = program.equal(held.frame.snapshot_room(), frame.snapshot_room());
        if !equal || frame.header().len() < layout.payload() {
            return None;
        }
        let segment = layout::segment(frame, layout, None);
        let bar = self.entry.bar(frame, &segment);
        if bar.is_some() || held.follows(&self.tests, frame, &segment).is_err() {
            return None;
        }
        verify::verify(frame, &segment).ok()?;
        self.counters.segments += 1;
        Some((slot, self.append(now_ns, slot, frame, &segment)))
    }

    /// Any packet.
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
        let Some(held) = self.held.get(slot as usize) else {
            return Err(Reason::Sequence);
        };
        if !equal || held.follows(&self.tests, frame, segment).is_err() {
            return Err(held.why_not(&self.tests, frame, segment));
        }
        verify::verify(frame, segment)?;
        Ok(self.append(now_ns, slot, frame, segment))
    }

    /// Appends a packet that may follow; why it is the last, if it is.
    #[inline]
    fn append(
        &mut self,
        now_ns: u64,
        slot: u32,
        frame: &mut Frame,
        segment: &Segment,
    ) -> Option<Reason> {
        let held = self.held.get_mut(slot as usize)?;
        let pieces = held.frame.pieces.len();
        let last = held.append(&self.tests, self.settings.form, frame, segment);
        self.buffers += held.frame.pieces.len() - pieces;
        self.appended(now_ns, slot, last)
    }

    /// A packet was appended; why it is the last, if it is.
    #[inline]
    fn appended(&mut self, now_ns: u64, slot: u32, mut last: Option<Reason>) -> Option<Reason> {
        let held = self.held.get_mut(slot as usize)?;
        self.counters.merged += 1;
        self.recent = slot;
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
        let at = (now_ns, self.polls);
        let held = Held::new(frame.take(), segment, (program, hash), max_len, at);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.held.len() as u32,
        };
        match self.held.get_mut(slot as usize) {
            Some(place) => *place = held,
            None => self.held.push(held),
        }
        self.table.insert(hash, slot);
        self.age.push(AGE, slot);
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
        let Some(held) = self.held.get_mut(slot as usize) else {
            return;
        };
        self.buffers -= held.frame.pieces.len();
        self.counters.aggregates += 1;
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
