//! Enums that are sent as numbers.

/// Declares an enum whose variants have fixed numbers. It defines `ALL`, the variants in order, and
/// `from_wire`, which decodes a number of the type after `from`.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        pub enum $enum:ident: $repr:ident from $wire:ident {
            $($(#[$about:meta])* $variant:ident = $number:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr($repr)]
        pub enum $enum { $($(#[$about])* $variant = $number,)+ }

        impl $enum {
            /// Every variant, in the order of declaration.
            pub const ALL: [Self; [$($number),+].len()] = [$(Self::$variant),+];

            /// Decodes a value from the wire.
            #[must_use]
            pub const fn from_wire(value: $wire) -> Option<Self> {
                match value {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use wire_enum;
