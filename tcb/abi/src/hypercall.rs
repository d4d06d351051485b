//! Hypercalls: batches of operations through the call page.
//!
//! The call page lies at [`crate::layout::info::CALL`]. Its first 64 bytes are the header:
//!
//! ```text
//! offset  type  who writes  meaning
//!      0  u32   domain      REQUEST: number of the newest call; FUTEX_WAKE after it
//!      4  u32   monitor     DONE: number of the newest call that is answered; FUTEX_WAKE after it
//!      8  u32   domain      KIND of the call ([`Kind`])
//!     12  u32   domain      COUNT of operations, at most [`OPS_MAX`]
//!     16  i32   monitor     RESULT of the call as a whole: 0, or a negative errno
//! ```
//!
//! From offset 64 on lie the operations, six u64 words each; word 5 is the operation's own status
//! (an i64, [`crate::GrantStatus`]), written by the monitor. A call as a whole fails only if its
//! kind or count is nonsense: then no operation was looked at.
//!
//! One thread of a domain makes calls. The monitor reads each operation once into its own memory.

use crate::counted::Revocation;
use crate::ids::{ConnId, DomId, GrantRef, Handle, Slot};
use crate::layout;

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
/// Words of an operation.
pub const OP_WORDS: usize = 6;
/// The word of an operation that holds its status.
pub const STATUS_WORD: usize = 5;
/// Operations of a call.
pub const OPS_MAX: usize = (layout::info::CALL_PAGES * layout::PAGE - OPS) / (OP_WORDS * 8);

/// What all operations of a call do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Copy bytes between pages: see [`Kind::is_other`].
    GrantCopy = 1,
    /// Map granted pages by themselves: see [`Kind::is_other`].
    GrantMap = 2,
    /// Unmap them: see [`Kind::is_other`].
    GrantUnmap = 3,
    /// One operation: word 0 the connection, word 1 the new state; the record's body (256 bytes)
    /// follows in the words of the next operations.
    ConnectSet = 4,
    /// One operation: word 0 the connection. The answer: word 1 the other end's domain, word 2
    /// own role, word 3 own state, word 4 the other end's state; the body of the other end's
    /// record follows in the words of the next operations. `-ENOENT` past the last connection.
    ConnectGet = 5,
    /// The domain has started; no operations.
    Ready = 6,
    /// The granter's half of a table of the new mechanism. One operation: word 0 the user's
    /// domain, word 1 the table's entries. The answer: word 1 the [`crate::Handle`].
    TableCreate = 7,
    /// The user's half. One operation: [`Bind`].
    TableBind = 8,
    /// One end's farewell to a table. One operation: word 0 the handle.
    TableEnd = 9,
    /// [`Create`] operations. The answer: word 3 the reference.
    GrantCreate = 10,
    /// [`Revoke`] operations.
    GrantRevoke = 11,
    /// The granter's half of an exchange: pages that change hands, all zero at first. One
    /// operation: word 0 the connection, word 1 pages of each end, word 2 the slot that the
    /// caller's appear from on, in free slots. The answer: word 1 the [`crate::Handle`]. The other
    /// half is a [`Kind::TableBind`] (no sub-tables), the end a [`Kind::TableEnd`]. See
    /// [`Kind::is_other`].
    ExchangeCreate = 12,
    /// Give pages of an exchange away: see [`Kind::is_other`].
    GrantTransfer = 13,
    /// Tell devices of the domain's own something. Each operation: word 0 the device's number,
    /// words 1 and 2 what the device understands ([`TapControl`]). The answer: word 3.
    DeviceControl = 16,
    /// The domain has done with a device of its own for good, and has closed its descriptor of it.
    /// One operation: word 0 the device's number. `-EBUSY`: it has the descriptor still.
    DeviceEnd = 17,
}

