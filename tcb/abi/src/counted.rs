//! The new grant mechanism (Ram, "Efficient Virtualization of Network I/O", chapter 4): a grant
//! table that lies with the *user* of the grants, so that using one takes no hypercall.
//!
//! The granter asks the monitor for a table ([`crate::hypercall::Kind::TableCreate`]) and passes
//! its [`crate::Handle`] on; the user binds it ([`crate::hypercall::Kind::TableBind`]) to a range
//! of its window. From then on entry `n` of the table is the page at slot `first + n`.
//!
//! ```text
//!   the sub-tables, one after the other, in whole pages          granter  monitor  user
//!   translation   entries × u64   state, read-only, generation,     –       rw      r
//!                                 frame of the granter
//!                 … last u64      announcements of revocations      –       rw      r
//!   status        entries × u32   uses under way                    –       r       rw
//! ```
//!
//! A translation entry:
//!
//! ```text
//!   bits  0 …  1   state: 0 invalid, 1 valid, 2 revoking (no new use; those there are drain)
//!   bit   2        read-only
//!   bits 20 … 31   generation, 1 … 4095: as in the references to it
//!   bits 32 … 51   the granter's frame
//! ```
//!
//! How a use and a revocation meet: `specs/grants.md`, clauses N-7 to N-12.

use crate::ids::GrantRef;
use crate::layout::PAGE;

/// Entries that a table may have.
pub const ENTRIES_MAX: u32 = 1 << GrantRef::INDEX_BITS;
/// The last generation; the one after it is 1. Generation 0 is the classic table's.
pub const GENERATION_MAX: u32 = (1 << (32 - GrantRef::INDEX_BITS)) - 1;

/// Bytes of the translation sub-table, in whole pages.
#[must_use]
pub const fn translation_bytes(entries: u32) -> usize {
    (entries as usize * 8 + 8).next_multiple_of(PAGE)
}

/// Where in the translation sub-table the count of announcements is: its last word.
#[must_use]
pub const fn announcements_at(entries: u32) -> usize {
    translation_bytes(entries) - 8
}

/// Bytes of the status sub-table, in whole pages.
#[must_use]
pub const fn status_bytes(entries: u32) -> usize {
    (entries as usize * 4).next_multiple_of(PAGE)
}

/// Window slots that both sub-tables take.
#[must_use]
pub const fn table_slots(entries: u32) -> u32 {
    ((translation_bytes(entries) + status_bytes(entries)) / PAGE) as u32
}

/// An entry of the translation sub-table, as its 8 bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation(pub u64);

impl Translation {
    /// An entry that grants nothing.
    pub const INVALID: Self = Self(0);
    pub(crate) const VALID: u64 = 1;
    const REVOKING: u64 = 2;
    pub(crate) const STATE: u64 = 3;
    pub(crate) const READONLY: u64 = 1 << 2;
    /// The generation's bits, of an entry and of a reference alike.
    pub(crate) const GENERATION: u64 = (GENERATION_MAX as u64) << GrantRef::INDEX_BITS;

    /// A valid entry.
    #[must_use]
    pub const fn valid(frame: u32, generation: u32, readonly: bool) -> Self {
        let readonly = if readonly { Self::READONLY } else { 0 };
        let generation = (generation as u64) << GrantRef::INDEX_BITS & Self::GENERATION;
        Self((frame as u64) << 32 | generation | readonly | Self::VALID)
    }

    /// The same entry while it is being revoked.
    #[must_use]
    pub const fn revoking(self) -> Self {
        Self(self.0 & !Self::STATE | Self::REVOKING)
    }
}

/// What becomes of a grant that is in use when it is to be revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Revocation {
    /// It stays: [`crate::GrantStatus::Again`].
    Refuse = 0,
    /// No new use of it begins; [`crate::GrantStatus::Again`] until those that there are have
    /// ended.
    Drain = 1,
    /// It is revoked all the same: the page leaves the user's window, and the granter's frame is
    /// exchanged for another one, out of the user's collateral.
    Force = 2,
}

impl Revocation {
    /// The value of a word from the wire; what is unknown refuses.
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
    fn an_entry_permits_its_own_generation_alone() {
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
        assert_eq!(announcements_at(511), PAGE - 8, "behind the last entry");
        assert_eq!(table_slots(1023), 3);
        assert_eq!(table_slots(ENTRIES_MAX), 3073);
    }
}
