//! Checks of Services through kube-proxy, and of kubectl's commands that use a node.

use super::results::Results;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::pods;
use crate::kubernetes::traffic::{await_page, page};
use crate::kubernetes::waiting::{READY_TIMEOUT, wait};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The node's port that forwards to a pod.
const HOST_PORT: u16 = 8880;
/// The port of each Service.
pub(super) const SERVICE_PORT: u16 = 8000;
/// Number of pods of the Deployment.
const REPLICAS: u32 = 4;

pub(super) fn run(results: &mut Results) -> Result<()> {
    results.check("a Service of a pod on each node exists", |cluster| {
        for name in ["a", "b"] {
            cluster.put("services", &service("default", name, name))?;
        }
        let addresses = cluster_ips(cluster, "default", "a")?;
        Ok(format!("{} addresses each", addresses.len()))
    });
    results.check("Services without --masquerade-all", |cluster| {
        reach(cluster)
    });
    results.check("Services with --masquerade-all", |cluster| {
        let paths = cluster.paths.clone();
        for node in &mut cluster.nodes {
            node.space()?.kill("kube-proxy")?;
            node.start_proxy(&paths, true)?;
        }
        reach(cluster)
    });
    results.check("hostPort, from the other node", |cluster| {
        let mut pod = pods::server("default", "published", "n2");
        pod["spec"]["containers"][0]["ports"][0]["hostPort"] = HOST_PORT.into();
        cluster.put("pods", &pod)?;
        cluster.pods("default", &["published"])?;
        let from = cluster.node("n1")?.netns()?;
        for node in cluster.node("n2")?.ips()? {
            await_page(&from, node, HOST_PORT, "published")?;
        }
        Ok("IPv4, IPv6".to_owned())
    });
    results.check("kubectl exec, logs and port-forward", kubectl);
    results.check("a Deployment's rolling update", check_rolling_update);
    Ok(())
}

/// Replaces all pods of a Deployment while a pod continuously requests pages from its Service.
fn check_rolling_update(cluster: &mut Cluster) -> Result<String> {
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
    cluster.put("services", &service("default", "web", "web"))?;
    cluster.put("deployments", &deployment("1"))?;
    let complete = |cluster: &Cluster| -> Result<bool> {
        let object = cluster.api.get(&format!("{DEPLOYMENTS}/web"))?;
        let status = &object["status"];
        let counts = ["replicas", "updatedReplicas", "availableReplicas"];
        Ok(
            status["observedGeneration"] == object["metadata"]["generation"]
                && counts.iter().all(|count| status[*count] == REPLICAS),
        )
    };
    wait("the Deployment has no pods", READY_TIMEOUT, || {
        complete(cluster)
    })?;
    let ips = cluster_ips(cluster, "default", "web")?;
    let client = cluster.pods("default", &["client"])?;
    let from = &client[0].netns;
    for ip in &ips {
        await_page(from, *ip, SERVICE_PORT, "web on 1")?;
    }
    let is_over = AtomicBool::new(false);
    let (pages, updated) = std::thread::scope(|scope| {
        let requests = scope.spawn(|| -> Result<[usize; 2]> {
            let mut pages = [0; 2];
            let mut ips = ips.iter().cycle();
            while let (Some(ip), false) = (ips.next(), is_over.load(Ordering::Relaxed)) {
                match page(from, *ip, SERVICE_PORT)?.as_str() {
                    "web on 1" => pages[0] += 1,
                    "web on 2" => pages[1] += 1,
                    other => bail!("unexpected page: {other}"),
                }
            }
            Ok(pages)
        });
        let update = || {
            cluster.put("deployments", &deployment("2"))?;
            wait("the update is not complete", READY_TIMEOUT, || {
                complete(cluster)
            })
        };
        let updated = update();
        is_over.store(true, Ordering::Relaxed);
        let pages = requests.join();
        (
            pages.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            updated,
        )
    });
    updated?;
    let [old, new] = pages.context("a request failed during the update")?;
    ensure!(new > 0, "the new version served no page");
    cluster.api.delete(DEPLOYMENTS)?;
    Ok(format!("{REPLICAS} pods, {old} + {new} requests answered"))
}