impl Kind {
    /// The kind of a value from the wire.
    #[must_use]
    pub const fn from_wire(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::GrantCopy,
            2 => Self::GrantMap,
            3 => Self::GrantUnmap,
            4 => Self::ConnectSet,
            5 => Self::ConnectGet,
            6 => Self::Ready,
            7 => Self::TableCreate,
            8 => Self::TableBind,
            9 => Self::TableEnd,
            10 => Self::GrantCreate,
            11 => Self::GrantRevoke,
            12 => Self::ExchangeCreate,
            13 => Self::GrantTransfer,
            16 => Self::DeviceControl,
            17 => Self::DeviceEnd,
            _ => return None,
        })
    }

    /// Whether only a monitor for comparisons serves it: `EINVAL` otherwise.
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

/// The word of an operation that holds its answer, where there is one.
pub const ANSWER_WORD: usize = 3;

/// Bind a table of the new mechanism to the caller's window. Both ranges of slots must be free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Who made the table.
    pub granter: DomId,
    /// The table.
    pub table: Handle,
    /// Where entry 0's page appears; entry `n`'s at slot `first + n`.
    pub first: Slot,
    /// Where the sub-tables appear: [`crate::counted::table_slots`] slots.
    pub tables: Slot,
    /// Entries that the caller counts on: refused if the table has another number.
    pub entries: u32,
}

impl Bind {
    /// From words 0 … 2.
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

/// Grant a page of the caller's by an entry of a table that it made (`GRANT_map` of the thesis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create {
    /// The table.
    pub table: Handle,
    /// Which entry; must grant nothing.
    pub index: u32,
    /// The caller's frame.
    pub frame: u32,
    /// Not to be written.
    pub readonly: bool,
}

impl Create {
    /// From words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            table: Handle((words[0] >> 32) as u32),
            index: words[0] as u32,
            frame: words[1] as u32,
            readonly: words[2] & 1 != 0,
        }
    }
}

/// Revoke a grant of a table that the caller made (`GRANT_unmap` of the thesis).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoke {
    /// The table.
    pub table: Handle,
    /// Which grant.
    pub gref: GrantRef,
    /// What to do if it is in use.
    pub how: Revocation,
}

impl Revoke {
    /// From words 0 … 2.
    #[must_use]
    pub const fn decode(words: [u64; 3]) -> Self {
        Self {
            table: Handle((words[0] >> 32) as u32),
            gref: GrantRef(words[0] as u32),
            how: Revocation::from_wire(words[1]),
        }
    }
}

/// The "attach" call: a domain asks for a descriptor. It is a system call
/// (`getppid(ATTACH_MAGIC, kind, index)`) that the domain's filter hands to the monitor, which
/// answers with a descriptor placed in the caller's table, or with an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// Device `n` of the domain; it appears at [`crate::layout::fd::DEVICE`] + n and in the epoll
    /// set.
    Device(u32),
    /// The doorbell of a connection's other end; it appears at [`crate::layout::fd::DOORBELL`] +
    /// n.
    Doorbell(ConnId),
}

/// First argument of the attach call.
pub const ATTACH_MAGIC: u64 = 0x6772_616e_7477_6179;

impl Attach {
    /// From arguments 1 and 2.
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

/// What a TAP with queues can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapControl {
    /// Lead frames to a MAC to a queue; none: to the shared one. Answered with a point in time,
    /// as [`TapControl::Settled`] counts it.
    Steer {
        /// The MAC; [`EVERY_MAC`](crate::machine::EVERY_MAC) to the shared queue: all MACs.
        mac: [u8; 6],
        /// The queue's number.
        queue: Option<u32>,
    },
    /// Up to which point no frame is on its way any more that chose its queue before.
    Settled,
}

impl TapControl {
    pub(crate) const STEER: u64 = 1 << 56;
    pub(crate) const SETTLED: u64 = 2 << 56;
    pub(crate) const SHARED: u64 = u64::MAX;

    /// From words 1 and 2.
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
