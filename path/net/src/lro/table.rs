//! Maps flows to held aggregates: a set-associative table of fixed size.

/// Entries that a flow can occupy.
pub(super) const WAYS: usize = 8;

/// One cache line. A tag of 0 marks an empty entry.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    tags: [u8; WAYS],
    slots: [u32; WAYS],
}

impl Bucket {
    /// Returns the entries with this tag.
    #[inline]
    fn ways(&self, tag: u8) -> Ways {
        const ONES: u64 = 0x0101_0101_0101_0101;
        const LOW: u64 = 0x7f * ONES;
        // Finds the bytes that are 0 (Hacker's Delight, 6-1).
        let others = u64::from_le_bytes(self.tags) ^ (ONES * u64::from(tag));
        let carried = (others & LOW) + LOW;
        Ways(!(carried | others | LOW))
    }
}

/// Maps flows to slots. A look-up, an insertion and a removal touch one bucket.
#[derive(Clone, Debug)]
pub(super) struct FlowTable {
    buckets: Vec<Bucket>,
}

impl FlowTable {
    /// Creates a table with about twice as many entries as `flows`, so that full buckets are rare.
    pub(super) fn new(flows: usize) -> Self {
        let buckets = (flows.max(1) * 2 / WAYS).max(1).next_power_of_two();
        let empty = Bucket {
            tags: [0; WAYS],
            slots: [0; WAYS],
        };
        Self {
            buckets: vec![empty; buckets],
        }
    }

    #[inline]
    fn bucket(&self, hash: u64) -> Option<&Bucket> {
        self.buckets.get(hash as usize & (self.buckets.len() - 1))
    }

    #[inline]
    fn bucket_mut(&mut self, hash: u64) -> Option<&mut Bucket> {
        let index = hash as usize & (self.buckets.len() - 1);
        self.buckets.get_mut(index)
    }

    /// Returns a tag made of hash bits that do not select the bucket; never 0.
    #[inline]
    const fn tag(hash: u64) -> u8 {
        (hash >> 56) as u8 | 1
    }

    /// Iterates over the slots whose flow may have this hash, nearly always none or one.
    #[inline]
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let bucket = self.bucket(hash);
        let ways = bucket.map_or(Ways(0), |bucket| bucket.ways(Self::tag(hash)));
        ways.filter_map(move |way| bucket?.slots.get(way).copied())
    }

    /// Returns whether a flow with this hash can be inserted.
    pub(super) fn has_room(&self, hash: u64) -> bool {
        self.bucket(hash)
            .is_some_and(|bucket| bucket.tags.contains(&0))
    }

    /// Inserts a slot; requires [room](FlowTable::has_room).
    pub(super) fn insert(&mut self, hash: u64, slot: u32) {
        let tag = Self::tag(hash);
        let Some(bucket) = self.bucket_mut(hash) else {
            return;
        };
        for (there, to) in bucket.tags.iter_mut().zip(&mut bucket.slots) {
            if *there == 0 {
                (*there, *to) = (tag, slot);
                return;
            }
        }
    }

    /// Removes a slot.
    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        let tag = Self::tag(hash);
        let Some(bucket) = self.bucket_mut(hash) else {
            return;
        };
        let way = bucket.ways(tag).find(|way| bucket.slots[*way] == slot);
        if let Some(way) = way {
            bucket.tags[way] = 0;
        }
    }

    /// Returns the slots in the full bucket of this hash.
    pub(super) fn neighbours(&self, hash: u64) -> [u32; WAYS] {
        self.bucket(hash).map_or([0; WAYS], |bucket| bucket.slots)
    }
}

/// Entries of a bucket, each as the highest bit of a byte.
#[derive(Clone, Copy, Debug)]
struct Ways(u64);

impl Iterator for Ways {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let way = self.0.trailing_zeros() as usize / 8;
        self.0 &= self.0 - 1;
        Some(way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_at_any_offset() {
        let mut bucket = Bucket {
            tags: [0; WAYS],
            slots: [0; WAYS],
        };
        for tag in 1..=u8::MAX {
            for way in 0..WAYS {
                for other in [0, tag ^ 1, tag ^ 0x80, !tag] {
                    bucket.tags = [other; WAYS];
                    bucket.tags[way] = tag;
                    assert!(bucket.ways(tag).eq([way]), "{tag} {way} {other}");
                }
            }
            bucket.tags = [tag; WAYS];
            assert!(bucket.ways(tag).eq(0..WAYS));
        }
    }

    #[test]
    fn removed_flow_is_not_found() {
        let mut table = FlowTable::new(16);
        // All flows belong to one bucket, and have one of two tags.
        let hash = |n: u64| (n % 2) << 57;
        for slot in 0..WAYS as u32 {
            assert!(table.has_room(hash(slot.into())));
            table.insert(hash(slot.into()), slot);
        }
        assert!(!table.has_room(hash(0)) && table.find(hash(0)).eq([0, 2, 4, 6]));
        table.remove(hash(0), 4);
        table.remove(hash(1), 6);
        assert!(table.find(hash(0)).eq([0, 2, 6]) && table.find(hash(1)).eq([1, 3, 5, 7]));
        table.insert(hash(1), 9);
        assert!(table.find(hash(1)).eq([1, 3, 9, 5, 7]) && !table.has_room(hash(0)));
    }
}
