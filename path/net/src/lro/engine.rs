//! The LRO engine, and the path of a predicted packet.

use super::adaptive::History;
use super::aggregate::{Aggregate, MergeTests};
use super::counters::LroCounters;
use super::eligibility::Eligibility;
use super::latency::HoldLatency;
use super::layout::{self, SnapshotLayout};
use super::lists::SlotLists;
use super::prediction::Prediction;
use super::reason::Reason;
use super::rules::Programs;
use super::settings::{Flush, Psh, Settings};
use super::table::FlowTable;
use super::timer_wheel::TimerWheel;
use nic::Frame;

/// The only list of aggregates by age.
pub(super) const AGE: u32 = 0;
/// Packets that are looked up at a time.
const LOOKAHEAD: usize = 16;
/// Marks the absence of a slot.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// An LRO engine, for one NIC queue or one vif.
#[derive(Debug)]
pub struct Lro {
    pub(super) settings: Settings,
    /// New settings, which apply once all held aggregates are flushed.
    pub(super) changed: Option<Settings>,
    pub(super) tests: MergeTests,
    pub(super) entry: Eligibility,
    /// [`Settings::waits`].
    pub(super) waits: bool,
    /// [`Settings::segments_max`].
    pub(super) segments_max: u32,
    pub(super) seed: u64,
    pub(super) table: FlowTable,
    pub(super) programs: Programs,
    /// Slots; those in `free` hold nothing.
    pub(super) held: Vec<Aggregate>,
    /// By slot: the packet that is predicted to continue its aggregate.
    pub(super) predictions: Vec<Prediction>,
    pub(super) free: Vec<u32>,
    pub(super) age: SlotLists,
    pub(super) wheel: TimerWheel,
    pub(super) history: History,
    /// The slot of the last packet, or [`NO_SLOT`]: the next one is often of the same flow.
    pub(super) last_slot: u32,
    /// Slots whose aggregates are held or flushed at the end of the poll.
    pub(super) touched: Vec<u32>,
    /// Scratch list of due slots.
    pub(super) due: Vec<u32>,
    pub(super) polls: u64,
    /// The number of the poll if the settings depend on the polls in which packets arrived,
    /// otherwise 0.
    pub(super) round: u32,
    /// Pieces of all held frames.
    pub(super) buffers: usize,
    /// Pieces of predicted packets not yet moved into their frames.
    pub(super) uncollected: u32,
    pub(super) counters: LroCounters,
    pub(super) latency: HoldLatency,
}

impl Lro {
    /// Creates an empty engine. `hash_seed` is a secret, so that no peer can choose colliding
    /// flows.
    #[must_use]
    pub fn new(settings: Settings, hash_seed: u64) -> Self {
        Self {
            settings,
            changed: None,
            tests: MergeTests::new(settings.rules),
            entry: Eligibility::new(settings.rules),
            waits: settings.waits(),
            segments_max: settings.segments_max(),
            seed: hash_seed,
            table: FlowTable::new(settings.flows),
            programs: Programs::new(settings.rules),
            held: Vec::new(),
            predictions: Vec::new(),
            free: Vec::new(),
            age: SlotLists::new(1),
            wheel: TimerWheel::new(settings.hold_ns()),
            history: History::new(&settings),
            last_slot: NO_SLOT,
            touched: Vec::new(),
            due: Vec::new(),
            polls: 0,
            round: 0,
            buffers: 0,
            uncollected: 0,
            counters: LroCounters::default(),
            latency: HoldLatency::default(),
        }
    }

    /// Returns the settings of the last [`Lro::set`].
    #[must_use]
    pub fn settings(&self) -> &Settings {
        self.changed.as_ref().unwrap_or(&self.settings)
    }

    /// Changes the settings while traffic runs. Held aggregates are flushed at the next poll (or
    /// [`Lro::expire`]), before its frames; the latency histogram is reset.
    pub fn set(&mut self, settings: Settings) {
        if settings != *self.settings() {
            self.changed = Some(settings);
        }
    }

    /// Processes one poll's frames, in order of arrival. Empties `frames`, appends finished packets
    /// to `out` and holds the rest. A batch without frames is a poll, too.
    pub fn poll(&mut self, now_ns: u64, frames: &mut Vec<Frame>, out: &mut Vec<Frame>) {
        self.poll_timed(now_ns, || now_ns, frames, out);
    }

