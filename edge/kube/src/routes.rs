//! Keeps a node's routes to the pods of all other nodes.
//!
//! A node's pod subnet is routed through an address of that node, of the same family. Only routes
//! of [`PROTOCOL`] are changed or removed. No route is added to a subnet that another program has
//! routed, that overlaps a subnet of this node's pods or the route of an older node, that contains
//! the address of a node in a network of this host, or that does not consist of unicast addresses
//! beyond the link. A node's address outside the networks of this host removes no route: a node
//! reports its own addresses, and must not be able to remove the route of another node's subnet.

use crate::api::Node;
use crate::object::Kind;
use crate::prefix::AddressBlock;
use crate::server::ApiServer;
use crate::view::ClusterView;
use serde_json::Value;
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The protocol of the routes, which distinguishes them from routes of other programs.
pub const PROTOCOL: &str = "71";
/// Interval of reading the routes: the kernel removes those of a link that is down.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Addresses that no router forwards: of this host or link, and of groups.
const SPECIAL: [&str; 7] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::/127",
    "fe80::/10",
    "ff00::/8",
];

/// Gateways, by subnet.
type Routes = BTreeMap<AddressBlock, IpAddr>;
/// The desired routes with warnings, or the reason why the current routes must stay.
type Plan = Result<(Routes, Vec<String>), String>;

/// Runs forever. `report` gets messages for the user.
pub fn run(server: &ApiServer, node: &str, report: impl Fn(&str)) -> ! {
    let mut view = ClusterView::follow(server, &[Kind::Nodes]);
    let mut plan: Option<Plan> = None;
    let mut before = BTreeSet::new();
    let mut looked: Option<Instant> = None;
    loop {
        let mut notes = Vec::new();
        let has_changed = view.turn(CHECK_INTERVAL, &mut notes);
        notes.iter().for_each(|note| report(note));
        let is_recent = looked.is_some_and(|at| at.elapsed() < CHECK_INTERVAL);
        let is_certain = matches!(&plan, Some(Ok((_, warnings))) if warnings.is_empty());
        if view.is_complete() && (has_changed || !is_certain) {
            let links = LazyCell::new(links);
            let is_near = |block: AddressBlock| {
                let links = links.as_ref().map_err(Clone::clone)?;
                Ok(links.iter().any(|link| link.covers(block)))
            };
            let new = Some(desired_routes(&view.cluster.nodes, node, is_near));
            // Most changes of Nodes are heartbeats.
            if is_recent && new == plan {
                continue;
            }
            plan = new;
        }
        looked = Some(Instant::now());
        let warnings = match &plan {
            None => continue,
            Some(Err(why)) => vec![why.clone()],
            Some(Ok((routes, warnings))) => {
                let mut warnings = warnings.clone();
                match apply(routes, &mut warnings) {
                    Ok(changes) => changes.iter().for_each(|change| report(change)),
                    Err(why) => warnings.push(why),
                }
                warnings
            }
        };
        let warnings: BTreeSet<String> = warnings.into_iter().collect();
        warnings.difference(&before).for_each(|new| report(new));
        before = warnings;
    }
}

