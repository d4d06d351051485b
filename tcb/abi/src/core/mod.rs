//! The protocol between the core and its two helpers: fixed-size records over a socket that
//! preserves record boundaries. Data that the core does not interpret, or of variable size, is
//! attached to a record in a sealed memory file; descriptors are attached too.
//!
//! ```text
//!   word 0   version (bits 63..32), kind (31..0)
//!   word 1   token: an answer has the token of its request; 0 in events
//!   word 2…  the fields in order, each in separate words; zeroes after the last
//! ```
//!
//! Words are little-endian. Any bytes decode to a record or an error ([`Malformed`]), and each
//! record has exactly one encoding: encoding a decoded record yields the same bytes.

mod field;
mod messages;
mod record;
mod report;
mod report_decode;
mod stage;
mod wire;

pub use field::{Field, Reader, TEXT_MAX, Text, Writer};
pub use messages::{
    CPU_WORDS, CoreMessage, CoreRequest, NetdReply, NetdRequest, NewDomain, NewSocket, RingExtent,
};
pub use record::{Message, Record};
pub use report::{CoreStatus, encode_report};
pub use report_decode::decode_report;
pub use stage::Stage;
pub use wire::{BYTES, DESCRIPTORS_MAX, Malformed, VERSION, WORDS};

/// The maximum size of a machine as JSON, larger than any valid machine.
pub const MACHINE_MAX: usize = 64 << 20;
/// The maximum size of the state that a manager keeps for the next one. It includes the current
/// description of the machine.
pub const KEPT_MAX: usize = 64 << 20;
/// The maximum size of the data that a manager leaves for the next core's manager. As an escaped
/// JSON string, the data must not exceed [`MACHINE_MAX`].
pub const STATE_BYTES_MAX: usize = 8 << 20;
/// The environment variable that identifies the file of the system's journal.
pub const JOURNAL_VAR: &str = "JOURNAL_STREAM";

#[cfg(test)]
mod tests;
