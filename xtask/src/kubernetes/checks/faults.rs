//! Parts that die, are drained or reboot.

use super::results::Results;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::node::{Node, names};
use crate::kubernetes::pods::{self, Pod};
use crate::kubernetes::space::has_ended;
use crate::kubernetes::traffic::{Stream, expect_page};
use crate::kubernetes::waiting::wait;
use anyhow::{Context, Result, ensure};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Deadline for a killed part to run again.
const RESTART_DEADLINE: Duration = Duration::from_secs(60);
/// Deadline of a machine that starts again. A guest that is refused is tried again after 20 s.
const REATTACHED: Duration = Duration::from_secs(15);
/// Deadline of a node that reboots: its kubelet removes all pods and starts them again.
const REBOOT_DEADLINE: Duration = Duration::from_secs(300);
/// Bytes of the stream before a kill, and after the next process runs: more than sockets buffer.
const STREAM_BYTES: u64 = 16_000_000;
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
    stream.advance(STREAM_BYTES)?;
    let paths = cluster.paths.clone();
    let node = &mut cluster.nodes[0];
    let before = node.space()?.processes(program);
    let began = Instant::now();
    node.space()?.kill(program)?;
    // The next process needs the ports of this one, as after a restart by systemd.
    let what = format!("{program} has not ended");
    wait(&what, RESTART_DEADLINE, || {
        Ok(before.iter().all(|pid| has_ended(*pid)))
    })?;
    match program {
        "kubelet" => node.start_kubelet(&paths)?,
        "containerd" => node.start_runtime(&paths)?,
        _ => {}
    }
    await_next(node, program, &before)?;
    let took = began.elapsed();
    stream.advance(STREAM_BYTES)?;
    let megabytes = stream.stop()? / 1_000_000;
    Ok(format!(
        "{megabytes} MB unchanged, again after {} ms",
        took.as_millis()
    ))
}

/// Waits until a program runs whose processes were killed.
fn await_next(node: &Node, program: &str, before: &[u32]) -> Result<()> {
    ensure!(!before.is_empty(), "no process of {program} ran before");
    wait(
        &format!("no other process of {program}"),
        RESTART_DEADLINE,
        || {
            let now = node.space()?.processes(program);
            Ok(!now.is_empty() && now.iter().all(|pid| !before.contains(pid)))
        },
    )
}

/// Kills the machine; its pod starts it again, and the new machine attaches the pods again.
fn machine_killed(cluster: &mut Cluster) -> Result<String> {
    let [a, b] = ends(cluster)?;
    let began = Instant::now();
    let node = &cluster.nodes[0];
    let space = node.space()?;
    // The monitor, and the domain that carries packets, which ends with it.
    let all = ["grantwayd", "driver"].map(|program| (program, space.processes(program)));
    ensure!(space.kill("grantwayd")? > 0, "no machine");
    for (program, before) in all {
        await_next(node, program, &before)?;
    }
    await_page(&b, &a, REATTACHED)?;
    let took = began.elapsed();
    cluster.daemon_set("grantway")?;
    Ok(format!("after {} ms", took.as_millis()))
}

/// Waits until a pod reaches another one at all its addresses.
fn await_page(from: &Pod, to: &Pod, deadline: Duration) -> Result<()> {
    let what = format!("{} does not reach {}", from.name, to.name);
    wait(&what, deadline, || reach(from, to).map(|()| true))
}

/// Fetches the page of a pod from each of its addresses.
fn reach(from: &Pod, to: &Pod) -> Result<()> {
    let mut ips = to.ips.iter();
    ips.try_for_each(|ip| expect_page(&from.netns, *ip, 80, &to.name))
}

fn drained(cluster: &mut Cluster) -> Result<String> {
    let space = cluster.node("n2")?.space()?;
    let [leases, guests] =
        ["/var/lib/cni/networks/grantway", "/run/grantway/cni/pods"].map(|path| space.path(path));
    let left = || -> Result<[usize; 2]> {
        let leases = names(&leases)?.into_iter();
        let leases = leases.filter(|name| name.parse::<IpAddr>().is_ok());
        Ok([leases.count(), names(&guests)?.len()])
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
        "--timeout=120s",
    ];
    cluster.said(&drain)?;
    wait(
        "the node keeps guests or addresses",
        RESTART_DEADLINE,
        || Ok(left()? == [0, 0]),
    )?;
    cluster.said(&["uncordon", "n2"])?;
    cluster.put("pods", &pods::server("default", "b", "n2"))?;
    let [a, b] = ends(cluster)?;
    await_page(&a, &b, RESTART_DEADLINE)?;
    Ok(String::new())
}

fn rebooted(cluster: &mut Cluster) -> Result<String> {
    let began = Instant::now();
    let node = &mut cluster.nodes[1];
    node.power_off(&cluster.paths, &cluster.plane)?;
    node.boot(&cluster.paths, &cluster.plane)?;
    // The pods' addresses change when they start again.
    wait("the pod is not reached again", REBOOT_DEADLINE, || {
        let pods = cluster.ready_pods("default", &["a", "b"])?;
        let [a, b] = &pods[..] else { return Ok(false) };
        reach(a, b).map(|()| true)
    })?;
    let took = began.elapsed();
    cluster.daemon_set("grantway")?;
    Ok(format!("after {:.1} s", took.as_secs_f64()))
}
