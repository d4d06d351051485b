//! Checks of network policies in the whole cluster.

use super::own_node;
use super::policy::{EFFECT_TIMEOUT, effect_delay, path, put, set};
use super::results::Results;
use super::service_egress;
use super::table::Table;
use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::node::Node;
use crate::kubernetes::waiting::{READY_TIMEOUT, wait};
use crate::workspace;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// Number of changes whose delay is measured.
const CHANGES: usize = 10;
/// Number of other policies in force during the changes.
const POLICIES: u16 = 50;
/// Bound of a delay: ten times the documented second, because the system may be busy.
const DELAY_MAX: Duration = Duration::from_secs(10);

pub(super) fn run(results: &mut Results) -> Result<()> {
    let mut made = None;
    results.check("nine pods in three namespaces are ready", |cluster| {
        let table = Table::new(cluster)?;
        let text = format!("{} connections", table.len());
        made = Some(table);
        Ok(text)
    });
    let Some(table) = made else { return Ok(()) };
    results.check("without a policy every connection is made", |_| {
        await_connections(&table, &[])?;
        Ok(String::new())
    });
    results.check(
        "each policy's truth table is the documented one",
        |cluster| check_truth_tables(cluster, &table),
    );
    results.check("an isolated pod is reached by its node only", |cluster| {
        own_node::probes(cluster, &table)
    });
    results.check("ports of nodes, and an isolated pod", own_node::ports);
    results.check("egress to a Service by its addresses", |cluster| {
        service_egress::check(cluster, &table)
    });
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

/// Measures the delay of a policy that opens a pod, which many other policies isolate.
fn delays(cluster: &Cluster, table: &Table) -> Result<String> {
    let allowing = |port: u16| {
        let mut policy = isolating(table);
        policy["spec"]["ingress"] = json!([{ "ports": [{ "port": port }] }]);
        policy
    };
    let others: Vec<Value> = (1000..).take(POLICIES.into()).map(allowing).collect();
    set(cluster, &[], &others)?;
    let (from, ip) = (&table.pods[4].netns, table.pods[0].ip());
    effect_delay(from, ip, false)?;
    let policy = allowing(80);
    let mut all = Vec::new();
    for _ in 0..CHANGES {
        put(cluster, "opens", &policy)?;
        all.push(effect_delay(from, ip, true)?);
        cluster.api.delete(&format!("{}/opens", path(&policy)))?;
        all.push(effect_delay(from, ip, false)?);
    }
    set(cluster, &others[..1], &[])?;
    effect_delay(from, ip, true)?;
    all.sort();
    let last = all[all.len() - 1];
    ensure!(last <= DELAY_MAX, "the longest delay is {last:?}");
    let median = all[all.len() / 2].as_millis();
    Ok(format!(
        "{} changes: median {median} ms, longest {}",
        all.len(),
        last.as_millis()
    ))
}

/// Kills the agents; without them, rules stay, and a new agent applies what has changed meanwhile.
fn check_agent_kill(cluster: &mut Cluster, table: &Table) -> Result<String> {
    let policies = [isolating(table)];
    set(cluster, &[], &policies)?;
    await_connections(table, &policies)?;
    // Without the DaemonSet, the kubelets start no other agents.
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
