//! Pods whose rules an agent sets. Each is recorded for the agent, and denies new flows until the
//! agent has set its rules.

use crate::error::{CniError, ErrorCode};
use crate::network::decoded;
use crate::request::PluginRequest;
use abi::machine::ConfigValue;
use client::pods::{self, PodRecord};
use serde_json::json;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// The keys of an interface that the agent sets.
const RULES: [&str; 3] = ["rule", "firewall", "inbound"];

/// Returns the rules of an interface that the agent has not opened yet. ARP and neighbour discovery
/// pass.
fn closed() -> Result<ConfigValue, CniError> {
    decoded(&json!([{ "name": "unknown-policy", "action": "deny", "state": "new" }]))
}

/// If an agent sets the rules of the network's pods, closes an interface and records its pod.
pub(crate) fn isolate(
    request: &PluginRequest,
    guest: &str,
    vif: &mut BTreeMap<String, ConfigValue>,
) -> Result<(), CniError> {
    if !request.network.network_policy {
        return Ok(());
    }
    let wrong = |msg: String| CniError::new(ErrorCode::Config, msg);
    if let Some(key) = RULES.iter().find(|key| vif.contains_key(**key)) {
        let msg = format!("`vif` sets `{key}`, which the agent of `networkPolicy` sets: remove it");
        return Err(wrong(msg));
    }
    let arg = |name| request.call.arg(name).map(str::to_owned);
    let (Some(namespace), Some(pod)) = (arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")) else {
        let msg = "`networkPolicy` is set, and CNI_ARGS names no pod";
        let why = "no policy applies to a container outside Kubernetes: use another network";
        return Err(wrong(msg.to_owned()).with_details(why));
    };
    let record = PodRecord {
        namespace,
        pod,
        uid: arg("K8S_POD_UID").unwrap_or_default(),
    };
    vif.insert("rule".to_owned(), closed()?);
    pods::put(&folder(request), guest, &record).map_err(|error| failed(request, guest, error))
}

/// Removes the record of a guest, if it has one.
pub(crate) fn remove_record(request: &PluginRequest, guest: &str) -> Result<(), CniError> {
    pods::remove(&folder(request), guest).map_err(|error| failed(request, guest, error))
}

fn folder(request: &PluginRequest) -> PathBuf {
    request.network.state_dir.join("pods")
}

fn failed(request: &PluginRequest, guest: &str, error: io::Error) -> CniError {
    let folder = folder(request);
    let msg = format!(
        "cannot change the record of {guest} in {}",
        folder.display()
    );
    CniError::new(ErrorCode::Io, msg).with_details(error)
}
