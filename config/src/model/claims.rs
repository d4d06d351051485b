//! What a guest's interface may claim to be, and what it may send from.

use crate::address::{Cidr, Mac};
use serde::Deserialize;

/// Keys of an interface that widen or narrow what the bridge accepts from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// MACs beside the interface's own: of macvlans or a bridge inside the guest.
    pub extra_macs: Vec<Mac>,
    /// Whether ARP and neighbour discovery may claim `addresses` only. `None`: where there are any.
    pub confined: Option<bool>,
    /// Whether IP sources are checked. `None`: as [`Vif::sources`](super::Vif::sources) says.
    pub source_guard: Option<SourceGuard>,
    /// Prefixes of IP sources that it may use beside `addresses`.
    pub allowed_sources: Vec<Cidr>,
    /// Whether it may send to DHCP clients. `None`: if it forwards.
    pub dhcp_server: Option<bool>,
}

/// Which IP sources an interface may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceGuard {
    /// Its addresses, and the allowed sources.
    Strict,
    /// Any.
    Off,
}
