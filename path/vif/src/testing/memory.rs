//! Pages for tests, used again: an [`Area`] itself is never given back.

use shmem::Area;
use std::cell::RefCell;

thread_local! {
    static SPARE: RefCell<Vec<Area>> = const { RefCell::new(Vec::new()) };
}

/// Zeroed pages, until it is dropped.
#[derive(Debug)]
pub struct Memory(Area);

impl Memory {
    /// At least `pages` pages.
    ///
    /// # Panics
    /// There is no memory.
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

    /// The pages.
    #[must_use]
    pub fn area(&self) -> Area {
        self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.push(self.0));
    }
}
