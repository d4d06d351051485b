//! Checks of the identities that a guest's interface may claim.

use super::findings::Findings;
use crate::model::{SourceGuard, Vif};
use crate::problem::ConfigPart;

/// Maximum number of MACs that an interface can have in addition to its configured one.
const EXTRA_MACS_MAX: usize = 16;
/// Maximum number of source prefixes that an interface can be allowed.
const ALLOWED_SOURCES_MAX: usize = 16;

pub(super) fn port_security(found: &mut Findings, part: ConfigPart, vif: &Vif) {
    let security = &vif.security;
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
    let has_addresses = !vif.addresses().0.is_empty();
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
