//! Numbering of values.

use std::collections::HashMap;
use std::hash::Hash;

/// Interner for values: equal values have the same number, in the order of first use.
#[derive(Debug)]
pub(super) struct Interner<T> {
    pub(super) values: Vec<T>,
    index: HashMap<T, u32>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            index: HashMap::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    pub(super) fn intern(&mut self, value: T) -> u32 {
        if let Some(number) = self.index.get(&value) {
            return *number;
        }
        let number = self.values.len() as u32;
        self.values.push(value.clone());
        self.index.insert(value, number);
        number
    }
}
