//! Hash table of a port's flows.
//!
//! A flow lies in one of two buckets of eight entries that its keyed hash names. A tag per entry,
//! in private memory, avoids reading entries of other flows. A new flow takes a free or expired
//! entry of the emptier bucket. In full buckets it displaces, in this order: a connection that is
//! over, an exchange of datagrams that was short, a flow that is not confirmed; of each the one
//! that has been silent for longest. Other flows are never displaced: the new one is refused.
//!
//! At most four entries of a bucket are unconfirmed flows. So a flood of SYNs or datagrams fills at
//! most half of the table, displaces its own flows from there on, and leaves the rest to flows that
//! were answered.

use super::entry::{self, FlowEntry, FlowStatus, WORDS, Words};
use super::fragments::Fragments;
use super::key::{Key, PacketKind, hash};
use super::phase::{Phase, marks, tick};
use super::plain::Plain;
use super::subject::{FragmentId, Of, Subject, is_midway, is_syn};
use super::{Direction, Standing, State};
use shmem::Span;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of a bucket, and how many of them unconfirmed flows may have.
const BUCKET: usize = 8;
const UNCONFIRMED: usize = 4;
/// Words before the entries: a cache line.
const HEADER: usize = 8;
/// Layout of the words; a process does not adopt another layout's table.
const LAYOUT: u64 = 0x6677_666c_6f77_0001;
/// Ticks for which an answer to a DHCP request is related: 30 s.
const DHCP_TICKS: u32 = 240;

/// The table has no place for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Counters of flows since the table began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Flows that were admitted.
    pub admitted: u64,
    /// Flows that were displaced by others.
    pub displaced: u64,
    /// Flows that were refused because the table was full.
    pub refused: u64,
}

/// Result of a look-up.
#[derive(Clone, Copy, Debug)]
pub struct Sighting {
    /// Standing of the frame, for rules that ask for a state.
    pub standing: Standing,
    /// The flow's entry, if it has one.
    slot: Option<usize>,
    key: Option<(Key, u64)>,
}

impl Sighting {
    const fn without_flow(standing: Standing) -> Self {
        Self {
            standing,
            slot: None,
            key: None,
        }
    }
}

/// Entry of the flow that a packet belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Place(usize);

/// A port's flows.
#[derive(Debug)]
pub struct Flows {
    words: &'static [AtomicU64],
    /// By bucket, a byte for each entry; 0: it is free.
    tags: Vec<u64>,
    keys: [u64; 2],
    fragments: Fragments,
    /// Tick and direction of the last DHCP request, for IPv4 and IPv6.
    dhcp: [Option<(u32, Direction)>; 2],
    /// Until this tick connections whose beginning was not seen may be picked up.
    pick_up_until: u32,
    totals: Totals,
}

impl Flows {
    /// Bytes of a table for at most `flows` flows: a power of two, at least 16.
    #[must_use]
    pub const fn bytes(flows: usize) -> usize {
        (HEADER + flows * WORDS) * size_of::<u64>()
    }

    /// An empty table in `memory`, which belongs to a port of this `identity` alone.
    /// `None` if the memory is not that of a table. `keys` are secret.
    ///
    /// Connections that are older than the table are picked up by any segment that the rules allow
    /// as a new flow's, until `pick_up_until_ns`.
    #[must_use]
    pub fn new(memory: Span, identity: u64, keys: [u64; 2], pick_up_until_ns: u64) -> Option<Self> {
        let mut table = Self::over(memory, keys)?;
        table.pick_up_until = tick(pick_up_until_ns);
        table.word(0)?.store(0, Ordering::Relaxed);
        for words in (0..table.capacity()).filter_map(|slot| table.entry(slot)) {
            entry::clear(words);
        }
        for (at, value) in [(1, identity), (2, keys[0]), (3, keys[1])] {
            table.word(at)?.store(value, Ordering::Relaxed);
        }
        table.word(0)?.store(LAYOUT, Ordering::Release);
        Some(table)
    }

    /// The table that another process has left in `memory`, if it is one of this `identity`.
    /// Entries that no sequence of packets up to `now_ns` makes are cleared.
    #[must_use]
    pub fn adopt(memory: Span, identity: u64, now_ns: u64) -> Option<Self> {
        let mut table = Self::over(memory, [0; 2])?;
        let load = |at| Some(table.word(at)?.load(Ordering::Acquire));
        let keys = [load(2)?, load(3)?];
        if (load(0)?, load(1)?) != (LAYOUT, identity) || keys == [0; 2] {
            return None;
        }
        table.keys = keys;
        let now = tick(now_ns);
        for slot in 0..table.capacity() {
            let words = table.entry(slot)?;
            let Some(entry) = FlowEntry::read(words).filter(|entry| entry.is_sound(now)) else {
                entry::clear(words);
                continue;
            };
            let found = table.hash(&entry.key);
            let is_misplaced = !table.buckets(found).contains(&(slot / BUCKET));
            if is_misplaced || table.find(&entry.key, found).is_some() {
                entry::clear(words);
                continue;
            }
            table.set_tag(slot, tag_of(found));
        }
        Some(table)
    }

