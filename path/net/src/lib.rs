//! Packets and the bridge: pure, time passed in.
//!
//! | module | job |
//! |---|---|
//! | [`packet`] | where the headers lie in a snapshot; [`packet::checksum`]; [`packet::segment`] |
//! | [`bridge`] | where a frame goes, and which frames are dropped |
//! | [`lro`] | large receive offload: consecutive segments of a flow become one packet |
//! | [`fair`] | which vif is served next: deficit round robin |
//! | [`queue`] | a bounded queue with active queue management: FQ-CoDel |
//!
//! Nothing here knows rings, guest pages or system calls. Every decision is made on private bytes
//! (a [`nic::Frame`]'s snapshot), and no bytes make any of it panic.

pub mod bridge;
pub mod fair;
pub mod lro;
pub mod packet;
pub mod queue;
