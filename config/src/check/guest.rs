//! Checks of guests and their interfaces.

use super::findings::Findings;
use super::port_security::port_security;
use super::rule::rules;
use super::station::{destination, port, station};
use crate::domain::GrantMode;
use crate::model::{Config, Endpoint, Vif, VirtualMachine};
use crate::problem::ConfigPart;
use crate::sizes::{VIFS_PER_GUEST, device_name, worker_name};
use std::collections::BTreeMap;

/// Maximum number of flows of a source. Their port numbers begin at 10 000.
const FLOWS_MAX: u32 = 50_000;

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut names = BTreeMap::new();
    let devices = config.nics.iter().filter(|nic| nic.has_device_domain());
    let devices = devices.map(|nic| device_name(&nic.name));
    let workers = (0..config.driver.workers.max(1)).map(worker_name);
    let reserved: Vec<_> = workers.chain(devices).collect();
    let most = usize::from(u16::MAX);
    if config.guests.len() > most {
        found.add(
            ConfigPart::Guest(most),
            "",
            "too many guests",
            format!("the limit is {most}"),
        );
        return;
    }
    for (g, guest) in config.guests.iter().enumerate() {
        let part = ConfigPart::Guest(g);
        found.name(part, &guest.name);
        if reserved.contains(&guest.name) {
            let owner = match guest.name.strip_prefix("device-") {
                Some(nic) => format!("the device of NIC {nic}"),
                None => "the driver domain".to_owned(),
            };
            let what = format!("the name \"{}\" is reserved for {owner}", guest.name);
            found.add(part, "name", what, "choose another one");
        } else {
            found.unique(part, &mut names, &guest.name, g, "[[guest]]");
        }
        found.cpus(part, &guest.cpus);
        found.spin_us(part, guest.spin_us);
        if guest.vifs.is_empty() || guest.vifs.len() > VIFS_PER_GUEST {
            let what = format!("it has {} interfaces", guest.vifs.len());
            let remedy = format!("give it 1 to {VIFS_PER_GUEST} sections [[guest.vif]]");
            found.add(part, "", what, remedy);
        }
        for v in 0..guest.vifs.len() {
            vif(config, found, g, v);
        }
    }
}

/// Checks that the driver domain delivers the traffic to a guest itself. Otherwise it cannot limit
/// the rate.
fn limit_to_guest(found: &mut Findings, part: ConfigPart, vif: &Vif) {
    const KEY: &str = "rate_to_guest_mbps";
    found.rate(part, KEY, vif.rate_to_guest_mbps);
    let burst = vif.burst_to_guest_bytes;
    found.range(
        part,
        "burst_to_guest_bytes",
        burst.unwrap_or(1),
        1..=u32::MAX,
    );
    if burst.is_some() && vif.rate_to_guest_mbps.is_none() {
        let what = format!("`burst_to_guest_bytes` is set without `{KEY}`");
        let remedy = "write both, or leave it out";
        found.add(part, "burst_to_guest_bytes", what, remedy);
    }
    if let (Some(rate), Some(pdev)) = (vif.rate_to_guest_mbps, &vif.pdev) {
        let what = format!("`pdev` is \"{pdev}\" and `{KEY}` is {rate}");
        for key in [KEY, "pdev"] {
            let remedy = "leave one of them out: frames of a dedicated queue are in the \
                          guest's pages before the driver domain could delay them";
            found.add(part, key, &*what, remedy);
        }
    }
}

/// The maximum length of a Unix socket's path, bytes.
const SOCKET_PATH_MAX: usize = 107;

fn virtual_machine(
    found: &mut Findings,
    part: ConfigPart,
    machine: &VirtualMachine,
    grants: GrantMode,
) {
    let path = &machine.socket;
    if !path.starts_with('/') || path.len() > SOCKET_PATH_MAX {
        let what = format!("`socket` is \"{path}\"");
        let remedy = format!("write an absolute path of at most {SOCKET_PATH_MAX} bytes");
        found.add(part, "socket", what, remedy);
    }
    let most = VirtualMachine::MEMORY_GIB_MAX;
    found.range(part, "memory_gib", machine.memory_gib, 1..=most);
    let pairs = machine.queue_pairs.unwrap_or(1);
    found.range(
        part,
        "queue_pairs",
        pairs,
        1..=VirtualMachine::QUEUE_PAIRS_MAX,
    );
    let has_owner = machine.owner.is_some() || machine.group.is_some();
    if machine.client && has_owner {
        let what =
            "the virtual machine's monitor creates the socket, but `owner` or `group` is set";
        let remedy = "leave these out, or write socket_mode = \"server\"";
        found.add(part, "socket_mode", what, remedy);
    }
    if grants == GrantMode::Flip {
        let what = "the virtual machine's domain has no window for pages that change hands";
        let remedy = "write another `grants` in [driver], or another `endpoint`";
        found.add(part, "endpoint", what, remedy);
    }
}

fn vif(config: &Config, found: &mut Findings, g: usize, v: usize) {
    let Some(vif) = config.vif(g, v) else { return };
    let part = ConfigPart::Vif(g, v);
    found.range(part, "mtu", vif.mtu, 576..=9000);
    found.rate(part, "rate_mbps", vif.rate_mbps);
    found.range(part, "burst_bytes", vif.burst_bytes, 1..=u32::MAX);
    limit_to_guest(found, part, vif);
    found.range(part, "weight", vif.weight, 1..=1000);
    port_security(found, part, vif);
    rules(found, part, &vif.rules, |r| ConfigPart::VifRule(g, v, r));
    match &vif.endpoint {
        Endpoint::Tap { port } => self::port(found, part, port, config.vif_ifname(g, v)),
        Endpoint::Stack { station } => {
            let workers = Some(config.driver.workers);
            self::station(found, part, station, workers, |app| {
                ConfigPart::VifApp(g, v, app)
            });
        }
        Endpoint::Source(source) => {
            let size = 60..=vif.mtu.saturating_add(14);
            found.range(part, "size", source.size, size);
            found.rate(part, "rate_pps", source.rate_pps);
            found.range(part, "window", source.window, 0..=4096);
            found.range(part, "flows", source.flows.into(), 0..=FLOWS_MAX);
            destination(found, part, source.to);
        }
        Endpoint::Pcap(files) => found.files(part, files),
        Endpoint::VhostUser(machine) => {
            virtual_machine(found, part, machine, config.driver.grants);
        }
        Endpoint::Sink { .. } | Endpoint::Echo => {}
    }
}