    /// Whether no table lies in `memory` that another process could adopt.
    #[must_use]
    pub fn is_free(memory: Span) -> bool {
        memory.load_u64(0) != Ok(LAYOUT)
    }

    /// Gives the memory back: no process adopts this table.
    pub fn give_up(self) {
        if let Some(word) = self.word(0) {
            word.store(0, Ordering::Release);
        }
    }

    fn over(memory: Span, keys: [u64; 2]) -> Option<Self> {
        let words = memory.u64s(memory.len() / size_of::<u64>())?;
        let capacity = words.len().checked_sub(HEADER)? / WORDS;
        (capacity.is_power_of_two() && capacity >= 2 * BUCKET).then(|| Self {
            words,
            tags: vec![0; capacity / BUCKET],
            keys,
            fragments: Fragments::new(),
            dhcp: [None; 2],
            pick_up_until: 0,
            totals: Totals::default(),
        })
    }

    /// The most flows.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.tags.len() * BUCKET
    }

    /// Counters of flows.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// All flows at `now_ns`.
    pub fn flows(&self, now_ns: u64) -> impl Iterator<Item = FlowStatus> + '_ {
        let now = tick(now_ns);
        let live = (0..self.capacity()).filter_map(move |slot| {
            let words = self
                .entry(slot)
                .filter(|words| entry::is_live(words, now))?;
            FlowEntry::read(words)
        });
        live.map(move |entry| entry.flow(now))
    }

    /// Returns the entry of a packet's flow if the flow was admitted, and the packet changes only
    /// the counts and the last tick there. Returns `None` for all other packets: [`Flows::look`]
    /// tells these apart.
    #[must_use]
    #[inline]
    pub fn carries(&self, direction: Direction, packet: &Plain, now_ns: u64) -> Option<Place> {
        let key = packet.key(direction);
        let slot = self.find_live(&key, self.hash(&key), tick(now_ns))?;
        entry::is_steady(self.entry(slot)?, direction, packet.kind).then_some(Place(slot))
    }

    /// Counts a packet that the flow in this entry [carries](Flows::carries).
    #[inline]
    pub fn count(&mut self, place: Place, bytes: usize, now_ns: u64) {
        if let Some(words) = self.entry(place.0) {
            entry::count(words, bytes as u64, tick(now_ns), true);
        }
    }

    /// How a frame that passes the port in this direction stands to its flows. Nothing changes.
    #[must_use]
    #[inline]
    pub fn look(&self, direction: Direction, subject: &Subject, now_ns: u64) -> Sighting {
        let now = tick(now_ns);
        match &subject.0 {
            Of::Untracked => Sighting::without_flow(Standing::Untracked),
            Of::Unknown => Sighting::without_flow(Standing::Unknown),
            Of::Packet(tuple, kind, _) => {
                let key = tuple.key(direction);
                let hash = self.hash(&key);
                let slot = self.find_live(&key, hash, now);
                Sighting {
                    standing: self.standing(direction, *kind, slot, now),
                    slot,
                    key: Some((key, hash)),
                }
            }
            Of::Error(tuple) => {
                let key = tuple.key(direction.opposite());
                let is_known = self.find_live(&key, self.hash(&key), now).is_some();
                Sighting::without_flow(match is_known {
                    true => Standing::Is(State::Related),
                    false => Standing::Unknown,
                })
            }
            Of::Later(id, tuple) => {
                let ends = tuple.key(direction);
                let slot = self
                    .fragments
                    .find(id, self.keys, now)
                    .and_then(|(slot, flow)| {
                        let words = self.entry(slot)?;
                        let key = Key { rest: flow, ..ends };
                        let is_same = entry::is_of(words, &key) && entry::is_live(words, now);
                        is_same.then_some(slot)
                    });
                Sighting {
                    standing: match slot {
                        Some(_) => Standing::Is(State::Established),
                        None => Standing::Unknown,
                    },
                    slot,
                    key: None,
                }
            }
        }
    }

    #[inline]
    fn standing(
        &self,
        direction: Direction,
        kind: PacketKind,
        slot: Option<usize>,
        now: u32,
    ) -> Standing {
        let known = slot.and_then(|slot| entry::phase_of(self.entry(slot)?));
        let is_new = match (kind, known) {
            (PacketKind::Tcp(seen), Some((phase, _))) => phase.is_over() && is_syn(seen),
            (_, Some(_)) => false,
            (PacketKind::Tcp(seen), None) => {
                let picks_up = is_midway(seen) && now < self.pick_up_until;
                if !is_syn(seen) && !picks_up {
                    return Standing::Unknown;
                }
                true
            }
            (PacketKind::Echo { is_request: false }, None) => return Standing::Unknown,
            (PacketKind::Dhcp { asks: false, v6 }, None) if self.was_asked(direction, v6, now) => {
                return Standing::Is(State::Related);
            }
            _ => true,
        };
        Standing::Is(match is_new {
            true => State::New,
            false => State::Established,
        })
    }

    fn was_asked(&self, direction: Direction, v6: bool, now: u32) -> bool {
        self.dhcp[usize::from(v6)].is_some_and(|(asked, by)| {
            by == direction.opposite() && now.saturating_sub(asked) <= DHCP_TICKS
        })
    }

    /// A frame passes that [`Flows::look`] has found so: its flow is admitted or counts it.
    ///
    /// # Errors
    /// There is no place for its flow.
    #[inline]
    pub fn pass(
        &mut self,
        direction: Direction,
        subject: &Subject,
        seen: &Sighting,
        bytes: usize,
        now_ns: u64,
    ) -> Result<(), Full> {
        let now = tick(now_ns);
        if let Of::Packet(_, PacketKind::Dhcp { asks: true, v6 }, _) = subject.0 {
            self.dhcp[usize::from(v6)] = Some((now, direction));
        }
        match (&subject.0, seen.slot) {
            (Of::Packet(_, kind, id), Some(slot)) if !is_new(seen) => {
                self.goes_on(direction, *kind, slot, bytes, now);
                self.remember(id.as_ref(), slot, now);
                Ok(())
            }
            (Of::Packet(_, kind, id), slot) if is_new(seen) => {
                let Some((key, hash)) = seen.key else {
                    return Ok(());
                };
                let slot = self.admit(direction, *kind, (key, hash), slot, (bytes, now))?;
                self.remember(id.as_ref(), slot, now);
                Ok(())
            }
            (Of::Later(..), Some(slot)) => {
                if let Some(words) = self.entry(slot) {
                    entry::count(words, bytes as u64, now, true);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A packet of a flow that is known passes.
    #[inline]
    fn goes_on(&self, direction: Direction, kind: PacketKind, slot: usize, bytes: usize, now: u32) {
        let Some(words) = self.entry(slot) else {
            return;
        };
        let Some((phase, marks)) = entry::phase_of(words) else {
            return;
        };
        let by_initiator = (marks & marks::INITIATOR_OUT != 0) == (direction == Direction::Out);
        let (next, next_marks) = match kind {
            PacketKind::Tcp(seen) => phase.after_segment(marks, by_initiator, seen),
            _ if by_initiator => (phase, marks),
            _ => (Phase::Replied, marks),
        };
        if (next, next_marks) != (phase, marks) {
            entry::set_phase(words, next, next_marks);
        }
        entry::count(words, bytes as u64, now, next.refreshes());
    }

    /// The entry that a new flow gets.
    #[cold]
    fn admit(
        &mut self,
        direction: Direction,
        kind: PacketKind,
        (key, hash): (Key, u64),
        slot: Option<usize>,
        (bytes, now): (usize, u32),
    ) -> Result<usize, Full> {
        let Some(slot) = slot.or_else(|| self.place(&key, hash, now)) else {
            self.totals.refused += 1;
            return Err(Full);
        };
        let mut marks = match direction {
            Direction::In => 0,
            Direction::Out => marks::INITIATOR_OUT,
        };
        let phase = match kind {
            PacketKind::Tcp(seen) => {
                if !is_syn(seen) {
                    marks |= marks::PICKED_UP;
                }
                Phase::Opening
            }
            _ => Phase::Asked,
        };
        let entry = FlowEntry {
            key,
            phase,
            marks,
            first: now,
            last: now,
            packets: 1,
            bytes: bytes as u64,
        };
        if let Some(words) = self.entry(slot) {
            entry.write(words);
        }
        self.set_tag(slot, tag_of(hash));
        self.totals.admitted += 1;
        Ok(slot)
    }

    /// An entry that a new flow may take, free from now on.
    fn place(&mut self, key: &Key, hash: u64, now: u32) -> Option<usize> {
        if let Some(expired) = self.find(key, hash) {
            return Some(expired);
        }
        let buckets = self.buckets(hash);
        let places = buckets.map(|bucket| self.place_in(bucket, now));
        let (slot, rank) = places.into_iter().flatten().max_by_key(|(_, rank)| *rank)?;
        if !matches!(rank, Rank::Free { .. }) {
            self.totals.displaced += 1;
        }
        Some(slot)
    }

    /// The entry of a bucket that a new flow may take with the least harm.
    fn place_in(&self, bucket: usize, now: u32) -> Option<(usize, Rank)> {
        let slots = bucket * BUCKET..(bucket + 1) * BUCKET;
        let mut best: Option<(usize, Rank)> = None;
        let mut oldest_unconfirmed: Option<(usize, Rank)> = None;
        let (mut unconfirmed, mut free) = (0, 0);
        for slot in slots {
            let words = self.entry(slot)?;
            let live = entry::phase_of(words).filter(|_| entry::is_live(words, now));
            let Some((phase, _)) = live else {
                free += 1;
                best = best.max_by_rank((slot, Rank::Free { in_bucket: 0 }));
                continue;
            };
            let (first, last) = entry::ticks_of(words);
            let (idle, lived) = (now.saturating_sub(last), last.saturating_sub(first));
            let rank = match phase {
                phase if phase.is_over() => Rank::Over { idle },
                phase if phase.is_brief(lived) => Rank::Brief { idle },
                phase if phase.is_unconfirmed() => {
                    unconfirmed += 1;
                    let rank = Rank::Unconfirmed { idle };
                    oldest_unconfirmed = oldest_unconfirmed.max_by_rank((slot, rank));
                    rank
                }
                _ => continue,
            };
            best = best.max_by_rank((slot, rank));
        }
        match best {
            _ if unconfirmed >= UNCONFIRMED => oldest_unconfirmed,
            Some((slot, Rank::Free { .. })) => Some((slot, Rank::Free { in_bucket: free })),
            other => other,
        }
    }

    fn remember(&mut self, id: Option<&FragmentId>, slot: usize, now: u32) {
        if let Some(id) = id
            && let Some(entry) = self.entry(slot).and_then(FlowEntry::read)
        {
            self.fragments
                .remember(id, self.keys, (slot, entry.key.rest), now);
        }
    }

    #[inline]
    fn hash(&self, key: &Key) -> u64 {
        hash(key.inside, key.outside, key.rest, self.keys)
    }

    /// The two buckets of a flow.
    #[inline]
    fn buckets(&self, hash: u64) -> [usize; 2] {
        let mask = self.tags.len() - 1;
        [hash as usize & mask, (hash >> 24) as usize & mask]
    }

    #[inline]
    fn find_live(&self, key: &Key, hash: u64, now: u32) -> Option<usize> {
        let slot = self.find(key, hash)?;
        entry::is_live(self.entry(slot)?, now).then_some(slot)
    }

    #[inline]
    fn find(&self, key: &Key, hash: u64) -> Option<usize> {
        let [first, second] = self.buckets(hash);
        let hits = |bucket: usize| Some(matches(*self.tags.get(bucket)?, tag_of(hash)));
        // The highest bit of a byte is a hit in the first bucket, the bit below one in the second.
        let mut hits = hits(first)? | hits(second)? >> 1;
        while hits != 0 {
            let bit = hits.trailing_zeros() as usize;
            // Without a branch: nothing predicts the bucket of a flow.
            let bucket = second ^ (first ^ second) & 0usize.wrapping_sub(bit & 1);
            let slot = bucket * BUCKET + bit / 8;
            if entry::is_of(self.entry(slot)?, key) {
                return Some(slot);
            }
            hits &= hits - 1;
        }
        None
    }

    fn word(&self, at: usize) -> Option<&'static AtomicU64> {
        self.words.get(at)
    }

    #[inline]
    fn entry(&self, slot: usize) -> Option<&'static Words> {
        self.words.get(HEADER + slot * WORDS..)?.first_chunk()
    }

    fn set_tag(&mut self, slot: usize, tag: u8) {
        if let Some(tags) = self.tags.get_mut(slot / BUCKET) {
            let shift = slot % BUCKET * 8;
            *tags = *tags & !(0xff << shift) | u64::from(tag) << shift;
        }
    }
}

const fn is_new(seen: &Sighting) -> bool {
    matches!(seen.standing, Standing::Is(State::New))
}

/// Harm of giving an entry to a new flow, the most harmful first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Unconfirmed { idle: u32 },
    Brief { idle: u32 },
    Over { idle: u32 },
    Free { in_bucket: usize },
}

/// The better of two places.
trait Better {
    fn max_by_rank(self, other: (usize, Rank)) -> Self;
}

impl Better for Option<(usize, Rank)> {
    fn max_by_rank(self, other: (usize, Rank)) -> Self {
        match self {
            Some(own) if own.1 >= other.1 => Some(own),
            _ => Some(other),
        }
    }
}

/// Tag of a flow: never 0.
#[inline]
const fn tag_of(hash: u64) -> u8 {
    (hash >> 56) as u8 | 1
}

/// The bytes of `tags` that equal `tag`, as their highest bits; perhaps others behind the first.
#[inline]
const fn matches(tags: u64, tag: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let differ = tags ^ (ONES * tag as u64);
    differ.wrapping_sub(ONES) & !differ & (ONES << 7)
}
