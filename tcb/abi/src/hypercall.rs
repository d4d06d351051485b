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
//! The operations follow starting at offset 64, six u64 words each; word 5 is the operation's own
//! status (an i64, [`crate::GrantStatus`]), written by the monitor. A call as a whole fails only if
//! its kind or count is invalid: then no operation has been read.
//!
//! A single thread of a domain makes calls. The monitor reads each operation once into private
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
/// The word of an operation that holds its status.
pub const STATUS_WORD: usize = 5;
/// The largest number of operations of a call.
pub const OPS_MAX: usize = (layout::info::CALL_PAGES * layout::PAGE - OPS) / (OP_WORDS * 8);

wire_enum! {
    /// The kind of a call, which applies to all its operations.
    pub enum HypercallKind: u32 from u32 {
        /// Copy bytes between pages: see [`HypercallKind::is_other`].
        GrantCopy = 1,
        /// Map granted pages individually: see [`HypercallKind::is_other`].
        GrantMap = 2,
        /// Unmap them: see [`HypercallKind::is_other`].
        GrantUnmap = 3,
        /// One operation: word 0 the connection, word 1 the new state; the record's body (256
        /// bytes) follows in the words of the next operations.
        ConnectSet = 4,
        /// One operation: word 0 the connection. Results: word 1 the other end's domain, word 2 own
        /// role, word 3 own state, word 4 the other end's state; the body of the other end's record
        /// follows in the words of the next operations. `-ENOENT` past the last connection.
        ConnectGet = 5,
        /// Report that the domain has started; no operations.
        Ready = 6,
        /// Create the granter's half of a table of counted grants. One operation: word 0 the user's
        /// domain, word 1 the table's entries. Result: word 1 the [`crate::Handle`].
        TableCreate = 7,
        /// Bind the user's half. One operation: [`Bind`].
        TableBind = 8,
        /// End the caller's half of a table. One operation: word 0 the handle.
        TableEnd = 9,
        /// Grant pages: [`Create`] operations. Result: word 3 the reference.
        GrantCreate = 10,
        /// Revoke grants: [`Revoke`] operations.
        GrantRevoke = 11,
        /// Create the granter's half of an exchange: pages that change hands, all zero at first.
        /// One operation: word 0 the connection, word 1 the number of pages of each end, word 2 the
        /// first slot for the caller's pages, which must be free. Result: word 1 the
        /// [`crate::Handle`]. [`HypercallKind::TableBind`] (without sub-tables) binds the other
        /// half, and [`HypercallKind::TableEnd`] ends one. See [`HypercallKind::is_other`].
        ExchangeCreate = 12,
        /// Exchange pages: see [`HypercallKind::is_other`].
        GrantTransfer = 13,
        /// Pass control words to the domain's own devices. Each operation: word 0 the device's
        /// number, words 1 and 2 the device's command ([`TapControl`]). Result: word 3.
        DeviceControl = 16,
        /// End one of the domain's own devices permanently, after closing its descriptor. One
        /// operation: word 0 the device's number. `-EBUSY`: the descriptor is still open.
        DeviceEnd = 17,
        /// Map a memory file whose descriptor the domain received. One operation: [`ForeignMap`].
        /// The status is an errno: `-EBADF`, no such descriptor; `-EINVAL`, not a memory file, or
        /// not aligned to its page size; `-EEXIST`, the range is in use; `-ENOSPC`, beyond the
        /// domain's limits.
        ForeignMap = 18,
        /// Unmap a memory file. One operation: word 0 the page of [`layout::FOREIGN`] where it is
        /// mapped. `-ENOENT`: nothing is mapped there.
        ForeignUnmap = 19,
        /// Show the pages of a bound table that are granted for I/O to a device of the user's. One
        /// operation: [`Share`]. The pages leave the device's window when they are revoked, and all
        /// of them when either half of the table ends.
        TableShare = 20,
    }
}

impl HypercallKind {
    /// Returns whether only a monitor for comparisons serves this kind; others return `EINVAL`.
    #[must_use]
    pub const fn is_other(self) -> bool {
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

/// The word of an operation that holds its result, if it has one.
pub const ANSWER_WORD: usize = 3;

/// Bind a table of counted grants to the caller's window. Both ranges of slots must be free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
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

impl Bind {
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

/// Grant a page of the caller by an entry of its table (`GRANT_map` of the thesis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// The table.
    pub table: Handle,
    /// The entry's index; it must grant nothing.
    pub index: u32,
    /// The caller's frame.
    pub frame: u32,
    /// Whether the user may only read.
    pub readonly: bool,
    /// Whether the page is granted for I/O: a device of the user may access it as well
    /// ([`Share`]).
    pub io: bool,
}

impl Create {
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

/// Show a bound table's pages that are granted for I/O in the window of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The table, which the caller has bound.
    pub table: Handle,
    /// The caller's connection to the device.
    pub conn: ConnId,
    /// The slot of the device's window for entry 0; entry `n` is at slot `first + n`. All of these
    /// slots must be free.
    pub first: Slot,
}

impl Share {
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

/// Revoke a grant of the caller's table (`GRANT_unmap` of the thesis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoke {
    /// The table.
    pub table: Handle,
    /// The grant.
    pub gref: GrantRef,
    /// The treatment of a grant that is in use.
    pub how: Revocation,
}

impl Revoke {
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

/// Map a memory file, for reading and writing, into the range at [`layout::FOREIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignMap {
    /// The number of the file's descriptor in the caller's table.
    pub number: u32,
    /// The page of the range where the file is mapped.
    pub page: u32,
    /// Where the mapping begins in the file, bytes.
    pub offset: u64,
    /// Its length, bytes. It may end past the end of the file: an access there faults.
    pub bytes: u64,
}

impl ForeignMap {
    /// From words 0 … 2.
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

/// The attach call: a domain requests a descriptor. It is a system call (`getppid(ATTACH_MAGIC,
/// kind, index)`) that the domain's filter passes to the monitor, which puts a descriptor into the
/// caller's table or returns an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// Device `n` of the domain. Its descriptor becomes [`crate::layout::fd::DEVICE`] + n and joins
    /// the epoll set.
    Device(u32),
    /// The doorbell of a connection's other end. Its descriptor becomes
    /// [`crate::layout::fd::DOORBELL`] + n.
    Doorbell(ConnId),
}

/// First argument of the attach call.
pub const ATTACH_MAGIC: u64 = 0x6772_616e_7477_6179;

impl Attach {
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
    /// Steer frames for a MAC to a queue, or to the shared queue if `None`. Result: the point of
    /// the change, for comparison with [`TapControl::Settled`].
    Steer {
        /// The MAC. [`EVERY_MAC`](crate::machine::EVERY_MAC), steered to the shared queue, stands
        /// for all MACs.
        mac: [u8; 6],
        /// The queue's number.
        queue: Option<u32>,
    },
    /// Return the newest effective point: no frame that chose its queue before that change is still
    /// in flight.
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
