//! The domains' side of [`crate::hypercall`] and [`crate::counted`]. Domains encode operations as
//! words, and decode statuses and entries; the monitor does the reverse.

use crate::counted::Translation;
use crate::grant::GrantStatus;
use crate::hypercall::{
    AttachTarget, BindOp, CreateGrantOp, ForeignMap, RevokeOp, ShareOp, TapControl,
};
use crate::ids::GrantRef;

impl BindOp {
    /// Encodes the operation as words 0 … 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 3] {
        [
            (self.granter.0 as u64) << 32 | self.table.0 as u64,
            (self.entries as u64) << 32 | self.first.0 as u64,
            self.tables.0 as u64,
        ]
    }
}

impl CreateGrantOp {
    /// Encodes the operation as words 0 … 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 3] {
        [
            (self.table.0 as u64) << 32 | self.index as u64,
            self.frame as u64,
            self.readonly as u64 | (self.io as u64) << 1,
        ]
    }
}

impl ShareOp {
    /// Encodes the operation as words 0 … 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 3] {
        [
            (self.conn.0 as u64) << 32 | self.table.0 as u64,
            self.first.0 as u64,
            0,
        ]
    }
}

impl RevokeOp {
    /// Encodes the operation as words 0 … 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 3] {
        [
            (self.table.0 as u64) << 32 | self.gref.0 as u64,
            self.how as u64,
            0,
        ]
    }
}

impl ForeignMap {
    /// Encodes the operation as words 0 … 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 3] {
        [
            (self.number as u64) << 32 | self.page as u64,
            self.offset,
            self.bytes,
        ]
    }
}

impl AttachTarget {
    /// Encodes the request as arguments 1 and 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 2] {
        match self {
            Self::Device(n) => [1, n as u64],
            Self::Doorbell(conn) => [2, conn.0 as u64],
        }
    }
}

impl TapControl {
    /// Encodes the call as words 1 and 2.
    #[must_use]
    pub const fn encode(self) -> [u64; 2] {
        match self {
            Self::Steer { mac, queue } => {
                let [a, b, c, d, e, f] = mac;
                let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
                let queue = match queue {
                    Some(queue) => queue as u64,
                    None => Self::SHARED,
                };
                [Self::STEER | mac, queue]
            }
            Self::Settled => [Self::SETTLED, 0],
        }
    }
}

impl GrantStatus {
    /// Decodes a value from the wire. An unknown value yields [`GrantStatus::GeneralError`].
    #[must_use]
    pub const fn from_wire(value: i16) -> Self {
        match value {
            0 => Self::Okay,
            -2 => Self::BadDomain,
            -3 => Self::BadRef,
            -4 => Self::BadHandle,
            -5 => Self::BadSlot,
            -7 => Self::NoSpace,
            -8 => Self::PermissionDenied,
            -9 => Self::BadPage,
            -10 => Self::BadCopyArg,
            -11 => Self::AddressTooBig,
            -12 => Self::Again,
            _ => Self::GeneralError,
        }
    }

    /// Returns a description of the status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Okay => "done",
            Self::GeneralError => "general error",
            Self::BadDomain => "no such domain",
            Self::BadRef => "no such grant, or not for this domain",
            Self::BadHandle => "no such mapping",
            Self::BadSlot => "no such window slot, or it is in use",
            Self::NoSpace => "the monitor cannot record another mapping",
            Self::PermissionDenied => "the grant does not permit this",
            Self::BadPage => "the page cannot be used",
            Self::BadCopyArg => "the range crosses a page boundary",
            Self::AddressTooBig => "the frame does not exist",
            Self::Again => "in use",
        }
    }
}

impl Translation {
    /// Returns whether a use of `gref` may begin: the entry is valid and has this generation and,
    /// if `write`, is not read-only.
    #[must_use]
    #[inline]
    pub const fn permits(self, gref: GrantRef, write: bool) -> bool {
        let readonly = if write { Self::READONLY } else { 0 };
        let wanted = gref.0 as u64 & Self::GENERATION | Self::VALID;
        self.0 & (Self::GENERATION | Self::STATE | readonly) == wanted
    }

    /// Returns the reference to this entry at its current generation; `index` is the entry's index.
    #[must_use]
    pub const fn reference(self, index: u32) -> GrantRef {
        GrantRef::new(
            index,
            (self.0 & Self::GENERATION) as u32 >> GrantRef::INDEX_BITS,
        )
    }

    /// Returns the granter's frame. The entry must be valid.
    #[must_use]
    pub const fn frame(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns whether the grant is read-only.
    #[must_use]
    pub const fn readonly(self) -> bool {
        self.0 & Self::READONLY != 0
    }
}
