//! Hypercalls: batches of operations through the call page.
//!
//! The call page lies at [`crate::layout::info::CALL`]. Its first 64 bytes are the header:
//!
//! ```text
//! offset  type  written by  meaning
//!      0  u32   domain      REQUEST: number of the newest call; followed by FUTEX_WAKE
//!      4  u32   monitor     DONE: number of the newest answered call; then FUTEX_WAKE
//!      8  u32   domain      KIND of the call ([`HypercallKind`])
//!     12  u32   domain      COUNT of operations, at most [`OPS_MAX`]
//!     16  i32   monitor     RESULT of the call as a whole: 0, or a negative errno
//! ```
//!
//! The operations begin at offset 64, and take six u64 words each. The monitor writes an
//! operation's status into its word 5 (an i64, [`crate::GrantStatus`]). A call as a whole fails
//! only if its kind or count is invalid; the monitor then reads no operation.
//!
//! Only one thread of a domain makes calls. The monitor reads each operation once into private
//! memory.

use crate::counted::Revocation;
use crate::ids::{ConnId, DomId, GrantRef, Handle, Slot};
use crate::layout;
use crate::wire_enum::wire_enum;

/// Offset of REQUEST in the call page.
pub const REQUEST: usize = 0;
/// Offset of DONE.
pub const DONE: usize = 4;
/// Offset of KIND.
pub const KIND: usize = 8;
/// Offset of COUNT.
pub const COUNT: usize = 12;
/// Offset of RESULT.
pub const RESULT: usize = 16;
/// Offset of the first operation.
pub const OPS: usize = 64;
/// Words per operation.
pub const OP_WORDS: usize = 6;
/// Index of the word of an operation that contains its status.
pub const STATUS_WORD: usize = 5;
/// The maximum number of operations of a call.
pub const OPS_MAX: usize = (layout::info::CALL_PAGES * layout::PAGE - OPS) / (OP_WORDS * 8);

wire_enum! {
    /// The kind of a call, which applies to all its operations.
    pub enum HypercallKind: u32 from u32 {
        /// Copies bytes between pages; see [`HypercallKind::is_experimental`].
        GrantCopy = 1,
        /// Maps granted pages individually; see [`HypercallKind::is_experimental`].
        GrantMap = 2,
        /// Unmaps pages individually; see [`HypercallKind::is_experimental`].
        GrantUnmap = 3,
        /// Writes the caller's record of a connection. One operation: word 0 is the connection,
        /// word 1 the new state. The words of the next operations contain the record's body (256
        /// bytes).
        ConnectSet = 4,
        /// Reads the other end's record of a connection. One operation: word 0 is the connection.
        /// Results: word 1 is the other end's domain, word 2 the caller's role, word 3 the caller's
        /// state, word 4 the other end's state. The words of the next operations contain the body
        /// of the other end's record. `-ENOENT`: the caller has no connection with this number.
        ConnectGet = 5,
        /// Reports that the domain has started. No operations.
        Ready = 6,
        /// Creates the granter's half of a table of counted grants. One operation: word 0 is the
        /// connection to the user, word 1 the number of entries. Result: word 1 is the
        /// [`crate::Handle`].
        TableCreate = 7,
        /// Binds the user's half of a table. One operation: [`BindOp`].
        TableBind = 8,
        /// Ends the caller's half of a table. One operation: word 0 is the handle.
        TableEnd = 9,
        /// Grants pages: [`CreateGrantOp`] operations. Result: word 3 is the reference.
        GrantCreate = 10,
        /// Revokes grants: [`RevokeOp`] operations.
        GrantRevoke = 11,
        /// Creates the granter's half of an exchange, whose pages are zero at first. One operation:
        /// word 0 is the connection, word 1 the number of pages of each end, word 2 the first slot
        /// for the caller's pages, all of which must be free. Result: word 1 is the
        /// [`crate::Handle`]. [`HypercallKind::TableBind`] (without sub-tables) binds the other
        /// half, and [`HypercallKind::TableEnd`] ends either half. See
        /// [`HypercallKind::is_experimental`].
        ExchangeCreate = 12,
        /// Exchanges pages; see [`HypercallKind::is_experimental`].
        GrantTransfer = 13,
        /// Passes control words to the caller's devices. Each operation: word 0 is the device's
        /// number, words 1 and 2 are the command, such as [`TapControl`]. Result: word 3.
        DeviceControl = 16,
        /// Ends one of the caller's devices permanently. The caller must have closed its
        /// descriptor. One operation: word 0 is the device's number. `-EBUSY`: the descriptor is
        /// still open.
        DeviceEnd = 17,
        /// Maps a memory file whose descriptor the domain received. One operation: [`ForeignMap`].
        /// The status is an errno. `-EBADF`: the descriptor does not exist. `-EINVAL`: the file is
        /// not a memory file, or the mapping is not aligned to its page size. `-EEXIST`: the range
        /// is in use. `-ENOSPC`: the mapping exceeds the domain's limits.
        ForeignMap = 18,
        /// Unmaps a memory file. One operation: word 0 is the page of [`layout::FOREIGN`] at which
        /// its mapping begins. `-ENOENT`: no mapping begins there.
        ForeignUnmap = 19,
        /// Maps the pages of a bound table that are granted for I/O into the window of the user's
        /// device. One operation: [`ShareOp`]. The monitor unmaps a page from that window when the
        /// granter revokes it, and all pages when either half of the table ends.
        TableShare = 20,
    }
}

