//! The new grant mechanism (Ram, "Efficient Virtualization of Network I/O", chapter 4): a grant
//! table in the address space of the *user* of the grants, so that a use takes no hypercall.
//!
//! The granter creates a table ([`crate::hypercall::HypercallKind::TableCreate`]) and passes its
//! [`crate::Handle`] to the user, which binds it ([`crate::hypercall::HypercallKind::TableBind`])
//! to a range of its window. From then on, entry `n` of the table is the page at slot `first + n`.
//!
//! ```text
//!   the sub-tables, one after the other, in whole pages          granter  monitor  user
//!   translation   entries × u64   state, read-only, generation,     –       rw      r
//!                                 frame of the granter
//!                 … last u64      announcements of revocations      –       rw      r
//!   status        entries × u32   current uses                      –       r       rw
//! ```
//!
//! A translation entry:
//!
//! ```text
//!   bits  0 …  1   state: 0 invalid, 1 valid, 2 revoking (no new use; current uses drain)
//!   bit   2        read-only
//!   bits 20 … 31   generation, 1 … 4095, as in references to the entry
//!   bits 32 … 51   the granter's frame
//! ```
//!
//! Clauses N-7 to N-12 of `specs/grants.md` define how a use and a revocation interact.

use crate::ids::GrantRef;
use crate::layout::PAGE;

/// The maximum number of entries of a table.
pub const ENTRIES_MAX: u32 = 1 << GrantRef::INDEX_BITS;
/// The last generation. Generation 1 follows it; references to the classic table have generation 0.
pub const GENERATION_MAX: u32 = (1 << (32 - GrantRef::INDEX_BITS)) - 1;

/// Returns the size of the translation sub-table in bytes, a multiple of the page size.
#[must_use]
pub const fn translation_bytes(entries: u32) -> usize {
    (entries as usize * 8 + 8).next_multiple_of(PAGE)
}

/// Returns the offset of the announcement count, which is the last word of the translation
/// sub-table.
#[must_use]
pub const fn announcements_at(entries: u32) -> usize {
    translation_bytes(entries) - 8
}

/// Returns the size of the status sub-table in bytes, a multiple of the page size.
#[must_use]
pub const fn status_bytes(entries: u32) -> usize {
    (entries as usize * 4).next_multiple_of(PAGE)
}

/// Returns the number of window slots that both sub-tables take.
#[must_use]
pub const fn table_slots(entries: u32) -> u32 {
    ((translation_bytes(entries) + status_bytes(entries)) / PAGE) as u32
}

/// An entry of the translation sub-table, as stored in its 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation(pub u64);

impl Translation {
    /// An entry without a grant.
    pub const INVALID: Self = Self(0);
    pub(crate) const VALID: u64 = 1;
    const REVOKING: u64 = 2;
    pub(crate) const STATE: u64 = 3;
    pub(crate) const READONLY: u64 = 1 << 2;
    /// The bits of the generation, which are the same in an entry and in a reference.
    pub(crate) const GENERATION: u64 = (GENERATION_MAX as u64) << GrantRef::INDEX_BITS;

    /// Returns a valid entry.
    #[must_use]
    pub const fn valid(frame: u32, generation: u32, readonly: bool) -> Self {
        let readonly = if readonly { Self::READONLY } else { 0 };
        let generation = (generation as u64) << GrantRef::INDEX_BITS & Self::GENERATION;
        Self((frame as u64) << 32 | generation | readonly | Self::VALID)
    }

    /// Returns the same entry in the state *revoking*.
    #[must_use]
    pub const fn revoking(self) -> Self {
        Self(self.0 & !Self::STATE | Self::REVOKING)
    }
}

/// Treatment of a grant that is in use when its granter revokes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Revocation {
    /// The revocation fails with [`crate::GrantStatus::Again`].
    Refuse = 0,
    /// New uses are rejected. The revocation fails with [`crate::GrantStatus::Again`] until the
    /// current uses have ended.
    Drain = 1,
    /// The grant is revoked anyway: the monitor unmaps the page from the user's window and
    /// exchanges the granter's frame for another one, at the cost of the user's collateral.
    Force = 2,
}

impl Revocation {
    /// Decodes a word from the wire; an unknown value means `Refuse`.
    #[must_use]
    pub const fn from_wire(word: u64) -> Self {
        match word {
            1 => Self::Drain,
            2 => Self::Force,
            _ => Self::Refuse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_permits_only_its_own_generation() {
        let entry = Translation::valid(0xf_ffff, 7, true);
        assert_eq!(entry.0, 0x000f_ffff_0070_0005);
        let gref = GrantRef::new(0xf_ffff, 7);
        assert!(entry.permits(gref, false) && !entry.permits(gref, true));
        assert!(!entry.revoking().permits(gref, false));
        for generation in [0, 6, 8, GENERATION_MAX] {
            assert!(!entry.permits(GrantRef::new(0xf_ffff, generation), false));
        }
        let writable = Translation::valid(1, GENERATION_MAX, false);
        assert!(writable.permits(GrantRef::new(3, GENERATION_MAX), true));
        assert!(!Translation::INVALID.permits(GrantRef(0), false));
    }

    #[test]
    fn sub_tables_are_whole_pages() {
        assert_eq!((translation_bytes(1), status_bytes(1)), (PAGE, PAGE));
        assert_eq!((translation_bytes(511), status_bytes(1024)), (PAGE, PAGE));
        assert_eq!(
            (translation_bytes(512), status_bytes(1025)),
            (2 * PAGE, 2 * PAGE)
        );
        assert_eq!(announcements_at(511), PAGE - 8, "after the last entry");
        assert_eq!(table_slots(1023), 3);
        assert_eq!(table_slots(ENTRIES_MAX), 3073);
    }
}
