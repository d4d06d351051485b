//! Pods of a cluster: their objects, addresses and namespaces.

use super::cluster::Cluster;
use super::images::BUSYBOX;
use super::space::{Netns, container_process};
use super::waiting::{READY_TIMEOUT, wait};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::net::IpAddr;

/// A running pod.
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The pod's addresses, IPv4 first.
    pub(super) ips: Vec<IpAddr>,
    pub(super) netns: Netns,
}

impl Pod {
    /// Returns the pod's first address.
    pub(super) fn ip(&self) -> IpAddr {
        self.ips[0]
    }

    fn of(object: &Value) -> Option<Self> {
        let status = &object["status"];
        let ips = status["podIPs"].as_array()?.iter();
        let ips: Vec<IpAddr> = ips
            .filter_map(|ip| ip["ip"].as_str()?.parse().ok())
            .collect();
        let container = status["containerStatuses"][0]["containerID"].as_str()?;
        let pid = container_process(container.strip_prefix("containerd://")?)?;
        (!ips.is_empty()).then_some(())?;
        Some(Self {
            namespace: object["metadata"]["namespace"].as_str()?.to_owned(),
            name: name(object).to_owned(),
            ips,
            netns: Netns::of_process(pid).ok()?,
        })
    }
}

/// Returns the name of an object.
pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns whether a pod or a node is ready, and not being deleted.
pub(super) fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let is_it = |of: &Value| of["type"] == "Ready" && of["status"] == "True";
    let is_leaving = object["metadata"]["deletionTimestamp"].is_string();
    !is_leaving && conditions.is_some_and(|all| all.iter().any(is_it))
}

/// Returns a pod that serves a page with its name and its node at TCP ports 80 and 81. Only
/// policies use the name of its UDP port.
pub(super) fn server(namespace: &str, name: &str, node: &str) -> Value {
    let script = format!(
        "echo {name} on {node} >/var/www/index.html; echo {name} serves; \
         httpd -p 81 -h /var/www; exec httpd -f -p 80 -h /var/www"
    );
    let ports = json!([
        { "name": "first", "containerPort": 80 },
        { "name": "second", "containerPort": 81 },
        { "name": "third", "containerPort": 80, "protocol": "UDP" },
    ]);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "pod": name } },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "ports": ports,
                "command": ["sh", "-c", script],
                "readinessProbe": { "tcpSocket": { "port": 80 }, "periodSeconds": 1 },
            }],
        },
    })
}

impl Cluster {
    /// Creates a pod or another object in a namespace.
    pub(super) fn put(&self, resource: &str, object: &Value) -> Result<()> {
        let namespace = object["metadata"]["namespace"].as_str();
        let group = match object["apiVersion"].as_str() {
            Some("v1") | None => "api/v1".to_owned(),
            Some(version) => format!("apis/{version}"),
        };
        let within = namespace.map_or(String::new(), |name| format!("/namespaces/{name}"));
        let path = format!("/{group}{within}/{resource}/{}", name(object));
        self.api.apply(&path, object)?;
        Ok(())
    }

    /// Waits until these pods of a namespace are ready. Returns them in this order.
    pub(super) fn pods(&self, namespace: &str, names: &[&str]) -> Result<Vec<Pod>> {
        let mut found = Vec::new();
        let what = format!("the pods {} of {namespace} are not ready", names.join(", "));
        wait(&what, READY_TIMEOUT, || {
            found = self.ready_pods(namespace, names)?;
            Ok(found.len() == names.len())
        })?;
        Ok(found)
    }

    /// Returns the ready pods among these pods.
    pub(super) fn ready_pods(&self, namespace: &str, names: &[&str]) -> Result<Vec<Pod>> {
        let all = self.list(&format!("/api/v1/namespaces/{namespace}/pods"))?;
        let ready = |wanted: &&str| {
            let mut all = all.iter();
            Pod::of(all.find(|pod| name(pod) == *wanted && is_ready(pod))?)
        };
        Ok(names.iter().filter_map(ready).collect())
    }

    /// Waits until the pods of a DaemonSet are ready.
    pub(super) fn daemon_set(&self, name: &str) -> Result<()> {
        let path = format!("/apis/apps/v1/namespaces/kube-system/daemonsets/{name}");
        wait(
            &format!("the DaemonSet {name} is not ready"),
            READY_TIMEOUT,
            || {
                let status = &self.api.get(&path)?["status"];
                let wanted = status["desiredNumberScheduled"].as_u64().unwrap_or(0);
                Ok(wanted as usize == self.nodes.len() && status["numberReady"] == wanted)
            },
        )
    }

    /// Returns the node with this name.
    pub(super) fn node(&self, name: &str) -> Result<&super::node::Node> {
        let mut nodes = self.nodes.iter();
        nodes.find(|node| node.name == name).context("no such node")
    }

    /// Returns the names of nodes that are ready.
    pub(super) fn ready_nodes(&self) -> Result<Vec<String>> {
        let nodes = self.list("/api/v1/nodes")?;
        let ready = nodes.iter().filter(|node| is_ready(node));
        Ok(ready.map(|node| name(node).to_owned()).collect())
    }
}
