//! The pages of receive buffers: which are granted, and which could be taken back.

use super::pool::Stack;
use abi::{DomId, GrantRef};
use shmem::Area;
use std::collections::VecDeque;

/// What the pool of receive buffers has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turnover {
    /// Buffers that were posted.
    pub posted: u64,
    /// Pages that were granted anew because the pool needed them.
    pub entered: u64,
    /// Pages that were revoked because more were free than the threshold says.
    pub left: u64,
    /// Times that a page could not leave, because the driver domain was using it.
    pub held_back: u64,
    /// Times that a page could not enter: the monitor refused it for now.
    pub refused: u64,
}

impl std::ops::AddAssign for Turnover {
    fn add_assign(&mut self, other: Self) {
        self.posted += other.posted;
        self.entered += other.entered;
        self.left += other.left;
        self.held_back += other.held_back;
        self.refused += other.refused;
    }
}

/// The pages of the receive pool: buffers `n × per_page` and following are page `n`'s.
#[derive(Debug)]
pub(super) struct RxPages {
    pub(super) memory: Area,
    pub(super) backend: DomId,
    /// The domain's frames, by page.
    pub(super) frames: Vec<u32>,
    pub(super) per_page: usize,
    /// Buffers to be kept posted.
    pub(super) target: u32,
    /// Whole free pages that stay; none: all do.
    pub(super) threshold: Option<u32>,
    /// Pages that are not granted: the one that left last enters first.
    pub(super) away: VecDeque<u32>,
    /// Room to count free buffers by page.
    pub(super) counts: Vec<u8>,
    pub(super) turnover: Turnover,
}

impl RxPages {
    /// The pages of `frames`, of which those from number `away` on are not granted.
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
            away: (away..frames.len() as u32).rev().collect(),
            frames,
            per_page: per_page.max(1),
            target: away.saturating_mul(per_page as u32),
            threshold,
            counts: Vec::new(),
            turnover: Turnover::default(),
        }
    }

    pub(super) fn page_of(&self, buffer: u16) -> usize {
        usize::from(buffer) / self.per_page
    }

    /// The buffers of a page.
    pub(super) fn buffers(&self, page: u32) -> impl Iterator<Item = u16> + use<> {
        let first = page as usize * self.per_page;
        (first..first + self.per_page).map(|n| n as u16)
    }

    /// Whole free pages beyond the threshold, those that were free longest first, and their grants.
    pub(super) fn surplus(&mut self, pool: &Stack, out: &mut Vec<(u32, GrantRef)>) {
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
                // Its other buffers are not to name it again.
                *count = 0;
                out.push((page as u32, slot.gref));
            }
        }
    }
}
