//! Text output of commands.

use abi::machine::{Audit, DomainStatus, Program, Status};
use client::Instance;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, presets};
use config::{Cidr, Config, Endpoint, KernelPort, NicKind, SoftWire, XdpWire};
use serde_json::Value;
use std::fmt::Write as _;
use tool::clean;

/// Returns an empty table whose columns from index `numbers` onward hold numbers.
pub(crate) fn table(header: &[&str], numbers: usize) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING.header_separator(LineStyle::none().fill('─')))
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn ms(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

/// Formats `3 guests`, `1 guest`.
fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Formats the output of `grantway status`.
pub(crate) fn status(status: &Status) -> String {
    let mut text = format!(
        "{}: monitor {}, up for {:.0} s{}, own CPU time {}\n",
        status.name,
        status.pid,
        status.up_ns as f64 / 1e9,
        status
            .up_took_ns
            .map(|ns| format!(", ready after {}", ms(ns)))
            .unwrap_or_default(),
        ms(status.monitor_cpu_ns),
    );
    if !status.missing.is_empty() {
        let _ = writeln!(text, "without: {}", status.missing.join(", "));
    }
    let mut domains = table(
        &[
            "domain",
            "program",
            "state",
            "pid",
            "CPU",
            "agent's",
            "worker's",
            "hypercalls",
            "operations",
            "system calls",
        ],
        3,
    );
    for domain in &status.domains {
        let program = match domain.program {
            Program::Driver => "driver",
            Program::Guest => "guest",
            Program::Device => "device",
        };
        domains.add_row([
            domain.name.clone(),
            program.to_owned(),
            // The reason may contain the domain's last output.
            clean::line(&state(domain)).into_owned(),
            domain.pid.to_string(),
            ms(domain.cpu_ns),
            ms(domain.agent_cpu_ns),
            ms(domain.worker_cpu_ns),
            domain.hypercalls.to_string(),
            domain.operations.to_string(),
            domain.system_calls.to_string(),
        ]);
    }
    let _ = writeln!(text, "{domains}");
    let mut connections = table(&["interface", "backend", "frontend"], 3);
    for connection in &status.connections {
        connections.add_row([
            format!("{}-{}", connection.frontend, connection.handle),
            format!("{} {:?}", connection.backend, connection.backend_state),
            format!("{} {:?}", connection.frontend, connection.frontend_state),
        ]);
    }
    if !status.connections.is_empty() {
        let _ = writeln!(text, "{connections}");
    }
    text
}

/// Formats the state of virtual machines for `grantway status`. Returns an empty text without
/// virtual machines.
pub(crate) fn virtual_machines(vms: &[Value]) -> String {
    if vms.is_empty() {
        return String::new();
    }
    let mut rows = table(
        &["virtual machine", "state", "queue pairs", "MTU", "features"],
        2,
    );
    for vm in vms {
        let state = match (&vm["connected"], &vm["link_up"]) {
            (Value::Bool(false), _) => "waits for its monitor",
            (_, Value::Bool(false)) => "connected, link down",
            _ => "connected",
        };
        let features = vm["features"].as_u64().unwrap_or(0);
        rows.add_row([
            clean::line(vm["interface"].as_str().unwrap_or_default()).into_owned(),
            state.to_owned(),
            vm["queue_pairs"].to_string(),
            vm["mtu"].to_string(),
            format!("{features:#x}"),
        ]);
    }
    format!("{rows}\n")
}

/// Returns the state of a domain and the number of its restarts.
fn state(domain: &DomainStatus) -> String {
    let count = domain.restarts.as_ref().map_or(0, |r| r.count);
    let mut state = domain.state.clone();
    if !domain.removed.is_empty() {
        let _ = write!(state, ", no device: {}", domain.removed.join(", "));
    }
    match count {
        0 => state,
        1 => format!("{state}, restarted once"),
        n => format!("{state}, restarted {n} times"),
    }
}

/// Explains the columns of [`grants`].
const GRANTS_LEGEND: &str = "\
owned: pages of the domain; granted: its pages that another domain may use;
mapped: pages of other domains that it can access now, until these or the monitor revoke them
leaked: grants, mappings and pages without an owner; any value but 0 is a bug in the monitor";
/// Explains the column that only machines of `up --lab` have.
const CLASSIC_LEGEND: &str = "in use: grants of the classic table that another domain uses now";

/// Formats the output of `grantway grants`.
pub(crate) fn grants(audit: &Audit, all: bool) -> String {
    // Persistently mapped grants have no entry in the classic table. A column of zeros would
    // wrongly suggest that no grant is in use.
    let has_classic = audit.domains.iter().any(|domain| !domain.in_use.is_empty());
    let mut header = vec!["domain", "pages owned", "granted", "mapped"];
    header.extend(has_classic.then_some("in use"));
    let mut domains = table(&header, 1);
    for domain in &audit.domains {
        let dead = if domain.alive { "" } else { " (dead)" };
        let mut row = vec![
            format!("{}{dead}", domain.name),
            domain.owned.to_string(),
            domain.granted.to_string(),
            domain.mapped.to_string(),
        ];
        row.extend(has_classic.then(|| domain.in_use.len().to_string()));
        domains.add_row(row);
    }
    let mut text = format!("{domains}\nleaked: {}\n\n{GRANTS_LEGEND}\n", audit.leaked);
    if has_classic {
        let _ = writeln!(text, "{CLASSIC_LEGEND}");
    }
    if all {
        let mut grants = table(
            &[
                "domain",
                "used by",
                "access",
                "reference",
                "frame",
                "mappings",
            ],
            3,
        );
        for domain in &audit.domains {
            for grant in &domain.in_use {
                grants.add_row([
                    domain.name.clone(),
                    grant.by.clone(),
                    if grant.writable {
                        "read, write"
                    } else {
                        "read"
                    }
                    .to_owned(),
                    grant.gref.to_string(),
                    grant.frame.to_string(),
                    grant.mappings.to_string(),
                ]);
            }
        }
        let _ = writeln!(text, "{grants}");
    }
    text
}

/// Flattens a value to paths: `driver.ports.web-0.drops.no_buffer: 12`. Names and values are chosen
/// by the domain, so each is confined to its line.
pub(crate) fn flatten(path: &str, value: &Value, out: &mut Vec<(String, String)>) {
    let below = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                flatten(&below(&clean::line(key)), value, out);
            }
        }
        Value::Array(list) => {
            for (n, value) in list.iter().enumerate() {
                flatten(&below(&n.to_string()), value, out);
            }
        }
        Value::String(text) => out.push((path.to_owned(), clean::line(text).into_owned())),
        other => out.push((path.to_owned(), other.to_string())),
    }
}

