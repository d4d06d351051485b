//! The fields of pods, nodes and metadata that policies need.

use crate::prefix::AddressBlock;
use crate::selector::Labels;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt;
use std::net::IpAddr;

/// Decodes a value; null yields the default.
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
    /// The object's namespace.
    pub namespace: String,
    /// The object's name in that namespace.
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    namespace: String,
    #[serde(default, deserialize_with = "or_default")]
    uid: String,
    /// Its labels.
    #[serde(default, deserialize_with = "or_default")]
    pub labels: Labels,
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

/// A named port of a pod.
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
    /// Its id, which is unique among all pods of this name.
    pub uid: String,
    /// Its labels.
    pub labels: Labels,
    /// The name of its node, or empty if it is not scheduled.
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
    /// Some init containers run beside the containers.
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
    /// Decodes a pod with this metadata; `None` if the pod is invalid.
    #[must_use]
    pub fn of(metadata: Metadata, object: &Value) -> Option<Self> {
        let raw: RawPod = decoded(object)?;
        let (spec, status) = (raw.spec, raw.status);
        let is_over = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        let all = status.pod_ips.into_iter().map(|one| one.ip);
        let texts: Vec<String> = all.chain(status.pod_ip).collect();
        let mut addresses: Vec<IpAddr> = texts.iter().filter_map(|ip| ip.parse().ok()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if is_over || spec.host_network {
            // Another pod may have the address of an ended pod by now, and policies do not select
            // pods that use the node's address.
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
            uid: metadata.uid,
            labels: metadata.labels,
            node: spec.node_name,
            addresses,
            ports: ports.filter(|port| !port.name.is_empty()).collect(),
        })
    }
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The addresses of its status, internal ones first.
    pub addresses: Vec<IpAddr>,
    /// The subnets of its pods.
    pub pod_subnets: Vec<AddressBlock>,
    /// The time of its creation by the API server's clock, as a text. The order of such texts is
    /// the order of the times.
    pub created: String,
}

impl Node {
    /// Decodes a node, without its invalid parts.
    #[must_use]
    pub fn of(object: &Value) -> Self {
        let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned();
        let status = object.get("status");
        let addresses = list(status.and_then(|status| status.get("addresses")));
        let address = |one: Value| {
            let of_type = one.get("type")?.as_str()?;
            let address: IpAddr = one.get("address")?.as_str()?.parse().ok()?;
            let is_ip = of_type.ends_with("IP");
            is_ip.then_some((of_type != "InternalIP", address))
        };
        let addresses = addresses.into_iter().flatten().filter_map(address);
        let mut addresses: Vec<(bool, IpAddr)> = addresses.collect();
        addresses.sort_by_key(|(is_external, _)| *is_external);
        let spec = object.get("spec");
        let subnets = list(spec.and_then(|spec| spec.get("podCIDRs")));
        let subnet = |one: Value| one.as_str()?.parse().ok();
        let metadata = object.get("metadata");
        let created = metadata.and_then(|metadata| metadata.get("creationTimestamp")?.as_str());
        Self {
            addresses: addresses.into_iter().map(|(_, address)| address).collect(),
            pod_subnets: subnets.into_iter().flatten().filter_map(subnet).collect(),
            created: created.unwrap_or_default().to_owned(),
        }
    }
}

impl Node {
    /// Returns the addresses from which it sends to its pods, and at which they reach it: those of
    /// its status, and the gateway of each pod subnet.
    pub fn own_addresses(&self) -> impl Iterator<Item = AddressBlock> {
        let addresses = self.addresses.iter().copied().map(AddressBlock::host);
        let subnets = self.pod_subnets.iter().copied();
        addresses.chain(subnets.filter_map(AddressBlock::gateway))
    }
}

pub(crate) fn decoded<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_without_their_own_address_have_none() {
        let of = |object: &Value| Pod::of(Metadata::default(), object);
        let pod = |host: bool, phase: &str| {
            of(&json!({
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
        assert_eq!(of(&json!({ "spec": 7 })), None);
        let bare = json!({ "spec": { "containers": [] } });
        assert_eq!(of(&bare), Some(Pod::default()));
    }

    #[test]
    fn nodes_have_addresses_and_subnets() {
        let node = Node::of(&json!({
            "metadata": { "creationTimestamp": "2026-01-31T23:59:59Z" },
            "spec": { "podCIDRs": ["10.244.1.0/24", "nonsense", "fd00:1::/64"] },
            "status": { "addresses": [
                { "type": "ExternalIP", "address": "198.51.100.7" },
                { "type": "Hostname", "address": "192.0.2.9" },
                { "type": "InternalIP", "address": "192.0.2.1" },
                { "type": "InternalIP", "address": "a" },
                7,
            ]},
        }));
        let expected: [IpAddr; 2] = ["192.0.2.1", "198.51.100.7"].map(|text| text.parse().unwrap());
        assert_eq!(node.addresses, expected);
        assert_eq!(node.pod_subnets.len(), 2);
        let own = node.own_addresses().map(|one| one.to_string());
        let own: Vec<String> = own.collect();
        assert_eq!(own[2..], ["10.244.1.1/32", "fd00:1::1/128"]);
        assert_eq!(node.created, "2026-01-31T23:59:59Z");
        assert_eq!(Node::of(&json!([])), Node::default());
    }
}
