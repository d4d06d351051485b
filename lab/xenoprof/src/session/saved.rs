//! Symbols that were saved for a passive domain.

/// Symbols of a passive domain: addresses in its processes, as a copy of a kernel's
/// `/proc/kallsyms` has them. It takes no more than `GROWTH` times its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedSymbols {
    /// By address.
    symbols: Vec<Symbol>,
    names: String,
}

/// Where a symbol begins, and where its name lies in all names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol {
    address: u64,
    name: u32,
    len: u32,
}

/// How far the last symbol reaches at most, bytes.
const LAST_BYTES: u64 = 64 << 10;

impl SavedSymbols {
    /// Bytes of memory for a byte of text at most: the shortest line has six bytes, and a list that
    /// grows has twice the room that it needs.
    pub(super) const GROWTH: usize = 8;

    /// Lines `ADDRESS KIND NAME`; others count for nothing.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut found = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            // What has no room is no symbol; texts are bounded long before.
            let _other = str::from_utf8(line).ok().and_then(|line| found.add(line));
        }
        // Stable: of two at one address the last is the one.
        found.symbols.sort_by_key(|symbol| symbol.address);
        found.symbols.reverse();
        found.symbols.dedup_by_key(|symbol| symbol.address);
        found.symbols.reverse();
        found
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let name = words.nth(1)?;
        let (at, len) = (
            self.names.len().try_into().ok()?,
            name.len().try_into().ok()?,
        );
        if address != 0 {
            self.names.push_str(name);
            self.symbols.push(Symbol {
                address,
                name: at,
                len,
            });
        }
        Some(())
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The symbol that an address lies in: where it begins, and its name.
    pub(super) fn find(&self, address: u64) -> Option<(u64, &str)> {
        let after = self.symbols.partition_point(|one| one.address <= address);
        let found = self.symbols.get(after.checked_sub(1)?)?;
        if after == self.symbols.len() && address - found.address >= LAST_BYTES {
            return None;
        }
        let at = found.name as usize;
        let name = self.names.get(at..at + found.len as usize)?;
        Some((found.address, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_symbols_take_no_more_room_than_is_charged() {
        let text = b"1 T x\n".repeat(10_000);
        let mut found = SavedSymbols::default();
        for line in text.split(|byte| *byte == b'\n') {
            let _end = str::from_utf8(line).ok().and_then(|line| found.add(line));
        }
        let symbols = found.symbols.capacity() * size_of::<Symbol>();
        assert!(symbols + found.names.capacity() <= text.len() * SavedSymbols::GROWTH);
    }

    #[test]
    fn saved_symbols_reach_to_the_next() {
        let text = b"0000000000001000 T start\nnonsense\n1100 t end\n0 A zero\n";
        let symbols = SavedSymbols::parse(text);
        assert_eq!(symbols.find(0xfff), None);
        assert_eq!(symbols.find(0x10ff), Some((0x1000, "start")));
        assert_eq!(symbols.find(0x1100), Some((0x1100, "end")));
        assert_eq!(symbols.find(0x1100 + LAST_BYTES), None);
        let twice = SavedSymbols::parse(b"20 T old\n10 T first\n20 T new\n");
        assert_eq!(twice.find(0x21), Some((0x20, "new")));
        assert_eq!(twice.find(0x1f), Some((0x10, "first")));
        assert!(SavedSymbols::parse(b"\xff 20 T x\n\n").is_empty());
    }
}
