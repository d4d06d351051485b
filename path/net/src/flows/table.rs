//! Hash table of a port's flows.
//!
//! The keyed hash of a flow selects two buckets of eight entries; the flow occupies an entry of one
//! of them. A tag per entry, in private memory, avoids reading entries of other flows. A new flow
//! takes a free or expired entry of the emptier bucket. If both are full, it evicts, in this order,
//! an ended connection, a short exchange of datagrams, or an unconfirmed flow, and among these the
//! one that has been idle for longest. Other flows are never evicted: the new flow is rejected.
//!
//! At most four entries of a bucket hold unconfirmed flows. So a flood of SYNs or datagrams fills
//! at most half of the table and then evicts its own flows; the other half remains for answered
//! flows.

use super::entry::{self, FlowEntry, FlowStatus, SteadyFlow, WORDS, Words};
use super::fragments::Fragments;
use super::identity::{FragmentId, Subject, SubjectKind, is_midstream, is_syn};
use super::key::{FlowKey, HashKeys, PacketKind};
use super::phase::{FlowPhase, marks, tick};
use super::plain_packet::PlainPacket;
use super::{Classification, Direction, FlowState};
use shmem::Span;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of a bucket, and the maximum number of unconfirmed flows among them.
const BUCKET: usize = 8;
const UNCONFIRMED: usize = 4;
/// Words before the entries: a cache line.
const HEADER: usize = 8;
/// Layout of the words. A process does not adopt a table with another layout.
const LAYOUT: u64 = 0x6677_666c_6f77_0001;
/// Ticks after a DHCP request during which an answer to it is related: 30 s.
const DHCP_TICKS: u32 = 240;

/// Error: the table has no entry for a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

/// Counters of flows since the table was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTotals {
    /// Admitted flows.
    pub admitted: u64,
    /// Flows that others evicted.
    pub displaced: u64,
    /// Flows that were rejected because the table was full.
    pub refused: u64,
}

/// Result of [`Flows::classify`].
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    /// Classification of the frame, for rules with a state.
    pub classification: Classification,
    /// The entry of the flow, if it has one.
    slot: Option<usize>,
    key: Option<(FlowKey, u64)>,
}

impl Lookup {
    const fn without_flow(classification: Classification) -> Self {
        Self {
            classification,
            slot: None,
            key: None,
        }
    }
}

/// A port's flows.
#[derive(Debug)]
pub struct Flows {
    words: &'static [AtomicU64],
    /// One byte per entry, by bucket; 0: the entry is free.
    tags: Vec<u64>,
    keys: HashKeys,
    fragments: Fragments,
    /// Tick and direction of the last DHCP request, for IPv4 and IPv6.
    dhcp: [Option<(u32, Direction)>; 2],
    /// Tick until which connections may be picked up in midstream.
    pick_up_until: u32,
    totals: FlowTotals,
}

impl Flows {
    /// Returns the bytes of a table for `flows` flows, which is a power of two, at least 16.
    #[must_use]
    pub const fn bytes(flows: usize) -> usize {
        (HEADER + flows * WORDS) * size_of::<u64>()
    }

    /// Creates an empty table in `memory` for the port with this `identity`. Returns `None` if the
    /// size or alignment of the memory is invalid. `keys` are secret.
    ///
    /// Until `pick_up_until_ns`, a segment of an unknown connection counts as the beginning of a
    /// flow, so that connections older than the table continue if the rules allow them.
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