/// Returns a Deployment whose pods serve this version. A terminating pod serves until the nodes
/// send it no more requests.
fn deployment(version: &str) -> Value {
    let mut pod = pods::server("default", "web", version);
    let mut spec = pod["spec"].take();
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("nodeName");
    }
    spec["terminationGracePeriodSeconds"] = 16.into();
    spec["containers"][0]["lifecycle"] =
        json!({ "preStop": { "exec": { "command": ["sleep", "15"] } } });
    let labels = json!({ "pod": "web" });
    let rolling = json!({ "maxSurge": 2, "maxUnavailable": 0 });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": {
            "replicas": REPLICAS,
            "selector": { "matchLabels": labels },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": rolling },
            "template": { "metadata": { "labels": labels }, "spec": spec },
        },
    })
}

/// Returns a Service of a namespace with an address of each family, for the pods with a label.
pub(super) fn service(namespace: &str, name: &str, pod: &str) -> Value {
    let port = json!({ "port": SERVICE_PORT, "targetPort": 80 });
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "selector": { "pod": pod }, "ports": [port], "ipFamilyPolicy": "RequireDualStack",
            "ipFamilies": ["IPv4", "IPv6"],
        },
    })
}

/// Returns the addresses of a Service, IPv4 first.
pub(super) fn cluster_ips(cluster: &Cluster, namespace: &str, name: &str) -> Result<[IpAddr; 2]> {
    let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
    let service = cluster.api.get(&path)?;
    let ips = service["spec"]["clusterIPs"].as_array();
    let ips = ips.into_iter().flatten().filter_map(Value::as_str);
    let ips: Vec<IpAddr> = ips.map(str::parse).collect::<Result<_, _>>()?;
    match ips[..] {
        [v4, v6] if v4.is_ipv4() && v6.is_ipv6() => Ok([v4, v6]),
        _ => bail!("the Service {name} has the addresses {ips:?}"),
    }
}

/// Checks that a pod of n1 reaches the Services of a pod on each node at both addresses. The pod
/// first requests pages from the pods themselves: if its node wrongly sent an ICMP redirect, the
/// pod's routes would change.
fn reach(cluster: &Cluster) -> Result<String> {
    cluster.put("pods", &pods::server("default", "client", "n1"))?;
    let pods = cluster.pods("default", &["client", "a", "b"])?;
    let from = &pods[0].netns;
    for (name, pod) in ["a", "b"].into_iter().zip(&pods[1..]) {
        for address in &pod.ips {
            await_page(from, *address, 80, name)?;
        }
        for address in cluster_ips(cluster, "default", name)? {
            await_page(from, address, SERVICE_PORT, name)?;
        }
    }
    Ok("IPv4, IPv6".to_owned())
}

fn kubectl(cluster: &mut Cluster) -> Result<String> {
    let shown = cluster.kubectl_output(&["exec", "b", "--", "cat", "/var/www/index.html"])?;
    ensure!(shown.trim() == "b on n2", "exec: {shown}");
    wait("kubectl shows no log", READY_TIMEOUT, || {
        let logged = cluster.kubectl_output(&["logs", "b"])?;
        ensure!(logged.trim() == "b serves", "it shows {logged}");
        Ok(true)
    })?;
    let command = cluster.kubectl(&["port-forward", "pod/b", "18080:80"]);
    let log = cluster.paths.log("port-forward")?;
    cluster.plane.daemon(command, log)?;
    let plane = cluster.plane.netns()?;
    let here = IpAddr::from([127, 0, 0, 1]);
    await_page(&plane, here, 18080, "b on n2")?;
    Ok(String::new())
}
