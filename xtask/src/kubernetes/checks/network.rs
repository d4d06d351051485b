//! Pods reach each other, on a node and across nodes.

use super::results::Results;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::pods::Pod;
use crate::kubernetes::traffic::{Stream, page};
use crate::kubernetes::waiting::{READY, wait};
use crate::workspace;
use anyhow::{Context, Result, ensure};
use serde_json::json;
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
                    let found = page(&cluster.node(node)?.netns()?, *ip, 80)?;
                    ensure!(found.starts_with(name), "{node} to {name}: {found}");
                }
            }
            Ok(String::new())
        },
    );
    results.check(
        "a Node is added and removed: so are its routes",
        node_is_added_and_removed,
    );
    Ok(())
}

/// Adds a Node that no machine has, and removes it. Returns the delays of the routes to its pods.
fn node_is_added_and_removed(cluster: &mut Cluster) -> Result<String> {
    const NODE: &str = "/api/v1/nodes/n3";
    // An applied object has one address of a type.
    let addresses = json!([
        { "type": "InternalIP", "address": "172.31.250.13" },
        { "type": "ExternalIP", "address": "fd00:172:31::13" },
    ]);
    let mut node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n3" } });
    cluster.api.apply(NODE, &node)?;
    node["status"] = json!({ "addresses": addresses });
    let began = Instant::now();
    cluster.api.apply(&format!("{NODE}/status"), &node)?;
    await_routes(cluster, cluster.nodes.len())?;
    let added = began.elapsed();
    let began = Instant::now();
    cluster.api.delete(NODE)?;
    await_routes(cluster, cluster.nodes.len() - 1)?;
    let removed = began.elapsed();
    let [added, removed] = [added, removed].map(|took| took.as_millis());
    Ok(format!(
        "added after {added} ms, removed after {removed} ms"
    ))
}

/// Waits until each node has routes to the pods of this number of nodes, in both families.
pub(super) fn await_routes(cluster: &Cluster, others: usize) -> Result<()> {
    for node in &cluster.nodes {
        let what = format!("{} has no routes to {others} nodes", node.name);
        wait(&what, READY, || {
            let count = |family: &str| -> Result<usize> {
                let mut ip = node.space()?.command("ip");
                ip.args([family, "route", "show", "proto", "71"]);
                Ok(workspace::output(&mut ip)?.lines().count())
            };
            Ok([count("-4")?, count("-6")?] == [others; 2])
        })?;
    }
    Ok(())
}
