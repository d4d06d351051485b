//! The identities that a guest's interface may claim, and the sources that it may use.

use crate::address::{Cidr, MacAddress};
use serde::Deserialize;

/// Keys of an interface that extend or restrict what the bridge accepts from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSecurity {
    /// Additional MACs, for macvlans or a bridge inside the guest.
    pub extra_macs: Vec<MacAddress>,
    /// Whether ARP and neighbour discovery may claim only `addresses`. `None`: true if any are set.
    pub confined: Option<bool>,
    /// Whether IP sources are checked. `None`: see [`Vif::sources`](super::Vif::sources).
    pub source_guard: Option<SourceGuard>,
    /// Prefixes of IP sources that it may use in addition to `addresses`.
    pub allowed_sources: Vec<Cidr>,
    /// Whether it may send to DHCP clients. `None`: true if it forwards.
    pub dhcp_server: Option<bool>,
}

/// The IP sources that an interface may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceGuard {
    /// Its addresses, and the allowed sources.
    Strict,
    /// Any source.
    Off,
}