    /// Returns the table that another process has left in `memory`, if it has this `identity`.
    /// Clears entries that no sequence of packets up to `now_ns` could have produced.
    #[must_use]
    pub fn adopt(memory: Span, identity: u64, now_ns: u64) -> Option<Self> {
        let mut table = Self::over(memory, [0; 2])?;
        let load = |at| Some(table.word(at)?.load(Ordering::Acquire));
        let keys = [load(2)?, load(3)?];
        if (load(0)?, load(1)?) != (LAYOUT, identity) || keys == [0; 2] {
            return None;
        }
        table.keys = HashKeys::new(keys);
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

    /// Returns whether `memory` contains no table that a process could adopt.
    #[must_use]
    pub fn is_free(memory: Span) -> bool {
        memory.load_u64(0) != Ok(LAYOUT)
    }

    /// Releases the memory, so that no process adopts this table.
    pub fn release_memory(self) {
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
            keys: HashKeys::new(keys),
            fragments: Fragments::new(),
            dhcp: [None; 2],
            pick_up_until: 0,
            totals: FlowTotals::default(),
        })
    }

    /// Returns the maximum number of flows.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.tags.len() * BUCKET
    }

    /// Returns the counters.
    #[must_use]
    pub const fn totals(&self) -> FlowTotals {
        self.totals
    }

    /// Iterates over all flows at `now_ns`.
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

    /// Returns a packet's flow if the packet changes only its counters and last tick. For all other
    /// packets it returns `None`, and [`Flows::classify`] classifies them.
    #[must_use]
    #[inline(always)]
    pub fn find_established(
        &self,
        direction: Direction,
        packet: &PlainPacket,
        now_ns: u64,
    ) -> Option<SteadyFlow> {
        let key = packet.key(direction);
        let (_, words) = self.find(&key, self.hash(&key))?;
        SteadyFlow::of(words, direction, packet.kind, tick(now_ns))
    }

    /// Classifies a frame that passes the port in this direction. Changes nothing.
    #[must_use]
    #[inline]
    pub fn classify(&self, direction: Direction, subject: &Subject, now_ns: u64) -> Lookup {
        let now = tick(now_ns);
        match &subject.0 {
            SubjectKind::Untracked => Lookup::without_flow(Classification::Untracked),
            SubjectKind::Unknown => Lookup::without_flow(Classification::Unknown),
            SubjectKind::Packet(tuple, kind, _) => {
                let key = tuple.key(direction);
                let hash = self.hash(&key);
                let slot = self.find_live(&key, hash, now);
                Lookup {
                    classification: self.classification(direction, *kind, slot, now),
                    slot,
                    key: Some((key, hash)),
                }
            }
            SubjectKind::Error(tuple) => {
                let key = tuple.key(direction.opposite());
                let is_known = self.find_live(&key, self.hash(&key), now).is_some();
                Lookup::without_flow(match is_known {
                    true => Classification::Is(FlowState::Related),
                    false => Classification::Unknown,
                })
            }
            SubjectKind::Later(id, tuple) => {
                let ends = tuple.key(direction);
                let slot = self
                    .fragments
                    .find(id, &self.keys, now)
                    .and_then(|(slot, flow)| {
                        let words = self.entry(slot)?;
                        let key = FlowKey { rest: flow, ..ends };
                        let is_same = entry::is_of(words, &key) && entry::is_live(words, now);
                        is_same.then_some(slot)
                    });
                Lookup {
                    classification: match slot {
                        Some(_) => Classification::Is(FlowState::Established),
                        None => Classification::Unknown,
                    },
                    slot,
                    key: None,
                }
            }
        }
    }

    #[inline]
    fn classification(
        &self,
        direction: Direction,
        kind: PacketKind,
        slot: Option<usize>,
        now: u32,
    ) -> Classification {
        let known = slot.and_then(|slot| entry::phase_of(self.entry(slot)?));
        let is_new = match (kind, known) {
            (PacketKind::Tcp(tcp_flags), Some((phase, _))) => phase.is_over() && is_syn(tcp_flags),
            (_, Some(_)) => false,
            (PacketKind::Tcp(tcp_flags), None) => {
                let picks_up = is_midstream(tcp_flags) && now < self.pick_up_until;
                if !is_syn(tcp_flags) && !picks_up {
                    return Classification::Unknown;
                }
                true
            }
            (PacketKind::Echo { is_request: false }, None) => return Classification::Unknown,
            (
                PacketKind::Dhcp {
                    is_request: false,
                    v6,
                },
                None,
            ) if self.dhcp_was_requested(direction, v6, now) => {
                return Classification::Is(FlowState::Related);
            }
            _ => true,
        };
        Classification::Is(match is_new {
            true => FlowState::New,
            false => FlowState::Established,
        })
    }

    fn dhcp_was_requested(&self, direction: Direction, v6: bool, now: u32) -> bool {
        self.dhcp[usize::from(v6)].is_some_and(|(requested, by)| {
            by == direction.opposite() && now.saturating_sub(requested) <= DHCP_TICKS
        })
    }

    /// Admits or updates the flow of a frame that passes, with the result of [`Flows::classify`].
    ///
    /// # Errors
    /// Returns an error if the table has no entry for the new flow.
    #[inline]
    pub fn pass(
        &mut self,
        direction: Direction,
        subject: &Subject,
        lookup: &Lookup,
        bytes: usize,
        now_ns: u64,
    ) -> Result<(), TableFull> {
        let now = tick(now_ns);
        if let SubjectKind::Packet(
            _,
            PacketKind::Dhcp {
                is_request: true,
                v6,
            },
            _,
        ) = subject.0
        {
            self.dhcp[usize::from(v6)] = Some((now, direction));
        }
        match (&subject.0, lookup.slot) {
            (SubjectKind::Packet(_, kind, id), Some(slot)) if !is_new(lookup) => {
                self.continue_flow(direction, *kind, slot, bytes, now);
                self.remember(id.as_ref(), slot, now);
                Ok(())
            }
            (SubjectKind::Packet(_, kind, id), slot) if is_new(lookup) => {
                let Some((key, hash)) = lookup.key else {
                    return Ok(());
                };
                let slot = self.admit(direction, *kind, (key, hash), slot, (bytes, now))?;
                self.remember(id.as_ref(), slot, now);
                Ok(())
            }
            (SubjectKind::Later(..), Some(slot)) => {
                if let Some(words) = self.entry(slot) {
                    entry::count(words, bytes as u64, now, true);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Updates the entry of a known flow for a packet that passes.
    #[inline]
    fn continue_flow(
        &self,
        direction: Direction,
        kind: PacketKind,
        slot: usize,
        bytes: usize,
        now: u32,
    ) {
        let Some(words) = self.entry(slot) else {
            return;
        };
        let Some((phase, marks)) = entry::phase_of(words) else {
            return;
        };
        let by_initiator = (marks & marks::INITIATOR_OUT != 0) == (direction == Direction::Out);
        let (next, next_marks) = match kind {
            PacketKind::Tcp(tcp_flags) => phase.after_segment(marks, by_initiator, tcp_flags),
            _ if by_initiator => (phase, marks),
            _ => (FlowPhase::Replied, marks),
        };
        if (next, next_marks) != (phase, marks) {
            entry::set_phase(words, next, next_marks);
        }
        // After a RST, the entry of an idle flow stays for the whole timeout of a reset flow.
        entry::count(words, bytes as u64, now, next.refreshes() || next != phase);
    }

    /// Creates the entry of a new flow and returns its index.
    #[cold]
    fn admit(
        &mut self,
        direction: Direction,
        kind: PacketKind,
        (key, hash): (FlowKey, u64),
        slot: Option<usize>,
        (bytes, now): (usize, u32),
    ) -> Result<usize, TableFull> {
        let Some(slot) = slot.or_else(|| self.place(&key, hash, now)) else {
            self.totals.refused += 1;
            return Err(TableFull);
        };
        let mut marks = match direction {
            Direction::In => 0,
            Direction::Out => marks::INITIATOR_OUT,
        };
        let phase = match kind {
            PacketKind::Tcp(tcp_flags) => {
                if !is_syn(tcp_flags) {
                    marks |= marks::MIDSTREAM;
                }
                FlowPhase::Opening
            }
            _ => FlowPhase::Requested,
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

    /// Frees an entry for a new flow and returns its index.
    fn place(&mut self, key: &FlowKey, hash: u64, now: u32) -> Option<usize> {
        if let Some((expired, _)) = self.find(key, hash) {
            return Some(expired);
        }
        let buckets = self.buckets(hash);
        let places = buckets.map(|bucket| self.place_in(bucket, now));
        let (slot, rank) = places.into_iter().flatten().max_by_key(|(_, rank)| *rank)?;
        if !matches!(rank, EvictionRank::Free { .. }) {
            self.totals.displaced += 1;
        }
        Some(slot)
    }

    /// Returns the best entry of a bucket to evict, or a free one.
    fn place_in(&self, bucket: usize, now: u32) -> Option<(usize, EvictionRank)> {
        let slots = bucket * BUCKET..(bucket + 1) * BUCKET;
        let mut best: Option<(usize, EvictionRank)> = None;
        let mut oldest_unconfirmed: Option<(usize, EvictionRank)> = None;
        let (mut unconfirmed, mut free) = (0, 0);
        for slot in slots {
            let words = self.entry(slot)?;
            let live = entry::phase_of(words).filter(|_| entry::is_live(words, now));
            let Some((phase, _)) = live else {
                free += 1;
                best = best.max_by_rank((slot, EvictionRank::Free { in_bucket: 0 }));
                continue;
            };
            let (first, last) = entry::ticks_of(words);
            let (idle, lived) = (now.saturating_sub(last), last.saturating_sub(first));
            let rank = match phase {
                phase if phase.is_over() => EvictionRank::Over { idle },
                phase if phase.is_brief(lived) => EvictionRank::Brief { idle },
                phase if phase.is_unconfirmed() => {
                    unconfirmed += 1;
                    let rank = EvictionRank::Unconfirmed { idle };
                    oldest_unconfirmed = oldest_unconfirmed.max_by_rank((slot, rank));
                    rank
                }
                _ => continue,
            };
            best = best.max_by_rank((slot, rank));
        }
        match best {
            _ if unconfirmed >= UNCONFIRMED => oldest_unconfirmed,
            Some((slot, EvictionRank::Free { .. })) => {
                Some((slot, EvictionRank::Free { in_bucket: free }))
            }
            other => other,
        }
    }

    fn remember(&mut self, id: Option<&FragmentId>, slot: usize, now: u32) {
        if let Some(id) = id
            && let Some(entry) = self.entry(slot).and_then(FlowEntry::read)
        {
            self.fragments
                .remember(id, &self.keys, (slot, entry.key.rest), now);
        }
    }

    #[inline]
    fn hash(&self, key: &FlowKey) -> u64 {
        self.keys.hash(key.inside, key.outside, key.rest)
    }

    /// Returns the two buckets of a flow.
    #[inline]
    fn buckets(&self, hash: u64) -> [usize; 2] {
        let mask = self.tags.len() - 1;
        [hash as usize & mask, (hash >> 24) as usize & mask]
    }

    #[inline]
    fn find_live(&self, key: &FlowKey, hash: u64, now: u32) -> Option<usize> {
        let (slot, words) = self.find(key, hash)?;
        entry::is_live(words, now).then_some(slot)
    }

    #[inline(always)]
    fn find(&self, key: &FlowKey, hash: u64) -> Option<(usize, &'static Words)> {
        let [first, second] = self.buckets(hash);
        let hits = |bucket: usize| Some(matches(*self.tags.get(bucket)?, tag_of(hash)));
        // The highest bit of a byte marks a match in the first bucket, the next bit in the second.
        let mut hits = hits(first)? | hits(second)? >> 1;
        while hits != 0 {
            let bit = hits.trailing_zeros() as usize;
            // Branch-free, because the bucket of a flow is unpredictable.
            let bucket = second ^ (first ^ second) & 0usize.wrapping_sub(bit & 1);
            let slot = bucket * BUCKET + bit / 8;
            let words = self.entry(slot)?;
            if entry::is_of(words, key) {
                return Some((slot, words));
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

const fn is_new(lookup: &Lookup) -> bool {
    matches!(lookup.classification, Classification::Is(FlowState::New))
}

/// Cost of evicting an entry, the highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    Unconfirmed { idle: u32 },
    Brief { idle: u32 },
    Over { idle: u32 },
    Free { in_bucket: usize },
}

/// Selects the better of two entries for a new flow.
trait BetterEntry {
    fn max_by_rank(self, other: (usize, EvictionRank)) -> Self;
}

impl BetterEntry for Option<(usize, EvictionRank)> {
    fn max_by_rank(self, other: (usize, EvictionRank)) -> Self {
        match self {
            Some(own) if own.1 >= other.1 => Some(own),
            _ => Some(other),
        }
    }
}

/// Returns the tag of a flow, which is never 0.
#[inline]
const fn tag_of(hash: u64) -> u8 {
    match (hash >> 56) as u8 {
        0 => 1,
        tag => tag,
    }
}

/// Returns the highest bit of each byte of `tags` that equals `tag`. A byte above the first match
/// may be a false positive.
#[inline]
const fn matches(tags: u64, tag: u8) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let differ = tags ^ (ONES * tag as u64);
    differ.wrapping_sub(ONES) & !differ & (ONES << 7)
}
