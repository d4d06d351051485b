//! The identities that a guest's interface may claim, and the sources that it may use.

use crate::address::{Cidr, MacAddress};
use crate::findings::Findings;
use crate::problem::ConfigPart;
use crate::route::StationAddresses;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Maximum number of MACs that an interface can have in addition to its configured one.
const EXTRA_MACS_MAX: usize = 16;
/// Maximum number of source prefixes that an interface can be allowed.
const ALLOWED_SOURCES_MAX: usize = 16;

/// Keys of an interface that extend or restrict what the bridge accepts from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PortSecurity {
    /// Additional MACs, for macvlans or a bridge inside the guest.
    pub extra_macs: Vec<MacAddress>,
    /// Whether ARP and neighbour discovery may claim only `addresses`. `None`: true if any are set.
    pub confined: Option<bool>,
    /// Whether IP sources are checked. `None`: they are if it has addresses and does not forward,
    /// or if any sources are allowed.
    pub source_guard: Option<SourceGuard>,
    /// Prefixes of IP sources that it may use in addition to `addresses`.
    pub allowed_sources: Vec<Cidr>,
    /// Whether it may send to DHCP clients. `None`: true if it forwards.
    pub dhcp_server: Option<bool>,
}

/// The identities that a guest's port may claim, for the driver domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortGuard {
    /// Other MACs that the guest may use. It also receives the frames to them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_macs: Vec<MacAddress>,
    /// Addresses of the guest that no other guest may claim.
    pub addresses: Vec<IpAddr>,
    /// Addresses of the guest's routers. Only a guest that has one of them may claim it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpAddr>,
    /// Whether ARP and neighbour discovery may claim `addresses` only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub confined: bool,
    /// Prefixes of the IP sources that the guest may use in addition to `addresses`. `None`: any
    /// source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<Cidr>>,
    /// Whether the guest may send to DHCP clients.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dhcp_server: bool,
}

impl PortSecurity {
    /// Returns the identities of a port with these stations.
    pub(crate) fn guard(&self, stations: StationAddresses<'_>, is_router: bool) -> PortGuard {
        let has_addresses = !stations.addresses.is_empty();
        let is_strict = match self.source_guard {
            Some(guard) => guard == SourceGuard::Strict,
            None => has_addresses && !is_router || !self.allowed_sources.is_empty(),
        };
        PortGuard {
            extra_macs: self.extra_macs.clone(),
            addresses: stations.ips().collect(),
            gateways: stations.routers(),
            confined: self.confined.unwrap_or(has_addresses),
            sources: is_strict.then(|| self.allowed_sources.clone()),
            dhcp_server: self.dhcp_server.unwrap_or(is_router),
        }
    }
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

/// Checks the keys of an interface. `has_addresses` says whether its addresses are known.
pub(crate) fn check(
    found: &mut Findings,
    part: ConfigPart,
    security: &PortSecurity,
    has_addresses: bool,
) {
    for (key, has, most) in [
        ("extra_macs", security.extra_macs.len(), EXTRA_MACS_MAX),
        (
            "allowed_sources",
            security.allowed_sources.len(),
            ALLOWED_SOURCES_MAX,
        ),
    ] {
        if has > most {
            let remedy = format!("write at most {most}");
            found.add(part, key, format!("`{key}` has {has} entries"), remedy);
        }
    }
    for cidr in &security.allowed_sources {
        let network = cidr.network();
        if network != cidr.address {
            let what = format!("`allowed_sources` has {cidr}");
            let remedy = format!(
                "write the network, {network}/{}, or one address with a full prefix",
                cidr.prefix
            );
            found.add(part, "allowed_sources", what, remedy);
        }
    }
    if security.confined == Some(true) && !has_addresses {
        let what = "`confined` is true, but `addresses` is empty";
        let remedy = "write the addresses that the guest may claim, or leave `confined` out";
        found.add(part, "confined", what, remedy);
    }
    let has_allowed = !security.allowed_sources.is_empty();
    match security.source_guard {
        Some(SourceGuard::Strict) if !has_addresses && !has_allowed => {
            let what =
                "`source_guard` is \"strict\", but `addresses` and `allowed_sources` are empty";
            let remedy = "write the sources that the guest may use, or leave `source_guard` out";
            found.add(part, "source_guard", what, remedy);
        }
        Some(SourceGuard::Off) if has_allowed => {
            let what = "`source_guard` is \"off\", but `allowed_sources` is set";
            let remedy = "leave one of them out";
            found.add(part, "source_guard", what, remedy);
        }
        _ => {}
    }
}
