//! Batches of pages, split into the fewest runs. The kernel maps each run by one call.

use abi::Slot;

/// One page to map: page `frame` of memory number `memory`, into `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMap {
    /// The slot at which it is mapped.
    pub slot: Slot,
    /// The memory's number in the agent.
    pub memory: u32,
    /// The page's number within the memory.
    pub frame: u32,
    /// Whether the domain may write to it.
    pub writable: bool,
}

/// Pages of a device to map permanently into adjacent slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMap {
    /// The first slot.
    pub slot: Slot,
    /// The number of the first page within the device.
    pub page: u32,
    /// The number of pages.
    pub pages: u32,
}

/// Adjacent slots with adjacent frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: PageMap,
    pub(crate) pages: u32,
}

impl Run {
    /// Returns the run of a device's pages, which is mapped by a separate call.
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

    /// Returns whether `next` continues this run in slots, frames and access.
    fn continues(&self, next: &Self) -> bool {
        let (first, next) = (&self.first, &next.first);
        first.memory == next.memory
            && first.writable == next.writable
            && first.slot.0.checked_add(self.pages) == Some(next.slot.0)
            && first.frame.checked_add(self.pages) == Some(next.frame)
    }
}

/// Returns the runs of `slots`. Only their slots and numbers of pages are valid.
///
/// # Errors
/// Returns a slot that occurs twice.
pub(crate) fn of_slots(slots: &[Slot]) -> Result<Vec<Run>, Slot> {
    let pages = slots.iter().map(|&slot| PageMap {
        slot,
        memory: 0,
        // With these frame numbers, adjacent slots form a run.
        frame: slot.0,
        writable: false,
    });
    of_maps(pages)
}

/// Returns the runs of `pages` in the order of their slots.
///
/// # Errors
/// Returns a slot that occurs twice.
pub(crate) fn of_maps(pages: impl Iterator<Item = PageMap>) -> Result<Vec<Run>, Slot> {
    let mut runs: Vec<Run> = pages.map(|first| Run { first, pages: 1 }).collect();
    runs.sort_unstable_by_key(|run| run.first.slot);
    let mut repeated = None;
    runs.dedup_by(|next, run| {
        // `run` is the last run so far. The runs are sorted, so only its last page can overlap with
        // `next`.
        let slot = next.first.slot;
        if slot.0 < run.first.slot.0.saturating_add(run.pages) {
            repeated = Some(slot);
        }
        let is_continued = run.continues(next);
        if is_continued {
            run.pages += 1;
        }
        is_continued
    });
    repeated.map_or(Ok(runs), Err)
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
    fn pages_adjacent_in_slot_and_frame_merge() {
        assert_eq!(
            runs(&[page(3, 13), page(1, 11), page(2, 12)]),
            Ok(vec![(1, 3, 11)])
        );
    }

    #[test]
    fn pages_adjacent_only_in_slot_do_not_merge() {
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
    fn a_repeated_slot_is_rejected() {
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
    fn empty_batches_and_the_highest_slots_work() {
        assert_eq!(runs(&[]), Ok(vec![]));
        assert_eq!(
            runs(&[page(u32::MAX, u32::MAX)]),
            Ok(vec![(u32::MAX, 1, u32::MAX)])
        );
    }
}
