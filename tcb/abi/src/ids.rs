//! Identifiers. Each has a separate type, so that a window slot is never mistaken for a page frame.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(
            feature = "json",
            derive(serde::Serialize, serde::Deserialize),
            serde(transparent)
        )]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A domain. An id is reused only once nothing in the monitor refers to it.
    DomId(u16)
}
id! {
    /// A grant reference, as passed through a ring: an index into the granting domain's table (low
    /// 20 bits) and, for counted grants, the generation (high 12 bits; 0 in the classic table).
    GrantRef(u32)
}
id! {
    /// A page-sized slot of a domain's grant window, counted from [`crate::layout::WINDOW`].
    Slot(u32)
}
id! {
    /// A connection, by its number at one of its two ends.
    ConnId(u32)
}

id! {
    /// A table of counted grants ([`crate::counted`]) or an exchange. Never reused while the
    /// monitor runs; 0 is invalid.
    Handle(u32)
}

impl Handle {
    /// Returns the number of the table's memory in an address space. Domains' own memories have
    /// lower numbers; the next number also belongs to the table.
    #[must_use]
    pub const fn memory(self) -> u32 {
        const BASE: u32 = 1 << 16;
        BASE.wrapping_add(self.0.wrapping_mul(2))
    }
}

impl GrantRef {
    /// The number of bits of the index in a reference.
    pub const INDEX_BITS: u32 = 20;

    /// Creates a reference to entry `index` at generation `generation`. Excess bits of either are
    /// discarded.
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self(generation << Self::INDEX_BITS | index & ((1 << Self::INDEX_BITS) - 1))
    }

    /// Returns the index of the entry.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 & ((1 << Self::INDEX_BITS) - 1)
    }

    /// Returns the generation of the entry for which the reference was created.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.0 >> Self::INDEX_BITS
    }
}
