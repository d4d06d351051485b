//! Offsets within the mailbox, in bytes. Its words and bytes are the manager's and the domain's:
//! the manager has a descriptor of it, and only the domain has it mapped for use.

use crate::layout::PAGE;

/// u32: number of the newest request (manager writes).
pub const REQUEST: usize = 0;
/// u32: bytes of that request.
pub const REQUEST_BYTES: usize = 4;
/// u32: number of the request that the reply answers (domain writes).
pub const REPLY: usize = 64;
/// u32: bytes of that reply.
pub const REPLY_BYTES: usize = 68;
/// A request to the domain.
pub const IN: usize = PAGE;
/// Bytes that a request may have.
pub const IN_MAX: usize = 29 * PAGE;
/// A domain's reply.
pub const OUT: usize = IN + IN_MAX;
/// Bytes that a reply may have.
pub const OUT_MAX: usize = 95 * PAGE;
/// Bytes of the mailbox.
pub const BYTES: usize = OUT + OUT_MAX;