impl HypercallKind {
    /// Returns whether only a monitor for comparisons serves this kind. Other monitors return
    /// `EINVAL`.
    #[must_use]
    pub const fn is_experimental(self) -> bool {
        matches!(
            self,
            Self::GrantCopy
                | Self::GrantMap
                | Self::GrantUnmap
                | Self::ExchangeCreate
                | Self::GrantTransfer
        )
    }
}

/// Index of the word of an operation that contains its result, if it has one.
pub const ANSWER_WORD: usize = 3;

/// Operation that binds a table of counted grants to the caller's window. Both ranges of slots must
/// be free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindOp {
    /// The domain that created the table.
    pub granter: DomId,
    /// The table.
    pub table: Handle,
    /// The slot of entry 0's page; entry `n` is at slot `first + n`.
    pub first: Slot,
    /// The first slot of the sub-tables: [`crate::counted::table_slots`] slots.
    pub tables: Slot,
    /// The number of entries that the caller expects; the monitor rejects any other number.
    pub entries: u32,
}

impl BindOp {
    /// Decodes words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            granter: DomId((words[0] >> 32) as u16),
            table: Handle(words[0] as u32),
            first: Slot(words[1] as u32),
            tables: Slot(words[2] as u32),
            entries: (words[1] >> 32) as u32,
        }
    }
}

/// Operation that grants a page of the caller through an entry of its table (`GRANT_map` of the
/// thesis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateGrantOp {
    /// The table.
    pub table: Handle,
    /// The entry's index. The entry must not have a grant.
    pub index: u32,
    /// The caller's frame.
    pub frame: u32,
    /// Whether the user may only read.
    pub readonly: bool,
    /// Whether the page is granted for I/O: a device of the user may access it as well
    /// ([`ShareOp`]).
    pub io: bool,
}

impl CreateGrantOp {
    /// Decodes words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            table: Handle((words[0] >> 32) as u32),
            index: words[0] as u32,
            frame: words[1] as u32,
            readonly: words[2] & 1 != 0,
            io: words[2] & 2 != 0,
        }
    }
}

/// Operation that maps a bound table's pages that are granted for I/O into the window of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareOp {
    /// The table, which the caller has bound.
    pub table: Handle,
    /// The caller's connection to the device.
    pub conn: ConnId,
    /// The slot of the device's window for entry 0; entry `n` is at slot `first + n`. All of these
    /// slots must be free.
    pub first: Slot,
}

