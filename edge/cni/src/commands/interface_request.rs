//! The input of ADD: the parts of the network's configuration that only ADD uses, and the runtime's
//! requests.

use super::bandwidth::Bandwidth;
use crate::error::{CniError, ErrorCode};
use crate::network::decoded;
use crate::request::PluginRequest;
use crate::result::{CniDns, CniIp, CniResult};
use abi::machine::ConfigValue;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Default MTU in bytes of IP.
const MTU: i64 = 1500;
/// Keys of an interface that a network's configuration must not set.
const RESERVED_KEYS: [&str; 8] = [
    "endpoint",
    "netns",
    "ifname",
    "addresses",
    "gateway",
    "routes",
    "mac",
    "mtu",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Conf {
    mtu: Option<i64>,
    #[serde(default)]
    vif: BTreeMap<String, ConfigValue>,
    dns: Option<CniDns>,
    prev_result: Option<CniResult>,
    #[serde(default)]
    bandwidth: Value,
    #[serde(default)]
    runtime_config: Value,
}

/// Requests of a runtime for the plugin's `capabilities`. Keys are converted to lower case, because
/// some runtimes write the names of their structures' fields (`IngressRate`).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Runtime {
    mac: Option<String>,
    ips: Option<Vec<String>>,
    bandwidth: Option<Bandwidth>,
}

/// The interface that a container requests.
#[derive(Debug)]
pub(super) struct InterfaceRequest {
    pub(super) mtu: i64,
    pub(super) mac: String,
    /// Requested addresses, with or without a prefix length.
    ips: Vec<String>,
    /// Other keys of the interface.
    pub(super) vif: BTreeMap<String, ConfigValue>,
    pub(super) dns: Option<CniDns>,
    /// The result of earlier plugins in the list.
    pub(super) before: Option<CniResult>,
}

impl InterfaceRequest {
    pub(super) fn of(request: &PluginRequest) -> Result<Self, CniError> {
        let conf: Conf = decoded(&request.conf)?;
        if let Some(key) = RESERVED_KEYS
            .iter()
            .find(|key| conf.vif.contains_key(**key))
        {
            let msg = format!("`vif` sets `{key}`, which differs between containers: remove it");
            return Err(CniError::new(ErrorCode::Config, msg));
        }
        let runtime = match folded(conf.runtime_config) {
            Value::Null => Runtime::default(),
            said => decoded(&said)?,
        };
        let of_network: Option<Bandwidth> = decoded(&folded(conf.bandwidth))?;
        let mut vif = conf.vif;
        for bandwidth in of_network.iter().chain(&runtime.bandwidth) {
            bandwidth.put(&mut vif)?;
        }
        let arg = |name| request.call.arg(name).map(str::to_owned);
        let mut ips = runtime.ips.unwrap_or_default();
        let more = arg("IP").unwrap_or_default();
        let more = more.split(',').map(str::trim).filter(|ip| !ip.is_empty());
        ips.extend(more.map(str::to_owned));
        let mac = runtime.mac.or_else(|| arg("MAC"));
        Ok(Self {
            mtu: conf.mtu.unwrap_or(MTU),
            mac: mac.unwrap_or_else(|| request.key().mac()),
            ips,
            vif,
            dns: conf.dns,
            before: conf.prev_result,
        })
    }

    /// Returns the requested addresses as a result, for networks without an `ipam`.
    pub(super) fn addresses(&self) -> Result<CniResult, CniError> {
        if let Some(ip) = self.ips.iter().find(|ip| !ip.contains('/')) {
            let msg = format!("the address {ip} has no prefix length, and no `ipam` is configured");
            return Err(CniError::new(ErrorCode::Config, msg));
        }
        Ok(CniResult {
            ips: self.ips.iter().map(|ip| CniIp::of(ip)).collect(),
            ..CniResult::default()
        })
    }

    /// Checks that every requested address was assigned.
    pub(super) fn check_assigned(&self, given: &CniResult) -> Result<(), CniError> {
        let plain = |text: &str| text.parse::<IpAddr>().ok();
        for requested in self.ips.iter().map(|ip| CniIp::of(ip)) {
            let same = |ip: &CniIp| plain(ip.without_prefix()) == plain(requested.without_prefix());
            if plain(requested.without_prefix()).is_none() || !given.ips.iter().any(same) {
                let msg = format!(
                    "unsupported: the address {} was not assigned",
                    requested.address
                );
                let why = "the plugin in `ipam` must support requested addresses";
                return Err(CniError::new(ErrorCode::Unsupported, msg).with_details(why));
            }
        }
        Ok(())
    }
}

/// Returns the value with all keys in lower case.
fn folded(value: Value) -> Value {
    match value {
        Value::Object(keys) => {
            let keys = keys.into_iter();
            keys.map(|(key, value)| (key.to_ascii_lowercase(), folded(value)))
                .collect()
        }
        Value::Array(list) => list.into_iter().map(folded).collect(),
        other => other,
    }
}
