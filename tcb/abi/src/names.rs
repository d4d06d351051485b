//! Enums whose variants have names, for example the reasons for drops and the hops of a packet.
//! [`crate::named_enum!`] declares one from a single list.

/// An enum declared by [`crate::named_enum!`], for generic code. The enum itself has the same
/// items, as constants and `const fn`s.
pub trait Named: Copy + 'static {
    /// Every variant, in the order of declaration.
    const ALL: &'static [Self];

    /// Returns the variant's index in [`Named::ALL`].
    fn index(self) -> usize;

    /// Returns the variant's name.
    fn name(self) -> &'static str;

    /// Returns the variant's doc comment, in one line.
    fn meaning(self) -> &'static str;
}

/// Declares an enum together with the table of its names.
///
/// Each variant is a line `Variant = "name"`, under a doc comment that explains it. The macro adds:
///
/// - `ALL`, `COUNT`, `NAMES`: the variants in order, their number, their names;
/// - `name()`: the variant's name;
/// - `meaning()`: the variant's doc comment, in one line;
/// - `index()`: the variant's index in `ALL`;
/// - [`Named`], and the usual derives (`Ord` is by discriminant).
///
/// ```
/// abi::named_enum! {
///     /// Reason for which a frame was dropped.
///     pub enum DropReason: u8 {
///         /// It is shorter than an Ethernet header.
///         Runt = "runt",
///         /// Its memory was unmapped.
///         Fault = "fault",
///     }
/// }
/// assert_eq!(DropReason::NAMES, ["runt", "fault"]);
/// assert_eq!(DropReason::Fault.meaning(), "Its memory was unmapped.");
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

        #[allow(dead_code, reason = "an enum of one module rarely needs every item")]
        impl $enum {
            /// Returns the variant's index in [`Self::ALL`].
            #[must_use]
            #[inline]
            $vis const fn index(self) -> usize {
                self as usize
            }
        }

        $crate::named_enum!(@tables [$vis] $enum { $($variant, $name, [$($doc),+];)+ });
    };
    (
        @tables [$vis:vis] $enum:ident {
            $($variant:ident, $name:literal, [$($doc:literal),+];)+
        }
    ) => {
        #[allow(dead_code, reason = "an enum of one module rarely needs every item")]
        impl $enum {
            /// Every variant, in the order of declaration.
            $vis const ALL: [Self; Self::COUNT] = [$(Self::$variant),+];
            /// The number of variants.
            $vis const COUNT: usize = [$($name),+].len();
            /// The names of [`Self::ALL`].
            $vis const NAMES: [&'static str; Self::COUNT] = [$($name),+];

            /// Returns the variant's name.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the variant's doc comment, in one line.
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

            fn meaning(self) -> &'static str {
                self.meaning()
            }
        }
    };
}

pub use named_enum;

#[cfg(test)]
mod tests {

    named_enum! {
        /// Limbs.
        enum Limb: usize {
            /// An arm.
            Arm = "arm",
            /// A leg, which is longer than an arm
            /// in most cases.
            Leg = "leg",
        }
    }

    #[test]
    fn tables_are_in_the_order_of_declaration() {
        assert_eq!((Limb::COUNT, Limb::ALL), (2, [Limb::Arm, Limb::Leg]));
        assert_eq!(Limb::NAMES, Limb::ALL.map(Limb::name));
        assert_eq!(Limb::ALL.map(Limb::index), [0, 1]);
        assert_eq!(
            Limb::Leg.meaning(),
            "A leg, which is longer than an arm in most cases."
        );
    }
}
