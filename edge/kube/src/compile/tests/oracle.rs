//! An evaluator of policies that follows the API's documentation.

use serde_json::Value;
use std::net::IpAddr;

pub(super) struct End<'a> {
    pub(super) pod: &'a Value,
    pub(super) namespace: &'a Value,
    pub(super) address: IpAddr,
}

fn list<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object[key].as_array().map_or(&[], Vec::as_slice)
}

fn matches(selector: &Value, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    let none = serde_json::Map::new();
    let exact = selector["matchLabels"].as_object().unwrap_or(&none);
    for (key, value) in exact {
        if labels[key] != *value {
            return false;
        }
    }
    for one in list(selector, "matchExpressions") {
        let value = &labels[one["key"].as_str().unwrap()];
        let is_in = list(one, "values").contains(value);
        let holds = match one["operator"].as_str().unwrap() {
            "In" => is_in,
            "NotIn" => !is_in,
            "Exists" => !value.is_null(),
            "DoesNotExist" => value.is_null(),
            other => panic!("{other}"),
        };
        if !holds {
            return false;
        }
    }
    true
}

fn is_in(block: &str, address: IpAddr) -> bool {
    let (first, bits) = block.split_once('/').unwrap();
    let bits: usize = bits.parse().unwrap();
    let text = |address: IpAddr| match address {
        IpAddr::V4(v4) => format!("{:032b}", v4.to_bits()),
        IpAddr::V6(v6) => format!("{:0128b}", v6.to_bits()),
    };
    let (first, address) = (text(first.parse().unwrap()), text(address));
    first.len() == address.len() && first[..bits] == address[..bits]
}

fn is_peer(peer: &Value, policy: &Value, other: &End<'_>) -> bool {
    let block = &peer["ipBlock"];
    if !block.is_null() {
        let is = |block: &Value| is_in(block.as_str().unwrap(), other.address);
        return is(&block["cidr"]) && !list(block, "except").iter().any(is);
    }
    let namespaces = &peer["namespaceSelector"];
    let is_there = match namespaces.is_null() {
        true => other.pod["metadata"]["namespace"] == policy["metadata"]["namespace"],
        false => matches(namespaces, other.namespace),
    };
    is_there && (peer["podSelector"].is_null() || matches(&peer["podSelector"], other.pod))
}

fn is_port(one: &Value, receiver: &Value, (protocol, port): (&str, u16)) -> bool {
    let own = one["protocol"].as_str().unwrap_or("TCP");
    let first = match &one["port"] {
        Value::Null => return own == protocol,
        Value::String(name) => {
            let containers = list(&receiver["spec"], "containers").iter();
            let mut ports = containers.flat_map(|container| list(container, "ports"));
            return own == protocol
                && ports.any(|named| {
                    named["name"] == **name
                        && named["containerPort"] == port
                        && named["protocol"].as_str().unwrap_or("TCP") == protocol
                });
        }
        number => number.as_u64().unwrap(),
    };
    let last = one["endPort"].as_u64().unwrap_or(first);
    own == protocol && (first..=last).contains(&u64::from(port))
}

/// Returns whether one end's policies of a type allow the flow.
fn side(
    policies: &[Value],
    (policy_type, key, peers): (&str, &str, &str),
    (own, other): (&End<'_>, &End<'_>),
    receiver: &Value,
    probe: (&str, u16),
) -> bool {
    let isolates = |policy: &&Value| {
        let spec = &policy["spec"];
        let types = list(spec, "policyTypes");
        let is_of_type = match types.is_empty() {
            true => policy_type == "Ingress" || !list(spec, "egress").is_empty(),
            false => types.contains(&Value::from(policy_type)),
        };
        policy["metadata"]["namespace"] == own.pod["metadata"]["namespace"]
            && matches(&spec["podSelector"], own.pod)
            && is_of_type
    };
    let isolating: Vec<&Value> = policies.iter().filter(isolates).collect();
    let allows = |policy: &&Value| {
        list(&policy["spec"], key).iter().any(|rule| {
            let (of, ports) = (list(rule, peers), list(rule, "ports"));
            (of.is_empty() || of.iter().any(|peer| is_peer(peer, policy, other)))
                && (ports.is_empty() || ports.iter().any(|one| is_port(one, receiver, probe)))
        })
    };
    isolating.is_empty() || isolating.iter().any(allows)
}

pub(super) fn allows(policies: &[Value], from: &End<'_>, to: &End<'_>, probe: (&str, u16)) -> bool {
    let receiver = to.pod;
    side(
        policies,
        ("Egress", "egress", "to"),
        (from, to),
        receiver,
        probe,
    ) && side(
        policies,
        ("Ingress", "ingress", "from"),
        (to, from),
        receiver,
        probe,
    )
}
