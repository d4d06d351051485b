//! `podman network create`: is it a network that can be?

use super::told::PodmanNetwork;
use crate::failure::{Code, Failure};
use crate::network::decoded;
use serde_json::{Map, Value, json};

/// What `-o` may say, and whether it is a number.
const OPTIONS: [(&str, bool); 4] = [
    ("machine", false),
    ("socket", false),
    ("mtu", true),
    ("rate_mbps", true),
];

/// The network as podman keeps it.
pub(super) fn create(mut told: Value) -> Result<Value, Failure> {
    let network: PodmanNetwork = decoded(&told)?;
    conf(&network)?;
    let wrong = |msg: &str| Err(Failure::new(Code::Config, msg));
    if network.subnets.unwrap_or_default().is_empty() {
        return wrong("there is no subnet: give that of the machine's NIC by `--subnet`");
    }
    let ipam = network.ipam_options.unwrap_or_default();
    if let Some(driver) = ipam
        .get("driver")
        .filter(|driver| !["", "host-local"].contains(&driver.as_str()))
    {
        let msg = format!("unsupported: addresses by `{}`", driver.escape_debug());
        return wrong(&msg);
    }
    // Names of containers are for aardvark-dns, which netavark starts for its own networks.
    if let Some(dns) = told.get_mut("dns_enabled") {
        *dns = json!(false);
    }
    Ok(told)
}

/// The configuration of the network as CNI has it.
pub(super) fn conf(network: &PodmanNetwork) -> Result<Value, Failure> {
    let mut conf = Map::new();
    let mut vif = Map::new();
    for (key, text) in network.options.iter().flatten() {
        let Some((_, is_number)) = OPTIONS.iter().find(|(known, _)| known == key) else {
            let known = OPTIONS.map(|(known, _)| known).join(", ");
            let msg = format!("unknown option `{}`", key.escape_debug());
            return Err(Failure::new(Code::Config, msg).because(format!("there are {known}")));
        };
        let value = match (is_number, text.parse::<u32>()) {
            (false, _) => json!(text),
            (true, Ok(number)) => json!(number),
            (true, Err(_)) => {
                let msg = format!("the option `{key}` is \"{}\"", text.escape_debug());
                return Err(Failure::new(Code::Config, msg).because("write a number"));
            }
        };
        let part = match key.as_str() {
            "rate_mbps" => &mut vif,
            _ => &mut conf,
        };
        part.insert(key.clone(), value);
    }
    conf.insert("cniVersion".into(), json!("1.0.0"));
    conf.insert("name".into(), json!(network.name));
    conf.insert("vif".into(), vif.into());
    Ok(conf.into())
}
