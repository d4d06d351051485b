//! Lines of JSON from any client of a socket or a mailbox.

use abi::machine::{Audit, ControlError, ControlRequest, Machine, RelayReply, Status};
use abi::mailbox::MailboxRequest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Parses each line as every kind of JSON message: to and from the monitor, and to domains. An
/// accepted message is unchanged after a round trip.
pub fn control(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        round_trips::<ControlRequest>(line);
        round_trips::<Machine>(line);
        round_trips::<MailboxRequest>(line);
        round_trips::<Status>(line);
        round_trips::<Audit>(line);
        round_trips::<RelayReply>(line);
        round_trips::<ControlError>(line);
    }
}

/// Reads a line. Checks that an accepted line is unchanged after a round trip.
pub(crate) fn round_trips<T: Serialize + DeserializeOwned + PartialEq + Debug>(line: &[u8]) {
    let Ok(taken) = serde_json::from_slice::<T>(line) else {
        return;
    };
    let written = serde_json::to_vec(&taken).expect("what was read can be written");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(again, taken);
}
