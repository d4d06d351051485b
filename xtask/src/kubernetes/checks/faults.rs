//! Checks of killed programs, a drained node and a rebooting node.

use super::policy::{effect_delay, put};
use super::results::Results;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::node::{Node, names};
use crate::kubernetes::pods::{self, Pod};
use crate::kubernetes::space::has_ended;
use crate::kubernetes::traffic::{Stream, expect_page};
use crate::kubernetes::waiting::wait;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Deadline for a killed program to run again.
const RESTART_DEADLINE: Duration = Duration::from_secs(60);
/// Deadline for a restarted machine to attach its pods. A rejected guest would be retried only
/// after 20 s.
const REATTACH_DEADLINE: Duration = Duration::from_secs(15);
/// Deadline for the pods of a rebooted node. Its kubelet removes all pods and restarts them.
const REBOOT_DEADLINE: Duration = Duration::from_secs(300);
/// Bytes that the stream transfers before a kill and after the restart: more than sockets buffer.
const STREAM_BYTES: u64 = 16_000_000;
/// Name of the policy for the pods between which the streams run.
const POLICY: &str = "streams";
/// The stream's pause after each block, which limits it to about 30 MB/s.
const STREAM_PAUSE: Duration = Duration::from_millis(2);

pub(super) fn run(results: &mut Results) -> Result<()> {
    results.check("a policy isolates the pods of the streams", |cluster| {
        cluster.put("pods", &pods::server("default", "denied", "n2"))?;
        let denied = cluster.pods("default", &["denied"])?;
        put(cluster, POLICY, &isolating(true))?;
        for pod in end_pods(cluster)? {
            effect_delay(&denied[0].netns, pod.ip(), false)?;
        }
        Ok(String::new())
    });
    for (program, name) in [
        ("driver", "driver domain killed under a stream"),
        ("grantway-manager", "manager killed under a stream"),
        ("grantway-netd", "netd killed under a stream"),
        ("kubelet", "kubelet killed under a stream"),
        ("containerd", "containerd killed under a stream"),
    ] {
        results.check(name, |cluster| check_kill(cluster, program));
    }
    results.check(
        "machine killed: pods are reachable again",
        check_machine_kill,
    );
    results.check("n2 drained: no guest and no address remains", check_drain);
    results.check("n2 reboots: its pods are reachable again", check_reboot);
    Ok(())
}

/// Returns a policy that isolates the pods `a` and `b` in both directions, except from each other
/// if `is_open`.
fn isolating(is_open: bool) -> Value {
    let expression = json!({ "key": "pod", "operator": "In", "values": ["a", "b"] });
    let selector = json!({ "matchExpressions": [expression] });
    let mut spec = json!({ "podSelector": selector, "policyTypes": ["Ingress", "Egress"] });
    if is_open {
        spec["ingress"] = json!([{ "from": [{ "podSelector": selector }] }]);
        spec["egress"] = json!([{ "to": [{ "podSelector": selector }] }]);
    }
    json!({ "namespace": "default", "spec": spec })
}

fn end_pods(cluster: &Cluster) -> Result<[Pod; 2]> {
    let pods = cluster.pods("default", &["a", "b"])?;
    <[Pod; 2]>::try_from(pods).ok().context("two pods")
}

/// Kills a program of n1 while its pod sends to n2. Policies then deny every new flow of both pods,
/// so that the stream continues only if the tables of flows survive.
fn check_kill(cluster: &mut Cluster, program: &str) -> Result<String> {
    let [a, b] = end_pods(cluster)?;
    let ip = b.ip();
    let stream = Stream::start(a.netns, b.netns, ip, u64::MAX, STREAM_PAUSE)?;
    stream.advance(STREAM_BYTES)?;
    put(cluster, POLICY, &isolating(false))?;
    let [a, _] = end_pods(cluster)?;
    effect_delay(&a.netns, ip, false)?;
    let paths = cluster.paths.clone();
    let node = &mut cluster.nodes[0];
    let before = node.space()?.processes(program);
    let began = Instant::now();
    node.space()?.kill(program)?;
    // The next process needs the ports of the killed one, as after a restart by systemd.
    let what = format!("{program} has not exited");
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
    ensure!(
        effect_delay(&a.netns, ip, false).is_ok(),
        "a new flow passes after the kill"
    );
    let megabytes = stream.stop()? / 1_000_000;
    put(cluster, POLICY, &isolating(true))?;
    effect_delay(&a.netns, ip, true)?;
    Ok(format!(
        "{megabytes} MB unchanged, again after {} ms",
        took.as_millis()
    ))
}

/// Waits until a program whose processes were killed runs again.
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

/// Kills the machine. Its pod restarts it, and the new machine reattaches the pods.
fn check_machine_kill(cluster: &mut Cluster) -> Result<String> {
    let [a, b] = end_pods(cluster)?;
    let began = Instant::now();
    let node = &cluster.nodes[0];
    let space = node.space()?;
    // The driver domain exits with the monitor, so both must be replaced.
    let all = ["grantwayd", "driver"].map(|program| (program, space.processes(program)));
    ensure!(space.kill("grantwayd")? > 0, "no machine");
    for (program, before) in all {
        await_next(node, program, &before)?;
    }
    await_page(&b, &a, REATTACH_DEADLINE)?;
    let took = began.elapsed();
    cluster.daemon_set("grantway")?;
    Ok(format!("after {} ms", took.as_millis()))
}

/// Waits until a pod reaches another one at all its addresses.
fn await_page(from: &Pod, to: &Pod, deadline: Duration) -> Result<()> {
    let what = format!("{} does not reach {}", from.name, to.name);
    wait(&what, deadline, || reach(from, to).map(|()| true))
}

/// Fetches a pod's page at each of its addresses.
fn reach(from: &Pod, to: &Pod) -> Result<()> {
    let mut ips = to.ips.iter();
    ips.try_for_each(|ip| expect_page(&from.netns, *ip, 80, &to.name))
}

fn check_drain(cluster: &mut Cluster) -> Result<String> {
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
    cluster.kubectl_output(&drain)?;
    wait(
        "the node keeps guests or addresses",
        RESTART_DEADLINE,
        || Ok(left()? == [0, 0]),
    )?;
    cluster.kubectl_output(&["uncordon", "n2"])?;
    cluster.put("pods", &pods::server("default", "b", "n2"))?;
    let [a, b] = end_pods(cluster)?;
    await_page(&a, &b, RESTART_DEADLINE)?;
    Ok(String::new())
}

fn check_reboot(cluster: &mut Cluster) -> Result<String> {
    let began = Instant::now();
    let node = &mut cluster.nodes[1];
    node.power_off(&cluster.paths, &cluster.plane)?;
    node.boot(&cluster.paths, &cluster.plane)?;
    // The pods' addresses change when they restart.
    wait("the pod is not reachable again", REBOOT_DEADLINE, || {
        let pods = cluster.ready_pods("default", &["a", "b"])?;
        let [a, b] = &pods[..] else { return Ok(false) };
        reach(a, b).map(|()| true)
    })?;
    let took = began.elapsed();
    cluster.daemon_set("grantway")?;
    Ok(format!("after {:.1} s", took.as_secs_f64()))
}
