//! The pages of receive buffers, granted and not granted.

use super::pool::RxBuffers;
use abi::{DomId, GrantRef};
use shmem::Area;
use std::collections::VecDeque;

/// Page recycling counters of the receive pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRecycling {
    /// Posted buffers.
    pub posted: u64,
    /// Pages granted because the pool needed them.
    pub granted: u64,
    /// Pages revoked because more were free than the threshold.
    pub revoked: u64,
    /// Revocations that failed because the driver domain was using the page.
    pub failed_revocations: u64,
    /// Grants that failed because the monitor temporarily rejected the page.
    pub refused: u64,
}

impl std::ops::AddAssign for PageRecycling {
    fn add_assign(&mut self, other: Self) {
        self.posted += other.posted;
        self.granted += other.granted;
        self.revoked += other.revoked;
        self.failed_revocations += other.failed_revocations;
        self.refused += other.refused;
    }
}

/// The pages of the receive pool. Page `n` has the `per_page` buffers from `n × per_page`.
#[derive(Debug)]
pub(super) struct RxPages {
    pub(super) memory: Area,
    pub(super) backend: DomId,
    /// The domain's frames, by page.
    pub(super) frames: Vec<u32>,
    pub(super) per_page: usize,
    /// Number of buffers to keep posted.
    pub(super) target: u32,
    /// Number of whole free pages to keep; `None`: all.
    pub(super) threshold: Option<u32>,
    /// Pages not granted; the last revoked one is granted first.
    pub(super) ungranted: VecDeque<u32>,
    /// Scratch counts of free buffers by page.
    pub(super) counts: Vec<u8>,
    pub(super) recycling: PageRecycling,
}

impl RxPages {
    /// Creates the pages of `frames`; those numbered `away` or higher are not granted.
    pub(super) fn new(
        (memory, backend): (Area, DomId),
        frames: Vec<u32>,
        per_page: usize,
        away: u32,
        threshold: Option<u32>,
    ) -> Self {
        Self {
            memory,
            backend,
            ungranted: (away..frames.len() as u32).rev().collect(),
            frames,
            per_page: per_page.max(1),
            target: away.saturating_mul(per_page as u32),
            threshold,
            counts: Vec::new(),
            recycling: PageRecycling::default(),
        }
    }

    pub(super) fn page_of(&self, buffer: u16) -> usize {
        usize::from(buffer) / self.per_page
    }

    /// Returns the buffers of a page.
    pub(super) fn buffers(&self, page: u32) -> impl Iterator<Item = u16> + use<> {
        let first = page as usize * self.per_page;
        (first..first + self.per_page).map(|n| n as u16)
    }

    /// Appends the pages beyond the threshold that are free as a whole, with their grants, longest
    /// free first.
    pub(super) fn surplus(&mut self, pool: &RxBuffers, out: &mut Vec<(u32, GrantRef)>) {
        let Some(threshold) = self.threshold else {
            return;
        };
        let threshold = threshold as usize;
        if pool.available() <= threshold * self.per_page {
            return;
        }
        self.counts.clear();
        self.counts.resize(self.frames.len(), 0);
        for &buffer in pool.free() {
            let page = self.page_of(buffer);
            if let Some(count) = self.counts.get_mut(page) {
                *count += 1;
            }
        }
        let whole = |count: u8| usize::from(count) == self.per_page;
        let all = self.counts.iter().filter(|&&count| whole(count)).count();
        let surplus = all.saturating_sub(threshold);
        for &buffer in pool.free() {
            if out.len() == surplus {
                break;
            }
            let page = self.page_of(buffer);
            if let Some(count) = self.counts.get_mut(page)
                && usize::from(*count) == self.per_page
                && let Some(slot) = pool.get(usize::from(buffer))
            {
                // The page's other free buffers must not append it again.
                *count = 0;
                out.push((page as u32, slot.gref));
            }
        }
    }
}
