//! Checks of network policies in the whole cluster.

use super::results::Results;
use super::table::Table;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::node::Node;
use crate::kubernetes::space::Netns;
use crate::kubernetes::traffic::connects;
use crate::kubernetes::waiting::{READY_TIMEOUT, RemainingTime, wait};
use crate::workspace;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Deadline for a policy's effect.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of consecutive failures that proves that connections are blocked. A single connection may
/// only be slow.
const FAILURES_MIN: usize = 3;
/// Number of policy changes whose delay is measured.
const CHANGES: usize = 10;

pub(super) fn run(results: &mut Results) -> Result<()> {
    let mut made = None;
    results.check("nine pods in three namespaces are ready", |cluster| {
        let table = Table::new(cluster)?;
        let text = format!("{} connections", table.len());
        made = Some(table);
        Ok(text)
    });
    let Some(table) = made else { return Ok(()) };
    results.check("without a policy every connection succeeds", |_| {
        await_connections(&table, &[])?;
        Ok(String::new())
    });
    results.check(
        "each policy's truth table is the documented one",
        |cluster| check_truth_tables(cluster, &table),
    );
    results.check(
        "delay from the API server's answer to the effect",
        |cluster| delays(cluster, &table),
    );
    results.check("rules stay in force while the agent is dead", |cluster| {
        check_agent_kill(cluster, &table)
    });
    Ok(())
}

/// Waits until exactly the connections succeed that `policies` allow.
fn await_connections(table: &Table, policies: &[Value]) -> Result<()> {
    let allowed = table.allowed(policies);
    let mut wrong = Vec::new();
    let done = wait("connections differ", EFFECT_TIMEOUT, || {
        let connected = table.connected()?;
        let differ = connected.symmetric_difference(&allowed);
        wrong = differ.take(5).map(|which| table.describe(*which)).collect();
        Ok(wrong.is_empty())
    });
    done.with_context(|| wrong.join(", "))
}

/// Replaces the policies of the cluster by `policies`, each with `namespace` and `spec`.
fn set(cluster: &Cluster, before: &[Value], policies: &[Value]) -> Result<()> {
    let path = |policy: &Value| {
        let namespace = policy["namespace"].as_str().unwrap_or_default();
        format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")
    };
    for policy in before {
        cluster.api.delete(&path(policy))?;
    }
    for (number, policy) in policies.iter().enumerate() {
        let name = format!("p{number}");
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": name, "namespace": policy["namespace"] },
            "spec": policy["spec"],
        });
        cluster
            .api
            .apply(&format!("{}/{name}", path(policy)), &object)?;
    }
    Ok(())
}

fn check_truth_tables(cluster: &Cluster, table: &Table) -> Result<String> {
    let path = workspace::root().join("xtask/kubernetes/policies.json");
    let text = table.with_addresses(&fs::read_to_string(&path)?);
    let cases: Vec<Value> = serde_json::from_str(&text).context("policies.json")?;
    let mut before: &[Value] = &[];
    let mut wrong = Vec::new();
    for case in &cases {
        let policies = case["policies"].as_array().context("policies.json")?;
        set(cluster, before, policies)?;
        before = policies;
        if let Err(error) = await_connections(table, policies) {
            wrong.push(format!("{}: {error:#}", case["name"]));
        }
    }
    set(cluster, before, &[])?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n      "));
    await_connections(table, &[])?;
    Ok(format!(
        "{} policies, {} connections each",
        cases.len(),
        table.len()
    ))
}

/// Returns a policy that isolates the first pod.
fn isolating(table: &Table) -> Value {
    let pod = &table.pods[0];
    let selector = json!({ "matchLabels": { "pod": pod.name } });
    json!({ "namespace": pod.namespace, "spec": { "podSelector": selector } })
}

/// Returns the time until connections to `ip` succeed, or until they fail.
fn effect_delay(from: &Netns, ip: IpAddr, is_made: bool) -> Result<Duration> {
    from.run(|| first_effect(is_made, || connects(ip, 80, Duration::from_millis(30))))
}

/// Returns the time until the first of the consecutive connections that prove the effect.
fn first_effect(is_made: bool, mut connects: impl FnMut() -> bool) -> Result<Duration> {
    let began = Instant::now();
    let wanted = if is_made { 1 } else { FAILURES_MIN };
    let (mut row, mut first) = (0, Duration::ZERO);
    let mut left = RemainingTime::new(EFFECT_TIMEOUT);
    while row < wanted {
        ensure!(
            !left.has_expired(),
            "no effect within {} s",
            EFFECT_TIMEOUT.as_secs()
        );
        if connects() != is_made {
            row = 0;
            continue;
        }
        if row == 0 {
            first = began.elapsed();
        }
        row += 1;
    }
    Ok(first)
}

fn delays(cluster: &Cluster, table: &Table) -> Result<String> {
    let policies = [isolating(table)];
    let (from, ip) = (&table.pods[4].netns, table.pods[0].ip());
    let mut all = Vec::new();
    for _ in 0..CHANGES {
        set(cluster, &[], &policies)?;
        all.push(effect_delay(from, ip, false)?);
        set(cluster, &policies, &[])?;
        all.push(effect_delay(from, ip, true)?);
    }
    all.sort();
    let ms = |at: usize| all[at].as_millis();
    let last = all.len() - 1;
    Ok(format!(
        "{} changes, ms: median {}, longest {}",
        all.len(),
        ms(last / 2),
        ms(last)
    ))
}

/// Kills the agents. Their rules must stay in force, and new agents must apply the changes made
/// meanwhile.
fn check_agent_kill(cluster: &mut Cluster, table: &Table) -> Result<String> {
    let policies = [isolating(table)];
    set(cluster, &[], &policies)?;
    await_connections(table, &policies)?;
    // Without the DaemonSet, the kubelets do not restart the agents.
    let sets = "/apis/apps/v1/namespaces/kube-system/daemonsets/grantway-policies";
    cluster.api.delete(sets)?;
    for node in &cluster.nodes {
        node.space()?.kill("agent")?;
    }
    let all_dead = || {
        let mut spaces = cluster.nodes.iter().map(Node::space);
        spaces.all(|space| space.is_ok_and(|space| space.processes("agent").is_empty()))
    };
    wait("agents still run", READY_TIMEOUT, || Ok(all_dead()))?;
    set(cluster, &policies, &[])?;
    await_connections(table, &policies).context("the rules did not stay")?;
    ensure!(all_dead(), "an agent was started");
    let contrib = workspace::root().join("contrib/kubernetes");
    cluster.apply(&fs::read_to_string(contrib.join("policies.yaml"))?)?;
    cluster.daemon_set("grantway-policies")?;
    await_connections(table, &[])?;
    Ok("a new agent applies the change".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_failure_proves_no_effect() {
        let pause = Duration::from_millis(20);
        let mut made = [true, false, true, false, false, false].into_iter();
        let began = Instant::now();
        let first = first_effect(false, || {
            std::thread::sleep(pause);
            made.next().expect("three failures in a row are enough")
        });
        assert_eq!(made.next(), None);
        let first = first.unwrap();
        assert!(first >= pause * 4 && first + pause * 2 <= began.elapsed());
        first_effect(true, || true).unwrap();
    }
}