    /// Like [`Lro::poll`], for a poll that began at `now_ns` and takes some time. If it flushes
    /// aggregates at the end of the poll, it reads `clock`, so that [`Lro::latency`] includes the
    /// wait for the rest of the poll.
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
        for frames in frames.chunks_mut(LOOKAHEAD) {
            let slots = self.look_up(frames);
            for (frame, slot) in frames.iter_mut().zip(slots) {
                if !self.receive_predicted(now_ns, slot, frame, out) {
                    self.receive_unpredicted(now_ns, frame, out);
                }
            }
        }
        frames.clear();
        self.end_of_poll(now_ns, clock, out);
    }

    /// Returns the number of held buffers: the pieces of all held frames.
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffers + self.uncollected as usize
    }

    /// Returns the number of held aggregates.
    #[must_use]
    pub fn aggregates(&self) -> usize {
        self.held.len() - self.free.len()
    }

    /// Returns the counters since the engine was created.
    #[must_use]
    pub fn counters(&self) -> &LroCounters {
        &self.counters
    }

    /// Returns the histogram of the waiting times of first segments since the settings last
    /// changed.
    #[must_use]
    pub fn latency(&self) -> &HoldLatency {
        &self.latency
    }

    /// Returns the probable slot of each packet, or [`NO_SLOT`]. Reads only addresses and ports, so
    /// that the cache misses of several packets overlap.
    #[inline]
    fn look_up(&self, frames: &[Frame]) -> [u32; LOOKAHEAD] {
        let mut slots = [NO_SLOT; LOOKAHEAD];
        let (mut last_ends, mut last) = ((0, 0), NO_SLOT);
        for (slot, frame) in slots.iter_mut().zip(frames) {
            // For IPv4, addresses and ports distinguish flows.
            let ends = layout::ends_v4(frame);
            if ends != last_ends {
                let usual = SnapshotLayout::usual(frame);
                let hash = usual.map(|usual| layout::hash(frame, usual, self.seed));
                last = hash
                    .and_then(|hash| self.table.find(hash).next())
                    .unwrap_or(NO_SLOT);
                last_ends = match usual {
                    Some(usual) if !usual.v6 => ends,
                    _ => (0, 0),
                };
            }
            *slot = last;
        }
        slots
    }

    /// Takes a packet that its flow, probably in this slot, has predicted: the path of nearly every
    /// packet. Returns false, without effect, for any other packet.
    #[inline]
    fn receive_predicted(
        &mut self,
        now_ns: u64,
        mut slot: u32,
        frame: &Frame,
        out: &mut Vec<Frame>,
    ) -> bool {
        if !self.may_take(slot, frame) {
            slot = self.other_slot(frame);
        }
        self.take_predicted(now_ns, slot, frame, out)
    }

    /// Returns the slot that predicted a packet, if [`Lro::look_up`] has found a different one.
    #[inline(never)]
    fn other_slot(&self, frame: &Frame) -> u32 {
        if self.may_take(self.last_slot, frame) {
            return self.last_slot;
        }
        let Some(usual) = SnapshotLayout::usual(frame) else {
            return NO_SLOT;
        };
        let mut slots = self.table.find(layout::hash(frame, usual, self.seed));
        let slot = slots.find(|slot| self.may_take(*slot, frame));
        slot.unwrap_or(NO_SLOT)
    }

    /// Returns whether a slot may have predicted this packet.
    #[inline]
    fn may_take(&self, slot: u32, frame: &Frame) -> bool {
        let next = self.predictions.get(slot as usize);
        next.is_some_and(|next| next.may_match(frame))
    }

    /// Takes the packet that a slot predicted; returns false for any other packet.
    #[inline(always)]
    fn take_predicted(
        &mut self,
        now_ns: u64,
        slot: u32,
        frame: &Frame,
        out: &mut Vec<Frame>,
    ) -> bool {
        let Some(next) = self.predictions.get_mut(slot as usize) else {
            return false;
        };
        let Some(program) = self.programs.get(next.program) else {
            return false;
        };
        let Some(piece) = next.matches(&program.constant, frame) else {
            return false;
        };
        next.append(piece);
        self.last_slot = slot;
        self.counters.segments += 1;
        self.uncollected += 1;
        if next.room == 0 || next.round != self.round {
            self.note_predicted(now_ns, slot, out);
        }
        true
    }

    /// Accounts for predicted packets, once per poll and when the aggregate is full.
    #[cold]
    #[inline(never)]
    fn note_predicted(&mut self, now_ns: u64, slot: u32, out: &mut Vec<Frame>) {
        if let Some(last) = self.appended(now_ns, slot, None) {
            self.close(slot, last, now_ns, out);
        }
    }

    /// Moves the payload of predicted packets into their aggregate.
    pub(super) fn collect(&mut self, slot: u32) {
        let Some((held, next)) = pair(&mut self.held, &mut self.predictions, slot) else {
            return;
        };
        self.uncollected -= next.pieces.len() as u32;
        self.buffers -= held.frame.pieces.len();
        held.collect(next, self.settings.form);
        self.buffers += held.frame.pieces.len();
    }

    /// Predicts the packet after the last one.
    pub(super) fn predict(&mut self, slot: u32) {
        if let Some((held, next)) = pair(&mut self.held, &mut self.predictions, slot) {
            held.predict(next, self.segments_max);
            next.round = self.round;
        }
    }

    /// Accounts for appended packets; returns why the aggregate is complete, if it is.
    pub(super) fn appended(
        &mut self,
        now_ns: u64,
        slot: u32,
        mut last: Option<Reason>,
    ) -> Option<Reason> {
        self.collect(slot);
        let (held, next) = pair(&mut self.held, &mut self.predictions, slot)?;
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
            // The due time was decided with the first segment.
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
}

