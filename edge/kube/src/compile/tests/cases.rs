//! Policies of the truth table.

use serde_json::{Value, json};

fn policy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({ "metadata": { "namespace": namespace, "name": name }, "spec": spec })
}

/// Returns a policy that isolates all pods of a namespace.
pub(super) fn deny_all(namespace: &str) -> Value {
    let types = ["Ingress", "Egress"];
    policy(
        namespace,
        "deny-all",
        json!({ "podSelector": {}, "policyTypes": types }),
    )
}

fn ingress(rules: Value) -> Vec<Value> {
    of_a(
        "x",
        "in",
        json!({ "ingress": rules, "policyTypes": ["Ingress"] }),
    )
}

fn egress(rules: Value) -> Vec<Value> {
    of_a(
        "x",
        "out",
        json!({ "egress": rules, "policyTypes": ["Egress"] }),
    )
}

/// Returns a policy for the pod `a` of a namespace.
fn of_a(namespace: &str, name: &str, mut spec: Value) -> Vec<Value> {
    spec["podSelector"] = json!({ "matchLabels": { "pod": "a" } });
    vec![policy(namespace, name, spec)]
}

fn labels(key: &str, value: &str) -> Value {
    json!({ "matchLabels": { key: value } })
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] })
}

/// Returns the policies of each case.
pub(super) fn all() -> Vec<(&'static str, Vec<Value>)> {
    let all = |types: &[&str]| {
        let of = |namespace| {
            policy(
                namespace,
                "p",
                json!({ "podSelector": {}, "policyTypes": types }),
            )
        };
        ["x", "y", "z"].map(of).to_vec()
    };
    let front = labels("tier", "front");
    let mut cases = vec![
        ("no policy", vec![]),
        ("default deny everywhere", all(&["Ingress", "Egress"])),
        ("ingress denied everywhere", all(&["Ingress"])),
        ("egress denied everywhere", all(&["Egress"])),
        ("one namespace isolated", vec![deny_all("x")]),
        (
            "types are Ingress by default",
            vec![policy("x", "p", json!({ "podSelector": {} }))],
        ),
        (
            "an egress rule adds a type",
            vec![policy(
                "x",
                "p",
                json!({
            "podSelector": {}, "egress": [{ "to": [{ "podSelector": {} }] }] }),
            )],
        ),
        (
            "rules of another type are ignored",
            vec![policy(
                "x",
                "p",
                json!({
            "podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}] }),
            )],
        ),
        ("everything allowed", ingress(json!([{}]))),
        (
            "allowed after denied",
            [
                vec![deny_all("x")],
                ingress(json!([{}])),
                egress(json!([{}])),
            ]
            .concat(),
        ),
        (
            "two types with rules",
            of_a(
                "y",
                "both",
                json!({
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": [{ "podSelector": labels("pod", "b") }] }],
            "egress": [{ "to": [{ "podSelector": labels("pod", "c") }] }] }),
            ),
        ),
    ];
    for (name, peers) in [
        ("pods of the same namespace", json!([{ "podSelector": {} }])),
        ("one pod", json!([{ "podSelector": labels("pod", "b") }])),
        (
            "pods by expression",
            json!([{ "podSelector": expression("pod", "In", &["b", "c"]) }]),
        ),
        (
            "pods by negation",
            json!([{ "podSelector": expression("pod", "NotIn", &["b"]) }]),
        ),
        (
            "pods without a label",
            json!([{ "podSelector": expression("x", "DoesNotExist", &[]) }]),
        ),
        (
            "pods with a label",
            json!([{ "podSelector": expression("tier", "Exists", &[]) }]),
        ),
        ("no pod", json!([{ "podSelector": labels("pod", "d") }])),
        ("all namespaces", json!([{ "namespaceSelector": {} }])),
        (
            "one namespace",
            json!([{ "namespaceSelector": labels("ns", "y") }]),
        ),
        (
            "namespaces by expression",
            json!([{ "namespaceSelector": expression("ns", "NotIn", &["x"]) }]),
        ),
        (
            "pods of namespaces",
            json!([{ "namespaceSelector": labels("team", "dev"), "podSelector": front }]),
        ),
        (
            "pods or namespaces",
            json!([{ "namespaceSelector": labels("team", "ops") }, { "podSelector": front }]),
        ),
        (
            "no namespace",
            json!([{ "namespaceSelector": labels("ns", "w") }]),
        ),
        (
            "a block",
            json!([{ "ipBlock": { "cidr": "10.244.2.0/24" } }]),
        ),
        (
            "a block with exceptions",
            json!([{ "ipBlock": {
            "cidr": "10.244.0.0/16", "except": ["10.244.2.0/24", "10.244.3.2/32"] } }]),
        ),
        (
            "a block of IPv6",
            json!([{ "ipBlock": { "cidr": "fd00:2::/32" } }]),
        ),
        (
            "all addresses",
            json!([{ "ipBlock": { "cidr": "0.0.0.0/0" } },
            { "ipBlock": { "cidr": "::/0", "except": ["fd00:3::2/128"] } }]),
        ),
        (
            "an exception of one peer that another allows",
            json!([
            { "ipBlock": { "cidr": "10.244.2.0/24", "except": ["10.244.2.1/32"] } },
            { "namespaceSelector": labels("ns", "y"), "podSelector": labels("pod", "a") }]),
        ),
        ("an empty list of peers", json!([])),
    ] {
        cases.push((name, ingress(json!([{ "from": peers }]))));
        cases.push((name, egress(json!([{ "to": peers }]))));
    }
    for (name, ports) in [
        ("a port", json!([{ "port": 80, "protocol": "TCP" }])),
        ("TCP by default", json!([{ "port": 81 }])),
        (
            "ports of two protocols",
            json!([{ "port": 80, "protocol": "UDP" }, { "port": 80, "protocol": "SCTP" }]),
        ),
        ("all ports of a protocol", json!([{ "protocol": "UDP" }])),
        ("a range", json!([{ "port": 81, "endPort": 8080 }])),
        (
            "a range of one",
            json!([{ "port": 81, "endPort": 81, "protocol": "UDP" }]),
        ),
        ("a named port", json!([{ "port": "web" }])),
        (
            "a named port of UDP",
            json!([{ "port": "dns", "protocol": "UDP" }]),
        ),
        (
            "a name of another protocol",
            json!([{ "port": "dns", "protocol": "TCP" }]),
        ),
        ("an unknown name", json!([{ "port": "no" }])),
        (
            "a port twice",
            json!([{ "port": 80 }, { "port": 80, "endPort": 81 }]),
        ),
    ] {
        let from = json!([{ "namespaceSelector": labels("ns", "y") }]);
        cases.push((name, ingress(json!([{ "ports": ports }]))));
        cases.push((name, egress(json!([{ "ports": ports }]))));
        cases.push((name, ingress(json!([{ "ports": ports, "from": from }]))));
        cases.push((name, egress(json!([{ "ports": ports, "to": from }]))));
    }
    let dev = json!([{ "namespaceSelector": labels("team", "dev") }]);
    cases.push((
        "two rules",
        ingress(json!([
            { "from": dev, "ports": [{ "port": 80 }] },
            { "from": [{ "podSelector": labels("pod", "c") }] },
            { "ports": [{ "port": 81, "protocol": "UDP" }] },
        ])),
    ));
    cases.push((
        "all protocols, and one of them",
        ingress(json!([
            { "from": dev },
            { "ports": [{ "protocol": "TCP" }] },
            { "from": dev, "ports": [{ "port": 9 }] },
        ])),
    ));
    cases
}
