//! What the core and its two helpers say to each other: fixed-size records over a socket that keeps
//! their borders. Whatever is opaque to the core, or has no fixed size, travels beside a record in
//! a sealed memory file; descriptors travel beside it too.
//!
//! ```text
//!   word 0   version (bits 63..32), kind (31..0)
//!   word 1   token: an answer has its request's; 0 in events
//!   word 2…  the fields in order, each in words of its own; zeroes behind the last
//! ```
//!
//! Words are little-endian. Any bytes are a record or a clear refusal ([`Malformed`]), and a record
//! has one form only: decoding and encoding gives the same bytes.

mod field;
mod heard;
mod messages;
mod record;
mod report;
mod stage;
mod wire;

pub use field::{Field, Reader, TEXT_MAX, Text, Writer};
pub use heard::report_of;
pub use messages::{Ask, CPU_WORDS, NewDomain, NewSocket, Outcome, RingPlace, Task, Tell};
pub use record::{Message, Record};
pub use report::{CoreStatus, report_bytes};
pub use stage::Stage;
pub use wire::{BYTES, DESCRIPTORS_MAX, Malformed, VERSION, WORDS};

/// Bytes that a machine may have as JSON: more than the largest one.
pub const MACHINE_MAX: usize = 64 << 20;
/// Bytes of what a manager wants the next one to know: the machine as it has become is part of it.
pub const KEPT_MAX: usize = 64 << 20;
/// Bytes of what is left for the next core's manager: as text within text less than
/// [`MACHINE_MAX`].
pub const LEFT_MAX: usize = 8 << 20;
/// The variable of the environment that names the file which is the system's journal.
pub const JOURNAL_VAR: &str = "JOURNAL_STREAM";

#[cfg(test)]
mod tests;
