//! Mock peers and harnesses for tests, benches and fuzzers: both ends of an interface in one
//! thread, a grant mechanism without a monitor, and peers that write arbitrary words.
//!
//! No program links this module. Unlike the rest of the crate it may panic, because that is how a
//! harness reports a violated invariant.

mod formats;
mod fuzz;
mod grants;
mod memory;
mod packets;
mod raw;
mod rig;

pub use formats::{format, over_each_format, with_format};
pub use fuzz::{hostile_backend, hostile_frontend, hostile_records, hostile_words};
pub use grants::FakeGrants;
pub use memory::TestMemory;
pub use packets::{frame_at, ipv4_tcp, packet};
pub use raw::{RawBack, RawFront};
pub use rig::{BACKEND, Rig, back_record, sizes};