/// Returns the routes of a node, with a warning for each subnet that gets no route, or that
/// contains the address of a node. `is_near` returns whether an address is in a network of this
/// host.
///
/// # Errors
///
/// Returns an error if the node is unknown or has no address, or `is_near` fails. The current
/// routes must then stay.
fn desired_routes(
    nodes: &BTreeMap<String, Node>,
    own: &str,
    is_near: impl Fn(AddressBlock) -> Result<bool, String>,
) -> Plan {
    let here = nodes.get(own).filter(|node| !node.addresses.is_empty());
    let here = here.ok_or_else(|| {
        format!("the cluster has no Node {own} with an address: routes stay as they are")
    })?;
    let (mut routes, mut warnings) = (Routes::new(), Vec::new());
    let mut others: Vec<_> = nodes.iter().filter(|(name, _)| *name != own).collect();
    // A new node must not replace the route of an older one.
    others.sort_by_key(|(_, node)| &node.created);
    for (name, node) in others {
        for subnet in &node.pod_subnets {
            let inside = inside(*subnet, nodes);
            let near = |&(other, at)| match is_near(AddressBlock::host(at)) {
                Ok(is_near) => is_near.then_some(Ok((other, at))),
                Err(why) => Some(Err(why)),
            };
            let why = if let Some(why) = conflict(*subnet, here) {
                why
            } else if let Some((other, address)) = inside.iter().find_map(near).transpose()? {
                format!("it contains the address {address} of Node {other}")
            } else if let Some(other) = routes.keys().find(|other| other.overlaps(*subnet)) {
                format!("it overlaps {other} of another node")
            } else if let Some(gateway) = node.addresses.iter().find(|at| subnet.is_like(**at)) {
                routes.insert(*subnet, *gateway);
                if let Some((other, address)) = inside.first() {
                    warnings.push(format!(
                        "the address {address} of Node {other} withdraws no route: it is in \
                         {subnet} of Node {name}, and in no network of this host"
                    ));
                }
                continue;
            } else {
                "the node has no address of its family".to_owned()
            };
            warnings.push(format!("no route to {subnet} of Node {name}: {why}"));
        }
    }
    Ok((routes, warnings))
}

/// Returns the reason why a route to this subnet would redirect packets that are for this node's
/// pods, or for addresses that are not routed. Returns `None` if the route would redirect no such
/// packets.
fn conflict(subnet: AddressBlock, here: &Node) -> Option<String> {
    let mut own = here.pod_subnets.iter();
    if let Some(own) = own.find(|own| own.overlaps(subnet)) {
        return Some(format!("it overlaps this node's subnet {own}"));
    }
    let mut special = SPECIAL.iter().filter_map(|text| text.parse().ok());
    let block = special.find(|block: &AddressBlock| block.overlaps(subnet))?;
    Some(format!("it overlaps {block}, which is not routed"))
}

/// Returns the addresses of nodes in this subnet.
fn inside(subnet: AddressBlock, nodes: &BTreeMap<String, Node>) -> Vec<(&str, IpAddr)> {
    let all = nodes.iter().flat_map(|(name, node)| {
        let addresses = node.addresses.iter();
        addresses.map(move |address| (name.as_str(), *address))
    });
    all.filter(|(_, at)| subnet.covers(AddressBlock::host(*at)))
        .collect()
}

/// Changes the kernel's routes to these. Returns a line for each change.
fn apply(desired_routes: &Routes, warnings: &mut Vec<String>) -> Result<Vec<String>, String> {
    let (mut changes, mut failed) = (Vec::new(), Vec::new());
    let mut change = |verb: &str, subnet: &AddressBlock, gateway: &IpAddr| {
        let (subnet, gateway) = (subnet.to_string(), gateway.to_string());
        let words = [verb, &subnet, "via", &gateway, "proto", PROTOCOL];
        match ip(&[&["route"][..], &words].concat()) {
            Ok(_) => changes.push(format!("route {verb} {subnet} via {gateway}")),
            Err(why) => failed.push(why),
        }
    };
    let found = existing()?;
    for (subnet, gateway) in found
        .iter()
        .filter(|(subnet, _)| !desired_routes.contains_key(subnet))
    {
        change("del", subnet, gateway);
    }
    for (subnet, gateway) in desired_routes {
        match found.get(subnet) {
            Some(before) if before == gateway => continue,
            Some(before) => change("del", subnet, before),
            // If a route with another metric exists, the kernel would add this route and might
            // prefer it.
            None if is_routed(*subnet)? => {
                warnings.push(format!(
                    "no route to {subnet}: another program has routed it"
                ));
                continue;
            }
            None => {}
        }
        change("add", subnet, gateway);
    }
    warnings.append(&mut failed);
    Ok(changes)
}

