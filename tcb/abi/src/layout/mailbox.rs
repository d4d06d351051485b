//! Offsets within the mailbox, in bytes. The manager has a descriptor of the mailbox; only the
//! domain maps it.

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
/// The maximum size of a request in bytes.
pub const IN_MAX: usize = 29 * PAGE;
/// A domain's reply.
pub const OUT: usize = IN + IN_MAX;
/// The maximum size of a reply in bytes.
pub const OUT_MAX: usize = 95 * PAGE;
/// Size of the mailbox in bytes.
pub const BYTES: usize = OUT + OUT_MAX;
