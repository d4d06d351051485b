//! The buffers of a NIC's frames: its pool, the linearizer's large buffers, and pages outside the
//! pool.

use nic::{Buffer, BufferId, Buffers, Pool};

/// Id of the linearizer's first buffer.
pub(crate) const FIRST_LARGE: u32 = 1 << 30;
/// Lowest id of a page outside the pool ([`crate::guests::Guests::nic_pages`]).
pub const FIRST_PAGE: u32 = 1 << 31;

/// All supplies of one NIC. The range of an id shows the supply to which the buffer belongs.
/// [`Buffers::take`] returns a page outside the pool if one is free.
pub(crate) struct NicBuffers<'a> {
    pub(crate) pool: &'a mut Pool,
    /// Large buffers; `None` while the NIC receives, because a NIC does not fill them.
    pub(crate) large: Option<&'a mut Pool>,
    pub(crate) pages: Option<&'a mut (dyn Buffers + 'static)>,
}

impl<'a> NicBuffers<'a> {
    /// Combines the supplies of received frames: a pool, and pages outside it.
    pub(crate) fn received(
        pool: &'a mut Pool,
        pages: Option<&'a mut (dyn Buffers + 'static)>,
    ) -> Self {
        Self {
            pool,
            large: None,
            pages,
        }
    }

    fn supply_of(&mut self, id: BufferId) -> Option<&mut dyn Buffers> {
        match id.0 {
            ..FIRST_LARGE => Some(self.pool),
            FIRST_LARGE..FIRST_PAGE => self.large.as_deref_mut().map(|large| large as _),
            FIRST_PAGE.. => self.pages.as_deref_mut().map(|pages| pages as _),
        }
    }
}

impl Buffers for NicBuffers<'_> {
    fn take(&mut self) -> Option<Buffer> {
        let page = self.pages.as_mut().and_then(|pages| pages.take());
        page.or_else(|| self.pool.take())
    }

    fn take_large(&mut self) -> Option<Buffer> {
        self.large.as_mut().and_then(|large| large.take())
    }

    fn put(&mut self, id: BufferId) {
        if let Some(supply) = self.supply_of(id) {
            supply.put(id);
        }
    }

    fn add_owner(&mut self, id: BufferId) -> bool {
        self.supply_of(id)
            .is_some_and(|supply| supply.add_owner(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;

    #[test]
    fn buffers_return_to_their_supply() {
        let pool = |count: usize, first| {
            let area = Area::anonymous(count * 2048).unwrap();
            Pool::new(area, 2048).numbered_from(first)
        };
        let (mut small, mut large) = (pool(2, 0), pool(2, FIRST_LARGE));
        let mut pages: Box<dyn Buffers> = Box::new(pool(2, FIRST_PAGE));
        let mut all = NicBuffers {
            pool: &mut small,
            large: Some(&mut large),
            pages: Some(&mut *pages),
        };
        let large_buffer = all.take_large().unwrap().id;
        let taken: Vec<_> = std::iter::from_fn(|| all.take()).collect();
        let ids = taken.iter().map(|buffer| buffer.id.0);
        assert!(ids.eq([FIRST_PAGE, FIRST_PAGE + 1, 0, 1]), "pages first");
        assert!(all.add_owner(taken[0].id));
        all.put(large_buffer);
        taken.iter().for_each(|buffer| all.put(buffer.id));
        assert_eq!(
            all.take().unwrap().id.0,
            FIRST_PAGE + 1,
            "the other is in use"
        );
        all.put(taken[0].id);
        assert_eq!(all.take().unwrap().id.0, FIRST_PAGE);
        assert_eq!((small.available(), large.available()), (2, 2));
    }
}
