//! The forwarding table: open addressing, one cache line for most look-ups.
//!
//! Only [`ForwardingTable::rebuild`] empties a filled slot, so a run of slots from a key's home
//! onwards has no holes. A new station reuses the slot of an expired one. Every walk ends after
//! [`WINDOW`] slots.

use super::ethernet::{MAC_BITS, mac_of};
use crate::packet::Mac;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Slots that a key can occupy, from its home onwards: four cache lines.
const WINDOW: usize = 16;
/// Marks a slot as filled; the bits between it and the MAC hold the port.
const FILLED: u64 = 1 << 63;
const PORT_SHIFT: u32 = 48;
/// The bits of a slot's word that identify a station.
const KEY: u64 = FILLED | MAC_BITS;
/// Expiry time of a bound station.
const NEVER: u64 = u64::MAX;

/// A known station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StationEntry {
    /// Its address.
    pub mac: Mac,
    /// The port in front of it.
    pub port: usize,
    /// Whether it is bound by configuration.
    pub bound: bool,
}

/// Result of learning a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LearnResult {
    /// The station is known now.
    Yes,
    /// The table has no room for the station.
    Full,
    /// The station is bound; nothing was learned.
    Bound,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    word: u64,
    expires_ns: u64,
}

impl Slot {
    fn new(mac: u64, port: usize, expires_ns: u64) -> Self {
        Self {
            word: FILLED | (port as u64) << PORT_SHIFT | mac,
            expires_ns,
        }
    }

    /// Returns whether the slot holds `mac`.
    #[inline]
    fn holds(self, mac: u64) -> bool {
        self.word & KEY == mac | FILLED
    }

    fn is_filled(self) -> bool {
        self.word & FILLED != 0
    }

    fn is_bound(self) -> bool {
        self.expires_ns == NEVER
    }

    fn port(self) -> usize {
        ((self.word & !FILLED) >> PORT_SHIFT) as usize
    }
}

#[derive(Debug)]
pub(super) struct ForwardingTable {
    /// Slots; their number is a power of two.
    slots: Vec<Slot>,
    /// Multiplier of the hash, secret and odd.
    multiplier: u64,
    /// Right shift that reduces a product to a slot's number.
    shift: u32,
    learned_max: usize,
    ageing_ns: u64,
    /// Slots filled by learning, including expired ones.
    learned: usize,
    bound: usize,
    /// Earliest time of the next sweep of the whole table.
    next_sweep_ns: u64,
}

impl ForwardingTable {
    pub(super) fn new(learned_max: usize, ageing_ns: u64, seed: u64) -> Self {
        let mut table = Self {
            slots: Vec::new(),
            multiplier: SplitMix64::seed_from_u64(seed).next_u64() | 1,
            shift: 0,
            learned_max,
            // Less than `NEVER`, which marks bound stations.
            ageing_ns: ageing_ns.min(NEVER / 2),
            learned: 0,
            bound: 0,
            next_sweep_ns: 0,
        };
        table.clear(table.size_for(0));
        table
    }

    /// Returns the number of slots for `bound` bound stations and all learned ones. At most half of
    /// the slots are ever filled.
    fn size_for(&self, bound: usize) -> usize {
        ((self.learned_max + bound).max(WINDOW) * 2).next_power_of_two()
    }

    /// Iterates over the slots that `mac` can occupy.
    #[inline]
    fn window(&self, mac: u64) -> impl Iterator<Item = usize> + use<> {
        // Only the product's highest bits depend on all bits of the key.
        let home = (mac.wrapping_mul(self.multiplier) >> self.shift) as usize;
        let mask = self.slots.len() - 1;
        (0..WINDOW).map(move |step| home.wrapping_add(step) & mask)
    }

    /// Returns the port of `mac`.
    #[inline]
    pub(super) fn find(&self, mac: u64, now_ns: u64) -> Option<usize> {
        for index in self.window(mac) {
            let slot = self.slots.get(index)?;
            if slot.holds(mac) {
                return (now_ns < slot.expires_ns).then(|| slot.port());
            }
            if !slot.is_filled() {
                return None;
            }
        }
        None
    }

    /// Returns whether `mac` is bound to a port.
    pub(super) fn is_bound(&self, mac: u64) -> bool {
        // Only bound stations last that long.
        self.find(mac, NEVER - 1).is_some()
    }

