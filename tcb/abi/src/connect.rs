//! Connections: the states of xenbus (public/io/xenbus.h) and the size of a record.
//!
//! Each end of a connection owns one record: a state, which the monitor checks, and a body, which
//! it forwards without reading it (crate `vif` defines the body of a network interface).

use crate::wire_enum::wire_enum;

/// Bytes of a record's body.
pub const RECORD_BYTES: usize = 256;

/// A domain's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "json",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[repr(u8)]
pub enum Role {
    /// The serving end: the driver domain.
    Backend = 0,
    /// The served end: the guest.
    Frontend = 1,
}

wire_enum! {
    /// The state of one end (values as in Xen).
    #[derive(PartialOrd, Ord, Hash)]
    #[cfg_attr(
        feature = "json",
        derive(serde::Serialize, serde::Deserialize),
        serde(rename_all = "lowercase")
    )]
    pub enum XenbusState: u8 from u64 {
        /// The end does not exist, or its domain has died and been torn down.
        Unknown = 0,
        /// The initial state: no record has been written.
        Initialising = 1,
        /// Early initialisation is done; the end waits for the other end's record.
        InitWait = 2,
        /// The record is written; the end waits for the other end to connect.
        Initialised = 3,
        /// Both ends exchange frames.
        Connected = 4,
        /// The end accepts no new work, and completes the work in flight.
        Closing = 5,
        /// The end has no work. The next state is [`XenbusState::Initialising`].
        Closed = 6,
    }
}

impl XenbusState {
    /// Returns whether an end may change from `self` to `next`. It may advance through the
    /// handshake, change to closing or closed from any state, and restart from closed. Writing the
    /// same state again (with a new body) is allowed before [`XenbusState::Connected`].
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
