//! Compares compiled policies with an evaluator that follows the documentation of the API, for
//! every pair of nine pods in three namespaces.

mod cases;
mod oracle;

use super::*;
use crate::object;
use crate::rule::RULES_MAX;
use abi::machine::ConfigValue;
use config::live::{self, LiveConfig};
use config::rule::{FirewallRule, RuleDirection as FirewallDirection, RuleState};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const PODS: [&str; 3] = ["a", "b", "c"];
/// Protocols and ports that are tried. 9 is in no policy.
const PROBES: [(&str, u16); 9] = [
    ("TCP", 80),
    ("TCP", 81),
    ("TCP", 82),
    ("TCP", 8080),
    ("TCP", 9),
    ("UDP", 80),
    ("UDP", 81),
    ("SCTP", 80),
    ("SCTP", 9),
];

fn namespace(name: &str) -> Value {
    let team = if name == "z" { "ops" } else { "dev" };
    json!({ "metadata": { "name": name, "labels": {
        "ns": name, "team": team, "kubernetes.io/metadata.name": name } } })
}

/// Returns both addresses of a pod.
fn addresses(namespace: &str, name: &str) -> [IpAddr; 2] {
    let n = NAMESPACES.iter().position(|one| *one == namespace).unwrap() + 1;
    let p = PODS.iter().position(|one| *one == name).unwrap() + 1;
    [format!("10.244.{n}.{p}"), format!("fd00:{n}::{p}")].map(|text| text.parse().unwrap())
}

fn pod(namespace: &str, name: &str) -> Value {
    let [v4, v6] = addresses(namespace, name).map(|one| one.to_string());
    // The same name means different ports in different pods.
    let web = if name == "b" { 8080 } else { 80 };
    json!({
        "metadata": { "namespace": namespace, "name": name,
            "labels": { "pod": name, "tier": if name == "c" { "db" } else { "front" } } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "main", "ports": [
            { "name": "web", "containerPort": web },
            { "name": "dns", "containerPort": 81, "protocol": "UDP" },
            { "containerPort": 82 },
        ]}]},
        "status": { "phase": "Running", "podIP": v4, "podIPs": [{ "ip": v4 }, { "ip": v6 }] },
    })
}

fn node() -> Value {
    json!({
        "metadata": { "name": "node-1" },
        "spec": { "podCIDRs": ["10.244.0.0/16", "fd00:0:0:ff00::/56"] },
        "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] },
    })
}

/// Adds an object.
fn put(cluster: &mut Cluster, kind: Kind, object: &Value) {
    let (name, object) = object::decoded(kind, object).unwrap();
    cluster.put(name, object);
}

/// Returns the cluster with these policies.
fn cluster(policies: &[Value]) -> Cluster {
    let mut cluster = Cluster::default();
    put(&mut cluster, Kind::Nodes, &node());
    for of in NAMESPACES {
        put(&mut cluster, Kind::Namespaces, &namespace(of));
        for name in PODS {
            put(&mut cluster, Kind::Pods, &pod(of, name));
        }
    }
    for policy in policies {
        put(&mut cluster, Kind::Policies, policy);
    }
    cluster
}

/// Returns the rules as the driver domain gets them, which also checks their form.
fn as_configured(rules: &PodRules) -> Vec<FirewallRule> {
    let file = config::ConfigFile {
        name: "f".to_owned(),
        text: "[driver]\n".to_owned(),
    };
    let parsed = config::parse("f", &file.text).unwrap();
    let machine = live::machine(&parsed, &[file]).unwrap();
    let live = machine.live.unwrap().into();
    let mut vif = rules.section();
    let ConfigValue::Section(keys) = &mut vif else {
        panic!("{vif:?}")
    };
    keys.insert("endpoint".to_owned(), ConfigValue::Text("echo".to_owned()));
    let guest = ConfigValue::Section(BTreeMap::from([
        ("name".to_owned(), ConfigValue::Text("pod".to_owned())),
        ("vif".to_owned(), ConfigValue::List(vec![vif])),
    ]));
    let added = LiveConfig::of(&live).unwrap().add(&guest).unwrap();
    added.vifs[0].settings.rules.clone()
}

