//! Results of ADD: parses the results of other plugins in any version, and writes this plugin's in
//! the requested version.

use crate::error::{CniError, ErrorCode};
use crate::version::CniVersion;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// A result of ADD.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CniResult {
    pub(crate) cni_version: String,
    #[serde(deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub(crate) interfaces: Vec<CniInterface>,
    #[serde(deserialize_with = "or_null")]
    pub(crate) ips: Vec<CniIp>,
    #[serde(deserialize_with = "or_null")]
    pub(crate) routes: Vec<CniRoute>,
    #[serde(deserialize_with = "or_null")]
    pub(crate) dns: CniDns,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct CniInterface {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) mac: String,
    /// Its namespace; empty: the host's namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) sandbox: String,
    /// Fields of later versions: `mtu`, `socketPath`, `pciID`.
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

/// An address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct CniIp {
    /// `4` or `6`, before 1.0.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// Index of its interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interface: Option<usize>,
    /// The address with the prefix length of its network.
    pub(crate) address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gateway: Option<String>,
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct CniRoute {
    pub(crate) dst: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gw: Option<String>,
    /// Fields of later versions: `mtu`, `table`, `scope` …
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

/// DNS settings.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct CniDns {
    #[serde(deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    nameservers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    #[serde(deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    search: Vec<String>,
    #[serde(deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
}

/// Go writes a missing list as `null`.
fn or_null<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(from).map(Option::unwrap_or_default)
}

fn is_v6(address: &str) -> bool {
    address.contains(':')
}

impl CniIp {
    pub(crate) fn of(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the address without the prefix length.
    pub(crate) fn without_prefix(&self) -> &str {
        self.address.split('/').next().unwrap_or_default()
    }
}

impl CniRoute {
    /// Returns a route without a gateway.
    pub(crate) fn to(dst: &str) -> Self {
        Self {
            dst: dst.to_owned(),
            ..Self::default()
        }
    }

    /// Returns whether it is the route to this single station.
    fn is_to(&self, station: &str) -> bool {
        let prefix = if is_v6(station) { "128" } else { "32" };
        self.dst.split_once('/') == Some((station, prefix))
    }
}

impl CniResult {
    /// Returns the result in the form of a version.
    pub(crate) fn in_version(mut self, version: CniVersion) -> Self {
        version.text().clone_into(&mut self.cni_version);
        for ip in &mut self.ips {
            let family = if is_v6(&ip.address) { "6" } else { "4" };
            ip.version = (version == CniVersion::V0_4).then(|| family.to_owned());
        }
        if version < CniVersion::V1_1 {
            let interfaces = self
                .interfaces
                .iter_mut()
                .map(|interface| &mut interface.more);
            let routes = self.routes.iter_mut().map(|route| &mut route.more);
            interfaces.chain(routes).for_each(Map::clear);
        }
        self
    }

    /// Returns the result combined with that of the next plugin in a list.
    pub(crate) fn merged_with(mut self, other: Self) -> Self {
        let before = self.interfaces.len();
        self.interfaces.extend(other.interfaces);
        self.ips.extend(other.ips.into_iter().map(|ip| {
            CniIp {
                interface: ip
                    .interface
                    .map(|interface| interface.saturating_add(before)),
                ..ip
            }
        }));
        self.routes.extend(other.routes);
        if other.dns != CniDns::default() {
            self.dns = other.dns;
        }
        self
    }

    /// Returns the routes in the machine's form. A route without a gateway uses the gateway of its
    /// address family, unless it is the route to a gateway.
    pub(crate) fn machine_routes(&self) -> Result<Vec<String>, CniError> {
        let routes = self.routes.iter().map(|route| {
            if let Some((key, value)) = route.more.iter().next() {
                let msg = format!("unsupported: `{key}` is {value} in the route {}", route.dst);
                return Err(CniError::new(ErrorCode::Unsupported, msg));
            }
            let family = is_v6(&route.dst);
            let own = self.ips.iter().filter(|ip| is_v6(&ip.address) == family);
            let mut gateways = own.filter_map(|ip| ip.gateway.as_ref());
            let of_routes = self.routes.iter().filter_map(|route| route.gw.as_ref());
            let mut neighbours = gateways.clone().chain(of_routes);
            let is_neighbour = neighbours.any(|gateway| route.is_to(gateway));
            let own = gateways.next().filter(|_| !is_neighbour);
            Ok(match route.gw.as_ref().or(own) {
                Some(via) => format!("{} via {via}", route.dst),
                None => route.dst.clone(),
            })
        });
        routes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result(value: Value) -> CniResult {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn each_version_has_its_fields() {
        let from = result(json!({
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "eth0", "mtu": 1400, "socketPath": "/x" }],
            "ips": [{ "address": "fd00::2/64", "interface": 0 }, { "address": "10.0.0.2/24" }],
            "routes": [{ "dst": "::/0", "mtu": 1300 }],
            "dns": { "nameservers": ["10.0.0.1"], "search": null },
        }));
        let old = json!(from.clone().in_version(CniVersion::V0_4));
        assert_eq!(
            old,
            json!({
                "cniVersion": "0.4.0",
                "interfaces": [{ "name": "eth0" }],
                "ips": [
                    { "version": "6", "address": "fd00::2/64", "interface": 0 },
                    { "version": "4", "address": "10.0.0.2/24" },
                ],
                "routes": [{ "dst": "::/0" }],
                "dns": { "nameservers": ["10.0.0.1"] },
            })
        );
        let middle = json!(result(old).in_version(CniVersion::V1_0));
        assert_eq!(middle["ips"][1], json!({ "address": "10.0.0.2/24" }));
        let new = json!(from.in_version(CniVersion::V1_1));
        assert_eq!(new["interfaces"][0]["socketPath"], "/x");
        assert_eq!(new["routes"][0]["mtu"], 1300);
    }

    #[test]
    fn chained_results_are_appended() {
        let before = result(json!({
            "interfaces": [{ "name": "br0" }, { "name": "eth0", "sandbox": "/n" }],
            "ips": [{ "address": "10.1.0.2/24", "interface": 1 }],
            "dns": { "domain": "a" },
        }));
        let own = result(json!({
            "interfaces": [{ "name": "eth1" }],
            "ips": [{ "address": "10.0.0.2/24", "interface": 0 }],
        }));
        let both = before.merged_with(own);
        assert_eq!(both.interfaces[2].name, "eth1");
        assert_eq!(both.ips[1].interface, Some(2));
        assert_eq!(both.dns.domain.as_deref(), Some("a"));
    }

    #[test]
    fn routes_use_the_gateway_of_their_family() {
        let routes_of = |routes: Value| {
            let ips = json!([
                { "address": "10.0.0.2/24", "gateway": "10.0.0.1" },
                { "address": "fd00::2/64" },
            ]);
            result(json!({ "ips": ips, "routes": routes })).machine_routes()
        };
        let some = json!([{ "dst": "0.0.0.0/0" }, { "dst": "10.1.0.0/16", "gw": "10.0.0.9" },
            { "dst": "fd01::/64" }, { "dst": "10.0.0.1/32" }]);
        assert_eq!(
            routes_of(some).unwrap(),
            [
                "0.0.0.0/0 via 10.0.0.1",
                "10.1.0.0/16 via 10.0.0.9",
                "fd01::/64",
                "10.0.0.1/32"
            ]
        );
        let refused = routes_of(json!([{ "dst": "0.0.0.0/0", "table": 7 }])).unwrap_err();
        assert!(refused.is(ErrorCode::Unsupported), "{refused:?}");
        assert!(refused.msg.contains("`table` is 7"), "{refused:?}");
    }
}