/// Formats counters like `ethtool -S`.
pub(crate) fn stat_lines(stats: &Value) -> String {
    let mut flat = Vec::new();
    flatten("", stats, &mut flat);
    flat.iter().fold(String::new(), |mut text, (path, value)| {
        let _ = writeln!(text, "{path}: {value}");
        text
    })
}

/// Formats the warnings of `grantway status`.
pub(crate) fn warnings(warnings: &[String]) -> String {
    let line = |warning: &String| format!("warning: {}\n", clean::line(warning));
    warnings.iter().map(line).collect()
}

/// Formats the output of `grantway stat --table`: one table for each part of a domain.
pub(crate) fn stat_table(stats: &Value) -> String {
    let mut flat = Vec::new();
    flatten("", stats, &mut flat);
    let mut text = String::new();
    let mut current: Option<(&str, Table)> = None;
    for (path, value) in &flat {
        let (part, name) = path.rsplit_once('.').unwrap_or(("", path));
        if current.as_ref().is_none_or(|(of, _)| *of != part) {
            if let Some((_, table)) = current.take() {
                let _ = writeln!(text, "{table}");
            }
            current = Some((part, table(&[part, ""], 1)));
        }
        if let Some((_, table)) = &mut current {
            table.add_row([name, value.as_str()]);
        }
    }
    if let Some((_, table)) = current {
        let _ = writeln!(text, "{table}");
    }
    text
}

