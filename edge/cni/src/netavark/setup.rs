//! Attaches and detaches a container.

use super::create::conf;
use super::podman::PodmanContainer;
use crate::call::CniCall;
use crate::commands::{add, del};
use crate::error::CniError;
use crate::network::decoded;
use crate::ports::PublishedPorts;
use crate::request::PluginRequest;
use crate::result::{CniIp, CniResult};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Attaches a container completely or not at all, because netavark does not call teardown after a
/// failure.
pub(super) fn setup(
    netns: &str,
    env: &BTreeMap<String, String>,
    input: &Value,
) -> Result<Value, CniError> {
    let container: PodmanContainer = decoded(input)?;
    let request = request("ADD", netns, env, &container)?;
    let given = container.assigned_addresses()?;
    let ports = PublishedPorts::of(&container.mappings()?, &request);
    let result = add::with(&request, given)?;
    if let Some(ports) = ports
        && let Err(failure) = ports.open(&result)
    {
        for undone in [ports.close(), del::del(&request)] {
            if let Err(left) = undone {
                eprintln!("grantway-cni: cannot undo the attachment: {left:?}");
            }
        }
        return Err(failure);
    }
    Ok(status(&request, &result))
}

/// Detaches a container. Succeeds if it is not attached.
pub(super) fn teardown(
    netns: &str,
    env: &BTreeMap<String, String>,
    input: &Value,
) -> Result<(), CniError> {
    let container: PodmanContainer = decoded(input)?;
    let request = request("DEL", netns, env, &container)?;
    let closed = container.mappings().and_then(|mappings| {
        let ports = PublishedPorts::of(&mappings, &request);
        ports.map_or(Ok(()), |ports| ports.close())
    });
    del::del(&request).and(closed)
}

/// Returns the call in CNI's form.
pub(super) fn request(
    command: &str,
    netns: &str,
    env: &BTreeMap<String, String>,
    container: &PodmanContainer,
) -> Result<PluginRequest, CniError> {
    let options = &container.network_options;
    let mut call = env.clone();
    for (key, value) in [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", &container.container_id),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", &options.interface_name),
    ] {
        call.insert(key.to_owned(), value.to_owned());
    }
    let mut conf = conf(&container.network)?;
    conf["runtimeConfig"] = json!({ "mac": options.static_mac });
    PluginRequest::new(CniCall::of(call)?, conf)
}

/// Returns the answer, which podman shows.
fn status(request: &PluginRequest, result: &CniResult) -> Value {
    let subnet = |ip: &CniIp| match &ip.gateway {
        Some(gateway) => json!({ "ipnet": ip.address, "gateway": gateway }),
        None => json!({ "ipnet": ip.address }),
    };
    let mac = result.interfaces.last().map(|interface| &interface.mac);
    let subnets: Vec<Value> = result.ips.iter().map(subnet).collect();
    let ifname = &request.call.ifname;
    json!({
        "dns_search_domains": [],
        "dns_server_ips": [],
        "interfaces": { ifname: { "mac_address": mac, "subnets": subnets } },
    })
}
