//! Flows of recent first fragments. Later fragments have no ports, so each belongs to the flow of
//! its first fragment.

use super::identity::FragmentId;
use super::key::HashKeys;

/// Number of sets, and of records in each.
const SETS: usize = 64;
const PER_SET: usize = 4;
/// Ticks for which a record is valid: 30 s, the reassembly timeout of stations.
const LIFE_TICKS: u32 = 240;

/// One first fragment.
#[derive(Clone, Copy, Debug, Default)]
struct FirstFragment {
    /// Keyed hash of the packet's addresses, protocol and identification; 0: no record.
    packet: u64,
    /// Index of the flow's entry, and the identifying part of the entry's word.
    slot: u32,
    flow: u64,
    tick: u32,
}

/// Records of first fragments. A full set drops its oldest record.
#[derive(Debug)]
pub(super) struct Fragments {
    records: Box<[[FirstFragment; PER_SET]; SETS]>,
}

impl Fragments {
    pub(super) fn new() -> Self {
        Self {
            records: Box::new([[FirstFragment::default(); PER_SET]; SETS]),
        }
    }

    /// Records that the first fragment of a packet belongs to a flow.
    pub(super) fn remember(
        &mut self,
        id: &FragmentId,
        keys: &HashKeys,
        flow: (usize, u64),
        now: u32,
    ) {
        let packet = id.hash(keys) | 1;
        let Some(set) = self.records.get_mut(set_of(packet)) else {
            return;
        };
        let age = |record: &FirstFragment| match record.packet {
            0 => u32::MAX,
            same if same == packet => u32::MAX,
            _ => now.saturating_sub(record.tick),
        };
        if let Some(place) = set.iter_mut().max_by_key(|record| age(record)) {
            *place = FirstFragment {
                packet,
                slot: flow.0 as u32,
                flow: flow.1,
                tick: now,
            };
        }
    }

    /// Returns entry index and identifying word of the flow of a later fragment.
    pub(super) fn find(&self, id: &FragmentId, keys: &HashKeys, now: u32) -> Option<(usize, u64)> {
        let packet = id.hash(keys) | 1;
        let set = self.records.get(set_of(packet))?;
        let fresh = |record: &&FirstFragment| now.saturating_sub(record.tick) <= LIFE_TICKS;
        let mut found = set.iter().filter(|record| record.packet == packet);
        let record = found.find(fresh)?;
        Some((record.slot as usize, record.flow))
    }
}

/// Returns the set of a packet. The low bit of the hash is always set, so it is not used.
const fn set_of(packet: u64) -> usize {
    (packet >> 32) as usize % SETS
}
