//! Sets of ports.

/// Ports that a bridge can have.
pub const MAX_PORTS: usize = 256;

const WORDS: usize = MAX_PORTS / 64;

/// A set of port numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet([u64; WORDS]);

impl PortSet {
    /// The set without `port`.
    #[must_use]
    pub fn without(mut self, port: usize) -> Self {
        if let Some(word) = self.0.get_mut(port / 64) {
            *word &= !(1 << (port % 64));
        }
        self
    }

    /// Whether `port` is a member.
    #[must_use]
    pub fn contains(&self, port: usize) -> bool {
        self.0
            .get(port / 64)
            .is_some_and(|word| word >> (port % 64) & 1 != 0)
    }

    /// The members, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        self.0
            .into_iter()
            .enumerate()
            .flat_map(|(index, word)| Bits(word).map(move |bit| index * 64 + bit))
    }
}

impl FromIterator<usize> for PortSet {
    /// The set of these ports; numbers from [`MAX_PORTS`] on are left out.
    fn from_iter<T: IntoIterator<Item = usize>>(ports: T) -> Self {
        let mut set = Self::default();
        for port in ports {
            if let Some(word) = set.0.get_mut(port / 64) {
                *word |= 1 << (port % 64);
            }
        }
        set
    }
}

/// The bits that are set, lowest first.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros();
        // Without any bit set this leaves nothing.
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    }
}