/// Returns whether rules let the first packet of a flow pass: the first one that matches decides.
fn passes(
    rules: &[FirewallRule],
    direction: FirewallDirection,
    (from, to): (IpAddr, IpAddr),
    (protocol, port): (&str, u16),
) -> bool {
    let number = match protocol {
        "TCP" => 6,
        "UDP" => 17,
        _ => 132,
    };
    let covers = |prefix: config::Cidr, address: IpAddr| {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let differ = bits(prefix.address) ^ bits(address);
        let is_equal = prefix.prefix == 0 || differ >> (128 - u32::from(prefix.prefix)) == 0;
        prefix.address.is_ipv4() == address.is_ipv4() && is_equal
    };
    let decides = |rule: &&FirewallRule| {
        rule.applies_to(direction)
            && rule.state.is_none_or(|state| state == RuleState::New)
            && rule.protocol.is_none_or(|own| own.0 == number)
            && rule.source.is_none_or(|own| covers(own, from))
            && rule.destination.is_none_or(|own| covers(own, to))
            && rule.source_ports.is_none()
            && rule
                .destination_ports
                .as_ref()
                .is_none_or(|own| own.0.contains(&port))
    };
    rules.iter().find(decides).is_none_or(|rule| rule.allow)
}

/// Returns the pods' objects, names, and addresses.
fn all_pods() -> Vec<(Value, Value, ObjectName)> {
    let of = |namespace_name: &&'static str| {
        let namespace_name = *namespace_name;
        PODS.map(|name| {
            let object = ObjectName {
                namespace: namespace_name.to_owned(),
                name: name.to_owned(),
            };
            (pod(namespace_name, name), namespace(namespace_name), object)
        })
    };
    NAMESPACES.iter().flat_map(of).collect()
}

/// Compares all pairs of pods; returns how many probes pass.
fn compare(name: &str, policies: &[Value]) -> usize {
    let cluster = cluster(policies);
    let compiled = Policies::of(&cluster);
    let is_unknown = |(_, note): &&(_, String)| note != SERVICES;
    assert_eq!(compiled.notes.iter().find(is_unknown), None, "{name}");
    let node = &cluster.nodes["node-1"];
    let rules: BTreeMap<&ObjectName, Vec<FirewallRule>> = cluster
        .pods
        .iter()
        .map(|(name, pod)| {
            let rules = compiled.rules_of(name, pod, node);
            assert_eq!(rules.left_out, 0);
            (name, as_configured(&rules))
        })
        .collect();
    let pods = all_pods();
    let mut allowed = 0;
    for (from, from_namespace, from_name) in &pods {
        for (to, to_namespace, to_name) in &pods {
            // A pod reaches itself inside its own namespace: no rule sees these packets.
            if from_name == to_name {
                continue;
            }
            let ends = |n: usize| {
                [
                    (from_name, from, from_namespace),
                    (to_name, to, to_namespace),
                ]
                .map(|(name, pod, namespace)| oracle::End {
                    pod,
                    namespace,
                    address: addresses(&name.namespace, &name.name)[n],
                })
            };
            for (family, probe) in (0..2).flat_map(|n| PROBES.map(|probe| (n, probe))) {
                let [from, to] = ends(family);
                let expected = oracle::allows(policies, &from, &to, probe);
                let flow = (from.address, to.address);
                let is_sent = passes(&rules[from_name], FirewallDirection::In, flow, probe);
                let got = is_sent && passes(&rules[to_name], FirewallDirection::Out, flow, probe);
                assert_eq!(
                    got, expected,
                    "{name}: {from_name} to {to_name} ({family}), {probe:?}"
                );
                allowed += usize::from(got);
            }
        }
    }
    allowed
}

#[test]
fn every_pair_of_pods_gets_the_documented_verdict() {
    let cases = cases::all();
    assert!(cases.len() >= 30, "{}", cases.len());
    let mut counts = BTreeSet::new();
    for (name, policies) in &cases {
        counts.insert(compare(name, policies));
    }
    let all = 9 * 8 * PROBES.len() * 2;
    assert!(counts.contains(&0) && counts.contains(&all), "{counts:?}");
    assert!(counts.len() > 15, "cases differ: {counts:?}");
}

