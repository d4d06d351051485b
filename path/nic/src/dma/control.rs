//! The control word of a dedicated queue, which selects the frames that the device stores in it.

/// Bit of a control word: the queue is enabled.
const ENABLED: u64 = 1 << 48;
/// Position of the generation in a control word, in bits.
const GENERATION_AT: u32 = 49;
/// Number of different generations.
const GENERATIONS: u16 = 1 << 14;
/// Bit of a control word: the device may merge frames.
const MERGES: u64 = 1 << 63;

/// The control word of a queue. The driver writes it, and the device echoes it when it is in
/// effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueControl {
    /// The MAC whose frames the device stores in the queue; `None` if the queue is disabled.
    pub mac: Option<[u8; 6]>,
    /// Whether the device may merge the queue's frames.
    pub merges: bool,
    /// Number of changes, modulo 2^14. It makes consecutive words differ.
    pub generation: u16,
}

impl QueueControl {
    /// Returns the control word that follows this one.
    #[must_use]
    pub const fn next(self, mac: Option<[u8; 6]>, merges: bool) -> Self {
        Self {
            mac,
            merges,
            generation: (self.generation + 1) % GENERATIONS,
        }
    }

    /// Encodes the word.
    #[must_use]
    pub fn encode(self) -> u64 {
        let mac = self.mac.map_or(0, |[a, b, c, d, e, f]| {
            u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | ENABLED
        });
        let merges = if self.merges { MERGES } else { 0 };
        mac | merges | u64::from(self.generation % GENERATIONS) << GENERATION_AT
    }

    /// Decodes a word. Every value is valid.
    #[must_use]
    pub fn decode(word: u64) -> Self {
        let [a, b, c, d, e, f, ..] = word.to_le_bytes();
        Self {
            mac: (word & ENABLED != 0).then_some([a, b, c, d, e, f]),
            merges: word & MERGES != 0,
            generation: (word >> GENERATION_AT) as u16 % GENERATIONS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// D-33.
        #[test]
        fn control_word_decodes_as_encoded(word: u64, mac: Option<[u8; 6]>, merges: bool) {
            let before = QueueControl::decode(word);
            let next = before.next(mac, merges);
            prop_assert_eq!(QueueControl::decode(next.encode()), next);
            prop_assert_ne!(next.encode(), before.encode());
        }
    }
}
