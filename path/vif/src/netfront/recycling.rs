//! Page recycling: pages that enter and leave the pool of receive buffers (Ram's thesis, 4.7).
//!
//! A page is granted as long as it is in the pool, and its grant is reused. The netfront keeps the
//! ring full while frames hold received buffers. When no buffer is free, it zeroes and grants one
//! of the domain's pages, which enters the pool. When more whole pages are free than the *release
//! threshold*, the longest idle ones leave: the netfront revokes their grants, and the driver
//! domain cannot access them.
//!
//! ```text
//!             enter: zeroed, granted
//!   domain's pages ────────────────► free ◄───────► posted, or with a frame
//!                  ◄────────────────      (reused)
//!             leave: revoked
//! ```

use super::interface::Netfront;
use super::rx_pages::PageRecycling;
use super::table::{GrantedPage, Granter};
use abi::GrantRef;

impl Netfront {
    /// Returns the page recycling counters.
    #[must_use]
    pub fn recycling(&self) -> &PageRecycling {
        &self.rx_pages.recycling
    }

    /// Returns the number of granted pages of receive buffers, and the number of all pages of
    /// receive buffers.
    #[must_use]
    pub fn rx_pages(&self) -> (usize, usize) {
        let all = self.rx_pages.frames.len();
        (all - self.rx_pages.ungranted.len(), all)
    }

    /// Returns whether pages enter and leave the pool. If so, the caller must call
    /// [`Netfront::refill`] and [`Netfront::release`].
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        self.rx_pages.threshold.is_some() || !self.rx_pages.ungranted.is_empty()
    }

    /// Posts buffers while frames hold received ones: free buffers first, then those of entering
    /// pages.
    pub fn refill(&mut self, granter: &mut dyn Granter) {
        self.post();
        let lacking = self.buffers_to_post() as usize;
        let pages = &mut self.rx_pages;
        let want = lacking.div_ceil(pages.per_page).min(pages.ungranted.len());
        if want == 0 {
            return;
        }
        let kept = pages.ungranted.len() - want;
        let mut entering: Vec<u32> = pages.ungranted.split_off(kept).into();
        // A page that cannot be zeroed is inaccessible and stays outside the pool.
        entering.retain(|&page| {
            let frame = pages.frames.get(page as usize).copied().unwrap_or(u32::MAX);
            let memory = pages.memory.page(frame);
            let clean = memory.is_some_and(|memory| memory.fill(0).is_ok());
            if !clean {
                pages.ungranted.push_front(page);
            }
            clean
        });
        let granted: Vec<_> = entering
            .iter()
            .filter_map(|&page| pages.frames.get(page as usize))
            .map(|&frame| GrantedPage {
                frame,
                readonly: false,
                io: true,
                exchanged: false,
                entry: None,
            })
            .collect();
        let mut made = Vec::with_capacity(granted.len());
        granter.enter(pages.backend, &granted, &mut made);
        for (page, made) in entering.into_iter().zip(made) {
            match made {
                Ok(gref) => {
                    for buffer in pages.buffers(page) {
                        self.rx_pool.restore(buffer, gref);
                    }
                    pages.recycling.granted += 1;
                }
                // Move the page to the end, so that the next call tries other pages first.
                Err(_) => {
                    pages.ungranted.push_front(page);
                    pages.recycling.refused += 1;
                }
            }
        }
        self.post();
    }

    /// Removes free pages beyond the threshold from the pool.
    pub fn release(&mut self, granter: &mut dyn Granter) {
        let pages = &mut self.rx_pages;
        let mut leaving = Vec::new();
        pages.surplus(&self.rx_pool, &mut leaving);
        if leaving.is_empty() {
            return;
        }
        let grefs: Vec<_> = leaving.iter().map(|(_, gref)| *gref).collect();
        let mut left = Vec::with_capacity(grefs.len());
        granter.revoke_pages(&grefs, &mut left);
        let gone: Vec<u32> = leaving
            .iter()
            .zip(&left)
            .filter_map(|((page, _), left)| left.then_some(*page))
            .collect();
        // `surplus` has set the counts of all candidates to zero; this loop marks the pages that
        // the granter has removed.
        for &page in &gone {
            if let Some(count) = pages.counts.get_mut(page as usize) {
                *count = u8::MAX;
            }
        }
        self.rx_pool
            .withdraw(|buffer| pages.counts.get(pages.page_of(buffer)) == Some(&u8::MAX));
        pages.recycling.revoked += gone.len() as u64;
        pages.recycling.failed_revocations += (leaving.len() - gone.len()) as u64;
        pages.ungranted.extend(gone);
    }

    /// Returns the number of buffers to post, limited by the ring's free slots and the target.
    pub(super) fn buffers_to_post(&self) -> u32 {
        let wanted = self.rx_pages.target.saturating_sub(self.rx.unanswered());
        wanted.min(self.rx.free())
    }

    /// Removes and returns the grants of all pages in the pool, none of which may be used any more.
    pub(super) fn take_rx_grants(&mut self) -> Vec<GrantRef> {
        let pages = &mut self.rx_pages;
        let mut in_pool = vec![true; pages.frames.len()];
        for &page in &pages.ungranted {
            if let Some(in_pool) = in_pool.get_mut(page as usize) {
                *in_pool = false;
            }
        }
        pages.ungranted = (0..pages.frames.len() as u32).collect();
        let firsts = (0..).step_by(pages.per_page).zip(in_pool);
        firsts
            .filter_map(|(first, in_pool)| self.rx_pool.get(first).filter(|_| in_pool))
            .map(|slot| slot.gref)
            .collect()
    }
}

#[cfg(test)]
mod tests;
