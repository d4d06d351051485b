//! An isolated pod and its own node, which always reach each other: the kubelet's probes, and
//! requests to ports of the node.

use super::policy::{effect_delay, effect_delay_at, set};
use super::services::service;
use super::table::Table;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::pods::{self, Pod};
use crate::kubernetes::traffic::await_page;
use crate::kubernetes::waiting::{READY_TIMEOUT, wait};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

/// The port of a kubelet.
const KUBELET_PORT: u16 = 10_250;
/// Ports of the node at which the pod is published: by the plugin `portmap`, and by Services with
/// each policy for external traffic.
const HOST_PORT: u16 = 8881;
const CLUSTER_PORT: u16 = 30_080;
const LOCAL_PORT: u16 = 30_081;
/// The time of several probes, which the kubelet makes each second.
const PROBES: Duration = Duration::from_secs(3);

/// Returns a policy that isolates the pods of a namespace in both directions.
fn isolating(namespace: &str) -> Value {
    let types = ["Ingress", "Egress"];
    json!({ "namespace": namespace, "spec": { "podSelector": {}, "policyTypes": types } })
}

/// Isolates a pod of the table, and a new one: the pod reaches its node, the node reaches the pod,
/// and the kubelet finds it ready. The other node is denied.
pub(super) fn probes(cluster: &Cluster, table: &Table) -> Result<String> {
    let pod = &table.pods[0];
    let policies = [isolating(&pod.namespace)];
    set(cluster, &[], &policies)?;
    let (own, other) = (cluster.node("n1")?, cluster.node("n2")?);
    for ip in &pod.ips {
        effect_delay(&other.netns()?, *ip, false)?;
        effect_delay(&own.netns()?, *ip, true).context("from the pod's own node")?;
    }
    for (node, is_own) in [(own, true), (other, false)] {
        for ip in node.ips()? {
            effect_delay_at(&pod.netns, (ip, KUBELET_PORT), is_own)?;
        }
    }
    // The first probe of a new pod is made while its policy is in force. A probe that fails
    // restarts its container.
    let mut new = pods::server(&pod.namespace, "probed", "n1");
    let container = &mut new["spec"]["containers"][0];
    let mut liveness = container["readinessProbe"].clone();
    liveness["failureThreshold"] = 1.into();
    liveness["initialDelaySeconds"] = 1.into();
    container["livenessProbe"] = liveness;
    cluster.put("pods", &new)?;
    let [probed] = <[Pod; 1]>::try_from(cluster.pods(&pod.namespace, &["probed"])?)
        .ok()
        .context("a pod")?;
    effect_delay(&other.netns()?, probed.ip(), false)?;
    std::thread::sleep(PROBES);
    let path = format!("/api/v1/namespaces/{}/pods/probed", pod.namespace);
    let object = cluster.api.get(&path)?;
    let restarts = &object["status"]["containerStatuses"][0]["restartCount"];
    ensure!(
        pods::is_ready(&object) && *restarts == 0,
        "{restarts} restarts"
    );
    cluster.api.delete(&path)?;
    set(cluster, &policies, &[])?;
    Ok("both addresses and directions".to_owned())
}

/// Requests pages from the other node, through ports of both addresses of a pod's node. If the
/// pod's node masquerades the requests, they count as the node's own traffic. Otherwise the pod's
/// policy decides, by the client's address.
pub(super) fn ports(cluster: &mut Cluster) -> Result<String> {
    const NAMESPACE: &str = "ports";
    super::results::namespace(cluster, NAMESPACE)?;
    let mut pod = pods::server(NAMESPACE, "published", "n1");
    pod["spec"]["containers"][0]["ports"][0]["hostPort"] = HOST_PORT.into();
    cluster.put("pods", &pod)?;
    for (name, port, policy) in [
        ("cluster", CLUSTER_PORT, "Cluster"),
        ("local", LOCAL_PORT, "Local"),
    ] {
        cluster.put("services", &node_port(NAMESPACE, (name, port, policy)))?;
    }
    cluster.pods(NAMESPACE, &["published"])?;
    let nodes = cluster.node("n1")?.ips()?;
    let client = cluster.node("n2")?.netns()?;
    for node in nodes {
        for port in [HOST_PORT, CLUSTER_PORT, LOCAL_PORT] {
            await_page(&client, node, port, "published")?;
        }
    }
    let policies = [isolating(NAMESPACE)];
    set(cluster, &[], &policies)?;
    for node in nodes {
        for (port, is_reached) in [
            (HOST_PORT, false),
            (LOCAL_PORT, false),
            (CLUSTER_PORT, true),
        ] {
            effect_delay_at(&client, (node, port), is_reached)?;
        }
    }
    set(cluster, &policies, &[])?;
    cluster
        .api
        .delete(&format!("/api/v1/namespaces/{NAMESPACE}"))?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    wait("the pod still exists", READY_TIMEOUT, || {
        Ok(cluster.list(&path)?.is_empty())
    })?;
    Ok("IPv4, IPv6; NodePort as the node".to_owned())
}

/// Returns a Service at a port of each node.
fn node_port(namespace: &str, (name, port, policy): (&str, u16, &str)) -> Value {
    let mut service = service(namespace, name, "published");
    let spec = &mut service["spec"];
    spec["type"] = "NodePort".into();
    spec["externalTrafficPolicy"] = policy.into();
    spec["ports"][0]["nodePort"] = port.into();
    service
}
