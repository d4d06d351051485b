//! Parts that die, are drained or reboot.

use super::results::Results;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::pods::{self, Pod};
use crate::kubernetes::traffic::{Stream, page};
use crate::kubernetes::waiting::wait;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Deadline of a part that starts again.
const AGAIN: Duration = Duration::from_secs(60);
/// Deadline of a machine that starts again. A guest that is refused is tried again after 20 s.
const REATTACHED: Duration = Duration::from_secs(15);
/// Deadline of a node that reboots: its kubelet removes all pods and starts them again.
const REBOOT: Duration = Duration::from_secs(180);
/// The stream's time before a kill and after the next process runs.
const ASIDE: Duration = Duration::from_millis(500);
/// The stream's pause after each block: about 30 MB/s.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) fn run(results: &mut Results) -> Result<()> {
    for (program, name) in [
        ("driver", "driver domain killed under a stream"),
        ("grantway-manager", "manager killed under a stream"),
        ("grantway-netd", "netd killed under a stream"),
        ("kubelet", "kubelet killed under a stream"),
        ("containerd", "containerd killed under a stream"),
    ] {
        results.check(name, |cluster| killed(cluster, program));
    }
    results.check("the machine killed: pods are reached again", machine_killed);
    results.check("n2 drained: no guest and no address remains", drained);
    results.check("n2 reboots: its pods are reached again", rebooted);
    Ok(())
}

fn ends(cluster: &Cluster) -> Result<[Pod; 2]> {
    let pods = cluster.pods("default", &["a", "b"])?;
    <[Pod; 2]>::try_from(pods).ok().context("two pods")
}

/// Kills a program of n1 while its pod sends to n2.
fn killed(cluster: &mut Cluster, program: &str) -> Result<String> {
    let [a, b] = ends(cluster)?;
    let ip = b.ip();
    let stream = Stream::start(a.netns, b.netns, ip, u64::MAX, PAUSE)?;
    std::thread::sleep(ASIDE);
    let paths = cluster.paths.clone();
    let node = &mut cluster.nodes[0];
    let before = node.space()?.processes(program);
    ensure!(!before.is_empty(), "no process of {program}");
    let began = Instant::now();
    node.space()?.kill(program)?;
    match program {
        "kubelet" => node.start_kubelet(&paths)?,
        "containerd" => node.start_runtime(&paths)?,
        _ => {}
    }
    wait("no other process", AGAIN, || {
        let now = node.space()?.processes(program);
        Ok(!now.is_empty() && now.iter().all(|pid| !before.contains(pid)))
    })?;
    let took = began.elapsed();
    std::thread::sleep(ASIDE);
    let megabytes = stream.stop()? / 1_000_000;
    Ok(format!(
        "{megabytes} MB unchanged, again after {} ms",
        took.as_millis()
    ))
}

/// The machine's pod starts it again, which attaches the pods again.
fn machine_killed(cluster: &mut Cluster) -> Result<String> {
    let [a, b] = ends(cluster)?;
    let began = Instant::now();
    ensure!(
        cluster.nodes[0].space()?.kill("grantwayd")? > 0,
        "no machine"
    );
    await_page(&b, &a, REATTACHED)?;
    let took = began.elapsed();
    cluster.daemon_set("grantway")?;
    Ok(format!("after {} ms", took.as_millis()))
}

/// Waits until a pod reaches another one at all its addresses.
fn await_page(from: &Pod, to: &Pod, deadline: Duration) -> Result<()> {
    let what = format!("{} does not reach {}", from.name, to.name);
    wait(&what, deadline, || {
        for ip in &to.ips {
            ensure!(
                page(&from.netns, *ip, 80)?.starts_with(&to.name),
                "another pod"
            );
        }
        Ok(true)
    })
}

fn drained(cluster: &mut Cluster) -> Result<String> {
    let space = cluster.node("n2")?.space()?;
    let [leases, guests] =
        ["/var/lib/cni/networks/grantway", "/run/grantway/cni/pods"].map(|path| space.path(path));
    let left = || -> Result<[usize; 2]> {
        let leases = entries(&leases)?.into_iter();
        let leases = leases.filter(|name| name.parse::<IpAddr>().is_ok());
        Ok([leases.count(), entries(&guests)?.len()])
    };
    let before = left()?;
    ensure!(
        !before.contains(&0),
        "addresses and guests before: {before:?}"
    );
    let drain = [
        "drain",
        "n2",
        "--ignore-daemonsets",
        "--force",
        "--timeout=60s",
    ];
    cluster.said(&drain)?;
    wait("the node keeps guests or addresses", AGAIN, || {
        Ok(left()? == [0, 0])
    })?;
    cluster.said(&["uncordon", "n2"])?;
    cluster.put("pods", &pods::server("default", "b", "n2"))?;
    let [a, b] = ends(cluster)?;
    await_page(&a, &b, AGAIN)?;
    Ok(String::new())
}

/// Returns the names in a folder, which need not exist.
fn entries(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| folder.display().to_string())?,
    };
    let name = |entry: std::io::Result<fs::DirEntry>| {
        Ok(entry?.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect()
}

fn rebooted(cluster: &mut Cluster) -> Result<String> {
    let began = Instant::now();
    let node = &mut cluster.nodes[1];
    node.power_off()?;
    node.boot(&cluster.paths, &cluster.plane)?;
    wait("the pod does not start again", REBOOT, || {
        let [a, b] = ends(cluster)?;
        Ok(page(&a.netns, b.ip(), 80)? == "b on n2")
    })?;
    let took = began.elapsed();
    cluster.daemon_set("grantway")?;
    Ok(format!("after {:.1} s", took.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_folder_is_empty() {
        let root = crate::workspace::root();
        assert!(entries(&root.join("nonexistent")).unwrap().is_empty());
        let names = entries(&root.join("xtask/kubernetes")).unwrap();
        assert!(names.contains(&"cluster.sh".to_owned()), "{names:?}");
        assert!(entries(&root.join("Cargo.toml")).is_err());
    }
}