    /// Learns that `mac` is behind `port`.
    #[inline]
    pub(super) fn learn(&mut self, mac: u64, port: usize, now_ns: u64) -> LearnResult {
        let expires_ns = now_ns.saturating_add(self.ageing_ns).min(NEVER - 1);
        let fresh = Slot::new(mac, port, expires_ns);
        let mut free = None;
        for index in self.window(mac) {
            let Some(slot) = self.slots.get_mut(index) else {
                break;
            };
            if slot.holds(mac) {
                if slot.is_bound() {
                    return LearnResult::Bound;
                }
                *slot = fresh;
                return LearnResult::Yes;
            }
            if !slot.is_filled() {
                free = free.or(Some(index));
                break;
            }
            if slot.expires_ns <= now_ns {
                free = free.or(Some(index));
            }
        }
        self.claim(fresh, free, now_ns)
    }

    /// Stores a new station in slot `free`, if it is not `None` and the limit allows the station.
    #[cold]
    fn claim(&mut self, fresh: Slot, free: Option<usize>, now_ns: u64) -> LearnResult {
        let Some(slot) = free.and_then(|index| self.slots.get_mut(index)) else {
            return LearnResult::Full;
        };
        if slot.is_filled() {
            *slot = fresh;
            return LearnResult::Yes;
        }
        if self.learned < self.learned_max {
            *slot = fresh;
            self.learned += 1;
            return LearnResult::Yes;
        }
        if now_ns < self.next_sweep_ns {
            return LearnResult::Full;
        }
        // A sweep of the whole table is expensive, so unknown stations must not cause frequent
        // sweeps.
        self.next_sweep_ns = now_ns.saturating_add(self.ageing_ns / 4);
        self.rebuild(self.slots.len(), |slot| now_ns < slot.expires_ns);
        if self.learned < self.learned_max && self.insert(fresh) {
            LearnResult::Yes
        } else {
            LearnResult::Full
        }
    }

    /// Binds `mac` to `port`, replacing a learned entry.
    pub(super) fn bind(&mut self, mac: u64, port: usize) {
        let slot = Slot::new(mac, port, NEVER);
        let size = self.size_for(self.bound + 1).max(self.slots.len());
        self.rebuild(size, |other| !other.holds(mac));
        while !self.insert(slot) {
            self.rebuild(self.slots.len() * 2, |_| true);
        }
    }

    /// Removes all stations of `port`.
    pub(super) fn forget_port(&mut self, port: usize) {
        self.rebuild(self.slots.len(), |slot| slot.port() != port);
    }

    /// Moves every slot that `keep` selects into a table of `size` slots. Inserts bound stations
    /// first, and grows the table until all of them fit; drops learned stations that do not fit.
    fn rebuild(&mut self, size: usize, keep: impl Fn(&Slot) -> bool) {
        let filled = |slot: &&Slot| slot.is_filled() && keep(slot);
        let (bound, learned): (Vec<Slot>, Vec<Slot>) = self
            .slots
            .iter()
            .filter(filled)
            .partition(|slot| slot.is_bound());
        let mut size = size;
        loop {
            self.clear(size);
            if bound.iter().all(|slot| self.insert(*slot)) {
                break;
            }
            size *= 2;
        }
        for slot in learned {
            self.insert(slot);
        }
    }

    /// Replaces the contents by `size` empty slots. `size` is a power of two above 1.
    fn clear(&mut self, size: usize) {
        self.slots.clear();
        self.slots.resize(size, Slot::default());
        self.shift = u64::BITS - size.trailing_zeros();
        (self.bound, self.learned) = (0, 0);
    }

    /// Stores a station in the first empty slot of its window; returns false if no slot is empty.
    fn insert(&mut self, fresh: Slot) -> bool {
        let empty = self
            .window(fresh.word & MAC_BITS)
            .find(|index| self.slots.get(*index).is_some_and(|slot| !slot.is_filled()));
        let Some(slot) = empty.and_then(|index| self.slots.get_mut(index)) else {
            return false;
        };
        *slot = fresh;
        match fresh.is_bound() {
            true => self.bound += 1,
            false => self.learned += 1,
        }
        true
    }