fn addresses(list: &[Cidr]) -> String {
    list.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the location of the kernel's end of a TAP, and the command prefix that runs a program
/// there.
fn location_of(port: &KernelPort, ifname: Option<String>) -> (String, String) {
    let ifname = ifname.unwrap_or_default();
    match &port.netns {
        None => (format!("{ifname}, here"), String::new()),
        Some(netns) if netns.starts_with('/') => (
            format!("{ifname} in {netns}"),
            format!("nsenter --net={netns} COMMAND"),
        ),
        Some(netns) => (
            format!("{ifname} in namespace {netns}"),
            format!("ip netns exec {netns} COMMAND"),
        ),
    }
}

/// The location of a port, its addresses, and the command prefix that runs a program there.
type PortLocation = (String, String, String);

/// Returns a table of all NICs and interfaces of a machine, with their locations.
fn ports(config: &Config) -> Table {
    let mut ports = table(&["port", "where", "addresses", "run programs by"], 4);
    for (n, nic) in config.nics.iter().enumerate() {
        let (place, own, run) = nic_location(&nic.kind, || config.nic_ifname(n));
        ports.add_row([nic.name.clone(), place, own, run]);
    }
    for (g, guest) in config.guests.iter().enumerate() {
        for (v, vif) in guest.vifs.iter().enumerate() {
            let (place, own, run) = vif_location(&vif.endpoint, || config.vif_ifname(g, v));
            ports.add_row([format!("{}-{v}", guest.name), place, own, run]);
        }
    }
    ports
}

fn kernel_location(port: &KernelPort, ifname: Option<String>) -> PortLocation {
    let (place, run) = location_of(port, ifname);
    (place, addresses(&port.addresses), run)
}

fn nic_location(kind: &NicKind, ifname: impl FnOnce() -> Option<String>) -> PortLocation {
    match kind {
        NicKind::Xdp {
            wire: XdpWire::Netdev { name, netns },
        } => {
            let netns = netns.as_ref().map(|netns| format!(" of namespace {netns}"));
            let place = format!("the wire of {name}{}", netns.unwrap_or_default());
            (place, String::new(), String::new())
        }
        NicKind::Tap { port, .. }
        | NicKind::Local { port }
        | NicKind::Xdp {
            wire: XdpWire::Veth(port),
        }
        | NicKind::Soft {
            wire: SoftWire::Tap(port),
            ..
        } => kernel_location(port, ifname()),
        NicKind::Sim(cable)
        | NicKind::Soft {
            wire: SoftWire::Cable(cable),
            ..
        } => (
            "in memory".to_owned(),
            addresses(&cable.station.addresses),
            String::new(),
        ),
        NicKind::Vfio { device, .. } => {
            let place = format!("the wire of PCI device {device}");
            (place, String::new(), String::new())
        }
        NicKind::Soft {
            wire: SoftWire::Source(_),
            ..
        } => ("a generator".to_owned(), String::new(), String::new()),
        NicKind::Pcap(_) => ("capture files".to_owned(), String::new(), String::new()),
    }
}

fn vif_location(endpoint: &Endpoint, ifname: impl FnOnce() -> Option<String>) -> PortLocation {
    let in_guest = |what: &str| (format!("{what} in the guest"), String::new(), String::new());
    match endpoint {
        Endpoint::Tap(port) => kernel_location(port, ifname()),
        Endpoint::Stack { station } => (
            "TCP/IP in the guest".to_owned(),
            addresses(&station.addresses),
            String::new(),
        ),
        Endpoint::Sink { .. } => in_guest("sink"),
        Endpoint::Source(_) => in_guest("source"),
        Endpoint::Echo {} => in_guest("echo"),
        Endpoint::Pcap(_) => in_guest("capture files"),
        Endpoint::VhostUser(machine) => (
            format!("vhost-user {}", machine.socket),
            String::new(),
            String::new(),
        ),
    }
}

/// Returns what `grantway up` prints when the machine is ready.
pub(crate) fn ready_message(
    config: &Config,
    instance: &Instance,
    detached: bool,
    inside: bool,
) -> String {
    let name = instance.name();
    let interfaces = config.guests.iter().map(|guest| guest.vifs.len()).sum();
    let mut text = format!(
        "{name} is up after {:.0} ms: a driver domain with {}, {} with {}.\n",
        instance.up_ms().unwrap_or(0.0),
        count(config.nics.len(), "NIC"),
        count(config.guests.len(), "guest"),
        count(interfaces, "interface"),
    );
    let _ = writeln!(text, "{}", ports(config));
    if inside {
        let _ = writeln!(
            text,
            "It has a separate network namespace, \"here\" above: \
             nsenter --preserve-credentials --user --net -t {} COMMAND",
            instance.pid().unwrap_or_default()
        );
    }
    let option = match name {
        config::DEFAULT_NAME => String::new(),
        name => format!(" --name {name}"),
    };
    let end = if detached {
        format!("`grantway down{option}` ends it")
    } else {
        "Ctrl-C ends it".to_owned()
    };
    let _ = writeln!(
        text,
        "{end}; `grantway status{option}`, `stat`, `grants` and `trace` show its state."
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::XenbusState;
    use abi::machine::{ConnectionStatus, DomainAudit, DomainReport, GrantInUse, Restarts};
    use serde_json::json;

    #[test]
    fn counters_become_lines_and_tables() {
        let ports = json!({"web-0": {"in": 3, "state": "up"}});
        let stats = json!({"driver": {"ports": ports, "list": [1, 2], "none": null}});
        assert_eq!(
            stat_lines(&stats),
            "driver.list.0: 1\ndriver.list.1: 2\ndriver.none: null\n\
             driver.ports.web-0.in: 3\ndriver.ports.web-0.state: up\n"
        );
        let text = stat_table(&stats);
        assert!(
            text.contains("driver.ports.web-0") && text.contains(" in "),
            "{text}"
        );
        assert_eq!(stat_table(&json!({})), "");
    }

    #[test]
    fn text_from_a_domain_stays_within_its_line() {
        let hostile = "x\x1b[2J\nmonitor: fine\u{9b}";
        let stats = json!({"driver": {"drops": {hostile: 1}, "state": hostile}});
        for text in [stat_lines(&stats), stat_table(&stats)] {
            assert!(!text.contains(['\x1b', '\u{9b}']), "{text:?}");
            assert!(
                !text.lines().any(|line| line.starts_with("monitor")),
                "{text}"
            );
        }
        assert_eq!(stat_lines(&stats).lines().count(), 2);
    }

    #[test]
    fn a_status_shows_every_domain_and_connection() {
        let report = DomainReport {
            name: "web".into(),
            id: 2,
            program: Program::Guest,
            state: "running".into(),
            alive: true,
            pid: 4711,
            agent_pid: 4712,
            cpu_ns: 1_500_000,
            agent_cpu_ns: 0,
            worker_cpu_ns: 0,
            hypercalls: 7,
            operations: 8,
            system_calls: 12,
        };
        let restarts = Restarts {
            count: 3,
            ..Restarts::default()
        };
        let domain = DomainStatus {
            report,
            restarts: Some(restarts),
            removed: vec!["eth1".into()],
            serves_vm: false,
        };
        let connection = ConnectionStatus {
            backend: "driver".into(),
            frontend: "web".into(),
            handle: 0,
            backend_state: XenbusState::Connected,
            frontend_state: XenbusState::Closing,
        };
        let text = status(&Status {
            name: "office".into(),
            pid: 1,
            up_ns: 2_000_000_000,
            up_took_ns: Some(12_300_000),
            monitor_cpu_ns: 0,
            missing: vec!["mseal".into()],
            domains: vec![domain],
            connections: vec![connection],
        });
        for part in [
            "office",
            "ready after 12.3 ms",
            "without: mseal",
            "4711",
            "running, no device: eth1, restarted 3 times",
            "1.5 ms",
            "web-0",
            "driver Connected",
            "web Closing",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn an_audit_lists_single_grants_on_request() {
        let grant = GrantInUse {
            gref: 77,
            frame: 5,
            by: "driver".into(),
            mappings: 1,
            writable: false,
        };
        let domain = DomainAudit {
            name: "web".into(),
            lingers: false,
            alive: false,
            owned: 330,
            granted: 264,
            mapped: 0,
            collateral_used: 0,
            in_use: vec![grant],
        };
        let mut audit = Audit {
            domains: vec![domain],
            leaked: 0,
            created: 0,
            revoked: 0,
            forced: 0,
        };
        let short = grants(&audit, false);
        assert!(
            short.contains("web (dead)") && short.contains("264") && short.contains("leaked: 0")
        );
        assert!(!short.contains("77"));
        assert!(grants(&audit, true).contains("77"));
        // If no classic grant is in use, the table has no such column.
        assert!(short.contains("in use: grants of the classic table"));
        audit.domains[0].in_use.clear();
        let text = grants(&audit, false);
        assert!(!text.lines().next().unwrap().contains("in use"), "{text}");
        assert!(!text.contains("classic"), "{text}");
        assert!(text.contains("mapped: pages of other domains"), "{text}");
    }
}