/// Compares the rules of pairs of cases, whose policies add up.
#[test]
fn rules_of_two_policies_are_their_union() {
    let cases = cases::all();
    let pairs = cases.iter().zip(cases.iter().skip(7).chain(&cases));
    for ((first, one), (second, other)) in pairs {
        let renamed = other.iter().cloned().map(|mut policy| {
            let name = policy["metadata"]["name"].as_str().unwrap().to_owned();
            policy["metadata"]["name"] = format!("{name}-too").into();
            policy
        });
        let both: Vec<Value> = one.iter().cloned().chain(renamed).collect();
        compare(&format!("{first} and {second}"), &both);
    }
}

#[test]
fn a_pod_and_its_node_always_reach_each_other() {
    let closed = cases::deny_all("x");
    let cluster = cluster(&[closed]);
    let compiled = Policies::of(&cluster);
    let node = &cluster.nodes["node-1"];
    let (name, pod) = cluster.pods.iter().next().unwrap();
    let rules = as_configured(&compiled.rules_of(name, pod, node));
    let probe = ("TCP", 10_250);
    for (other, expected) in [
        ("192.0.2.1", true),
        ("192.0.2.2", false),
        ("10.244.0.0", false),
        ("10.244.0.1", true),
        ("10.244.0.2", false),
        ("fd00:0:0:ff00::", false),
        ("fd00:0:0:ff00::1", true),
        ("fd00:0:0:ff00::2", false),
    ] {
        let other: IpAddr = other.parse().unwrap();
        let own = pod.addresses[usize::from(other.is_ipv6())];
        let got = passes(&rules, FirewallDirection::Out, (other, own), probe);
        assert_eq!(got, expected, "{other}");
        let got = passes(&rules, FirewallDirection::In, (own, other), probe);
        assert_eq!(got, expected, "{other}");
    }
}

#[test]
fn pods_without_policies_have_no_rules() {
    let cluster = cluster(&[cases::deny_all("x")]);
    let compiled = Policies::of(&cluster);
    let node = &cluster.nodes["node-1"];
    for (name, pod) in &cluster.pods {
        let rules = compiled.rules_of(name, pod, node);
        assert_eq!(rules.isolate(), name.namespace == "x", "{name}");
    }
}

#[test]
fn egress_to_selected_pods_only_has_a_note() {
    let pods = json!({ "podSelector": { "matchLabels": { "pod": "a" } } });
    let block = json!({ "ipBlock": { "cidr": "10.96.0.10/32" } });
    for (to, is_noted) in [
        (json!([pods]), true),
        (json!([pods, block]), false),
        (json!([block]), false),
        (json!([]), false),
    ] {
        let policy = json!({
            "metadata": { "namespace": "x", "name": "out" },
            "spec": { "podSelector": {}, "egress": [{ "to": to }], "policyTypes": ["Egress"] },
        });
        let cluster = cluster(&[policy]);
        let notes = Policies::of(&cluster).notes.into_iter();
        let notes: Vec<String> = notes.map(|(_, note)| note).collect();
        assert_eq!(notes.contains(&SERVICES.to_owned()), is_noted, "{to}");
        assert_eq!(notes.len(), usize::from(is_noted), "{notes:?}");
    }
}

