//! ADD: attaches a container completely, or not at all.

use super::interface_request::InterfaceRequest;
use crate::error::{CniError, ErrorCode};
use crate::machine::MachineClient;
use crate::network::decoded;
use crate::pod;
use crate::request::PluginRequest;
use crate::result::{CniInterface, CniIp, CniResult};
use crate::routed;
use abi::machine::ConfigValue;
use client::Error;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub(crate) fn add(request: &PluginRequest) -> Result<Value, CniError> {
    let (requested, machine, guest) = prepared(request)?;
    let ipam = request.ipam()?;
    let given = match &ipam {
        Some(ipam) => ipam.add()?,
        None => requested.addresses()?,
    };
    let attached = attach(request, &requested, (&machine, guest.as_str()), given);
    let (mac, given) = match (attached, ipam) {
        (Ok(attached), _) => attached,
        (Err(failure), Some(ipam)) if !failure.is(ErrorCode::Exists) => {
            if let Err(left) = ipam.del() {
                eprintln!("grantway-cni: cannot release the addresses: {left:?}");
            }
            return Err(failure);
        }
        (Err(failure), _) => return Err(failure),
    };
    Ok(json!(result(request, requested, given, mac)))
}

/// ADD with addresses and routes that the caller assigns and releases.
pub(crate) fn with(request: &PluginRequest, given: CniResult) -> Result<CniResult, CniError> {
    let (requested, machine, guest) = prepared(request)?;
    let (mac, given) = attach(request, &requested, (&machine, guest.as_str()), given)?;
    Ok(result(request, requested, given, mac))
}

/// Checks that the machine answers and that the guest's name is free. Returns the requested
/// attachment, the machine, and the guest's name.
fn prepared(
    request: &PluginRequest,
) -> Result<(InterfaceRequest, MachineClient, String), CniError> {
    let requested = InterfaceRequest::of(request)?;
    let machine = request.machine()?;
    let guest = request.key().guest();
    check_free(request, &machine, &guest)?;
    Ok((requested, machine, guest))
}

/// Checks that the machine answers and that this attachment does not exist yet.
fn check_free(
    request: &PluginRequest,
    machine: &MachineClient,
    guest: &str,
) -> Result<(), CniError> {
    let away = |error| machine.unavailable_error(ErrorCode::Later, error);
    machine.guests().map_err(away)?;
    let pending = request.pending();
    pending.retry_all(machine);
    if pending.has(guest) {
        let msg = format!("{guest} has not been detached yet");
        return Err(CniError::new(ErrorCode::Later, msg));
    }
    match machine.has(guest).map_err(away)? {
        true => Err(exists(request)),
        false => Ok(()),
    }
}

fn exists(request: &PluginRequest) -> CniError {
    let (container, ifname) = (&request.call.container, &request.call.ifname);
    let msg = format!("{ifname} of the container {container} is already attached");
    CniError::new(ErrorCode::Exists, msg)
}

/// Attaches the guest; returns its MAC, and the addresses and routes that it has.
fn attach(
    request: &PluginRequest,
    requested: &InterfaceRequest,
    (machine, guest): (&MachineClient, &str),
    mut given: CniResult,
) -> Result<(String, CniResult), CniError> {
    requested.check_assigned(&given)?;
    if request.network.routed {
        given = routed::route_by_gateway(given)?;
        routed::ignore_redirects(&request.call.netns)?;
    }
    let section = section(request, requested, guest, &given)?;
    match machine.attach(section) {
        Ok(attached) => Ok((attached.macs.into_iter().next().unwrap_or_default(), given)),
        Err(Error::Refused(why)) => Err(match machine.has(guest) {
            Ok(true) => exists(request),
            _ => {
                pod::remove_record(request, guest)?;
                CniError::new(ErrorCode::Refused, "the machine rejects the container")
                    .with_details(why)
            }
        }),
        Err(error) => {
            // The machine may still attach the guest after the runtime has received the failure.
            if machine.detach(guest).is_err() {
                request.pending().record(machine, guest)?;
            }
            pod::remove_record(request, guest)?;
            Err(machine.unavailable_error(ErrorCode::Later, error))
        }
    }
}

/// Returns the guest as a `[[guest]]` section of a configuration file. Records its pod, if an agent
/// sets its rules.
fn section(
    request: &PluginRequest,
    requested: &InterfaceRequest,
    guest: &str,
    given: &CniResult,
) -> Result<ConfigValue, CniError> {
    let call = &request.call;
    let addresses = given.ips.iter().map(|ip| ip.address.clone());
    let mut vif: BTreeMap<String, ConfigValue> = decoded(&json!({
        "endpoint": "tap",
        "netns": call.netns,
        "ifname": call.ifname,
        "mac": requested.mac,
        "mtu": requested.mtu,
        "addresses": addresses.collect::<Vec<_>>(),
        "routes": given.machine_routes()?,
    }))?;
    vif.extend(requested.vif.clone());
    pod::isolate(request, guest, &mut vif)?;
    Ok(ConfigValue::Section(BTreeMap::from([
        ("name".to_owned(), ConfigValue::Text(guest.to_owned())),
        (
            "vif".to_owned(),
            ConfigValue::List(vec![ConfigValue::Section(vif)]),
        ),
    ])))
}

/// Returns the result for the runtime.
fn result(
    request: &PluginRequest,
    requested: InterfaceRequest,
    given: CniResult,
    mac: String,
) -> CniResult {
    let interface = CniInterface {
        name: request.call.ifname.clone(),
        mac,
        sandbox: request.call.netns.clone(),
        more: Map::from_iter([("mtu".to_owned(), json!(requested.mtu))]),
    };
    let ips = given.ips.into_iter().map(|ip| CniIp {
        interface: Some(0),
        ..ip
    });
    let own = CniResult {
        interfaces: vec![interface],
        ips: ips.collect(),
        dns: requested.dns.unwrap_or(given.dns),
        ..given
    };
    let all = match requested.before {
        Some(before) => before.merged_with(own),
        None => own,
    };
    all.in_version(request.version)
}
