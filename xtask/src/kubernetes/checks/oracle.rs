//! Evaluates the documented semantics of network policies for a connection between two pods. It
//! uses the objects alone, independently of the agent.

use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Labels of an object.
pub(super) type Labels = BTreeMap<String, String>;

/// A kind of connection: the index of the address family, protocol and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionKind {
    pub(super) family: usize,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// Returns the protocol's name in objects.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// A pod as policies see it.
pub(super) struct Endpoint {
    pub(super) namespace: String,
    pub(super) pod: Labels,
    pub(super) of_namespace: Labels,
    /// The pod's addresses, by family.
    pub(super) ips: Vec<IpAddr>,
    /// The named ports.
    pub(super) ports: BTreeMap<String, (Protocol, u16)>,
}

/// Returns whether the policies, each with `namespace` and `spec`, allow a connection of this kind.
pub(super) fn allows(
    policies: &[Value],
    from: &Endpoint,
    to: &Endpoint,
    way: ConnectionKind,
) -> bool {
    let direction = |pod: &Endpoint, kind: &str, rules: &str, peers: &str, peer: &Endpoint| {
        let selecting = |policy: &&Value| {
            let spec = &policy["spec"];
            policy["namespace"] == pod.namespace.as_str()
                && selects(&spec["podSelector"], &pod.pod)
                && has_type(spec, kind)
        };
        let mut selecting = policies.iter().filter(selecting).peekable();
        // Without a policy the pod is not isolated.
        selecting.peek().is_none()
            || selecting.any(|policy| {
                items(&policy["spec"][rules]).any(|rule| {
                    let ip = peer.ips[way.family];
                    let is_peer = |with: &Value| matches_peer(with, &pod.namespace, peer, ip);
                    let is_port = |with: &Value| matches_port(with, to, way);
                    any_or_absent(&rule[peers], is_peer) && any_or_absent(&rule["ports"], is_port)
                })
            })
    };
    direction(from, "Egress", "egress", "to", to)
        && direction(to, "Ingress", "ingress", "from", from)
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns whether a list matches. An absent or empty list matches everything.
fn any_or_absent(list: &Value, matches: impl FnMut(&Value) -> bool) -> bool {
    items(list).next().is_none() || items(list).any(matches)
}

fn has_type(spec: &Value, kind: &str) -> bool {
    if spec["policyTypes"].is_null() {
        return kind == "Ingress" || spec["egress"].is_array();
    }
    items(&spec["policyTypes"]).any(|named| named == kind)
}

fn selects(selector: &Value, labels: &Labels) -> bool {
    let pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let mut pairs = pairs.map(|(key, value)| (labels.get(key), value.as_str()));
    pairs.all(|(own, wanted)| own.map(String::as_str) == wanted)
        && items(&selector["matchExpressions"]).all(|expression| {
            let key = expression["key"].as_str().unwrap_or_default();
            let own = labels.get(key);
            let is_listed = || {
                items(&expression["values"]).any(|value| value.as_str() == own.map(String::as_str))
            };
            match expression["operator"].as_str() {
                Some("In") => own.is_some() && is_listed(),
                Some("NotIn") => own.is_none() || !is_listed(),
                Some("Exists") => own.is_some(),
                _ => own.is_none(),
            }
        })
}

fn matches_peer(with: &Value, namespace: &str, peer: &Endpoint, ip: IpAddr) -> bool {
    if let Some(block) = with["ipBlock"].as_object() {
        let within = |cidr: &Value| is_within(cidr.as_str().unwrap_or_default(), ip);
        let except = block.get("except").unwrap_or(&Value::Null);
        return block.get("cidr").is_some_and(within) && !items(except).any(within);
    }
    let of_namespace = match &with["namespaceSelector"] {
        Value::Null => peer.namespace == namespace,
        selector => selects(selector, &peer.of_namespace),
    };
    of_namespace && selects(&with["podSelector"], &peer.pod)
}

fn is_within(cidr: &str, ip: IpAddr) -> bool {
    let Some((base, length)) = cidr.split_once('/') else {
        return false;
    };
    let length: u32 = length.parse().unwrap_or(0);
    match (base.parse(), ip) {
        (Ok(IpAddr::V4(base)), IpAddr::V4(ip)) => {
            (base.to_bits() ^ ip.to_bits()).leading_zeros() >= length
        }
        (Ok(IpAddr::V6(base)), IpAddr::V6(ip)) => {
            (base.to_bits() ^ ip.to_bits()).leading_zeros() >= length
        }
        _ => false,
    }
}

fn matches_port(with: &Value, to: &Endpoint, way: ConnectionKind) -> bool {
    let protocol = with["protocol"].as_str().unwrap_or("TCP");
    if protocol != way.protocol.name() {
        return false;
    }
    let port = u64::from(way.port);
    match (&with["port"], with["endPort"].as_u64()) {
        (Value::Null, _) => true,
        (Value::String(name), _) => to.ports.get(name) == Some(&(way.protocol, way.port)),
        (first, Some(last)) => first
            .as_u64()
            .is_some_and(|first| (first..=last).contains(&port)),
        (only, None) => only.as_u64() == Some(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn endpoint(namespace: &str, pod: &str, v4: [u8; 4]) -> Endpoint {
        let labels = |key: &str, value: &str| Labels::from([(key.to_owned(), value.to_owned())]);
        Endpoint {
            namespace: namespace.to_owned(),
            pod: labels("pod", pod),
            of_namespace: labels("team", namespace),
            ips: vec![v4.into()],
            ports: BTreeMap::from([("web".to_owned(), (Protocol::Tcp, 80))]),
        }
    }

    #[test]
    fn policies_are_evaluated_as_documented() {
        let [a, b] = [
            endpoint("x", "a", [10, 0, 0, 1]),
            endpoint("y", "b", [10, 0, 0, 2]),
        ];
        let [tcp, udp] = [Protocol::Tcp, Protocol::Udp].map(|protocol| ConnectionKind {
            family: 0,
            protocol,
            port: 80,
        });
        let of = |spec: Value| [json!({ "namespace": "x", "spec": spec })];
        let judge = |spec: Value| {
            let policies = of(spec);
            [(&b, &a), (&a, &b)].map(|(from, to)| allows(&policies, from, to, tcp))
        };
        assert!(allows(&[], &a, &b, tcp));
        for (port, expected) in [
            (json!({ "port": 80 }), [true, false]),
            (json!({ "port": 80, "protocol": "UDP" }), [false, true]),
            (json!({ "port": "web", "protocol": "UDP" }), [false, false]),
        ] {
            let policies = of(json!({ "ingress": [{ "ports": [port] }] }));
            let allowed = [tcp, udp].map(|way| allows(&policies, &b, &a, way));
            assert_eq!(allowed, expected, "{policies:?}");
        }
        assert_eq!(judge(json!({ "podSelector": {} })), [false, true]);
        assert_eq!(judge(json!({ "policyTypes": ["Egress"] })), [true, false]);
        let other = json!({ "podSelector": { "matchLabels": { "pod": "b" } } });
        assert_eq!(judge(other), [true, true]);
        for (peer, port, expected) in [
            (json!({ "namespaceSelector": {} }), json!(80), true),
            (json!({ "namespaceSelector": {} }), json!(81), false),
            (json!({ "podSelector": {} }), json!("web"), false),
            (
                json!({ "ipBlock": { "cidr": "10.0.0.0/8" } }),
                json!("web"),
                true,
            ),
            (
                json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.0.0.2/32"] } }),
                json!("web"),
                false,
            ),
        ] {
            let rule = json!({ "from": [peer], "ports": [{ "port": port }] });
            let spec = json!({ "policyTypes": ["Ingress"], "ingress": [rule] });
            assert_eq!(judge(spec.clone()), [expected, true], "{spec}");
        }
    }
}
