//! Chooses an unused address of one of the machine's networks for a guest without one.
//!
//! Only a guest that is attached to a running machine may omit its address. In a file, the chosen
//! address would depend on the guests before it.

use crate::address::Cidr;
use crate::model::Config;
use crate::nic::{NicKind, NicSection};
use abi::machine::ConfigValue;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The key of an interface without a fixed address. Its value is the name of a NIC whose network
/// provides the address, or `true` for any network.
const KEY: &str = "network";

/// A network of a NIC or guest, and the gateway out of it.
#[derive(Clone, Copy)]
struct GuestNetwork {
    of: Cidr,
    gateway: Option<IpAddr>,
}

/// Returns the description with an address for each interface that has the key `network`.
///
/// # Errors
///
/// Returns the interface's number and the reason as text if an address is not available.
pub(super) fn resolve(config: &Config, guest: &ConfigValue) -> Result<ConfigValue, String> {
    let mut guest = guest.clone();
    if let ConfigValue::Section(keys) = &mut guest
        && let Some(ConfigValue::List(vifs)) = keys.get_mut("vif")
    {
        let mut taken = taken(config);
        for (n, vif) in vifs.iter_mut().enumerate() {
            if let ConfigValue::Section(vif) = vif
                && let Some(wanted) = vif.remove(KEY)
            {
                let wrong = |why| format!("vif {}: `{KEY}`: {why}", n + 1);
                assign_address(config, vif, &wanted, &mut taken).map_err(wrong)?;
            }
        }
    }
    Ok(guest)
}

/// Assigns an address to an interface, and a gateway if the interface has none.
fn assign_address(
    config: &Config,
    vif: &mut BTreeMap<String, ConfigValue>,
    wanted: &ConfigValue,
    taken: &mut BTreeSet<IpAddr>,
) -> Result<(), String> {
    if vif.contains_key("addresses") {
        return Err("`addresses` is set, too; write only one of them".to_owned());
    }
    let network = match wanted {
        ConfigValue::Flag(true) => {
            any(config).ok_or("no NIC or guest has an address with a network; write `addresses`")?
        }
        ConfigValue::Text(nic) => of_nic(config, nic)?,
        _ => return Err("write the name of a NIC, or true".to_owned()),
    };
    let free = network.of.first_free(|address| taken.contains(&address));
    let address =
        free.ok_or_else(|| format!("the network of {} has no unused address", network.of))?;
    taken.insert(address.address);
    let text = |text: String| ConfigValue::Text(text);
    let addresses = vec![text(address.to_string())];
    vif.insert("addresses".to_owned(), ConfigValue::List(addresses));
    if let Some(gateway) = network.gateway {
        vif.entry("gateway".to_owned())
            .or_insert(text(gateway.to_string()));
    }
    Ok(())
}

/// Returns the network of a NIC, whose kernel end is the gateway.
fn of_nic(config: &Config, name: &str) -> Result<GuestNetwork, String> {
    let nic = config
        .nic(name)
        .ok_or_else(|| format!("no NIC is named {name}"))?;
    let network = kernel_network(&nic.kind);
    network.ok_or_else(|| format!("NIC {name} has no address at its end in the kernel"))
}

fn kernel_network(kind: &NicKind) -> Option<GuestNetwork> {
    let of = *kind.port()?.addresses.first()?;
    Some(GuestNetwork {
        of,
        gateway: Some(of.address),
    })
}

/// Returns the network of the first NIC with a gateway, else of the first guest with an address.
fn any(config: &Config) -> Option<GuestNetwork> {
    let of_guests = config.vifs().filter_map(|(.., vif)| {
        let stations = vif.stations();
        let of = *stations.addresses.first()?;
        let is_in = |gateway: &IpAddr| of.contains(*gateway);
        let gateway = stations.gateway.filter(is_in);
        Some(GuestNetwork { of, gateway })
    });
    let of_nics = config
        .nics
        .iter()
        .filter_map(|nic| kernel_network(&nic.kind));
    of_nics.chain(of_guests).next()
}

/// Returns every address of a NIC or guest, and of the routers to which these send.
fn taken(config: &Config) -> BTreeSet<IpAddr> {
    let vifs = config.vifs().map(|(.., vif)| vif.stations());
    let nics = config.nics.iter().map(NicSection::stations);
    let all = nics.chain(vifs);
    all.flat_map(|stations| stations.ips().chain(stations.routers()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;

    const NICS: &str = "[[nic]]\nname = \"far\"\nkind = \"sim\"\naddresses = [\"10.9.0.1/24\"]\n\
                        [[nic]]\nname = \"lan\"\nkind = \"tap\"\naddresses = [\"10.0.0.1/30\"]\n";

    fn guest(name: &str, more: &str) -> String {
        format!("[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"stack\"\n{more}\n")
    }

    /// Returns the address and the gateway that are assigned to an interface with these keys.
    fn given(file: &str, vif: &str) -> Result<[String; 2], String> {
        let guest = serde_json::from_str(&format!(r#"{{"name":"x","vif":[{{{vif}}}]}}"#));
        let resolved = resolve(&parse("f", file).unwrap(), &guest.unwrap())?;
        let json = serde_json::to_value(&resolved).unwrap();
        let vif = &json["vif"][0];
        assert!(vif["network"].is_null(), "{vif}");
        let text = |value: &serde_json::Value| value.as_str().unwrap_or("none").to_owned();
        Ok([text(&vif["addresses"][0]), text(&vif["gateway"])])
    }

    #[test]
    fn an_unused_address_is_chosen_with_its_gateway() {
        let any = r#""network":true"#;
        let right = |address: &str, gateway: &str| Ok([address, gateway].map(str::to_owned));
        assert_eq!(given(NICS, any), right("10.0.0.2/30", "10.0.0.1"));
        let named = r#""network":"lan","gateway":"10.0.0.2""#;
        assert_eq!(given(NICS, named), right("10.0.0.2/30", "10.0.0.2"));
        // Without a NIC that has an address, the guests' network is used.
        let guests = guest("a", "addresses = [\"10.1.0.1/24\"]\ngateway = \"10.1.0.2\"");
        assert_eq!(given(&guests, any), right("10.1.0.3/24", "10.1.0.2"));
        let pair = guest("a", "addresses = [\"10.1.0.1/31\"]");
        assert_eq!(given(&pair, any), right("10.1.0.0/31", "none"));
        let v6 = guest("a", "addresses = [\"fd00::1/64\"]");
        assert_eq!(given(&v6, any), right("fd00::2/64", "none"));
    }

    #[test]
    fn errors_say_why_no_address_is_available() {
        let full = format!("{NICS}{}", guest("a", "addresses = [\"10.0.0.2/30\"]"));
        for (file, vif, why) in [
            (
                &full[..],
                r#""network":true"#,
                "10.0.0.1/30 has no unused address",
            ),
            (NICS, r#""network":"wan""#, "no NIC is named wan"),
            (NICS, r#""network":"far""#, "has no address at its end"),
            (NICS, r#""network":7"#, "the name of a NIC, or true"),
            ("", r#""network":true"#, "no NIC or guest has an address"),
            (
                NICS,
                r#""network":true,"addresses":["10.0.0.2/30"]"#,
                "write only one of them",
            ),
        ] {
            let message = given(file, vif).unwrap_err();
            assert!(
                message.starts_with("vif 1: `network`: ") && message.contains(why),
                "{message}"
            );
        }
    }
}