impl ShareOp {
    /// Decodes words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            table: Handle(words[0] as u32),
            conn: ConnId((words[0] >> 32) as u32),
            first: Slot(words[1] as u32),
        }
    }
}

/// Operation that revokes a grant of the caller's table (`GRANT_unmap` of the thesis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevokeOp {
    /// The table.
    pub table: Handle,
    /// The grant.
    pub gref: GrantRef,
    /// The treatment of a grant that is in use.
    pub how: Revocation,
}

impl RevokeOp {
    /// Decodes words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            table: Handle((words[0] >> 32) as u32),
            gref: GrantRef(words[0] as u32),
            how: Revocation::from_wire(words[1]),
        }
    }
}

/// Operation that maps a memory file, for reading and writing, into the range at
/// [`layout::FOREIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignMap {
    /// The number of the file's descriptor in the caller's table.
    pub number: u32,
    /// The page of the range at which the mapping begins.
    pub page: u32,
    /// Offset of the mapping in the file, in bytes.
    pub offset: u64,
    /// Length of the mapping in bytes. It may exceed the file; an access beyond the end of the file
    /// faults.
    pub bytes: u64,
}

impl ForeignMap {
    /// Decodes words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            number: (words[0] >> 32) as u32,
            page: words[0] as u32,
            offset: words[1],
            bytes: words[2],
        }
    }
}

/// The attach call, by which a domain requests a descriptor. It is a system call
/// (`getppid(ATTACH_MAGIC, kind, index)`) that the domain's filter forwards to the monitor. The
/// monitor puts a descriptor into the caller's table or returns an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachTarget {
    /// Device `n` of the domain. Its descriptor has the number [`crate::layout::fd::DEVICE`] + n,
    /// and is added to the epoll set.
    Device(u32),
    /// The doorbell of the other end of connection `n`. Its descriptor has the number
    /// [`crate::layout::fd::DOORBELL`] + n.
    Doorbell(ConnId),
}

/// First argument of the attach call.
pub const ATTACH_MAGIC: u64 = 0x6772_616e_7477_6179;

impl AttachTarget {
    /// Decodes arguments 1 and 2.
    #[must_use]
    pub const fn decode(args: [u64; 2]) -> Option<Self> {
        let index = args[1];
        if index > u32::MAX as u64 {
            return None;
        }
        match args[0] {
            1 => Some(Self::Device(index as u32)),
            2 => Some(Self::Doorbell(ConnId(index as u32))),
            _ => None,
        }
    }
}

/// Control calls of a TAP with dedicated queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapControl {
    /// Steers frames for a MAC to a queue, or to the shared queue if `None`. Result: the number of
    /// this change, for comparison with the result of [`TapControl::Settled`].
    Steer {
        /// The MAC. Steering [`ALL_MACS`](crate::machine::ALL_MACS) to the shared queue steers
        /// all MACs.
        mac: [u8; 6],
        /// The queue's number.
        queue: Option<u32>,
    },
    /// Returns the number of the newest effective change: no frame that chose its queue before that
    /// change is still in flight.
    Settled,
}

impl TapControl {
    pub(crate) const STEER: u64 = 1 << 56;
    pub(crate) const SETTLED: u64 = 2 << 56;
    pub(crate) const SHARED: u64 = u64::MAX;

    /// Decodes words 1 and 2.
    #[must_use]
    pub const fn decode(words: [u64; 2]) -> Option<Self> {
        let [kind, zero, a, b, c, d, e, f] = words[0].to_be_bytes();
        match (kind, zero) {
            (1, 0) if words[1] == Self::SHARED => Some(Self::Steer {
                mac: [a, b, c, d, e, f],
                queue: None,
            }),
            (1, 0) if words[1] <= u32::MAX as u64 => Some(Self::Steer {
                mac: [a, b, c, d, e, f],
                queue: Some(words[1] as u32),
            }),
            (2, 0) => Some(Self::Settled),
            _ => None,
        }
    }
}
