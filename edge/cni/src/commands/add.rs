//! ADD: a container becomes a guest, as a whole or not at all.

use super::wanted::Wanted;
use crate::failure::{Code, Failure};
use crate::machine::Machine;
use crate::network::decoded;
use crate::request::Request;
use crate::result::{CniInterface, CniIp, CniResult};
use abi::machine::Setting;
use client::Error;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub(crate) fn add(request: &Request) -> Result<Value, Failure> {
    let (wanted, machine, guest) = prepared(request)?;
    let ipam = request.ipam()?;
    let given = match &ipam {
        Some(ipam) => ipam.add()?,
        None => wanted.addresses()?,
    };
    let attached = attach(request, &wanted, (&machine, guest.as_str()), &given);
    let mac = match (attached, ipam) {
        (Ok(mac), _) => mac,
        (Err(failure), Some(ipam)) if !failure.is(Code::Exists) => {
            if let Err(left) = ipam.del() {
                eprintln!("grantway-cni: addresses are not given back: {left:?}");
            }
            return Err(failure);
        }
        (Err(failure), _) => return Err(failure),
    };
    Ok(json!(result(request, wanted, given, mac)))
}

/// The same with addresses and routes that somebody else has given out, and takes back.
pub(crate) fn with(request: &Request, given: CniResult) -> Result<CniResult, Failure> {
    let (wanted, machine, guest) = prepared(request)?;
    let mac = attach(request, &wanted, (&machine, guest.as_str()), &given)?;
    Ok(result(request, wanted, given, mac))
}

/// What is wanted, the machine that answers, and the name of the guest, which it has not.
fn prepared(request: &Request) -> Result<(Wanted, Machine, String), Failure> {
    let wanted = Wanted::of(request)?;
    let machine = request.machine()?;
    let guest = request.key().guest();
    be_free(request, &machine, &guest)?;
    Ok((wanted, machine, guest))
}

/// Whether the machine answers, and nothing is left of an earlier attachment.
fn be_free(request: &Request, machine: &Machine, guest: &str) -> Result<(), Failure> {
    let away = |error| machine.away(Code::Later, error);
    machine.guests().map_err(away)?;
    let pending = request.pending();
    pending.make_good(machine);
    if pending.has(guest) {
        let msg = format!("{guest} is still to be detached");
        return Err(Failure::new(Code::Later, msg));
    }
    match machine.has(guest).map_err(away)? {
        true => Err(exists(request)),
        false => Ok(()),
    }
}

fn exists(request: &Request) -> Failure {
    let (container, ifname) = (&request.call.container, &request.call.ifname);
    let msg = format!("{ifname} of the container {container} is attached already");
    Failure::new(Code::Exists, msg)
}

/// Attaches the guest; its MAC.
fn attach(
    request: &Request,
    wanted: &Wanted,
    (machine, guest): (&Machine, &str),
    given: &CniResult,
) -> Result<String, Failure> {
    wanted.are_given(given)?;
    match machine.attach(section(request, wanted, guest, given)?) {
        Ok(attached) => Ok(attached.macs.into_iter().next().unwrap_or_default()),
        Err(Error::Refused(why)) => Err(match machine.has(guest) {
            Ok(true) => exists(request),
            _ => Failure::new(Code::Refused, "the machine refuses the container").because(why),
        }),
        Err(error) => {
            // It may come all the same, after its runtime was told that it does not.
            if machine.detach(guest).is_err() {
                request.pending().note(machine, guest)?;
            }
            Err(machine.away(Code::Later, error))
        }
    }
}

/// The guest as a section of a configuration file.
fn section(
    request: &Request,
    wanted: &Wanted,
    guest: &str,
    given: &CniResult,
) -> Result<Setting, Failure> {
    let call = &request.call;
    let addresses = given.ips.iter().map(|ip| ip.address.clone());
    let mut vif: BTreeMap<String, Setting> = decoded(&json!({
        "endpoint": "tap",
        "netns": call.netns,
        "ifname": call.ifname,
        "mac": wanted.mac,
        "mtu": wanted.mtu,
        "addresses": addresses.collect::<Vec<_>>(),
        "routes": given.routes_told()?,
    }))?;
    vif.extend(wanted.vif.clone());
    Ok(Setting::Section(BTreeMap::from([
        ("name".to_owned(), Setting::Text(guest.to_owned())),
        ("vif".to_owned(), Setting::List(vec![Setting::Section(vif)])),
    ])))
}

/// What the runtime is told.
fn result(request: &Request, wanted: Wanted, given: CniResult, mac: String) -> CniResult {
    let interface = CniInterface {
        name: request.call.ifname.clone(),
        mac,
        sandbox: request.call.netns.clone(),
        more: Map::from_iter([("mtu".to_owned(), json!(wanted.mtu))]),
    };
    let ips = given.ips.into_iter().map(|ip| CniIp {
        interface: Some(0),
        ..ip
    });
    let own = CniResult {
        interfaces: vec![interface],
        ips: ips.collect(),
        dns: wanted.dns.unwrap_or(given.dns),
        ..given
    };
    let all = match wanted.before {
        Some(before) => before.and(own),
        None => own,
    };
    all.in_version(request.version)
}
