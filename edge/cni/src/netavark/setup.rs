//! A container comes, or goes.

use super::create::conf;
use super::ports::Ports;
use super::told::Container;
use crate::call::Call;
use crate::commands::{add, del};
use crate::failure::Failure;
use crate::network::decoded;
use crate::request::Request;
use crate::result::{CniIp, CniResult};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Attaches it, as a whole or not at all: after a failure nobody asks to take anything away.
pub(super) fn setup(
    netns: &str,
    env: &BTreeMap<String, String>,
    told: &Value,
) -> Result<Value, Failure> {
    let container: Container = decoded(told)?;
    let request = request("ADD", netns, env, &container)?;
    let given = container.given()?;
    let ports = Ports::of(&container, &request)?;
    let result = add::with(&request, given)?;
    if let Some(ports) = ports
        && let Err(failure) = ports.open(&result)
    {
        for undone in [ports.close(), del::del(&request)] {
            if let Err(left) = undone {
                eprintln!("grantway-cni: something is left: {left:?}");
            }
        }
        return Err(failure);
    }
    Ok(status(&request, &result))
}

/// Takes it away; it succeeds as well when there was nothing.
pub(super) fn teardown(
    netns: &str,
    env: &BTreeMap<String, String>,
    told: &Value,
) -> Result<(), Failure> {
    let container: Container = decoded(told)?;
    let request = request("DEL", netns, env, &container)?;
    let ports = Ports::of(&container, &request);
    let closed = ports.and_then(|ports| ports.map_or(Ok(()), |ports| ports.close()));
    del::del(&request).and(closed)
}

/// The same call, of CNI.
pub(super) fn request(
    command: &str,
    netns: &str,
    env: &BTreeMap<String, String>,
    container: &Container,
) -> Result<Request, Failure> {
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
    Request::new(Call::of(call)?, conf)
}

/// What podman is told, and shows.
fn status(request: &Request, result: &CniResult) -> Value {
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
