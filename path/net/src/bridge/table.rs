//! The forwarding table: open addressing, one cache line for most look-ups.
//!
//! Only [`ForwardingTable::rebuild`] empties a filled slot, so a run of slots from a key's home
//! onwards has no holes. The next station that needs a slot takes over that of an expired one.
//! Every walk ends after [`WINDOW`] slots.

use super::ethernet::{MAC_BITS, mac_of};
use crate::packet::Mac;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Slots that a key can be in, from its home onwards: four cache lines.
const WINDOW: usize = 16;
/// Marks a slot as filled; the bits between it and the MAC hold the port.
const FILLED: u64 = 1 << 63;
const PORT_SHIFT: u32 = 48;
/// The bits of a slot's word that tell stations apart.
const KEY: u64 = FILLED | MAC_BITS;
/// When a bound station is forgotten.
const NEVER: u64 = u64::MAX;

/// A station that the bridge knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Its address.
    pub mac: Mac,
    /// The port that it is behind.
    pub port: usize,
    /// Whether it is there by configuration.
    pub bound: bool,
}

/// What came of seeing a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// It is known now.
    Yes,
    /// There was no room for it.
    Full,
    /// It is bound: nothing was learned.
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

    /// Whether it is filled with `mac`.
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
    /// A power of two of them.
    slots: Vec<Slot>,
    /// Secret and odd.
    multiplier: u64,
    /// Right shift of a product that leaves the number of a slot.
    shift: u32,
    learned_max: usize,
    ageing_ns: u64,
    /// Slots filled by learning, expired ones included.
    learned: usize,
    bound: usize,
    /// No search of the whole table for expired slots before this.
    next_sweep_ns: u64,
}

impl ForwardingTable {
    pub(super) fn new(learned_max: usize, ageing_ns: u64, seed: u64) -> Self {
        let mut table = Self {
            slots: Vec::new(),
            multiplier: SplitMix64::seed_from_u64(seed).next_u64() | 1,
            shift: 0,
            learned_max,
            // Shorter than for ever, which is how bound stations are told apart.
            ageing_ns: ageing_ns.min(NEVER / 2),
            learned: 0,
            bound: 0,
            next_sweep_ns: 0,
        };
        table.clear(table.size_for(0));
        table
    }

    /// Slots for `bound` bound stations and all learned ones: at most half of them are ever filled.
    fn size_for(&self, bound: usize) -> usize {
        ((self.learned_max + bound).max(WINDOW) * 2).next_power_of_two()
    }

    /// The slots that `mac` can be in, by number.
    #[inline]
    fn window(&self, mac: u64) -> impl Iterator<Item = usize> + use<> {
        // The product's highest bits depend on all of the key's, and only they do.
        let home = (mac.wrapping_mul(self.multiplier) >> self.shift) as usize;
        let mask = self.slots.len() - 1;
        (0..WINDOW).map(move |step| home.wrapping_add(step) & mask)
    }

    /// The port that `mac` is behind.
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

    /// Whether `mac` is bound to a port.
    pub(super) fn is_bound(&self, mac: u64) -> bool {
        // Only bound stations outlast every clock.
        self.find(mac, NEVER - 1).is_some()
    }

