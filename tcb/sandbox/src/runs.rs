//! Batches of pages as the fewest runs that the kernel maps in one piece each.

use abi::Slot;

/// One page to map: `frame` of memory number `memory` into `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMap {
    /// Where it shall appear.
    pub slot: Slot,
    /// Whose memory, as it was added to the agent.
    pub memory: u32,
    /// Which page of that memory.
    pub frame: u32,
    /// Whether the domain may write it.
    pub writable: bool,
}

/// Pages of a device's own to map, for good, into slots side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMap {
    /// Where the first one shall appear.
    pub slot: Slot,
    /// The first page, as the device counts them.
    pub page: u32,
    /// How many.
    pub pages: u32,
}

/// Slots side by side that show frames side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: PageMap,
    pub(crate) pages: u32,
}

impl Run {
    /// The run of a device's pages, which is mapped apart from all others.
    pub(crate) fn of_device(map: &DeviceMap) -> Self {
        let first = PageMap {
            slot: map.slot,
            memory: u32::MAX,
            frame: map.page,
            writable: true,
        };
        let pages = map.pages;
        Self { first, pages }
    }

    /// Whether `next` begins where this one ends, in slots, frames and access.
    fn continues(&self, next: &Self) -> bool {
        let (first, next) = (&self.first, &next.first);
        first.memory == next.memory
            && first.writable == next.writable
            && first.slot.0.checked_add(self.pages) == Some(next.slot.0)
            && first.frame.checked_add(self.pages) == Some(next.frame)
    }
}

/// The runs of `slots`; only slot and pages mean something.
///
/// # Errors
/// A slot that occurs twice.
pub(crate) fn of_slots(slots: &[Slot]) -> Result<Vec<Run>, Slot> {
    let pages = slots.iter().map(|&slot| PageMap {
        slot,
        memory: 0,
        // Slots side by side are runs, whatever they show.
        frame: slot.0,
        writable: false,
    });
    of_maps(pages)
}

/// The runs of `pages` in the order of their slots.
///
/// # Errors
/// A slot that occurs twice.
pub(crate) fn of_maps(pages: impl Iterator<Item = PageMap>) -> Result<Vec<Run>, Slot> {
    let mut runs: Vec<Run> = pages.map(|first| Run { first, pages: 1 }).collect();
    runs.sort_unstable_by_key(|run| run.first.slot);
    let mut twice = None;
    runs.dedup_by(|next, run| {
        // `run` is the last one kept; sorted, so an overlap can only be with its last page.
        let slot = next.first.slot;
        if slot.0 < run.first.slot.0.saturating_add(run.pages) {
            twice = Some(slot);
        }
        let goes_on = run.continues(next);
        if goes_on {
            run.pages += 1;
        }
        goes_on
    });
    twice.map_or(Ok(runs), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(slot: u32, frame: u32) -> PageMap {
        PageMap {
            slot: Slot(slot),
            memory: 1,
            frame,
            writable: true,
        }
    }

    fn runs(pages: &[PageMap]) -> Result<Vec<(u32, u32, u32)>, Slot> {
        Ok(of_maps(pages.iter().copied())?
            .iter()
            .map(|run| (run.first.slot.0, run.pages, run.first.frame))
            .collect())
    }

    #[test]
    fn neighbours_in_slot_and_frame_merge_whatever_the_order() {
        assert_eq!(
            runs(&[page(3, 13), page(1, 11), page(2, 12)]),
            Ok(vec![(1, 3, 11)])
        );
    }

    #[test]
    fn neighbours_in_slot_alone_do_not() {
        assert_eq!(
            runs(&[page(1, 11), page(2, 13)]),
            Ok(vec![(1, 1, 11), (2, 1, 13)])
        );
        assert_eq!(
            runs(&[page(1, 11), page(3, 12)]),
            Ok(vec![(1, 1, 11), (3, 1, 12)])
        );
        let other = PageMap {
            memory: 2,
            ..page(2, 12)
        };
        assert_eq!(
            runs(&[page(1, 11), other]),
            Ok(vec![(1, 1, 11), (2, 1, 12)])
        );
        let read_only = PageMap {
            writable: false,
            ..page(2, 12)
        };
        assert_eq!(
            runs(&[page(1, 11), read_only]),
            Ok(vec![(1, 1, 11), (2, 1, 12)])
        );
    }

    #[test]
    fn a_slot_twice_is_refused() {
        assert_eq!(runs(&[page(1, 11), page(2, 12), page(1, 30)]), Err(Slot(1)));
        assert_eq!(of_slots(&[Slot(4), Slot(5), Slot(5)]), Err(Slot(5)));
    }

    #[test]
    fn unmapping_merges_by_slot() {
        let out = of_slots(&[Slot(9), Slot(4), Slot(8), Slot(5)]).unwrap();
        let pairs: Vec<_> = out
            .iter()
            .map(|run| (run.first.slot.0, run.pages))
            .collect();
        assert_eq!(pairs, [(4, 2), (8, 2)]);
    }

    #[test]
    fn nothing_is_no_run_and_the_highest_numbers_do_not_wrap() {
        assert_eq!(runs(&[]), Ok(vec![]));
        assert_eq!(
            runs(&[page(u32::MAX, u32::MAX)]),
            Ok(vec![(u32::MAX, 1, u32::MAX)])
        );
    }
}
