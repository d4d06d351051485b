//! Checks that pods reach each other, on a node and across nodes.

use super::results::Results;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::node::Node;
use crate::kubernetes::pods::{Pod, name};
use crate::kubernetes::traffic::{Stream, await_page};
use crate::kubernetes::waiting::{READY_TIMEOUT, wait};
use crate::workspace;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Bytes of a stream.
const BYTES: u64 = 100_000_000;

pub(super) fn run(results: &mut Results) -> Result<()> {
    for (name, from, to) in [
        ("100 MB from n1 to n2, each byte compared", 0, 1),
        ("100 MB from n2 to n1, each byte compared", 1, 0),
    ] {
        results.check(name, |cluster| {
            let pods = cluster.pods("default", &["a", "b"])?;
            let mut rates = Vec::new();
            for ip in &pods[to].ips {
                let ends = cluster.pods("default", &["a", "b"])?;
                let [a, b] = <[Pod; 2]>::try_from(ends).ok().context("two pods")?;
                let (from, to) = if from == 0 { (a, b) } else { (b, a) };
                let began = Instant::now();
                let stream = Stream::start(from.netns, to.netns, *ip, BYTES, Duration::ZERO)?;
                ensure!(stream.finish()? == BYTES, "not all bytes were sent");
                let rate = BYTES as f64 * 8e-6 / began.elapsed().as_secs_f64();
                let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
                rates.push(format!("{family} {rate:.0} Mbit/s"));
            }
            Ok(rates.join(", "))
        });
    }
    results.check(
        "pages: node to its pod, node to the other's pod",
        |cluster| {
            for (node, name) in [("n1", "a"), ("n1", "b"), ("n2", "a"), ("n2", "b")] {
                let pod = cluster.pods("default", &[name])?;
                for ip in &pod[0].ips {
                    await_page(&cluster.node(node)?.netns()?, *ip, 80, name)
                        .with_context(|| format!("from {node}"))?;
                }
            }
            Ok(String::new())
        },
    );
    results.check(
        "routes are added and removed with a Node",
        node_is_added_and_removed,
    );
    Ok(())
}

/// Adds a Node without a machine, and removes it. Returns the delays after which the routes to its
/// pods appear and disappear.
fn node_is_added_and_removed(cluster: &mut Cluster) -> Result<String> {
    const NODE: &str = "/api/v1/nodes/n3";
    // An applied object may have only one address of each type.
    let addresses = json!([
        { "type": "InternalIP", "address": "172.31.250.13" },
        { "type": "ExternalIP", "address": "fd00:172:31::13" },
    ]);
    let mut node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n3" } });
    cluster.api.apply(NODE, &node)?;
    node["status"] = json!({ "addresses": addresses });
    let began = Instant::now();
    cluster.api.apply(&format!("{NODE}/status"), &node)?;
    await_routes(cluster, &["n1", "n2", "n3"])?;
    let added = began.elapsed();
    let began = Instant::now();
    cluster.api.delete(NODE)?;
    await_routes(cluster, &["n1", "n2"])?;
    let removed = began.elapsed();
    let [added, removed] = [added, removed].map(|took| took.as_millis());
    Ok(format!("after {added} and {removed} ms"))
}

/// Subnets and their gateways.
type Routes = BTreeSet<(String, String)>;

/// Waits until the cluster has exactly these Nodes, and each node has the routes to the pods of all
/// others.
pub(super) fn await_routes(cluster: &Cluster, names: &[&str]) -> Result<()> {
    for node in &cluster.nodes {
        let what = format!("routes of {} and Nodes differ", node.name);
        wait(&what, READY_TIMEOUT, || {
            let all = cluster.list("/api/v1/nodes")?;
            ensure!(
                all.iter().map(name).eq(names.iter().copied()),
                "Nodes are missing"
            );
            let mut wanted = Routes::new();
            for other in all.iter().filter(|other| name(other) != node.name) {
                wanted.extend(routes_to(other)?);
            }
            let found = routes_of(node)?;
            ensure!(found == wanted, "{found:?} instead of {wanted:?}");
            Ok(true)
        })?;
    }
    Ok(())
}

/// Returns the routes to a Node's pods: for each family, the subnet and the Node's address.
fn routes_to(node: &Value) -> Result<Routes> {
    let incomplete = || format!("incomplete: {node}");
    let subnets = node["spec"]["podCIDRs"].as_array();
    let subnets: Vec<_> = subnets
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let addresses = node["status"]["addresses"].as_array();
    let addresses = addresses
        .into_iter()
        .flatten()
        .filter_map(|one| one["address"].as_str());
    let addresses: Vec<_> = addresses
        .filter(|one| one.parse::<IpAddr>().is_ok())
        .collect();
    let of_family = |is_v6: bool| -> Option<(String, String)> {
        let only = |all: &[&str]| {
            let mut all = all.iter().filter(|text| text.contains(':') == is_v6);
            let first = all.next()?;
            all.next().is_none().then(|| (*first).to_owned())
        };
        Some((only(&subnets)?, only(&addresses)?))
    };
    let routes = [false, true]
        .map(of_family)
        .into_iter()
        .collect::<Option<_>>();
    routes.with_context(incomplete)
}

/// Returns the routes that `grantway-kube routes` has added on a node.
fn routes_of(node: &Node) -> Result<Routes> {
    let mut found = Routes::new();
    for family in ["-4", "-6"] {
        let mut ip = node.space()?.command("ip");
        ip.args([family, "-json", "route", "show", "proto", "71"]);
        let shown = workspace::output(&mut ip)?;
        // Without a route, some versions print nothing.
        let shown = if shown.is_empty() { "[]" } else { &shown };
        for route in serde_json::from_str::<Vec<Value>>(shown)? {
            let text = |key: &str| route[key].as_str().unwrap_or_default().to_owned();
            found.insert((text("dst"), text("gateway")));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_need_both_families() {
        let node = |subnets: &[&str]| {
            let addresses = json!([
                { "type": "Hostname", "address": "n3" },
                { "type": "InternalIP", "address": "192.0.2.3" },
                { "type": "ExternalIP", "address": "fd00::3" },
            ]);
            json!({ "spec": { "podCIDRs": subnets }, "status": { "addresses": addresses } })
        };
        let both = ["10.244.2.0/24", "fd00:1::/64"];
        let expected = [(both[0], "192.0.2.3"), (both[1], "fd00::3")];
        let expected = expected.map(|(to, by)| (to.to_owned(), by.to_owned()));
        assert_eq!(routes_to(&node(&both)).unwrap(), expected.into());
        let twice = [both[0], both[1], "fd00:2::/64"];
        for wrong in [&[][..], &both[..1], &both[1..], &twice] {
            assert!(routes_to(&node(wrong)).is_err(), "{wrong:?}");
        }
    }
}