/// Returns whether the kernel has a route to exactly this subnet.
fn is_routed(subnet: AddressBlock) -> Result<bool, String> {
    let family = match subnet.is_like(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) {
        true => "-4",
        false => "-6",
    };
    let shown = shown(&[
        family,
        "-json",
        "route",
        "show",
        "exact",
        &subnet.to_string(),
    ])?;
    Ok(!shown.is_empty())
}

/// Returns the kernel's routes of [`PROTOCOL`].
fn existing() -> Result<Routes, String> {
    let mut found = Routes::new();
    for family in ["-4", "-6"] {
        let routes = shown(&[family, "-json", "route", "show", "proto", PROTOCOL])?;
        found.extend(routes.iter().filter_map(route));
    }
    Ok(found)
}

/// Returns the networks of this host, to which it has a route without a gateway.
///
/// # Errors
///
/// Returns an error if the networks are unknown. The routes must then stay, because any address may
/// belong to a neighbour.
fn links() -> Result<Vec<AddressBlock>, String> {
    let of_family = |family| {
        shown(&[family, "-json", "route", "show"])
            .map_err(|why| format!("routes stay as they are: the host's routes are unknown: {why}"))
    };
    let all = [of_family("-4")?, of_family("-6")?];
    Ok(all.iter().flatten().filter_map(link).collect())
}

/// Decodes a route to a network of this host.
fn link(shown: &Value) -> Option<AddressBlock> {
    let is_forwarded = ["gateway", "via", "nexthops"]
        .iter()
        .any(|key| shown.get(key).is_some());
    // `ip` omits the type of a route that carries packets.
    let carries = shown.get("type").is_none_or(|kind| kind == "unicast");
    (carries && !is_forwarded).then(|| destination(shown))?
}

/// Returns the routes that `ip` shows.
fn shown(words: &[&str]) -> Result<Vec<Value>, String> {
    let shown = ip(words)?;
    // If no route exists, some versions of `ip` print nothing.
    let shown = if shown.is_empty() { b"[]" } else { &shown[..] };
    serde_json::from_slice(shown)
        .map_err(|error| format!("`ip route` prints no list of routes: {error}"))
}

/// Decodes a route. Returns `None` for a route without a gateway, which this program never adds.
fn route(shown: &Value) -> Option<(AddressBlock, IpAddr)> {
    let gateway = shown.get("gateway")?.as_str()?.parse().ok()?;
    Some((destination(shown)?, gateway))
}

/// Returns the destination of a route; a default route has none.
fn destination(shown: &Value) -> Option<AddressBlock> {
    let to = shown.get("dst")?.as_str()?;
    // `ip` omits the length of a single address.
    let host = || to.parse().map(AddressBlock::host).ok();
    to.parse().ok().or_else(host)
}