    /// Notes that `mac` was seen behind `port`.
    #[inline]
    pub(super) fn learn(&mut self, mac: u64, port: usize, now_ns: u64) -> Learned {
        let expires_ns = now_ns.saturating_add(self.ageing_ns).min(NEVER - 1);
        let fresh = Slot::new(mac, port, expires_ns);
        let mut free = None;
        for index in self.window(mac) {
            let Some(slot) = self.slots.get_mut(index) else {
                break;
            };
            if slot.holds(mac) {
                if slot.is_bound() {
                    return Learned::Bound;
                }
                *slot = fresh;
                return Learned::Yes;
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

    /// Puts a new station into slot `free`, if there is one and the bound allows it.
    #[cold]
    fn claim(&mut self, fresh: Slot, free: Option<usize>, now_ns: u64) -> Learned {
        let Some(slot) = free.and_then(|index| self.slots.get_mut(index)) else {
            return Learned::Full;
        };
        if slot.is_filled() {
            *slot = fresh;
            return Learned::Yes;
        }
        if self.learned < self.learned_max {
            *slot = fresh;
            self.learned += 1;
            return Learned::Yes;
        }
        if now_ns < self.next_sweep_ns {
            return Learned::Full;
        }
        // A sweep of the whole table is dear, and strangers must not be able to cause many.
        self.next_sweep_ns = now_ns.saturating_add(self.ageing_ns / 4);
        self.rebuild(self.slots.len(), |slot| now_ns < slot.expires_ns);
        if self.learned < self.learned_max && self.insert(fresh) {
            Learned::Yes
        } else {
            Learned::Full
        }
    }

    /// Binds `mac` to `port`; it is forgotten where it was learned.
    pub(super) fn bind(&mut self, mac: u64, port: usize) {
        let slot = Slot::new(mac, port, NEVER);
        let size = self.size_for(self.bound + 1).max(self.slots.len());
        self.rebuild(size, |other| !other.holds(mac));
        while !self.insert(slot) {
            self.rebuild(self.slots.len() * 2, |_| true);
        }
    }

    /// Forgets everything about `port`.
    pub(super) fn forget_port(&mut self, port: usize) {
        self.rebuild(self.slots.len(), |slot| slot.port() != port);
    }

    /// Puts every slot that `keep` approves into a table of `size` slots. Bound stations come
    /// first, and the table grows until all of them fit; a learned one without room is forgotten.
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

    /// Makes this an empty table of `size` slots, a power of two above 1.
    fn clear(&mut self, size: usize) {
        self.slots.clear();
        self.slots.resize(size, Slot::default());
        self.shift = u64::BITS - size.trailing_zeros();
        (self.bound, self.learned) = (0, 0);
    }

    /// Puts a station into the first empty slot of its window. False: there is none.
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

    /// Every station that is known at `now_ns`.
    pub(super) fn stations(&self, now_ns: u64) -> impl Iterator<Item = Station> + '_ {
        let known = move |slot: &&Slot| slot.is_filled() && now_ns < slot.expires_ns;
        self.slots.iter().filter(known).map(|slot| Station {
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

    /// MACs that all have the same home, and still have if the table grows twice as large.
    fn colliding(table: &ForwardingTable, count: usize) -> Vec<u64> {
        let home = |mac: u64| mac.wrapping_mul(table.multiplier) >> (table.shift - 1);
        (1u64..)
            .map(|n| n << 1)
            .filter(|mac| home(*mac) == 0)
            .take(count)
            .collect()
    }

    /// BR-1, BR-7: bound stations are found also if their MACs collide; the table grows for them.
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
        // Growing has forgotten no learned station.
        assert_eq!(table.find(macs[WINDOW + 2] + 2, 5), Some(2));
        // They go as they came.
        table.forget_port(3);
        assert_eq!(
            (table.find(macs[3], 5), table.bound),
            (None, macs.len() - 1)
        );
        assert_eq!(table.find(macs[WINDOW + 2], 5), Some(WINDOW + 2));
    }

    /// BR-7: where no slot is free within reach, a station is not learned, until one there has
    /// aged.
    #[test]
    fn a_full_neighbourhood_learns_no_other_station() {
        let mut table = ForwardingTable::new(1000, 1000, 0);
        let macs = colliding(&table, WINDOW + 2);
        for mac in &macs[..WINDOW] {
            assert_eq!(table.learn(*mac, PORT, 10), Learned::Yes);
        }
        assert_eq!(table.learn(macs[WINDOW], PORT, 1009), Learned::Full);
        assert_eq!(table.find(macs[WINDOW], 1009), None);
        assert_eq!(table.learn(macs[3], PORT, 500), Learned::Yes);
        assert_eq!(table.learn(macs[WINDOW], PORT, 1010), Learned::Yes);
        // It has the place of one that had aged, and there are no more than before.
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

    /// BR-7: the whole table is looked through once per quarter of the ageing time, no more.
    #[test]
    fn sweeps_are_rare() {
        let mut table = ForwardingTable::new(2, 1000, 0);
        table.learn(2, PORT, 0);
        table.learn(4, PORT, 300);
        assert_eq!(table.learn(6, PORT, 900), Learned::Full);
        // One has aged since, but the last look was less than 250 ago.
        assert_eq!(table.learn(6, PORT, 1149), Learned::Full);
        assert_eq!(table.learn(6, PORT, 1150), Learned::Yes);
        assert_eq!(
            (table.find(2, 1150), table.find(4, 1150)),
            (None, Some(PORT))
        );
        assert_eq!(table.learned, 2);
    }

    /// BR-6: an ageing time beyond all clocks is long, but binds nothing.
    #[test]
    fn the_longest_ageing_binds_nothing() {
        let mut table = ForwardingTable::new(2, u64::MAX, 0);
        table.learn(2, PORT, u64::MAX - 5);
        assert!(!table.is_bound(2));
        assert_eq!(table.find(2, u64::MAX - 5), Some(PORT));
        assert_eq!(table.learn(2, 1, u64::MAX - 4), Learned::Yes);
    }

    /// A different secret puts stations elsewhere.
    #[test]
    fn the_secret_counts() {
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
