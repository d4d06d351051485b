//! Which held aggregate is which flow's: a set-associative table of fixed size.

/// Places a flow can have.
pub(super) const WAYS: usize = 8;

/// One cache line. A tag of 0 is an empty place.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; WAYS],
    slots: [u32; WAYS],
}

/// Flows to slots. A look-up, an entry and a removal touch one bucket.
#[derive(Clone, Debug)]
pub(super) struct Table {
    buckets: Vec<Bucket>,
}

impl Table {
    /// A table with about twice as many places as `flows`: a full bucket is rare.
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

    #[inline]
    const fn tag(hash: u64) -> u32 {
        (hash >> 32) as u32 | 1
    }

    /// The slots whose flow may be the one with this hash: nearly always none or one.
    #[inline]
    pub(super) fn find(&self, hash: u64) -> Candidates<'_> {
        let tag = Self::tag(hash);
        let Some(bucket) = self.bucket(hash) else {
            return Candidates {
                ways: 0,
                slots: &[0; WAYS],
            };
        };
        let mut ways = 0;
        for (way, there) in bucket.tags.iter().enumerate() {
            ways |= u32::from(*there == tag) << way;
        }
        Candidates {
            ways,
            slots: &bucket.slots,
        }
    }

    /// Whether a flow with this hash could be entered.
    pub(super) fn has_room(&self, hash: u64) -> bool {
        self.bucket(hash)
            .is_some_and(|bucket| bucket.tags.contains(&0))
    }

    /// Enters a slot, where [there is room](Table::has_room).
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

    /// Takes a slot out.
    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        let tag = Self::tag(hash);
        let Some(bucket) = self.bucket_mut(hash) else {
            return;
        };
        for (there, at) in bucket.tags.iter_mut().zip(bucket.slots) {
            if *there == tag && at == slot {
                *there = 0;
            }
        }
    }

    /// The slots in the bucket of this hash, which is full.
    pub(super) fn neighbours(&self, hash: u64) -> [u32; WAYS] {
        self.bucket(hash).map_or([0; WAYS], |bucket| bucket.slots)
    }
}

/// Slots with the right tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidates<'a> {
    ways: u32,
    slots: &'a [u32; WAYS],
}

impl Iterator for Candidates<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.ways == 0 {
            return None;
        }
        let way = self.ways.trailing_zeros() as usize;
        self.ways &= self.ways - 1;
        self.slots.get(way).copied()
    }
}
