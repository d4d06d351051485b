//! Packets and the bridge. The code has no side effects outside its arguments, and the caller
//! passes the time.
//!
//! | module | job |
//! |---|---|
//! | [`packet`] | header positions in a snapshot; [`packet::checksum`]; [`packet::segment`] |
//! | [`bridge`] | forwards or drops frames |
//! | [`flows`] | flow tables for stateful rules |
//! | [`lro`] | large receive offload: merges consecutive segments of a flow into one packet |
//! | [`fair`] | schedules vifs: deficit round robin |
//! | [`queue`] | a bounded queue with active queue management: FQ-CoDel |
//!
//! Nothing here depends on rings, guest pages or system calls. Every decision uses private bytes (a
//! [`nic::Frame`]'s snapshot), and no input makes it panic.

pub mod bridge;
pub mod fair;
pub mod flows;
pub mod lro;
pub mod packet;
pub mod queue;
