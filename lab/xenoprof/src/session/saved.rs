//! Symbols that were saved for a passive domain.

use std::collections::BTreeMap;

/// Symbols of a passive domain: addresses in its processes, as a copy of a kernel's
/// `/proc/kallsyms` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedSymbols(BTreeMap<u64, String>);

/// How far the last symbol reaches at most, bytes.
const LAST_BYTES: u64 = 64 << 10;

impl SavedSymbols {
    /// Lines `ADDRESS KIND NAME`; others count for nothing.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let name = words.nth(1)?.to_owned();
            (address != 0).then_some((address, name))
        };
        Self(
            String::from_utf8_lossy(text)
                .lines()
                .filter_map(line)
                .collect(),
        )
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The symbol that an address lies in: where it begins, and its name.
    pub(super) fn find(&self, address: u64) -> Option<(u64, &str)> {
        let (start, name) = self.0.range(..=address).next_back()?;
        let is_last = self.0.range(address.saturating_add(1)..).next().is_none();
        (!is_last || address - start < LAST_BYTES).then_some((*start, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_symbols_reach_to_the_next() {
        let text = b"0000000000001000 T start\nnonsense\n1100 t end\n0 A zero\n";
        let symbols = SavedSymbols::parse(text);
        assert_eq!(symbols.find(0xfff), None);
        assert_eq!(symbols.find(0x10ff), Some((0x1000, "start")));
        assert_eq!(symbols.find(0x1100), Some((0x1100, "end")));
        assert_eq!(symbols.find(0x1100 + LAST_BYTES), None);
    }
}
