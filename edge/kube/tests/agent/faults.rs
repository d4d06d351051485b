//! Servers that fail during an answer, or that are not API servers.

use crate::api::{Api, Fault, NODES, PODS, POLICIES};
use crate::node::{Node, pod, policy, write_token};
use crate::{cluster, isolated, one_peer, ready};
use serde_json::json;

/// Events that the server has compacted are not missed.
#[test]
fn an_expired_version_causes_a_new_list() {
    let api = cluster(true);
    let node = ready(&api);
    api.while_stopped(|| {
        api.remove(POLICIES, "shop/db");
        api.compact();
    });
    node.await_rules("g1", &json!([]));
}

/// The server may also refuse the watch, or the list.
#[test]
fn a_gone_response_causes_a_new_list() {
    let api = cluster(true);
    let node = ready(&api);
    let gone = json!({ "kind": "Status", "code": 410, "reason": "Expired" }).to_string();
    let length = gone.len();
    let answer = format!("HTTP/1.1 410 Gone\r\nContent-Length: {length}\r\n\r\n{gone}");
    let lists = api.requests("list /apis");
    api.set_fault(Fault::Raw(answer.into()));
    api.cut();
    node.wait("new list", || api.requests("list /apis") > lists);
    api.remove(POLICIES, "shop/db");
    api.compact();
    api.set_fault(Fault::None);
    node.await_rules("g1", &json!([]));
}

/// The next watch delivers an event that was truncated, without a new list.
#[test]
fn half_of_an_event_is_received_again() {
    let api = cluster(false);
    let node = ready(&api);
    let lists = api.requests("list /apis");
    let watches = api.requests("watch /apis");
    api.set_fault(Fault::HalfEvents);
    api.put(POLICIES, policy("db", "db", &json!([{}])));
    node.wait("second watch", || api.requests("watch /apis") > watches + 1);
    assert_eq!(node.rules("g1"), isolated());
    api.set_fault(Fault::None);
    node.await_rules("g1", &json!([]));
    assert_eq!(api.requests("list /apis"), lists);
}

#[test]
fn junk_is_reported_and_changes_nothing() {
    let api = cluster(false);
    let node = ready(&api);
    let object = |kind: &str, object: serde_json::Value| {
        json!({ "type": kind, "object": object }).to_string()
    };
    for (line, expected) in [
        ("junk".to_owned(), "an event: "),
        ("{}".to_owned(), "an event: "),
        ("\u{1b}[2J".to_owned(), "an event: "),
        (object("ODD", json!({})), "an event of the type `ODD`"),
        (object("ADDED", json!({})), "`metadata` is not understood"),
        (
            object("DELETED", json!({ "metadata": {} })),
            "it has no name",
        ),
        (object("BOOKMARK", json!({})), "an event has no version"),
        (
            object("ERROR", json!({ "message": "etcd is ill" })),
            "etcd is ill",
        ),
    ] {
        api.set_fault(Fault::Line(line));
        api.cut();
        node.await_message(expected);
    }
    for (bytes, expected) in [
        (&b"SSH-2.0-OpenSSH\r\n\r\n"[..], "does not answer in HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            "an answer: ",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
            "ended within an answer",
        ),
        (
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 24\r\n\r\n{\"message\": \"not allowed\"}",
            "answers 403: ",
        ),
        (&[0xff; 5000], "trying again"),
    ] {
        api.set_fault(Fault::Raw(bytes.to_vec()));
        api.cut();
        node.await_message(expected);
    }
    assert_eq!(node.rules("g1"), isolated());
    api.set_fault(Fault::None);
    api.put(POLICIES, policy("db", "db", &json!([{}])));
    node.await_rules("g1", &json!([]));
}

/// Unknown parts of objects allow nothing, and the other parts take effect.
#[test]
fn strange_objects_do_not_stop_the_agent() {
    let api = cluster(true);
    let mut node = Node::new();
    write_token(&node, "first");
    let mut strange = pod("odd", "db", "10.244.1.6");
    strange["spec"] = json!(7);
    api.put(PODS, strange.clone());
    api.put(
        NODES,
        json!({ "metadata": { "name": "node-2" }, "status": [] }),
    );
    node.attach("g1", "shop", "db-0", "uid-of-db-0");
    node.attach("g2", "shop", "odd", "uid-of-odd");
    node.start_agent(&api);
    node.await_rules("g1", &isolated());
    node.await_message("Pod shop/odd is not understood");
    let mut odd = policy("db", "db", &json!([]));
    odd["spec"]["ingress"] = json!([{ "from": [{ "podSelector": {}, "vlan": 7 }] }]);
    api.put(POLICIES, odd);
    node.await_message("NetworkPolicy shop/db: ingress rule 1: peer 1 is not understood");
    api.put(PODS, strange);
    let from = json!([{ "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }] }]);
    api.put(POLICIES, policy("db", "db", &from));
    api.put(PODS, pod("web-0", "web", "10.244.2.7"));
    node.await_rules("g1", &one_peer());
    assert_eq!(node.rules("g2"), json!("closed"));
}

#[test]
fn a_slow_server_is_awaited() {
    let api = cluster(true);
    api.set_fault(Fault::Slow);
    let node = ready(&api);
    api.put(POLICIES, policy("db", "db", &json!([{}])));
    node.await_rules("g1", &json!([]));
}

#[test]
fn other_servers_are_not_trusted() {
    let api = cluster(true);
    let other = Api::new(true);
    let mut node = Node::new();
    write_token(&node, "first");
    node.attach("g1", "shop", "db-0", "uid-of-db-0");
    std::fs::write(node.file("other"), &other.certificate).unwrap();
    let file = |name: &str| node.file(name).display().to_string();
    let args = [
        "--server".to_owned(),
        api.url(),
        "--ca-file".to_owned(),
        file("other"),
        "--token-file".to_owned(),
        file("token"),
    ];
    node.start_agent_with(&args);
    node.await_message("invalid peer certificate");
    assert_eq!(api.requests(""), 0);
    assert_eq!(node.rules("g1"), json!("closed"));
}

/// A server that answers nothing does not delay new pods whose policies are known.
#[test]
fn a_silent_server_delays_no_known_pod() {
    let api = cluster(true);
    let node = ready(&api);
    api.set_fault(Fault::Silent);
    api.cut();
    node.attach("g2", "shop", "db-0", "uid-of-db-0");
    node.await_rules("g2", &isolated());
}
