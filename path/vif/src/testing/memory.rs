//! Reusable pages for tests, because an [`Area`] itself is never freed.

use shmem::Area;
use std::cell::RefCell;

thread_local! {
    static SPARE: RefCell<Vec<Area>> = const { RefCell::new(Vec::new()) };
}

/// Zeroed pages, which can be reused after the value is dropped.
#[derive(Debug)]
pub struct TestMemory(Area);

impl TestMemory {
    /// Allocates at least `pages` pages.
    ///
    /// # Panics
    /// Panics if memory is exhausted.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        let bytes = pages as usize * abi::PAGE;
        let spare = SPARE.with_borrow_mut(|spare| {
            let at = spare.iter().position(|area| area.len() >= bytes)?;
            Some(spare.swap_remove(at))
        });
        let area = spare.unwrap_or_else(|| Area::anonymous(bytes).expect("memory for a test"));
        area.span().fill(0).expect("own memory");
        Self(area)
    }

    /// Returns the pages.
    #[must_use]
    pub fn area(&self) -> Area {
        self.0
    }
}

impl Drop for TestMemory {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.push(self.0));
    }
}
