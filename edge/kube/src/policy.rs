//! Network policies of the API.
//!
//! Policies are decoded part by part. A part that this program does not know allows nothing: a port
//! or a peer matches no traffic, and a policy without a clear selector isolates every pod of its
//! namespace.

use crate::api::{Protocol, decoded, or_default};
use crate::prefix::AddressBlock;
use crate::selector::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

/// A network policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPolicy {
    /// Selects the pods of its namespace that it isolates. `None`, for an unknown selector,
    /// isolates all of them.
    pub selector: Option<LabelSelector>,
    /// Allowed traffic to these pods. `None` means that the pods are not isolated in this
    /// direction.
    pub ingress: Option<Vec<PolicyRule>>,
    /// Allowed traffic from these pods. `None` has the same meaning as for `ingress`.
    pub egress: Option<Vec<PolicyRule>>,
    /// Descriptions of unknown parts, one sentence each.
    pub notes: Vec<String>,
}

/// A rule of a policy: allows traffic with one of these peers by one of these ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// `None`: all.
    pub peers: Option<Vec<PolicyPeer>>,
    /// `None`: all protocols and ports.
    pub ports: Option<Vec<PolicyPort>>,
}

/// Peers of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyPeer {
    /// Addresses.
    Block {
        /// All addresses of the block.
        cidr: AddressBlock,
        /// Addresses of `cidr` that do not belong to the block.
        except: Vec<AddressBlock>,
    },
    /// Pods.
    Pods {
        /// Selects the pods' namespaces. `None`: the policy's namespace.
        namespaces: Option<LabelSelector>,
        /// Selects pods in these namespaces. `None`: all.
        pods: Option<LabelSelector>,
    },
}

/// Ports of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyPort {
    /// All ports of a protocol.
    All(Protocol),
    /// Consecutive ports.
    Range(Protocol, u16, u16),
    /// The receiving pod's port of this name.
    Named(Protocol, String),
}

