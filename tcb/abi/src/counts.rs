//! Arrays of counters with one counter per variant of a named enum.

use crate::names::Named;
use std::fmt;
use std::marker::PhantomData;
use std::ops::AddAssign;

/// A counter for each of the `N` variants of `E`; `N` is the enum's `COUNT`.
pub struct Counts<E, const N: usize>([u64; N], PhantomData<E>);

impl<E: Named, const N: usize> Counts<E, N> {
    /// Creates counters with value 0.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(E::ALL.len() == N, "one counter per variant") };
        Self([0; N], PhantomData)
    }

    /// Adds one to the counter of this variant.
    #[inline]
    pub fn count(&mut self, of: E) {
        self.add(of, 1);
    }

    /// Adds `n` to the counter of this variant.
    #[inline]
    pub fn add(&mut self, of: E, n: u64) {
        if let Some(count) = self.0.get_mut(of.index()) {
            *count += n;
        }
    }

    /// Returns the count of this variant.
    #[must_use]
    #[inline]
    pub fn get(&self, of: E) -> u64 {
        self.0.get(of.index()).copied().unwrap_or(0)
    }

    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns every variant with its count, including zeros.
    pub fn iter(&self) -> impl Iterator<Item = (E, u64)> + '_ {
        E::ALL.iter().copied().zip(self.0)
    }
}

impl<E: Named, const N: usize> Default for Counts<E, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E, const N: usize> Clone for Counts<E, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, const N: usize> Copy for Counts<E, N> {}

impl<E, const N: usize> PartialEq for Counts<E, N> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<E, const N: usize> Eq for Counts<E, N> {}

impl<E: Named, const N: usize> fmt::Debug for Counts<E, N> {
    /// Writes the counters that are not 0, by name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.iter().filter(|(_, n)| *n != 0);
        f.debug_map()
            .entries(counted.map(|(of, n)| (of.name(), n)))
            .finish()
    }
}

impl<E, const N: usize> AddAssign for Counts<E, N> {
    fn add_assign(&mut self, other: Self) {
        for (to, from) in self.0.iter_mut().zip(other.0) {
            *to += from;
        }
    }
}

#[cfg(feature = "json")]
impl<E: Named, const N: usize> serde::Serialize for Counts<E, N> {
    /// Serializes the counts as a map by name, including zeros.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(N))?;
        for (of, count) in self.iter() {
            map.serialize_entry(of.name(), &count)?;
        }
        map.end()
    }
}

#[cfg(all(test, feature = "json"))]
mod tests {
    use super::*;
    use crate::names::named_enum;

    named_enum! {
        /// Limbs.
        enum Limb: usize {
            /// An arm.
            Arm = "arm",
            /// A leg.
            Leg = "leg",
        }
    }

    #[test]
    fn each_variant_has_a_counter() {
        let mut counts = Counts::<Limb, { Limb::COUNT }>::default();
        counts.count(Limb::Leg);
        counts.add(Limb::Arm, 2);
        counts += counts;
        assert_eq!((counts.get(Limb::Arm), counts.get(Limb::Leg)), (4, 2));
        assert_eq!(counts.total(), 6);
        assert!(counts.iter().eq([(Limb::Arm, 4), (Limb::Leg, 2)]));
        let json = serde_json::to_string(&counts).expect("serialises");
        assert_eq!(json, r#"{"arm":4,"leg":2}"#);
    }
}
