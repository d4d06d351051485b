//! Objects of the API, as far as policies need them.
//!
//! Objects are decoded part by part. A part that is not understood allows nothing: a port or a peer
//! matches no traffic, a policy without a clear selector isolates every pod of its namespace.

use crate::prefix::Prefix;
use crate::selector::{LabelSelector, Labels};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt;
use std::net::IpAddr;

/// Decodes a value that may be null, for which the default stands.
pub(crate) fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// The name of an object; the namespace is empty for objects of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    namespace: String,
    /// Its labels.
    #[serde(default, deserialize_with = "or_default")]
    pub labels: Labels,
    /// The version of the list or the object.
    #[serde(default, deserialize_with = "or_default")]
    pub resource_version: String,
    /// Where the next part of a list begins.
    #[serde(default, rename = "continue", deserialize_with = "or_default")]
    pub next: String,
}

impl Metadata {
    /// Returns the metadata of an object, if it has any.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        decoded(object.get("metadata")?)
    }

    /// Returns the object's name.
    #[must_use]
    pub fn object(&self) -> ObjectName {
        ObjectName {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// A protocol with ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP, the default.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Returns its number in IP.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

/// A port that a pod has a name for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// Its name.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its labels.
    pub labels: Labels,
    /// Its node; empty: it is not scheduled.
    pub node: String,
    /// Its addresses: none if it uses the node's, has none yet, or has ended.
    pub addresses: Vec<IpAddr>,
    /// Named ports of its containers.
    pub ports: Vec<NamedPort>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPod {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: RawPodSpec,
    #[serde(default, deserialize_with = "or_default")]
    status: RawPodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPodSpec {
    #[serde(default, deserialize_with = "or_default")]
    node_name: String,
    #[serde(default, deserialize_with = "or_default")]
    host_network: bool,
    #[serde(default, deserialize_with = "or_default")]
    containers: Vec<RawContainer>,
    /// Some of them run beside the containers.
    #[serde(default, deserialize_with = "or_default")]
    init_containers: Vec<RawContainer>,
}

#[derive(Deserialize)]
struct RawContainer {
    #[serde(default, deserialize_with = "or_default")]
    ports: Vec<RawContainerPort>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainerPort {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    container_port: u16,
    #[serde(default, deserialize_with = "or_default")]
    protocol: Protocol,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPodStatus {
    #[serde(default, deserialize_with = "or_default")]
    phase: String,
    #[serde(default, rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(default, rename = "podIPs", deserialize_with = "or_default")]
    pod_ips: Vec<RawPodIp>,
}

#[derive(Deserialize)]
struct RawPodIp {
    ip: String,
}

impl Pod {
    /// Decodes a pod; `None` if it makes no sense.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        let raw: RawPod = decoded(object)?;
        let (spec, status) = (raw.spec, raw.status);
        let is_over = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        let all = status.pod_ips.into_iter().map(|one| one.ip);
        let texts: Vec<String> = all.chain(status.pod_ip).collect();
        let mut addresses: Vec<IpAddr> = texts.iter().filter_map(|ip| ip.parse().ok()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if is_over || spec.host_network {
            // Another pod may have the address by now; policies do not select users of the node's.
            addresses.clear();
        }
        let containers = spec.containers.into_iter().chain(spec.init_containers);
        let named = |port: RawContainerPort| NamedPort {
            name: port.name,
            protocol: port.protocol,
            number: port.container_port,
        };
        let ports = containers.flat_map(|container| container.ports).map(named);
        Some(Self {
            labels: raw.metadata.labels,
            node: spec.node_name,
            addresses,
            ports: ports.filter(|port| !port.name.is_empty()).collect(),
        })
    }
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// The subnets of its pods.
    pub pod_subnets: Vec<Prefix>,
}

impl Node {
    /// Decodes a node; what makes no sense is left out.
    #[must_use]
    pub fn of(object: &Value) -> Self {
        let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned();
        let status = object.get("status");
        let addresses = list(status.and_then(|status| status.get("addresses")));
        let address = |one: Value| {
            let is_ip = one.get("type")?.as_str()?.ends_with("IP");
            let address = one.get("address")?.as_str()?.parse().ok();
            address.filter(|_| is_ip)
        };
        let spec = object.get("spec");
        let subnets = list(spec.and_then(|spec| spec.get("podCIDRs")));
        let subnet = |one: Value| one.as_str()?.parse().ok();
        Self {
            addresses: addresses
                .into_iter()
                .flatten()
                .filter_map(address)
                .collect(),
            pod_subnets: subnets.into_iter().flatten().filter_map(subnet).collect(),
        }
    }
}

/// A network policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The pods of its namespace that it isolates; `None`: it is not clear, so all of them.
    pub selector: Option<LabelSelector>,
    /// Traffic to them that passes; `None`: they are not isolated in this direction.
    pub ingress: Option<Vec<PolicyRule>>,
    /// Traffic from them that passes.
    pub egress: Option<Vec<PolicyRule>>,
    /// Parts that were not understood, a sentence each.
    pub notes: Vec<String>,
}

/// A rule of a policy: allows traffic with one of these peers by one of these ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// `None`: all.
    pub peers: Option<Vec<Peer>>,
    /// `None`: all protocols and ports.
    pub ports: Option<Vec<PolicyPort>>,
}

/// Peers of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Addresses.
    Block {
        /// All of them,
        cidr: Prefix,
        /// without these.
        except: Vec<Prefix>,
    },
    /// Pods.
    Pods {
        /// Their namespaces; `None`: the policy's.
        namespaces: Option<LabelSelector>,
        /// The pods there; `None`: all.
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
    /// The port for which the receiving pod has this name.
    Named(Protocol, String),
}

impl PolicyPort {
    /// Returns their protocol.
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

impl Policy {
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
        // A selector that is clear for one object is clear for all.
        let is_clear = |selector: &LabelSelector| selector.selects(&Labels::new()).is_ok();
        let Some(selector) = selector.filter(is_clear) else {
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
}

fn rule_of(rule: &Value, place: &str, notes: &mut Vec<String>) -> Option<PolicyRule> {
    let Some(raw) = decoded::<RawRule>(rule) else {
        notes.push(format!("{place} is not understood: it allows nothing"));
        return None;
    };
    let mut all = |what: &str, n: usize| {
        notes.push(format!(
            "{place}: {what} {n} is not understood: it allows nothing"
        ));
    };
    let mut ports = Vec::new();
    for (n, port) in (1..).zip(&raw.ports) {
        match port_of(port) {
            Some(port) => ports.push(port),
            None => all("port", n),
        }
    }
    let mut peers = Vec::new();
    for (n, peer) in (1..).zip(&raw.peers) {
        match peer_of(peer) {
            Some(peer) => peers.push(peer),
            None => all("peer", n),
        }
    }
    // A list of which nothing was understood is not an empty one.
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

fn peer_of(peer: &Value) -> Option<Peer> {
    let raw: RawPeer = decoded(peer)?;
    let is_clear = |selector: &Option<LabelSelector>| {
        let selector = selector.as_ref();
        selector.is_none_or(|selector| selector.selects(&Labels::new()).is_ok())
    };
    match (raw.ip_block, raw.namespace_selector, raw.pod_selector) {
        (Some(block), None, None) => {
            let except = block.except.iter().map(|one| one.parse().ok());
            Some(Peer::Block {
                cidr: block.cidr.parse().ok()?,
                except: except.collect::<Option<_>>()?,
            })
        }
        (None, None, None) | (Some(_), ..) => None,
        (None, namespaces, pods) if is_clear(&namespaces) && is_clear(&pods) => {
            Some(Peer::Pods { namespaces, pods })
        }
        (None, ..) => None,
    }
}

fn decoded<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(spec: Value) -> Policy {
        Policy::of(&json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": spec }))
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

    #[test]
    fn pods_without_their_own_address_have_none() {
        let pod = |host: bool, phase: &str| {
            Pod::of(&json!({
                "metadata": { "name": "p", "labels": null },
                "spec": { "nodeName": "a", "hostNetwork": host, "containers": [
                    { "name": "c", "ports": [
                        { "containerPort": 80, "name": "http" },
                        { "containerPort": 53, "protocol": "UDP", "name": "dns" },
                        { "containerPort": 9 },
                    ]},
                    { "name": "d", "ports": null },
                ]},
                "status": { "phase": phase, "podIP": "10.0.0.2",
                    "podIPs": [{ "ip": "10.0.0.2" }, { "ip": "fd00::2" }] },
            }))
            .unwrap()
        };
        let running = pod(false, "Running");
        assert_eq!(running.addresses.len(), 2);
        assert_eq!(running.ports.len(), 2);
        assert_eq!(running.ports[1].protocol, Protocol::Udp);
        assert_eq!(pod(true, "Running").addresses, Vec::<IpAddr>::new());
        assert_eq!(pod(false, "Succeeded").addresses, Vec::<IpAddr>::new());
        assert_eq!(pod(false, "Failed").addresses, Vec::<IpAddr>::new());
        assert_eq!(Pod::of(&json!({ "spec": 7 })), None);
        let bare = json!({ "metadata": { "name": "p" }, "spec": { "containers": [] } });
        assert_eq!(Pod::of(&bare), Some(Pod::default()));
    }

    #[test]
    fn nodes_have_addresses_and_subnets() {
        let node = Node::of(&json!({
            "spec": { "podCIDRs": ["10.244.1.0/24", "nonsense", "fd00:1::/64"] },
            "status": { "addresses": [
                { "type": "InternalIP", "address": "192.0.2.1" },
                { "type": "Hostname", "address": "192.0.2.9" },
                { "type": "ExternalIP", "address": "198.51.100.7" },
                { "type": "InternalIP", "address": "a" },
                7,
            ]},
        }));
        assert_eq!(node.addresses.len(), 2);
        assert_eq!(node.pod_subnets.len(), 2);
        assert_eq!(Node::of(&json!([])), Node::default());
    }
}
