//! Connections: the states of xenbus (public/io/xenbus.h) and the size of a record.
//!
//! Each end of a connection owns one record: a state, which the monitor checks, and a body, which
//! it only passes on (the crate `vif` says what a network interface writes there).

/// Bytes of a record's body.
pub const RECORD_BYTES: usize = 256;

/// Which end of a connection a domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "json",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[repr(u8)]
pub enum Role {
    /// The end that serves: the driver domain's.
    Backend = 0,
    /// The end that is served: the guest's.
    Frontend = 1,
}

/// Where one end stands (values as in Xen).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "json",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[repr(u8)]
pub enum XenbusState {
    /// No end, or one whose domain has died and been cleared away.
    Unknown = 0,
    /// The start: nothing was written yet.
    Initialising = 1,
    /// Early initialisation is done; waits for the other end's record.
    InitWait = 2,
    /// The record is written; waits for the other end to connect.
    Initialised = 3,
    /// Frames flow.
    Connected = 4,
    /// On the way down: no new work, what is in flight drains.
    Closing = 5,
    /// Down. The way back is [`XenbusState::Initialising`].
    Closed = 6,
}

impl XenbusState {
    /// The state of a value from the wire.
    #[must_use]
    pub const fn from_wire(value: u64) -> Option<Self> {
        Some(match value {
            0 => Self::Unknown,
            1 => Self::Initialising,
            2 => Self::InitWait,
            3 => Self::Initialised,
            4 => Self::Connected,
            5 => Self::Closing,
            6 => Self::Closed,
            _ => return None,
        })
    }

    /// Whether an end may go from `self` to `next`: forwards through the hand-shake, to closing
    /// and closed from anywhere, and from closed back to the start. Writing the same state again
    /// (with a new body) is allowed before [`XenbusState::Connected`].
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        use XenbusState as S;
        match (self, next) {
            (_, S::Unknown) | (S::Unknown, _) => false,
            (S::Closed, S::Initialising | S::InitWait) => true,
            (S::Closed, _) => false,
            (_, S::Closed) => true,
            (S::Closing, _) => false,
            (_, S::Closing) => true,
            (from, to) => {
                let (from, to) = (from as u8, to as u8);
                from < to || (from == to && from < S::Connected as u8)
            }
        }
    }
}