/// Returns a policy that allows single addresses with a gap between them.
fn of_blocks(count: usize) -> Value {
    let peers = (0..count).map(|n| {
        let [a, b] = [n >> 7, 2 * (n & 127)];
        json!({ "ipBlock": { "cidr": format!("172.16.{a}.{b}/32") } })
    });
    json!({
        "metadata": { "namespace": "x", "name": "many" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": peers.collect::<Vec<_>>(), "ports": [{ "port": 80 }] }] },
    })
}

/// The bound is fail-closed: traffic of rules that do not fit is denied, and they are counted.
#[test]
fn rules_beyond_the_limit_are_denied() {
    let outside: IpAddr = "172.16.0.0".parse().unwrap();
    let last: IpAddr = "172.16.77.254".parse().unwrap();
    for (count, left_out) in [(200, 0), (248, 0), (249, 1), (10_000, 9752)] {
        let cluster = cluster(&[of_blocks(count)]);
        let compiled = Policies::of(&cluster);
        let (name, pod) = cluster.pods.iter().next().unwrap();
        let rules = compiled.rules_of(name, pod, &cluster.nodes["node-1"]);
        assert_eq!(rules.left_out, left_out, "{count}");
        let rules = as_configured(&rules);
        assert!(rules.len() <= RULES_MAX);
        let own = pod.addresses[0];
        let passes = |from| passes(&rules, FirewallDirection::Out, (from, own), ("TCP", 80));
        assert!(passes(outside));
        assert!(!passes(last));
    }
    let mut cluster = cluster(&[]);
    let except: Vec<String> = (0..4000)
        .map(|n| format!("10.{}.{}.1/32", n >> 7, n & 127))
        .collect();
    put(
        &mut cluster,
        Kind::Policies,
        &json!({
            "metadata": { "namespace": "x", "name": "holes" },
            "spec": { "podSelector": {}, "ingress": [{ "from": [
                { "ipBlock": { "cidr": "0.0.0.0/0", "except": except } }] }] },
        }),
    );
    let compiled = Policies::of(&cluster);
    assert!(
        compiled.notes[0].1.contains("16384 prefixes"),
        "{:?}",
        compiled.notes
    );
}

#[test]
fn policy_with_unknown_parts_closes_its_namespace() {
    let policy = json!({ "metadata": { "namespace": "x", "name": "odd" }, "spec": { "tier": 1 } });
    let cluster = cluster(&[policy]);
    let compiled = Policies::of(&cluster);
    assert_eq!(compiled.notes.len(), 1);
    let (name, pod) = cluster.pods.iter().next().unwrap();
    let rules = as_configured(&compiled.rules_of(name, pod, &cluster.nodes["node-1"]));
    let flow = (pod.addresses[0], addresses("x", "b")[0]);
    for direction in [FirewallDirection::In, FirewallDirection::Out] {
        assert!(!passes(&rules, direction, flow, ("TCP", 80)));
    }
}

#[test]
fn limit_of_rules_is_that_of_a_machine() {
    assert_eq!(RULES_MAX, config::rule::RULES_MAX);
}

/// Returns JSON with the API's keys in wrong places.
fn junk() -> impl Strategy<Value = Value> {
    const KEYS: [&str; 20] = [
        "metadata",
        "name",
        "namespace",
        "labels",
        "spec",
        "podSelector",
        "namespaceSelector",
        "matchLabels",
        "matchExpressions",
        "policyTypes",
        "ingress",
        "egress",
        "from",
        "to",
        "ports",
        "port",
        "endPort",
        "ipBlock",
        "cidr",
        "except",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop::sample::select(vec![
            "x",
            "a",
            "TCP",
            "web",
            "10.244.0.0/16",
            "::/0",
            "Ingress",
            "In"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        let key = prop::sample::select(KEYS.to_vec());
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6).prop_map(|pairs| {
                pairs
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect()
            }),
        ]
    })
}

proptest! {
    /// Arbitrary objects are decoded, and the machine accepts the resulting rules.
    #[test]
    fn junk_is_decoded(
        spec in junk(),
        ingress in prop::collection::vec(junk(), 0..3),
        other in junk(),
    ) {
        let metadata = json!({ "namespace": "x", "name": "p" });
        let policies = [
            json!({ "metadata": metadata, "spec": spec }),
            json!({ "metadata": { "namespace": "y", "name": "p" },
                "spec": { "podSelector": {}, "ingress": ingress } }),
        ];
        let mut cluster = cluster(&policies);
        for kind in Kind::ALL {
            let metadata = match kind {
                Kind::Nodes | Kind::Namespaces => json!({ "name": "p" }),
                Kind::Pods | Kind::Policies => metadata.clone(),
            };
            let object = json!({ "metadata": metadata, "spec": other, "status": other });
            for object in [&other, &object] {
                if let Ok((name, object)) = object::decoded(kind, object) {
                    cluster.put(name, object);
                }
            }
        }
        let compiled = Policies::of(&cluster);
        for (name, pod) in &cluster.pods {
            as_configured(&compiled.rules_of(name, pod, &cluster.nodes["node-1"]));
        }
    }
}
