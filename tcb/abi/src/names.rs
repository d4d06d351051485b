//! Enums whose variants have names: the reason of a drop, the hop of a packet, the status of a
//! grant operation. [`crate::named_enum!`] declares one from a single list; [`Counts`] is an array
//! of counters with one place per variant.

use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::ops::AddAssign;

/// An enum declared by [`crate::named_enum!`], for generic code. The enum itself has the same
/// items, as constants and `const fn`s.
pub trait Named: Copy + 'static {
    /// Every variant, in the order of declaration.
    const ALL: &'static [Self];

    /// The variant's place in [`Named::ALL`].
    fn index(self) -> usize;

    /// The variant's name.
    fn name(self) -> &'static str;
}

/// Declares an enum together with the table of its names.
///
/// Each variant is a line `Variant = "name"`, under a doc comment that says what it means. The enum
/// gets:
///
/// - `ALL`, `COUNT`, `NAMES`: its variants in order, how many they are, their names;
/// - `name()`: the variant's name;
/// - `meaning()`: the variant's doc comment, in one line;
/// - `index()`: the variant's place in `ALL`;
/// - [`Named`], and the usual derives (`Ord` is by discriminant).
///
/// Where the values of the variants are on a wire, a line is `Variant(value) = "name"`: then the
/// value is the discriminant, and `from_value()` is the way back.
///
/// ```
/// abi::named_enum! {
///     /// Why a frame was dropped.
///     pub enum Why: u8 {
///         /// It is shorter than an Ethernet header.
///         Runt = "runt",
///         /// Its memory is not there any more.
///         Fault = "fault",
///     }
/// }
/// assert_eq!(Why::NAMES, ["runt", "fault"]);
/// assert_eq!(Why::Fault.meaning(), "Its memory is not there any more.");
/// ```
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $enum:ident: $repr:ident {
            $($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        $vis enum $enum { $($(#[doc = $doc])+ $variant,)+ }

        #[allow(dead_code, reason = "an enum of one module seldom needs every item")]
        impl $enum {
            /// The variant's place in [`Self::ALL`].
            #[must_use]
            #[inline]
            $vis const fn index(self) -> usize {
                self as usize
            }
        }

        $crate::named_enum!(@tables [$vis] $enum { $($variant, $name, [$($doc),+];)+ });
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $enum:ident: $repr:ident {
            $($(#[doc = $doc:literal])+ $variant:ident($value:literal) = $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        $vis enum $enum { $($(#[doc = $doc])+ $variant = $value,)+ }

        #[allow(dead_code, reason = "an enum of one module seldom needs every item")]
        impl $enum {
            /// The variant of a value from the wire; none: no variant has this value.
            #[must_use]
            $vis const fn from_value(value: $repr) -> Option<Self> {
                match value { $($value => Some(Self::$variant),)+ _ => None }
            }

            /// The variant's place in [`Self::ALL`].
            #[must_use]
            $vis const fn index(self) -> usize {
                /// The same variants, counted from 0.
                enum Ordinal { $($variant,)+ }
                match self { $(Self::$variant => Ordinal::$variant as usize,)+ }
            }
        }

        $crate::named_enum!(@tables [$vis] $enum { $($variant, $name, [$($doc),+];)+ });
    };
    (
        @tables [$vis:vis] $enum:ident {
            $($variant:ident, $name:literal, [$($doc:literal),+];)+
        }
    ) => {
        #[allow(dead_code, reason = "an enum of one module seldom needs every item")]
        impl $enum {
            /// Every variant, in the order of declaration.
            $vis const ALL: [Self; Self::COUNT] = [$(Self::$variant),+];
            /// How many variants there are.
            $vis const COUNT: usize = [$($name),+].len();
            /// The names of [`Self::ALL`].
            $vis const NAMES: [&'static str; Self::COUNT] = [$($name),+];

            /// The variant's name.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// What the variant means: its doc comment, in one line.
            #[must_use]
            $vis fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim(),)+ }
            }
        }

        impl $crate::names::Named for $enum {
            const ALL: &'static [Self] = &Self::ALL;

            #[inline]
            fn index(self) -> usize {
                self.index()
            }

            fn name(self) -> &'static str {
                self.name()
            }
        }
    };
}

pub use named_enum;

/// A counter for each of the `N` variants of `E`; `N` is the enum's `COUNT`.
pub struct Counts<E, const N: usize>([u64; N], PhantomData<E>);

impl<E: Named, const N: usize> Counts<E, N> {
    /// Every counter at 0.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(E::ALL.len() == N, "a counter for each variant") };
        Self([0; N], PhantomData)
    }

    /// Counts one.
    #[inline]
    pub fn count(&mut self, of: E) {
        self.add(of, 1);
    }

    /// Counts `n`.
    #[inline]
    pub fn add(&mut self, of: E, n: u64) {
        if let Some(count) = self.0.get_mut(of.index()) {
            *count += n;
        }
    }

    /// How many were counted for this variant.
    #[must_use]
    #[inline]
    pub fn get(&self, of: E) -> u64 {
        self.0.get(of.index()).copied().unwrap_or(0)
    }

    /// How many were counted in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every variant with its count, zeros too.
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
    /// The counters that are not 0, by name.
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

impl<E: Named, const N: usize> Serialize for Counts<E, N> {
    /// As a map from name to count, zeros too.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(N))?;
        for (of, count) in self.iter() {
            map.serialize_entry(of.name(), &count)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    named_enum! {
        /// Where it hurts.
        enum Limb: usize {
            /// An arm.
            Arm = "arm",
            /// A leg, which is longer than an arm
            /// in most cases.
            Leg = "leg",
        }
    }

    named_enum! {
        /// What came back.
        enum Answer: i16 {
            /// Yes.
            Yes(0) = "yes",
            /// No.
            No(-7) = "no",
        }
    }

    #[test]
    fn tables_and_variants_are_in_the_order_of_declaration() {
        assert_eq!((Limb::COUNT, Limb::ALL), (2, [Limb::Arm, Limb::Leg]));
        assert_eq!(Limb::NAMES, Limb::ALL.map(Limb::name));
        assert_eq!(Limb::ALL.map(Limb::index), [0, 1]);
        assert_eq!(
            Limb::Leg.meaning(),
            "A leg, which is longer than an arm in most cases."
        );
    }

    #[test]
    fn a_value_from_the_wire_is_a_variant_or_none() {
        assert_eq!(Answer::ALL.map(|answer| answer as i16), [0, -7]);
        assert_eq!(Answer::ALL.map(Answer::index), [0, 1]);
        assert_eq!(Answer::from_value(-7), Some(Answer::No));
        assert_eq!(Answer::from_value(1), None);
        assert_eq!(Answer::No.name(), "no");
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