/// Returns the aggregate and the prediction of a slot.
#[inline]
pub(super) fn pair<'a>(
    held: &'a mut [Aggregate],
    next: &'a mut [Prediction],
    slot: u32,
) -> Option<(&'a mut Aggregate, &'a mut Prediction)> {
    let slot = slot as usize;
    Some((held.get_mut(slot)?, next.get_mut(slot)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::checksum::Sum;
    use nic::{Checksum, Piece};
    use shmem::Area;

    const HEADER: usize = 14 + 20 + 32;
    const PAYLOAD: usize = 100;
    const LEN: usize = HEADER + PAYLOAD;

    /// Packet `n` of a stream with one bit of its headers flipped, and then its IP checksum
    /// corrected.
    fn packet(n: u16, changed: Option<usize>) -> Frame {
        let mut bytes = [0; LEN];
        bytes[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, LEN as u8 - 14]);
        bytes[18..20].copy_from_slice(&(u16::MAX - 1).wrapping_add(n).to_be_bytes());
        bytes[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
        bytes[26..36].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 9]);
        let sequence = (u32::MAX - 150).wrapping_add(u32::from(n) * PAYLOAD as u32);
        bytes[38..42].copy_from_slice(&sequence.to_be_bytes());
        bytes[46..54].copy_from_slice(&[0x80, 0x10, 0xff, 0xff, 0x12, 0x34, 0, 0]);
        bytes[54..58].copy_from_slice(&[1, 1, 8, 10]);
        let mut ip = Sum::default();
        if let Some(bit) = changed {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes[24..26].fill(0);
        ip.add_bytes(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&(!ip.folded()).to_be_bytes());
        let area = Area::anonymous(LEN).unwrap();
        let memory = area.at(0, LEN).unwrap();
        memory.write(&bytes).unwrap();
        let buffer = nic::BufferId::NONE;
        let span = memory;
        // The snapshot has all headers, and nothing here reads the payload.
        let mut frame = Frame::new(Piece { span, buffer }, LEN).unwrap();
        frame.offload.checksum = Checksum::Valid;
        frame
    }

    /// Returns an engine that holds packet 0.
    fn engine() -> Lro {
        let settings = Settings {
            flush: Flush::Polls(u32::MAX),
            ..Settings::default()
        };
        let mut lro = Lro::new(settings, 5);
        let mut out = Vec::new();
        lro.poll(0, &mut vec![packet(0, None)], &mut out);
        assert!(out.is_empty());
        lro
    }

    /// Returns whether a packet is as predicted.
    fn is_predicted(lro: &mut Lro, packet: &Frame) -> bool {
        lro.receive_predicted(0, 0, packet, &mut Vec::new())
    }

    #[test]
    fn all_but_the_first_are_as_predicted() {
        let mut lro = engine();
        assert!((1..9).all(|n| is_predicted(&mut lro, &packet(n, None))));
        assert!(!is_predicted(&mut lro, &packet(8, None)), "once only");
    }

    #[test]
    fn any_other_bit_sends_a_packet_to_the_slow_path() {
        for bit in 0..HEADER * 8 {
            // The TCP checksum counts as checked by the device, and `packet` corrects the IP
            // checksum.
            let own = (50..52).contains(&(bit / 8)) || (24..26).contains(&(bit / 8));
            let packet = packet(1, Some(bit));
            assert_eq!(
                is_predicted(&mut engine(), &packet),
                own,
                "byte {}",
                bit / 8
            );
        }
    }
}
