//! Pages that enter the pool of receive buffers, and pages that leave it (Ram's thesis, 4.7).
//!
//! A page is granted as long as it is in the pool, and its grant is used again and again. The ring
//! is kept filled while received frames are still out; when nothing free is left for that, a page
//! of the domain's own enters: it is zeroed and granted anew. When more whole pages are free than
//! the *release threshold* says, those that were idle longest leave: their grants are revoked, and
//! the driver domain cannot reach them any more.
//!
//! ```text
//!             enter: zeroed, granted anew
//!   the domain's own ──────────────► free ◄───────► posted, or with a frame
//!                    ◄──────────────      (reused)
//!             leave: revoked
//! ```

use super::interface::Netfront;
use super::rx_pages::Turnover;
use super::table::{GrantedPage, Granter};
use abi::GrantRef;

impl Netfront {
    /// What the pool of receive buffers has done.
    #[must_use]
    pub fn turnover(&self) -> &Turnover {
        &self.rx_pages.turnover
    }

    /// Pages of receive buffers that are granted now, and of all that there are.
    #[must_use]
    pub fn rx_pages(&self) -> (usize, usize) {
        let all = self.rx_pages.frames.len();
        (all - self.rx_pages.away.len(), all)
    }

    /// Whether pages can enter the pool and leave it: whether there is any use in
    /// [`Netfront::refill`] and [`Netfront::release`].
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        self.rx_pages.threshold.is_some() || !self.rx_pages.away.is_empty()
    }

    /// Posts buffers while received frames are still out: free ones first, then those of pages
    /// that enter the pool.
    pub fn refill(&mut self, granter: &mut dyn Granter) {
        self.post();
        let lacking = self.lacking() as usize;
        let pages = &mut self.rx_pages;
        let want = lacking.div_ceil(pages.per_page).min(pages.away.len());
        if want == 0 {
            return;
        }
        let kept = pages.away.len() - want;
        let mut entering: Vec<u32> = pages.away.split_off(kept).into();
        // What cannot be zeroed is not there; it stays away.
        entering.retain(|&page| {
            let frame = pages.frames.get(page as usize).copied().unwrap_or(u32::MAX);
            let memory = pages.memory.page(frame);
            let clean = memory.is_some_and(|memory| memory.fill(0).is_ok());
            if !clean {
                pages.away.push_front(page);
            }
            clean
        });
        let granted: Vec<_> = entering
            .iter()
            .filter_map(|&page| pages.frames.get(page as usize))
            .map(|&frame| GrantedPage {
                frame,
                readonly: false,
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
                    pages.turnover.entered += 1;
                }
                // Others come first next time.
                Err(_) => {
                    pages.away.push_front(page);
                    pages.turnover.refused += 1;
                }
            }
        }
        self.post();
    }

    /// Lets pages leave the pool that are free beyond the threshold.
    pub fn release(&mut self, granter: &mut dyn Granter) {
        let pages = &mut self.rx_pages;
        let mut leaving = Vec::new();
        pages.surplus(&self.rx_pool, &mut leaving);
        if leaving.is_empty() {
            return;
        }
        let grefs: Vec<_> = leaving.iter().map(|(_, gref)| *gref).collect();
        let mut left = Vec::with_capacity(grefs.len());
        granter.leave(&grefs, &mut left);
        let gone: Vec<u32> = leaving
            .iter()
            .zip(&left)
            .filter_map(|((page, _), left)| left.then_some(*page))
            .collect();
        // `surplus` has left the counts of all that were to leave at 0: those that have are marked.
        for &page in &gone {
            if let Some(count) = pages.counts.get_mut(page as usize) {
                *count = u8::MAX;
            }
        }
        self.rx_pool
            .withdraw(|buffer| pages.counts.get(pages.page_of(buffer)) == Some(&u8::MAX));
        pages.turnover.left += gone.len() as u64;
        pages.turnover.held_back += (leaving.len() - gone.len()) as u64;
        pages.away.extend(gone);
    }

    /// Buffers that the ring has room for and that are to be posted.
    pub(super) fn lacking(&self) -> u32 {
        let wanted = self.rx_pages.target.saturating_sub(self.rx.owed());
        wanted.min(self.rx.free())
    }

    /// The grants of all pages that are in the pool, none of which may be used any more.
    pub(super) fn take_rx_grants(&mut self) -> Vec<GrantRef> {
        let pages = &mut self.rx_pages;
        let mut in_pool = vec![true; pages.frames.len()];
        for &page in &pages.away {
            if let Some(in_pool) = in_pool.get_mut(page as usize) {
                *in_pool = false;
            }
        }
        pages.away = (0..pages.frames.len() as u32).collect();
        let firsts = (0..).step_by(pages.per_page).zip(in_pool);
        firsts
            .filter_map(|(first, in_pool)| self.rx_pool.get(first).filter(|_| in_pool))
            .map(|slot| slot.gref)
            .collect()
    }
}

#[cfg(test)]
mod tests;
