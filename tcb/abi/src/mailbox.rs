//! Requests and replies in a domain's mailbox. To the monitor both directions are uninterpreted
//! bytes; the command line and the domains use JSON.

use serde::{Deserialize, Serialize};

/// A request to a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Return all counters: the reply is the domain's own JSON object.
    Stat,
    /// Change a setting while traffic runs.
    Set {
        /// Its name.
        key: String,
        /// Its new value.
        value: String,
    },
    /// Arm a trace of the next packet and return the last completed one.
    Trace,
    /// To a driver domain: serve another interface. If it already serves the interface, nothing
    /// changes.
    Attach {
        /// The interface's part of the domain's configuration, as JSON.
        vif: String,
    },
    /// To a driver domain: release an interface. If it does not exist, nothing changes.
    Detach {
        /// Number of the driver's connection.
        conn: u32,
    },
    /// To a driver domain: change the rules and rate limit of an interface that it serves.
    Change {
        /// The interface's part of the domain's configuration, as JSON.
        vif: String,
    },
    /// To a driver domain: up to 1000 `flows[]`; `next`: `first` of the next request, or null.
    Flows {
        /// A NIC, a guest, or an interface of a guest (`GUEST-N`).
        of: String,
        /// How many flows to skip.
        first: u32,
    },
    /// To the driver domain: return the frames that ports have seen since the last such request,
    /// and capture further frames until no request has arrived for 2 s. Each frame in `frames[]`
    /// has `at_ns` (monotonic), `port`, `in` (whether it entered the bridge), `bytes`, `data` (its
    /// first bytes, hexadecimal) and `dropped` (the reason, or null); `lost` counts frames that did
    /// not fit.
    Capture {
        /// Identifies the client: no other client can capture meanwhile.
        id: u64,
        /// A NIC, a guest, or an interface of a guest (`GUEST-N`).
        of: String,
        /// Bytes captured of each frame; 0 ends the capture.
        snaplen: u32,
    },
}

/// A domain's answer to a request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxError {
    /// The error and its remedy.
    pub error: String,
}
