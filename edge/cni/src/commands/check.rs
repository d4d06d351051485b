//! CHECK: compares an attachment with the result of ADD.

use crate::error::{CniError, ErrorCode};
use crate::namespace::{self, InterfaceState};
use crate::network::decoded;
use crate::request::PluginRequest;
use crate::result::CniResult;
use serde::Deserialize;
use std::net::IpAddr;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Added {
    prev_result: Option<CniResult>,
}

pub(crate) fn check(request: &PluginRequest) -> Result<(), CniError> {
    let added: Added = decoded(&request.conf)?;
    let Some(added) = added.prev_result else {
        return Err(CniError::new(ErrorCode::Config, "`prevResult` is missing"));
    };
    let call = &request.call;
    let machine = request.machine()?;
    let guest = request.key().guest();
    let there = machine.has(&guest);
    if !there.map_err(|error| machine.unavailable_error(ErrorCode::Later, error))? {
        let msg = format!("the machine has no guest {guest}");
        return Err(CniError::new(ErrorCode::Differs, msg));
    }
    let seen = namespace::inspect(&call.netns, &call.ifname).map_err(|error| {
        let msg = format!("the namespace {} does not exist", call.netns);
        CniError::new(ErrorCode::NoContainer, msg).with_details(error)
    })?;
    let is_as_added = match &seen {
        Some(seen) => compare(&added, &call.ifname, seen),
        None => Err("it does not exist".to_owned()),
    };
    is_as_added.map_err(|what| {
        let msg = format!(
            "{} of the container {} has changed",
            call.ifname, call.container
        );
        CniError::new(ErrorCode::Differs, msg).with_details(what)
    })?;
    request.ipam()?.map_or(Ok(()), |ipam| ipam.check())
}

/// Returns an error that describes how an interface has changed, if it has.
fn compare(added: &CniResult, ifname: &str, seen: &InterfaceState) -> Result<(), String> {
    let mut interfaces = added.interfaces.iter().enumerate();
    let own = interfaces.find(|(_, found)| found.name == ifname && !found.sandbox.is_empty());
    let (number, own) = own.ok_or("`prevResult` does not contain the interface")?;
    if !seen.is_up {
        return Err("it is down".to_owned());
    }
    if !own.mac.eq_ignore_ascii_case(&seen.mac) {
        return Err(format!("its MAC is {} instead of {}", seen.mac, own.mac));
    }
    for ip in added.ips.iter().filter(|ip| ip.interface == Some(number)) {
        let is_same = |address: &IpAddr| ip.without_prefix().parse::<IpAddr>() == Ok(*address);
        if !seen.addresses.iter().any(is_same) {
            return Err(format!("its address {} is missing", ip.address));
        }
    }
    for route in &added.routes {
        let is_same = |(to, prefix): &(IpAddr, u8)| format!("{to}/{prefix}") == route.dst;
        if !seen.routes.iter().any(is_same) {
            return Err(format!("its route {} is missing", route.dst));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_change_is_named() {
        let added: CniResult = serde_json::from_value(json!({
            "interfaces": [
                { "name": "eth0", "mac": "02:00:00:00:00:01" },
                { "name": "eth0", "mac": "02:00:00:00:00:AA", "sandbox": "/n" },
            ],
            "ips": [
                { "address": "10.0.0.2/24", "interface": 1 },
                { "address": "10.9.0.2/24", "interface": 0 },
            ],
            "routes": [{ "dst": "::/0" }],
        }))
        .unwrap();
        let right = || InterfaceState {
            mac: "02:00:00:00:00:aa".into(),
            is_up: true,
            addresses: vec!["10.0.0.2".parse().unwrap()],
            routes: vec![("::".parse().unwrap(), 0)],
        };
        assert_eq!(compare(&added, "eth0", &right()), Ok(()));
        let difference = |change: fn(&mut InterfaceState)| {
            let mut seen = right();
            change(&mut seen);
            compare(&added, "eth0", &seen).unwrap_err()
        };
        assert!(difference(|seen| seen.is_up = false).contains("down"));
        assert!(difference(|seen| seen.mac.replace_range(0..2, "06")).contains("its MAC is 06:"));
        assert!(difference(|seen| seen.addresses.clear()).contains("10.0.0.2/24 is missing"));
        assert!(difference(|seen| seen.routes.clear()).contains("::/0 is missing"));
        assert!(compare(&added, "eth1", &right()).is_err());
    }
}
