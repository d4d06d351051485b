//! Requests and replies in a domain's mailbox. The monitor does not interpret either; the command
//! line and the domains use JSON.

use serde::{Deserialize, Serialize};

/// Maximum number of replies with the ports of one driver domain. They have room for 1024
/// interfaces of 256 rules each.
pub const STAT_REPLIES_MAX: usize = 64;

/// A request to a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum MailboxRequest {
    /// Returns all counters as a JSON object, whose keys depend on the domain. If not all `ports`
    /// of a driver domain fit into the reply, it has `next`: `first` of [`MailboxRequest::Ports`].
    Stat,
    /// To a driver domain: the `ports` from a number on; `next`: `first` of the next request, or
    /// null.
    Ports {
        /// The number of the first port.
        first: u32,
    },
    /// Changes a setting during operation.
    Set {
        /// Its name.
        key: String,
        /// Its new value.
        value: String,
    },
    /// Arms a trace of the next packet, and returns the last completed trace.
    Trace,
    /// Makes a driver domain serve another interface. Has no effect if it already serves the
    /// interface.
    Attach {
        /// The interface's part of the domain's configuration, as JSON.
        vif: String,
    },
    /// Makes a driver domain release an interface. Has no effect if the interface does not exist.
    Detach {
        /// Number of the driver's connection.
        conn: u32,
    },
    /// Changes the rules and the rate limit of an interface that a driver domain serves.
    Change {
        /// The interface's part of the domain's configuration, as JSON.
        vif: String,
    },
    /// Returns up to 1000 flows of a driver domain in `flows[]`, and in `next` the value of `first`
    /// for the next request, or null.
    Flows {
        /// A NIC, a guest, or an interface of a guest (`GUEST-N`).
        of: String,
        /// The number of flows to skip.
        first: u32,
    },
    /// Returns the frames that have passed a driver domain's ports since the last request of this
    /// kind. The driver domain captures further frames until it has received no capture request for
    /// 2 s. Each frame in `frames[]` has `at_ns` (monotonic), `port`, `in` (whether it entered the
    /// bridge), `bytes`, `data` (its first bytes, hexadecimal) and `dropped` (the reason, or null);
    /// `lost` counts frames that did not fit.
    Capture {
        /// Identifies the client. No other client can capture meanwhile.
        id: u64,
        /// A NIC, a guest, or an interface of a guest (`GUEST-N`).
        of: String,
        /// The number of bytes to capture of each frame; 0 stops the capture.
        snaplen: u32,
    },
}

/// A domain's answer to a request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxError {
    /// The error and its remedy.
    pub error: String,
}