    /// Iterates over the stations known at `now_ns`.
    pub(super) fn stations(&self, now_ns: u64) -> impl Iterator<Item = StationEntry> + '_ {
        let known = move |slot: &&Slot| slot.is_filled() && now_ns < slot.expires_ns;
        self.slots.iter().filter(known).map(|slot| StationEntry {
            mac: mac_of(slot.word & MAC_BITS),
            port: slot.port(),
            bound: slot.is_bound(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: usize = 7;

    /// Returns MACs with the same home, also after the table doubles.
    fn colliding(table: &ForwardingTable, count: usize) -> Vec<u64> {
        let home = |mac: u64| mac.wrapping_mul(table.multiplier) >> (table.shift - 1);
        (1u64..)
            .map(|n| n << 1)
            .filter(|mac| home(*mac) == 0)
            .take(count)
            .collect()
    }

    /// BR-1, BR-7: bound stations with colliding MACs are found; the table grows for them.
    #[test]
    fn bound_stations_are_found_even_if_all_collide() {
        let mut table = ForwardingTable::new(4, 1000, 0);
        let slots = table.slots.len();
        let macs = colliding(&table, WINDOW + 3);
        table.learn(macs[0], 1, 0);
        table.learn(macs[WINDOW + 2] + 2, 2, 0);
        for (port, mac) in macs.iter().enumerate() {
            table.bind(*mac, port);
        }
        for (port, mac) in macs.iter().enumerate() {
            assert_eq!(table.find(*mac, 5), Some(port));
            assert!(table.is_bound(*mac));
        }
        assert!(table.slots.len() > slots);
        assert_eq!((table.bound, table.learned), (macs.len(), 1));
        // Growing kept the learned stations.
        assert_eq!(table.find(macs[WINDOW + 2] + 2, 5), Some(2));
        // Removing them also keeps the learned stations.
        table.forget_port(3);
        assert_eq!(
            (table.find(macs[3], 5), table.bound),
            (None, macs.len() - 1)
        );
        assert_eq!(table.find(macs[WINDOW + 2], 5), Some(WINDOW + 2));
    }

    /// BR-7: a station without a free slot in its window is not learned until a slot there expires.
    #[test]
    fn a_full_neighbourhood_learns_no_other_station() {
        let mut table = ForwardingTable::new(1000, 1000, 0);
        let macs = colliding(&table, WINDOW + 2);
        for mac in &macs[..WINDOW] {
            assert_eq!(table.learn(*mac, PORT, 10), LearnResult::Yes);
        }
        assert_eq!(table.learn(macs[WINDOW], PORT, 1009), LearnResult::Full);
        assert_eq!(table.find(macs[WINDOW], 1009), None);
        assert_eq!(table.learn(macs[3], PORT, 500), LearnResult::Yes);
        assert_eq!(table.learn(macs[WINDOW], PORT, 1010), LearnResult::Yes);
        // The new station reused the slot of an expired one, so the count is unchanged.
        assert_eq!(
            (table.learned, table.find(macs[WINDOW], 1011)),
            (WINDOW, Some(PORT))
        );
        assert_eq!(table.find(macs[3], 1011), Some(PORT));
        assert_eq!(table.find(macs[0], 1009), None);
        assert_eq!(table.find(macs[15], 1009), Some(PORT));
    }

    /// BR-7: at most half of the slots are ever filled, however many stations are bound.
    #[test]
    fn half_of_the_slots_stay_empty() {
        let mut table = ForwardingTable::new(100, 1000, 9);
        assert_eq!(table.slots.len(), 256);
        for n in 1..=200u64 {
            table.bind(n << 8, PORT);
            assert!(table.slots.len() >= 2 * (100 + table.bound));
        }
        assert_eq!((table.bound, table.slots.len()), (200, 1024));
        assert_eq!(ForwardingTable::new(0, 1000, 0).slots.len(), 2 * WINDOW);
    }

    /// BR-7: the whole table is swept at most once per quarter of the ageing time.
    #[test]
    fn sweeps_are_a_quarter_of_ageing_apart() {
        let mut table = ForwardingTable::new(2, 1000, 0);
        table.learn(2, PORT, 0);
        table.learn(4, PORT, 300);
        assert_eq!(table.learn(6, PORT, 900), LearnResult::Full);
        // One station has expired since, but the last sweep was less than 250 ns ago.
        assert_eq!(table.learn(6, PORT, 1149), LearnResult::Full);
        assert_eq!(table.learn(6, PORT, 1150), LearnResult::Yes);
        assert_eq!(
            (table.find(2, 1150), table.find(4, 1150)),
            (None, Some(PORT))
        );
        assert_eq!(table.learned, 2);
    }

    /// BR-6: even with the longest ageing time, learned stations are not bound.
    #[test]
    fn the_longest_ageing_binds_nothing() {
        let mut table = ForwardingTable::new(2, u64::MAX, 0);
        table.learn(2, PORT, u64::MAX - 5);
        assert!(!table.is_bound(2));
        assert_eq!(table.find(2, u64::MAX - 5), Some(PORT));
        assert_eq!(table.learn(2, 1, u64::MAX - 4), LearnResult::Yes);
    }

    /// A different secret changes the slots of stations.
    #[test]
    fn slots_depend_on_the_secret() {
        let homes = |seed| {
            let table = ForwardingTable::new(1000, 1000, seed);
            (1..50u64)
                .map(|mac| table.window(mac << 8).next())
                .collect::<Vec<_>>()
        };
        assert_eq!(homes(1), homes(1));
        assert_ne!(homes(1), homes(2));
        assert_ne!(homes(1), homes(1 << 63 | 1));
    }
}
