//! Pods reach each other, on a node and across nodes.

use super::results::Results;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::pods::Pod;
use crate::kubernetes::traffic::{Stream, page};
use crate::workspace;
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::process::Stdio;
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
    Ok(())
}

/// Gives each node routes to the pods of the others, as docs/kubernetes.md does.
pub(super) fn set_routes(cluster: &Cluster) -> Result<()> {
    let address = ".status.addresses[?(@.type==\"InternalIP\")].address";
    let columns = format!("custom-columns=:{address},:.spec.podCIDRs[*]");
    let lines = cluster.said(&["get", "nodes", "-o", &columns, "--no-headers"])?;
    for node in &cluster.nodes {
        let mut routes = node.space()?.command("sh");
        routes
            .arg(workspace::root().join("contrib/kubernetes/node.sh"))
            .arg("routes")
            .stdin(Stdio::piped());
        let mut child = routes.spawn()?;
        child
            .stdin
            .take()
            .context("no input")?
            .write_all(lines.as_bytes())?;
        ensure!(
            child.wait()?.success(),
            "node.sh routes failed on {}",
            node.name
        );
    }
    Ok(())
}
