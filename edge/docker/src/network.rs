//! Networks of Docker. Docker announces each only once, so they are recorded on disk.

use crate::api::{CreateNetwork, Id, NetworkPool};
use cni::attachment::Attachment;
use cni::options;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The options of `docker network create -o`.
const GENERIC: &str = "com.docker.network.generic";
/// Whether the network is isolated from other networks (`--internal`).
const INTERNAL: &str = "com.docker.network.internal";
/// Docker's own option for the MTU.
const MTU: &str = "com.docker.network.driver.mtu";
/// Default MTU, bytes of IP.
const DEFAULT_MTU: u32 = 1500;

/// A network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DockerNetwork {
    /// Its configuration in CNI's form.
    conf: Value,
    /// The gateways of containers, without prefix lengths; none for an internal network.
    pub(crate) gateways: Vec<String>,
}

impl DockerNetwork {
    /// Returns the network of a call.
    pub(crate) fn of(call: &CreateNetwork) -> Result<Self, String> {
        let given = call.options.as_ref();
        let options = texts(given.and_then(|options| options.get(GENERIC)))?;
        let named = options.into_iter().map(|(key, value)| match key.as_str() {
            MTU => ("mtu".to_owned(), value),
            _ => (key, value),
        });
        let named: BTreeMap<String, String> = named.collect();
        let conf = options::conf(call.network.as_str(), named.iter());
        let conf = conf.map_err(|failure| failure.to_string())?;
        let checked = Attachment::of(conf.clone(), call.network.as_str(), "/", "eth0");
        checked.map_err(|failure| failure.to_string())?;
        let is_internal = given.and_then(|options| options.get(INTERNAL)) == Some(&json!(true));
        let pools = [&call.ipv4, &call.ipv6].into_iter().flatten().flatten();
        let gateways = pools.filter_map(NetworkPool::gateway).map(str::to_owned);
        Ok(Self {
            conf,
            gateways: gateways.filter(|_| !is_internal).collect(),
        })
    }

    /// Returns the configuration for an endpoint, in CNI's form.
    pub(crate) fn conf(&self, mac: &str, pending: &str) -> Value {
        let mut conf = self.conf.clone();
        conf["runtimeConfig"] = json!({ "mac": mac });
        conf["stateDir"] = json!(pending);
        // The guest takes over the interface that Docker has moved.
        conf["vif"]["persistent"] = json!(true);
        conf
    }

    /// Returns the MTU of interfaces.
    pub(crate) fn mtu(&self) -> u32 {
        let mtu = self.conf["mtu"].as_u64();
        mtu.and_then(|mtu| mtu.try_into().ok())
            .unwrap_or(DEFAULT_MTU)
    }

    /// Returns the gateway of a family.
    pub(crate) fn gateway(&self, is_v6: bool) -> Option<&str> {
        let mut gateways = self.gateways.iter().map(String::as_str);
        gateways.find(|gateway| gateway.contains(':') == is_v6)
    }
}

impl NetworkPool {
    fn gateway(&self) -> Option<&str> {
        let plain = self.gateway.split('/').next();
        plain.filter(|plain| !plain.is_empty())
    }
}

/// Returns the options, which are texts.
fn texts(options: Option<&Value>) -> Result<BTreeMap<String, String>, String> {
    let none = Map::new();
    let options = match options {
        Some(Value::Object(options)) => options,
        None | Some(Value::Null) => &none,
        Some(_) => return Err("the options of the network are not an object".to_owned()),
    };
    let text = |(key, value): (&String, &Value)| match value {
        Value::String(value) => Ok((key.clone(), value.clone())),
        _ => Err(format!("the option `{}` is not a text", key.escape_debug())),
    };
    options.iter().map(text).collect()
}

/// Returns the error of a call about an unknown network.
pub(crate) fn unknown(network: &Id) -> String {
    format!(
        "the network {} is unknown to the driver: remove it by `docker network rm`, and create it \
         again",
        network.short(12)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(options: Value) -> Result<DockerNetwork, String> {
        let call = json!({
            "NetworkID": "a".repeat(64),
            "Options": options,
            "IPv4Data": [{ "AddressSpace": "LocalDefault", "Pool": "10.88.7.0/24",
                "Gateway": "10.88.7.1/24", "AuxAddresses": {} }],
            "IPv6Data": null,
        });
        DockerNetwork::of(&serde_json::from_value(call).unwrap())
    }

    #[test]
    fn options_become_settings_of_the_interface() {
        let options = json!({ GENERIC: { "machine": "m", MTU: "1400", "rate_mbps": "100",
            "firewall": "stateful" }, "com.docker.network.enable_ipv6": false });
        let network = network(options).unwrap();
        assert_eq!(network.mtu(), 1400);
        assert_eq!(network.gateways, ["10.88.7.1"]);
        let conf = network.conf("02:00:00:00:00:01", "/p");
        let vif = json!({ "rate_mbps": 100, "firewall": "stateful", "persistent": true });
        assert_eq!((&conf["vif"], &conf["machine"]), (&vif, &json!("m")));
        assert_eq!(conf["runtimeConfig"]["mac"], "02:00:00:00:00:01");
    }

    #[test]
    fn wrong_options_are_named() {
        for (generic, why) in [
            (json!({ "rate": "1" }), "unknown option `rate`"),
            (json!({ "rate_mbps": "fast" }), "write a number"),
            (json!({ "rate_mbps": 7 }), "`rate_mbps` is not a text"),
            (json!({ "firewall": "on" }), "stateful"),
            (
                json!({ "machine": "m", "socket": "/s" }),
                "both `machine` and `socket`",
            ),
            (json!({ "socket": "s" }), "absolute path"),
            (json!([]), "not an object"),
        ] {
            let error = network(json!({ GENERIC: generic })).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn an_internal_network_has_no_gateway() {
        let network = network(json!({ INTERNAL: true, GENERIC: null })).unwrap();
        assert_eq!(network.gateway(false), None);
    }
}
