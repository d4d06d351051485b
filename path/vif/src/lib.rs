//! The virtual interface: shared rings, netif, netback, netfront.

pub mod grants;