impl PolicyPort {
    /// Returns the ports' protocol.
    #[must_use]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Self::All(protocol) | Self::Range(protocol, ..) | Self::Named(protocol, _) => *protocol,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSpec {
    pod_selector: Option<Value>,
    #[serde(default, deserialize_with = "or_default")]
    policy_types: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    ingress: Vec<Value>,
    #[serde(default, deserialize_with = "or_default")]
    egress: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    #[serde(default, deserialize_with = "or_default")]
    ports: Vec<Value>,
    #[serde(default, alias = "from", alias = "to", deserialize_with = "or_default")]
    peers: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawPeer {
    pod_selector: Option<LabelSelector>,
    namespace_selector: Option<LabelSelector>,
    ip_block: Option<RawBlock>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBlock {
    cidr: String,
    #[serde(default, deserialize_with = "or_default")]
    except: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawPort {
    #[serde(default, deserialize_with = "or_default")]
    protocol: Protocol,
    port: Option<Value>,
    end_port: Option<u16>,
}

impl PodPolicy {
    /// Decodes a policy.
    #[must_use]
    pub fn of(object: &Value) -> Self {
        let closed = |what: &str| Self {
            selector: None,
            ingress: Some(Vec::new()),
            egress: Some(Vec::new()),
            notes: vec![format!(
                "{what} is not understood: its namespace is isolated"
            )],
        };
        let Some(raw) = object.get("spec").and_then(decoded::<RawSpec>) else {
            return closed("`spec`");
        };
        let selector = match raw.pod_selector {
            None => Some(LabelSelector::default()),
            Some(selector) => decoded(&selector),
        };
        let Some(selector) = selector.filter(LabelSelector::is_clear) else {
            return closed("`podSelector`");
        };
        let types = &raw.policy_types;
        if types
            .iter()
            .any(|one| !["Ingress", "Egress"].contains(&one.as_str()))
        {
            return closed("`policyTypes`");
        }
        let has = |name: &str| types.iter().any(|one| one == name);
        let is_ingress = types.is_empty() || has("Ingress");
        let is_egress = has("Egress") || types.is_empty() && !raw.egress.is_empty();
        let mut notes = Vec::new();
        let mut read = |direction: &str, rules: &[Value]| -> Vec<PolicyRule> {
            let numbered = (1..).zip(rules);
            let read = |(n, rule)| rule_of(rule, &format!("{direction} rule {n}"), &mut notes);
            numbered.filter_map(read).collect()
        };
        Self {
            selector: Some(selector),
            ingress: is_ingress.then(|| read("ingress", &raw.ingress)),
            egress: is_egress.then(|| read("egress", &raw.egress)),
            notes,
        }
    }

    /// Returns whether it allows egress to selected pods, but to no block. Only a block can allow
    /// the address of a Service.
    #[must_use]
    pub fn has_egress_to_pods_only(&self) -> bool {
        let rules = self.egress.iter().flatten();
        let mut peers = rules.flat_map(|rule| rule.peers.iter().flatten());
        let is_selecting = |peer: &PolicyPeer| matches!(peer, PolicyPeer::Pods { .. });
        peers.clone().any(is_selecting) && peers.all(is_selecting)
    }
}

fn rule_of(rule: &Value, place: &str, notes: &mut Vec<String>) -> Option<PolicyRule> {
    let Some(raw) = decoded::<RawRule>(rule) else {
        notes.push(format!("{place} is not understood: it allows nothing"));
        return None;
    };
    let mut unknown = |what: &str, n: usize| {
        notes.push(format!(
            "{place}: {what} {n} is not understood: it allows nothing"
        ));
    };
    let mut ports = Vec::new();
    for (n, port) in (1..).zip(&raw.ports) {
        match port_of(port) {
            Some(port) => ports.push(port),
            None => unknown("port", n),
        }
    }
    let mut peers = Vec::new();
    for (n, peer) in (1..).zip(&raw.peers) {
        match peer_of(peer) {
            Some(peer) => peers.push(peer),
            None => unknown("peer", n),
        }
    }
    // An empty list matches everything. A list whose entries are all unknown allows nothing.
    Some(PolicyRule {
        peers: (!raw.peers.is_empty()).then_some(peers),
        ports: (!raw.ports.is_empty()).then_some(ports),
    })
}

fn port_of(port: &Value) -> Option<PolicyPort> {
    let raw: RawPort = decoded(port)?;
    let number = |value: &Value| u16::try_from(value.as_u64()?).ok().filter(|port| *port > 0);
    match (raw.port, raw.end_port) {
        (None, None) => Some(PolicyPort::All(raw.protocol)),
        (Some(Value::String(name)), None) => Some(PolicyPort::Named(raw.protocol, name)),
        (Some(port), end) => {
            let first = number(&port)?;
            let last = end.unwrap_or(first);
            (first <= last).then_some(PolicyPort::Range(raw.protocol, first, last))
        }
        (None, Some(_)) => None,
    }
}

fn peer_of(peer: &Value) -> Option<PolicyPeer> {
    let raw: RawPeer = decoded(peer)?;
    let is_clear =
        |selector: &Option<LabelSelector>| selector.as_ref().is_none_or(LabelSelector::is_clear);
    match (raw.ip_block, raw.namespace_selector, raw.pod_selector) {
        (Some(block), None, None) => {
            let except = block.except.iter().map(|one| one.parse().ok());
            Some(PolicyPeer::Block {
                cidr: block.cidr.parse().ok()?,
                except: except.collect::<Option<_>>()?,
            })
        }
        (None, None, None) | (Some(_), ..) => None,
        (None, namespaces, pods) if is_clear(&namespaces) && is_clear(&pods) => {
            Some(PolicyPeer::Pods { namespaces, pods })
        }
        (None, ..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(spec: Value) -> PodPolicy {
        PodPolicy::of(&json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": spec }))
    }

    #[test]
    fn directions_have_the_defaults_of_the_api() {
        for (spec, ingress, egress) in [
            (json!({ "podSelector": {} }), true, false),
            (json!({ "podSelector": {}, "egress": [] }), true, false),
            (json!({ "podSelector": {}, "egress": [{}] }), true, true),
            (
                json!({ "podSelector": {}, "policyTypes": ["Egress"] }),
                false,
                true,
            ),
            (
                json!({ "podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}] }),
                true,
                false,
            ),
            (
                json!({ "podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}] }),
                false,
                true,
            ),
            (json!({ "policyTypes": null, "ingress": null }), true, false),
        ] {
            let policy = policy(spec.clone());
            let isolates = (policy.ingress.is_some(), policy.egress.is_some());
            assert_eq!(isolates, (ingress, egress), "{spec}");
            assert_eq!(policy.notes, Vec::<String>::new());
        }
    }

    #[test]
    fn unknown_parts_allow_nothing() {
        for spec in [
            json!("x"),
            json!({ "podSelector": { "matchFields": [] } }),
            json!({ "podSelector": { "matchExpressions": [{ "key": "a", "operator": "Near" }] } }),
            json!({ "podSelector": {}, "policyTypes": ["Sideways"] }),
            json!({ "podSelector": {}, "exceptFor": [] }),
        ] {
            let policy = policy(spec.clone());
            assert_eq!(policy.selector, None, "{spec}");
            assert_eq!(
                (policy.ingress, policy.egress),
                (Some(vec![]), Some(vec![]))
            );
            assert_eq!(policy.notes.len(), 1);
        }
        for rule in [
            json!({ "from": [{}] }),
            json!({ "from": [{ "ipBlock": { "cidr": "10.0.0.0/33" } }] }),
            json!({ "from": [{ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["x"] } }] }),
            json!({ "from": [{ "ipBlock": { "cidr": "10.0.0.0/8" }, "podSelector": {} }] }),
            json!({ "from": [{ "podSelector": { "matchLabel": {} } }] }),
            json!({ "ports": [{ "port": 0 }] }),
            json!({ "ports": [{ "port": 65_536 }] }),
            json!({ "ports": [{ "port": 9, "endPort": 8 }] }),
            json!({ "ports": [{ "endPort": 8 }] }),
            json!({ "ports": [{ "port": "http", "endPort": 8 }] }),
            json!({ "ports": [{ "protocol": "ICMP" }] }),
            json!({ "ports": [{ "port": 80, "days": ["Monday"] }] }),
        ] {
            let policy = policy(json!({ "podSelector": {}, "ingress": [rule] }));
            let ingress = policy.ingress.unwrap();
            let empty = |rule: &PolicyRule| {
                let no_peer = rule.peers.as_ref().is_some_and(Vec::is_empty);
                no_peer || rule.ports.as_ref().is_some_and(Vec::is_empty)
            };
            assert!(empty(&ingress[0]), "{ingress:?}");
            assert_eq!(policy.notes.len(), 1, "{:?}", policy.notes);
        }
        let unknown = policy(json!({ "podSelector": {}, "ingress": [{ "unless": [] }, {}] }));
        assert_eq!(unknown.ingress.unwrap().len(), 1);
        assert!(unknown.notes[0].starts_with("ingress rule 1 is not"));
    }
}
