//! What travels through a domain's mailbox. To the monitor both directions are opaque bytes; the
//! command line and the domains agree on JSON.

use serde::{Deserialize, Serialize};

/// A request to a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// All counters: the answer is the domain's own JSON object.
    Stat,
    /// Change a switch while traffic runs.
    Set {
        /// Its name.
        key: String,
        /// Its new value.
        value: String,
    },
    /// Arm a trace of the next packet that passes and return the last one that was completed.
    Trace,
    /// To a driver domain: serve one interface more. If it serves it already, nothing changes.
    Attach {
        /// What it would have been told of it at its start, as JSON.
        vif: String,
    },
    /// To a driver domain: give up all that it has of an interface. Without one nothing changes.
    Detach {
        /// Number of the driver's connection.
        conn: u32,
    },
    /// To a driver domain: rules and rate limit of an interface that it serves are these from now
    /// on.
    Change {
        /// What it would be told of it at its start, as JSON.
        vif: String,
    },
    /// Of the driver domain: what ports have seen since the last such request, and go on until
    /// none has come for 2 s. Of each frame in `frames[]`: `at_ns` (monotonic), `port`, `in`
    /// (whether it came into the bridge), `bytes`, `data` (its first ones, hexadecimal), `dropped`
    /// (why, or null); `lost`: how many there was no room for.
    Capture {
        /// Who asks: nobody else can meanwhile.
        id: u64,
        /// A NIC, a guest, or an interface of a guest (`GUEST-N`).
        of: String,
        /// Bytes of each frame; 0: no more frames.
        snaplen: u32,
    },
}

/// A domain's answer to a request that could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is wrong and what would be right.
    pub error: String,
}
