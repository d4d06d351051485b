//! The checks, in groups that run one after another in one cluster.

mod faults;
mod network;
mod oracle;
mod own_node;
mod policies;
mod policy;
mod results;
mod service_egress;
mod services;
mod table;

use super::cluster::Cluster;
use super::pods;
use super::waiting::{READY_TIMEOUT, wait};
use crate::workspace;
use anyhow::{Context, Result, bail};
use results::Results;
use std::fs;

/// A group of checks: name, description and function.
type Group = (&'static str, &'static str, fn(&mut Results) -> Result<()>);

const GROUPS: [Group; 4] = [
    (
        "network",
        "pods of both nodes reach each other: pages, 100 MB both ways, routes",
        network::run,
    ),
    (
        "services",
        "Services, ports of nodes, exec, logs, port-forward, a rolling update",
        services::run,
    ),
    (
        "policies",
        "network policies: a truth table, delays, the agent's death",
        policies::run,
    ),
    (
        "faults",
        "kills under a stream, drain, reboot of a node",
        faults::run,
    ),
];

/// Returns a line for each group.
pub(super) fn list() -> String {
    let line = |(name, what, _): &Group| format!("  {name:10} {what}\n");
    GROUPS.iter().map(line).collect()
}

/// Returns the groups with these names, or all of them.
pub(super) fn chosen(names: &[String]) -> Result<Vec<Group>> {
    if let Some(unknown) = names
        .iter()
        .find(|name| GROUPS.iter().all(|group| group.0 != **name))
    {
        bail!("no such group: {unknown}; choose from\n{}", list());
    }
    let is_chosen = |group: &Group| names.is_empty() || names.iter().any(|name| name == group.0);
    Ok(GROUPS.into_iter().filter(is_chosen).collect())
}

/// Installs Grantway, runs the groups, and returns the number of failed checks.
pub(super) fn run(cluster: Cluster, groups: &[Group]) -> Result<usize> {
    let mut results = Results {
        cluster,
        passed: 0,
        failed: 0,
    };
    results.check("the DaemonSet makes both nodes ready", |cluster| {
        install(cluster)
    });
    results.check("a pod on each node is ready", |cluster| {
        cluster.put("pods", &pods::server("default", "a", "n1"))?;
        cluster.put("pods", &pods::server("default", "b", "n2"))?;
        let pods = cluster.pods("default", &["a", "b"])?;
        Ok(format!("{} addresses each", pods[0].ips.len()))
    });
    for (name, _, group) in groups {
        if results.failed > 0 {
            println!("not run after a failure: {name}");
            continue;
        }
        group(&mut results)?;
    }
    println!("\n{} passed, {} failed", results.passed, results.failed);
    Ok(results.failed)
}

/// Installs Grantway as docs/kubernetes.md describes.
fn install(cluster: &mut Cluster) -> Result<String> {
    let contrib = workspace::root().join("contrib/kubernetes");
    let manifest = fs::read_to_string(contrib.join("grantway.yaml"))?;
    let of_plugin = "\"type\": \"grantway-cni\",\n";
    let (before, after) = manifest.split_once(of_plugin).context("grantway.yaml")?;
    let closed = format!("{before}{of_plugin}          \"networkPolicy\": true,\n{after}");
    cluster.apply(&closed)?;
    for file in ["policies.yaml", "routes.yaml"] {
        cluster.apply(&fs::read_to_string(contrib.join(file))?)?;
    }
    for name in ["grantway", "grantway-policies", "grantway-routes"] {
        cluster.daemon_set(name)?;
    }
    network::await_routes(cluster, &["n1", "n2"])?;
    wait("the nodes are not ready", READY_TIMEOUT, || {
        Ok(cluster.ready_nodes()?.len() == cluster.nodes.len())
    })?;
    wait("the account of pods does not exist", READY_TIMEOUT, || {
        Ok(cluster
            .api
            .get("/api/v1/namespaces/default/serviceaccounts/default")
            .is_ok())
    })?;
    Ok(String::new())
}
