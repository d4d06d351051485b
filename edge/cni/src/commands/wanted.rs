//! What ADD reads: the rest of the network's configuration, and what the runtime wishes.

use super::bandwidth::Bandwidth;
use crate::failure::{Code, Failure};
use crate::network::decoded;
use crate::request::Request;
use crate::result::{CniDns, CniIp, CniResult};
use abi::machine::Setting;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Bytes of IP in the longest packets, unless something else is written.
const MTU: i64 = 1500;
/// Keys of an interface that are not the configuration's to say.
const NOT_ITS: [&str; 8] = [
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
    vif: BTreeMap<String, Setting>,
    dns: Option<CniDns>,
    prev_result: Option<CniResult>,
    #[serde(default)]
    bandwidth: Value,
    #[serde(default)]
    runtime_config: Value,
}

/// What a runtime passes on because the plugin's `capabilities` name it. Keys are in lower case:
/// some write them as the fields of their structures (`IngressRate`).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Runtime {
    mac: Option<String>,
    ips: Option<Vec<String>>,
    bandwidth: Option<Bandwidth>,
}

/// What a container's interface is to be.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) mtu: i64,
    pub(super) mac: String,
    /// Addresses that are asked for, with a prefix or without.
    ips: Vec<String>,
    /// Other keys of the interface.
    pub(super) vif: BTreeMap<String, Setting>,
    pub(super) dns: Option<CniDns>,
    /// What plugins before this one in the list have made.
    pub(super) before: Option<CniResult>,
}

impl Wanted {
    pub(super) fn of(request: &Request) -> Result<Self, Failure> {
        let conf: Conf = decoded(&request.conf)?;
        if let Some(key) = NOT_ITS.iter().find(|key| conf.vif.contains_key(**key)) {
            let msg = format!("`vif` has `{key}`, which is the container's own: leave it out");
            return Err(Failure::new(Code::Config, msg));
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

    /// The addresses that are asked for, where nobody gives out others.
    pub(super) fn addresses(&self) -> Result<CniResult, Failure> {
        if let Some(ip) = self.ips.iter().find(|ip| !ip.contains('/')) {
            let msg = format!("the address {ip} has no prefix length, and there is no `ipam`");
            return Err(Failure::new(Code::Config, msg));
        }
        Ok(CniResult {
            ips: self.ips.iter().map(|ip| CniIp::of(ip)).collect(),
            ..CniResult::default()
        })
    }

    /// Whether every address that is asked for was given.
    pub(super) fn are_given(&self, given: &CniResult) -> Result<(), Failure> {
        let plain = |text: &str| text.parse::<IpAddr>().ok();
        for wanted in self.ips.iter().map(|ip| CniIp::of(ip)) {
            let same = |ip: &CniIp| plain(ip.plain()) == plain(wanted.plain());
            if plain(wanted.plain()).is_none() || !given.ips.iter().any(same) {
                let msg = format!("unsupported: the address {} was not given", wanted.address);
                let why = "the plugin in `ipam` has to heed it";
                return Err(Failure::new(Code::Unsupported, msg).because(why));
            }
        }
        Ok(())
    }
}

/// The same with all keys in lower case.
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
