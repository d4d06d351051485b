//! Services of kube-proxy, and the parts of kubectl that use a node.

use super::results::Results;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::pods;
use crate::kubernetes::traffic::page;
use crate::kubernetes::waiting::wait;
use anyhow::{Result, ensure};
use serde_json::json;
use std::net::IpAddr;
use std::time::Duration;

/// The port of the node at which a pod is published.
const HOST_PORT: u16 = 8880;
const SOON: Duration = Duration::from_secs(30);

pub(super) fn run(results: &mut Results) -> Result<()> {
    results.check("a Service of a pod on each node exists", |cluster| {
        for name in ["a", "b"] {
            let port = json!({ "port": 8000, "targetPort": 80 });
            let service = json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": { "name": name, "namespace": "default" },
                "spec": { "selector": { "pod": name }, "ports": [port] },
            });
            cluster.put("services", &service)?;
        }
        Ok(String::new())
    });
    results.check("Services without --masquerade-all", |cluster| {
        reach(cluster, false)
    });
    results.check("Services with --masquerade-all", |cluster| {
        let paths = cluster.paths.clone();
        for node in &mut cluster.nodes {
            node.space()?.kill("kube-proxy")?;
            node.start_proxy(&paths, true)?;
        }
        reach(cluster, true)
    });
    results.check("hostPort, from the other node", |cluster| {
        let mut pod = pods::server("default", "published", "n2");
        pod["spec"]["containers"][0]["ports"][0]["hostPort"] = HOST_PORT.into();
        cluster.put("pods", &pod)?;
        cluster.pods("default", &["published"])?;
        let node: IpAddr = cluster.node("n2")?.v4.parse()?;
        let from = cluster.node("n1")?.netns()?;
        let found = page(&from, node, HOST_PORT)?;
        ensure!(found.starts_with("published"), "{found}");
        Ok(String::new())
    });
    results.check("kubectl exec, logs and port-forward", kubectl);
    Ok(())
}

/// Checks which Services a pod of n1 reaches. Without `--masquerade-all`, its own node's
/// pods answer it directly, so it must not reach them by a Service.
fn reach(cluster: &Cluster, masquerade_all: bool) -> Result<String> {
    cluster.put("pods", &pods::server("default", "client", "n1"))?;
    let client = cluster.pods("default", &["client"])?;
    let mut said = Vec::new();
    for (name, is_reached) in [("b", true), ("a", masquerade_all)] {
        let service = cluster
            .api
            .get(&format!("/api/v1/namespaces/default/services/{name}"))?;
        let ip: IpAddr = service["spec"]["clusterIP"]
            .as_str()
            .unwrap_or_default()
            .parse()?;
        let asks = || page(&client[0].netns, ip, 8000);
        if is_reached {
            let what = format!("the Service of {name} does not answer a pod of n1");
            wait(&what, SOON, || Ok(asks()?.starts_with(name)))?;
        } else {
            ensure!(
                asks().is_err(),
                "a pod of the same node answers, contrary to the page"
            );
        }
        said.push(format!(
            "{name}: {}",
            if is_reached { "reached" } else { "not reached" }
        ));
    }
    Ok(said.join(", "))
}

fn kubectl(cluster: &mut Cluster) -> Result<String> {
    let shown = cluster.said(&["exec", "b", "--", "cat", "/var/www/index.html"])?;
    ensure!(shown.trim() == "b on n2", "exec: {shown}");
    let logged = cluster.said(&["logs", "b"])?;
    ensure!(logged.trim() == "b serves", "logs: {logged}");
    let command = cluster.kubectl(&["port-forward", "pod/b", "18080:80"]);
    let log = cluster.paths.log("port-forward")?;
    cluster.plane.daemon(command, log)?;
    let plane = cluster.plane.netns()?;
    let here = IpAddr::from([127, 0, 0, 1]);
    wait("port-forward does not answer", SOON, || {
        Ok(page(&plane, here, 18080)? == "b on n2")
    })?;
    Ok(String::new())
}