/// Runs `ip`, and returns its output.
fn ip(words: &[&str]) -> Result<Vec<u8>, String> {
    let failed = |why: &str| format!("ip {}: {}", words.join(" "), why.trim());
    match Command::new("ip").args(words).output() {
        Err(error) => Err(failed(&error.to_string())),
        Ok(Output { status, stdout, .. }) if status.success() => Ok(stdout),
        Ok(output) => Err(failed(&String::from_utf8_lossy(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addresses: &[&str], subnets: &[&str]) -> Node {
        Node {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            pod_subnets: subnets.iter().map(|text| text.parse().unwrap()).collect(),
            created: String::new(),
        }
    }

    /// The network of all nodes.
    fn is_near(block: AddressBlock) -> Result<bool, String> {
        let mut networks = ["192.0.2.0/24", "fd00::/64"].iter();
        Ok(networks.any(|text| text.parse::<AddressBlock>().unwrap().covers(block)))
    }

    fn nodes<const N: usize>(all: [(&str, Node); N]) -> BTreeMap<String, Node> {
        all.map(|(name, node)| (name.to_owned(), node)).into()
    }

    #[test]
    fn each_subnet_has_a_gateway_of_its_family() {
        let of_b = ["10.0.2.0/24", "fd00:2::/64"];
        let nodes = nodes([
            ("a", node(&["192.0.2.1", "fd00::1"], &["10.0.1.0/24"])),
            ("b", node(&["fd00::2", "192.0.2.2"], &of_b)),
            ("c", node(&["192.0.2.3"], &["fd00:3::/64"])),
            ("d", node(&["192.0.2.4"], &["10.0.2.0/24"])),
        ]);
        let (routes, warnings) = desired_routes(&nodes, "a", is_near).unwrap();
        let expected = [("10.0.2.0/24", "192.0.2.2"), ("fd00:2::/64", "fd00::2")];
        let expected = expected.map(|(to, by)| (to.parse().unwrap(), by.parse().unwrap()));
        assert_eq!(routes, expected.into());
        let expected = [
            "no route to fd00:3::/64 of Node c: the node has no address of its family",
            "no route to 10.0.2.0/24 of Node d: it overlaps 10.0.2.0/24 of another node",
        ];
        assert_eq!(warnings, expected);
    }

    #[test]
    fn overlapping_and_special_subnets_get_no_route() {
        let of_c = [
            "10.0.2.128/25",
            "10.0.0.0/14",
            "169.254.169.254/32",
            "fe80::/64",
        ];
        let nodes = nodes([
            ("a", node(&["192.0.2.1"], &["10.8.1.0/24"])),
            ("b", node(&["192.0.2.2"], &["10.0.2.0/24"])),
            ("c", node(&["192.0.2.3", "fd00::3"], &of_c)),
        ]);
        let (routes, warnings) = desired_routes(&nodes, "a", is_near).unwrap();
        assert_eq!(routes.len(), 1);
        let expected = [
            "no route to 10.0.2.128/25 of Node c: it overlaps 10.0.2.0/24 of another node",
            "no route to 10.0.0.0/14 of Node c: it overlaps 10.0.2.0/24 of another node",
            "no route to 169.254.169.254/32 of Node c: it overlaps 169.254.0.0/16, which is not \
             routed",
            "no route to fe80::/64 of Node c: it overlaps fe80::/10, which is not routed",
        ];
        assert_eq!(warnings, expected);
    }

    /// A wrong subnet does not redirect packets that are for nodes or for pods of this node.
    #[test]
    fn subnets_of_nodes_and_of_own_pods_are_refused() {
        let wrong = ["0.0.0.0/0", "192.0.2.3/32", "10.0.1.7/32", "10.0.0.0/16"];
        let nodes = nodes([
            ("a", node(&["192.0.2.1"], &["10.0.1.0/24"])),
            ("b", node(&["192.0.2.2"], &wrong)),
            ("c", node(&["192.0.2.3"], &[])),
        ]);
        let (routes, warnings) = desired_routes(&nodes, "a", is_near).unwrap();
        assert_eq!(routes, Routes::new());
        let expected = [
            "no route to 0.0.0.0/0 of Node b: it overlaps this node's subnet 10.0.1.0/24",
            "no route to 192.0.2.3/32 of Node b: it contains the address 192.0.2.3 of Node c",
            "no route to 10.0.1.7/32 of Node b: it overlaps this node's subnet 10.0.1.0/24",
            "no route to 10.0.0.0/16 of Node b: it overlaps this node's subnet 10.0.1.0/24",
        ];
        assert_eq!(warnings, expected);
    }

    /// A node that reports false addresses removes no route of another node.
    #[test]
    fn a_claimed_address_withdraws_no_route() {
        let nodes = nodes([
            ("a", node(&["192.0.2.1"], &["10.0.1.0/24"])),
            ("b", node(&["192.0.2.2"], &["10.0.2.0/24"])),
            ("c", node(&["192.0.2.3", "10.0.2.7"], &["10.0.3.0/24"])),
        ]);
        let (routes, warnings) = desired_routes(&nodes, "a", is_near).unwrap();
        let expected = [("10.0.2.0/24", "192.0.2.2"), ("10.0.3.0/24", "192.0.2.3")];
        let expected = expected.map(|(to, by)| (to.parse().unwrap(), by.parse().unwrap()));
        assert_eq!(routes, expected.into());
        let expected = "the address 10.0.2.7 of Node c withdraws no route: it is in 10.0.2.0/24 of \
                        Node b, and in no network of this host";
        assert_eq!(warnings, [expected]);
        // The networks of the host are read only for such addresses.
        let unknown = |_: AddressBlock| Err("unknown".to_owned());
        assert_eq!(desired_routes(&nodes, "a", unknown).unwrap_err(), "unknown");
        let honest = nodes.into_iter().filter(|(name, _)| name != "c").collect();
        assert_eq!(desired_routes(&honest, "a", unknown).unwrap().0.len(), 1);
    }

    #[test]
    fn the_older_of_two_nodes_has_the_route() {
        let created = |at: &str, node: Node| Node {
            created: at.to_owned(),
            ..node
        };
        let [old, new] = ["2026-01-31T23:59:59Z", "2026-02-01T00:00:00Z"];
        let nodes = nodes([
            ("a", node(&["192.0.2.1"], &["10.0.1.0/24"])),
            (
                "b",
                created(new, node(&["192.0.2.2"], &["10.0.0.0/22", "10.1.0.0/24"])),
            ),
            ("c", created(old, node(&["192.0.2.3"], &["10.1.0.0/25"]))),
        ]);
        let (routes, warnings) = desired_routes(&nodes, "a", is_near).unwrap();
        let (to, by) = ("10.1.0.0/25".parse().unwrap(), "192.0.2.3".parse().unwrap());
        assert_eq!(routes, [(to, by)].into());
        let expected = [
            "no route to 10.0.0.0/22 of Node b: it overlaps this node's subnet 10.0.1.0/24",
            "no route to 10.1.0.0/24 of Node b: it overlaps 10.1.0.0/25 of another node",
        ];
        assert_eq!(warnings, expected);
    }

    #[test]
    fn an_unknown_node_keeps_its_routes() {
        let nodes = nodes([
            ("a", node(&[], &["10.0.1.0/24"])),
            ("b", node(&["192.0.2.2"], &["10.0.2.0/24"])),
        ]);
        for own in ["a", "c"] {
            let why = desired_routes(&nodes, own, is_near).unwrap_err();
            assert!(why.ends_with("routes stay as they are"), "{why}");
        }
    }

    #[test]
    fn routes_are_read_as_ip_prints_them() {
        let shown = r#"[
            { "dst": "10.0.2.0/24", "gateway": "192.0.2.2", "dev": "eth0", "protocol": "71" },
            { "dst": "10.0.3.1", "gateway": "192.0.2.3" },
            { "dst": "10.0.4.0/24", "dev": "eth0" },
            { "dst": "default", "gateway": "192.0.2.3" },
            { "dst": "default", "dev": "eth0" },
            { "dst": "fd00::/64", "dev": "eth0" },
            { "type": "blackhole", "dst": "10.0.5.0/24", "dev": "lo" },
            { "dst": "10.0.6.0/24", "via": { "family": "inet6", "host": "fd00::2" } },
            { "dst": "10.0.7.0/24", "nexthops": [{ "gateway": "192.0.2.3" }] }]"#;
        let shown: Vec<Value> = serde_json::from_str(shown).unwrap();
        let links: Vec<_> = shown.iter().filter_map(link).collect();
        let expected = ["10.0.4.0/24", "fd00::/64"].map(|to| to.parse().unwrap());
        assert_eq!(links, expected);
        let routes: Vec<_> = shown.iter().filter_map(route).collect();
        let expected = [("10.0.2.0/24", "192.0.2.2"), ("10.0.3.1/32", "192.0.2.3")];
        let expected = expected.map(|(to, by)| (to.parse().unwrap(), by.parse().unwrap()));
        assert_eq!(routes, expected);
    }
}
