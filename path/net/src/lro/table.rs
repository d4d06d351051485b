//! Which held aggregate is which flow's: a set-associative table of fixed size.

/// Places a flow can have.
pub(super) const WAYS: usize = 8;

/// One cache line. A tag of 0 is an empty place.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    tags: [u8; WAYS],
    slots: [u32; WAYS],
}

/// 1 in every byte.
const ONES: u64 = 0x0101_0101_0101_0101;

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

    /// Never 0. Bits that do not choose the bucket.
    #[inline]
    const fn tag(hash: u64) -> u8 {
        (hash >> 56) as u8 | 1
    }

    /// The slots whose flow may be the one with this hash: nearly always none or one.
    #[inline]
    pub(super) fn find(&self, hash: u64) -> Candidates<'_> {
        let Some(bucket) = self.bucket(hash) else {
            return Candidates {
                ways: 0,
                slots: &[0; WAYS],
            };
        };
        // Bytes of 0 where a tag is the right one. The lowest bit that remains is that of such a
        // byte; a higher one may be a wrong tag's (Hacker's Delight, 6-1).
        let others = u64::from_le_bytes(bucket.tags) ^ (ONES * u64::from(Self::tag(hash)));
        Candidates {
            ways: others.wrapping_sub(ONES) & !others & (ONES << 7),
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

/// Slots that have the right tag, perhaps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidates<'a> {
    /// The highest bit of the byte of each.
    ways: u64,
    slots: &'a [u32; WAYS],
}

impl Iterator for Candidates<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.ways == 0 {
            return None;
        }
        let way = self.ways.trailing_zeros() as usize / 8;
        self.ways &= self.ways - 1;
        self.slots.get(way).copied()
    }
}
