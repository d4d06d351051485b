//! Tests the agent with a fake API server, and a fake or a real machine.

mod api;
mod faults;
mod node;
mod packets;
mod routes;

use api::{Api, NAMESPACES, NODES, PODS, POLICIES};
use node::{Node, add_basics, pod, policy, write_token};
use serde_json::{Value, json};
use std::process::Command;

/// Names of the rules of a pod that only its node reaches.
fn isolated() -> Value {
    json!(["ingress-node-1", "ingress"])
}

/// Names of the rules of a pod that its node and one peer reach.
fn one_peer() -> Value {
    json!(["ingress-node-1", "ingress-2", "ingress"])
}

/// Returns a cluster whose pod `db-0` is isolated.
fn cluster(is_tls: bool) -> Api {
    let api = Api::new(is_tls);
    add_basics(&api);
    api.put(PODS, pod("db-0", "db", "10.244.1.5"));
    api.put(POLICIES, policy("db", "db", &json!([])));
    api
}

/// Returns a node with the pod `db-0`, whose agent has set its rules.
fn ready(api: &Api) -> Node {
    let mut node = Node::new();
    write_token(&node, "first");
    node.attach("g1", "shop", "db-0", "uid-of-db-0");
    node.start_agent(api);
    node.await_rules("g1", &isolated());
    node
}

#[test]
fn rules_follow_every_kind_of_object() {
    for is_tls in [false, true] {
        let api = cluster(is_tls);
        let node = ready(&api);
        let from = json!([{ "from": [{ "namespaceSelector": { "matchLabels": { "team": "shop" } },
            "podSelector": { "matchLabels": { "app": "web" } } }] }]);
        api.put(POLICIES, policy("db", "db", &from));
        api.put(PODS, pod("web-0", "web", "10.244.2.7"));
        node.await_rules("g1", &one_peer());
        // The namespace loses its label, and gets it back.
        api.put(NAMESPACES, json!({ "metadata": { "name": "shop" } }));
        node.await_rules("g1", &isolated());
        api.put(
            NAMESPACES,
            json!({ "metadata": { "name": "shop", "labels": { "team": "shop" } } }),
        );
        node.await_rules("g1", &one_peer());
        api.remove(PODS, "shop/web-0");
        node.await_rules("g1", &isolated());
        // The node gets a second address.
        api.put(
            NODES,
            json!({ "metadata": { "name": "node-1" }, "status": { "addresses": [
                { "type": "InternalIP", "address": "192.0.2.1" },
                { "type": "InternalIP", "address": "fd00::1" }] } }),
        );
        node.await_rules(
            "g1",
            &json!(["ingress-node-1", "ingress-node-2", "ingress"]),
        );
        api.remove(POLICIES, "shop/db");
        node.await_rules("g1", &json!([]));
    }
}

/// A pod stays closed until the pod with its id is known, and is then opened if no policy selects
/// it.
#[test]
fn unknown_pods_stay_closed() {
    let api = cluster(true);
    let node = ready(&api);
    node.attach("g2", "shop", "web-0", "uid-of-web-0");
    node.attach("g3", "shop", "db-0", "another-uid");
    node.attach("g4", "shop", "db-0", "uid-of-db-0");
    node.await_rules("g4", &isolated());
    assert_eq!(node.rules("g2"), json!("closed"));
    assert_eq!(node.rules("g3"), json!("closed"));
    api.put(PODS, pod("web-0", "web", "10.244.1.6"));
    node.await_rules("g2", &json!([]));
    let mut again = pod("db-0", "db", "10.244.1.9");
    again["metadata"]["uid"] = json!("another-uid");
    api.put(PODS, again);
    node.await_rules("g3", &isolated());
}

#[test]
fn rules_stay_while_the_agent_or_the_server_is_down() {
    let api = cluster(true);
    let mut node = ready(&api);
    api.while_stopped(|| {
        node.await_message("trying again");
        assert_eq!(node.rules("g1"), isolated());
        node.kill_agent();
        node.start_agent(&api);
        node.wait("attempt of the new agent", || api.requests("list") > 4);
        let before = node.requests();
        assert_eq!(node.rules("g1"), isolated());
        assert_eq!(node.requests(), before);
    });
    api.put(POLICIES, policy("db", "db", &json!([{}])));
    node.await_rules("g1", &json!([]));
}

/// Another machine may have lost the rules.
#[test]
fn a_new_machine_gets_all_rules_again() {
    let api = cluster(false);
    let node = ready(&api);
    node.attach("g1", "shop", "db-0", "uid-of-db-0");
    node.start_machine();
    node.await_rules("g1", &isolated());
}

#[test]
fn the_token_is_read_again() {
    let api = cluster(true);
    api.set_token("first");
    let node = ready(&api);
    api.set_token("second");
    api.cut();
    node.await_message("answers 401: Unauthorized");
    write_token(&node, "second");
    api.put(POLICIES, policy("db", "db", &json!([{}])));
    node.await_rules("g1", &json!([]));
}

#[test]
fn ten_thousand_policies_are_applied() {
    let api = cluster(true);
    for n in 0..10_000 {
        let from = json!([{ "from": [{ "ipBlock": { "cidr": format!("10.{}.{}.0/24",
            n >> 8, n & 255) } }] }]);
        api.put(POLICIES, policy(&format!("p{n}"), "other", &from));
    }
    let node = ready(&api);
    assert!(api.requests("list /apis") >= 20, "pages");
    api.put(POLICIES, policy("p7", "db", &json!([{}])));
    node.await_rules("g1", &json!([]));
}

#[test]
fn wrong_arguments_are_explained() {
    for (args, expected) in [
        (vec!["agent"], "--node"),
        (
            vec!["agent", "--node", "n"],
            "KUBERNETES_SERVICE_HOST is not set",
        ),
        (
            vec!["agent", "--node", "n", "--server", "api:6443"],
            "`api:6443` is not an address",
        ),
        (
            vec!["agent", "--node", "n", "--server", "https://192.0.2.1"],
            "no file of certificate authorities",
        ),
        (
            vec!["agent", "--node", "n", "--kubeconfig", "/nonexistent"],
            "/nonexistent: No such file",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_grantway-kube"));
        let output = command
            .args(&args)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}
