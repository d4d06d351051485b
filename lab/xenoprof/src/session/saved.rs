//! Saved symbols of a passive domain.

/// Symbols of a passive domain by address, from a copy of a kernel's `/proc/kallsyms`. They use at
/// most `GROWTH` times the memory of that text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedSymbols {
    /// By address.
    symbols: Vec<Symbol>,
    names: String,
}

/// Start address of a symbol, and position of its name among all names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol {
    address: u64,
    name: u32,
    len: u32,
}

/// Maximum size of the last symbol, bytes.
const LAST_BYTES: u64 = 64 << 10;

impl SavedSymbols {
    /// Maximum bytes of memory per byte of text. The shortest line has six bytes, and a growing
    /// list has up to twice the capacity that it needs.
    pub(super) const GROWTH: usize = 8;

    /// Parses lines `ADDRESS KIND NAME`; skips others.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut found = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            // Symbols that do not fit are skipped. The limit on the length of texts makes that
            // impossible.
            let _other = str::from_utf8(line).ok().and_then(|line| found.add(line));
        }
        // The sort is stable, so the last of several symbols at one address wins.
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

    /// Returns whether there are no symbols.
    pub(super) fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Returns the symbol that contains an address: its start and name.
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
    fn saved_symbols_stay_within_their_charge() {
        let text = b"1 T x\n".repeat(10_000);
        let mut found = SavedSymbols::default();
        for line in text.split(|byte| *byte == b'\n') {
            let _end = str::from_utf8(line).ok().and_then(|line| found.add(line));
        }
        let symbols = found.symbols.capacity() * size_of::<Symbol>();
        assert!(symbols + found.names.capacity() <= text.len() * SavedSymbols::GROWTH);
    }

    #[test]
    fn a_symbol_extends_to_the_next() {
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
