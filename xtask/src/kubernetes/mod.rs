//! `cargo xtask kubernetes`: tests Grantway in a real cluster on this machine.
//!
//! | module | purpose |
//! |---|---|
//! | `programs` | builds the components of Kubernetes as one binary; finds the other programs |
//! | `images` | images of pods, without a registry |
//! | `paths` | files and addresses of a cluster |
//! | `waiting` | waits for conditions, with deadlines |
//! | `space` | namespaces of the cluster, and nested namespaces of each node |
//! | `node` | a node: links, runtime, kubelet, kube-proxy |
//! | `cluster` | the control plane, and kubectl |
//! | `api` | requests to the API server |
//! | `pods` | pods: objects, addresses, namespaces |
//! | `traffic` | pages, connections and checked streams between namespaces |
//! | `checks` | the checks |
//!
//! Shell scripts in `xtask/kubernetes/` run as the first processes of namespaces, and pack images.

mod api;
mod checks;
mod cluster;
mod images;
mod node;
mod paths;
mod pods;
mod programs;
mod space;
mod traffic;
mod waiting;

use crate::workspace;
use anyhow::{Context, Result, bail};
use cluster::Cluster;
use paths::Paths;
use std::fs;
use std::time::Instant;

const USAGE: &str = "\
usage: cargo xtask kubernetes [GROUP…]
       cargo xtask kubernetes --fetch

Starts a Kubernetes cluster of two nodes in namespaces of this system, with Grantway as the network
of its pods, as docs/kubernetes.md describes, and runs the named groups of checks (default: all).
Needs root, Go, and Debian's packages containerd, runc, containernetworking-plugins, conntrack,
iptables and busybox-static; without them it is skipped (with GRANTWAY_REQUIRE=all, it fails). The
first run builds Kubernetes to target/kubernetes: 6 minutes, and 3 GB in Go's cache. Logs are in
target/kubernetes/run. --fetch only downloads the Go modules of Kubernetes, unless it is built; its
exit status is 3 if they cannot be downloaded here.

example: cargo xtask kubernetes network policies
";

pub(crate) fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}\n{}", checks::list());
        return Ok(());
    }
    let home = workspace::target_directory()?.join("kubernetes");
    fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
    if args == ["--fetch"] {
        return programs::fetch(&home);
    }
    let groups = checks::chosen(args)?;
    if let Some(why) = programs::missing(&home) {
        if std::env::var("GRANTWAY_REQUIRE").is_ok_and(|value| value == "all") {
            bail!("{why}");
        }
        println!("skipped: {why}");
        return Ok(());
    }
    let programs = programs::ready(&home)?;
    let images = images::ready(&home, &programs)?;
    let began = Instant::now();
    let paths = Paths::new(&home, &programs, images)?;
    let cluster = Cluster::start(paths, &["n1", "n2"])?;
    println!(
        "control plane and nodes: {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let failed = checks::run(cluster, &groups)?;
    println!("the whole run: {:.1} s", began.elapsed().as_secs_f64());
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}
