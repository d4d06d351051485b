//! Compiles the policies of a cluster to firewall rules of single pods.
//!
//! A pod is isolated in a direction if a policy for that direction selects it. Then the pod has
//! only traffic that one of these policies allows, and traffic with its own node. A connection
//! passes if the sender's egress rules and the receiver's ingress rules allow it.

use crate::api::{Node, ObjectName, Pod, Protocol};
use crate::object::{Kind, Object};
use crate::policy::{PodPolicy, PolicyPeer, PolicyPort, PolicyRule};
use crate::prefix::{AddressBlock, merged};
use crate::rule::{PodRule, PodRules, PolicyDirection};
use crate::selector::{LabelSelector, Labels};
use std::collections::{BTreeMap, BTreeSet};

/// Limit of prefixes that one policy allows in one direction. Further prefixes are ignored.
const PREFIXES_MAX: usize = 16_384;

/// The note of a policy that allows egress to selected pods only.
const SERVICES: &str = "its egress to selected pods passes by the pods' own addresses, not by the \
                        address of a Service: add an `ipBlock` with that address";

/// The objects of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Its nodes, by name.
    pub nodes: BTreeMap<String, Node>,
    /// The labels of its namespaces, by name.
    pub namespaces: BTreeMap<String, Labels>,
    /// Its pods.
    pub pods: BTreeMap<ObjectName, Pod>,
    /// Its policies.
    pub policies: BTreeMap<ObjectName, PodPolicy>,
}

impl Cluster {
    /// Adds or replaces an object.
    pub fn put(&mut self, name: ObjectName, object: Object) {
        match object {
            Object::Node(node) => drop(self.nodes.insert(name.name, node)),
            Object::Namespace(labels) => drop(self.namespaces.insert(name.name, labels)),
            Object::Pod(pod) => drop(self.pods.insert(name, pod)),
            Object::Policy(policy) => drop(self.policies.insert(name, policy)),
        }
    }

    /// Removes an object, if it exists.
    pub fn remove(&mut self, kind: Kind, name: &ObjectName) {
        match kind {
            Kind::Nodes => drop(self.nodes.remove(&name.name)),
            Kind::Namespaces => drop(self.namespaces.remove(&name.name)),
            Kind::Pods => drop(self.pods.remove(name)),
            Kind::Policies => drop(self.policies.remove(name)),
        }
    }

    /// Removes all objects of a kind.
    pub fn clear(&mut self, kind: Kind) {
        match kind {
            Kind::Nodes => self.nodes.clear(),
            Kind::Namespaces => self.namespaces.clear(),
            Kind::Pods => self.pods.clear(),
            Kind::Policies => self.policies.clear(),
        }
    }
}

/// Ports of an allowed peer, in the order in which they are emitted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeerPorts {
    /// Everything, also protocols without ports.
    Everything,
    Of(PolicyPort),
}

/// The peers that a policy, or all policies of a pod, allow in one direction, by port.
type Allowed = BTreeMap<PeerPorts, Vec<AddressBlock>>;

/// A policy with its peers as addresses.
#[derive(Debug)]
struct Compiled<'c> {
    selector: Option<&'c LabelSelector>,
    ingress: Option<Allowed>,
    egress: Option<Allowed>,
}

/// The policies of a cluster, ready for any pod.
#[derive(Debug)]
pub struct Policies<'c> {
    by_namespace: BTreeMap<&'c str, Vec<Compiled<'c>>>,
    /// Policies with a part that allows nothing, or less than its text suggests, and the reasons.
    pub notes: Vec<(&'c ObjectName, String)>,
}

impl<'c> Policies<'c> {
    /// Resolves the peers of all policies.
    #[must_use]
    pub fn of(cluster: &'c Cluster) -> Self {
        Self::among(cluster, |_, _| true)
    }

    /// Resolves the peers of the policies that select one of these pods.
    #[must_use]
    pub fn selecting<'p>(
        cluster: &'c Cluster,
        pods: impl Iterator<Item = (&'p ObjectName, &'p Pod)>,
    ) -> Self {
        let mut labels: BTreeMap<&str, BTreeSet<&Labels>> = BTreeMap::new();
        for (name, pod) in pods {
            labels
                .entry(&name.namespace)
                .or_default()
                .insert(&pod.labels);
        }
        Self::among(cluster, |name, policy| {
            let mut there = labels.get(name.namespace.as_str()).into_iter().flatten();
            there.any(|labels| selects(policy.selector.as_ref(), labels))
        })
    }

    /// Resolves the peers of the policies for which `is_needed` returns true.
    fn among(cluster: &'c Cluster, is_needed: impl Fn(&ObjectName, &PodPolicy) -> bool) -> Self {
        let mut policies = Self {
            by_namespace: BTreeMap::new(),
            notes: Vec::new(),
        };
        let needed = cluster.policies.iter();
        for (name, policy) in needed.filter(|(name, policy)| is_needed(name, policy)) {
            let mut is_whole = true;
            let mut resolved = |direction: PolicyDirection, rules: &Option<Vec<PolicyRule>>| {
                let rules = rules.as_ref()?;
                let mut allowed = Allowed::new();
                for rule in rules {
                    is_whole &= resolve(cluster, &name.namespace, direction, rule, &mut allowed);
                }
                Some(allowed)
            };
            let compiled = Compiled {
                selector: policy.selector.as_ref(),
                ingress: resolved(PolicyDirection::ToPod, &policy.ingress),
                egress: resolved(PolicyDirection::FromPod, &policy.egress),
            };
            let of = policies.by_namespace.entry(&name.namespace).or_default();
            of.push(compiled);
            let own = policy.notes.iter().cloned();
            let cut = (!is_whole).then(|| {
                format!("it allows more than {PREFIXES_MAX} prefixes: the rest is denied")
            });
            let is_through = policy.has_egress_to_pods_only();
            let services = is_through.then(|| SERVICES.to_owned());
            let notes = own.chain(cut).chain(services).map(|note| (name, note));
            policies.notes.extend(notes);
        }
        policies
    }

    /// Returns the rules of a pod on `node`.
    #[must_use]
    pub fn rules_of(&self, name: &ObjectName, pod: &Pod, node: &Node) -> PodRules {
        let own = self.by_namespace.get(name.namespace.as_str());
        let selecting: Vec<&Compiled<'_>> = own
            .into_iter()
            .flatten()
            .filter(|policy| selects(policy.selector, &pod.labels))
            .collect();
        let rules_for = |direction: PolicyDirection| {
            let allowed = selecting.iter().filter_map(|policy| match direction {
                PolicyDirection::ToPod => policy.ingress.as_ref(),
                PolicyDirection::FromPod => policy.egress.as_ref(),
            });
            let allowed: Vec<&Allowed> = allowed.collect();
            let is_isolated = !allowed.is_empty();
            is_isolated.then(|| allowing(direction, joined(&allowed, pod), node))?
        };
        PodRules::of(
            rules_for(PolicyDirection::ToPod),
            rules_for(PolicyDirection::FromPod),
        )
    }
}

/// Returns whether a policy with this selector isolates pods with these labels.
fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    selector.is_none_or(|selector| selector.selects(labels).unwrap_or(true))
}

/// Adds the traffic that a rule allows. Returns false if the limit excludes a part of this traffic.
fn resolve(
    cluster: &Cluster,
    namespace: &str,
    direction: PolicyDirection,
    rule: &PolicyRule,
    to: &mut Allowed,
) -> bool {
    let all_ports = [PeerPorts::Everything];
    let ports: Vec<PeerPorts> = match &rule.ports {
        None => all_ports.to_vec(),
        Some(ports) => ports.iter().cloned().map(PeerPorts::Of).collect(),
    };
    // The names of ports are those of the receiver, which for egress is the peer.
    let (named, plain): (Vec<PeerPorts>, Vec<PeerPorts>) = ports.into_iter().partition(|ports| {
        direction == PolicyDirection::FromPod
            && matches!(ports, PeerPorts::Of(PolicyPort::Named(..)))
    });
    let mut is_whole = true;
    let mut prefixes = Vec::new();
    let mut pods: Vec<&Pod> = Vec::new();
    match &rule.peers {
        None => {
            prefixes.extend(AddressBlock::everything());
            pods.extend(cluster.pods.values());
        }
        Some(peers) => {
            for peer in peers {
                match peer {
                    PolicyPeer::Block { cidr, except } => {
                        is_whole &= cidr.without(except, PREFIXES_MAX, &mut prefixes);
                    }
                    PolicyPeer::Pods {
                        namespaces,
                        pods: of,
                    } => {
                        let among = PolicyScope { cluster, namespace };
                        let found = among.pods(namespaces.as_ref(), of.as_ref());
                        let before = pods.len();
                        pods.extend(found);
                        let new = pods.get(before..).unwrap_or_default();
                        let addresses = new.iter().flat_map(|pod| &pod.addresses);
                        prefixes.extend(addresses.copied().map(AddressBlock::host));
                    }
                }
            }
        }
    }
    let prefixes = merged(prefixes);
    let mut add = |ports: PeerPorts, new: &[AddressBlock]| {
        let of = to.entry(ports).or_default();
        let room = PREFIXES_MAX.saturating_sub(of.len());
        of.extend(new.iter().take(room));
        is_whole &= new.len() <= room;
    };
    for ports in plain {
        add(ports, &prefixes);
    }
    for ports in named {
        let PeerPorts::Of(PolicyPort::Named(protocol, name)) = ports else {
            continue;
        };
        for pod in &pods {
            let hosts: Vec<AddressBlock> = pod
                .addresses
                .iter()
                .copied()
                .map(AddressBlock::host)
                .collect();
            for number in numbers(pod, protocol, &name) {
                add(
                    PeerPorts::Of(PolicyPort::Range(protocol, number, number)),
                    &hosts,
                );
            }
        }
    }
    is_whole
}

/// The scope in which a policy selects peers.
struct PolicyScope<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
}

impl<'a> PolicyScope<'a> {
    /// Returns the pods that a peer selects. Selectors of peers have no unknown parts.
    fn pods<'s>(
        &'s self,
        namespaces: Option<&'s LabelSelector>,
        pods: Option<&'s LabelSelector>,
    ) -> impl Iterator<Item = &'a Pod> + use<'a, 's> {
        let is_selected = move |(name, pod): &(&'a ObjectName, &'a Pod)| {
            let is_there = match namespaces {
                None => name.namespace == self.namespace,
                Some(selector) => {
                    let labels = self.cluster.namespaces.get(&name.namespace);
                    // A namespace that is not known yet has no labels that could be trusted.
                    labels.is_some_and(|labels| selector.selects(labels).unwrap_or(false))
                }
            };
            let selects = |selector: &LabelSelector| selector.selects(&pod.labels);
            is_there && pods.is_none_or(|selector| selects(selector).unwrap_or(false))
        };
        let all = self.cluster.pods.iter();
        all.filter(is_selected).map(|(_, pod)| pod)
    }
}

/// Returns the named ports of a pod.
fn numbers(pod: &Pod, protocol: Protocol, name: &str) -> impl Iterator<Item = u16> {
    let ports = pod.ports.iter();
    ports
        .filter(move |port| port.protocol == protocol && port.name == name)
        .map(|port| port.number)
}

/// Merges the peers that policies allow, and replaces port names by this pod's ports.
fn joined(all: &[&Allowed], pod: &Pod) -> Allowed {
    let mut joined = Allowed::new();
    for (ports, prefixes) in all.iter().copied().flatten() {
        let mut add = |ports: PeerPorts| joined.entry(ports).or_default().extend(prefixes);
        match ports {
            PeerPorts::Of(PolicyPort::Named(protocol, name)) => {
                for number in numbers(pod, *protocol, name) {
                    add(PeerPorts::Of(PolicyPort::Range(*protocol, number, number)));
                }
            }
            ports => add(ports.clone()),
        }
    }
    joined
}

/// Returns the rules that allow traffic in a direction in which a pod is isolated; `None` if they
/// allow everything.
fn allowing(direction: PolicyDirection, mut allowed: Allowed, node: &Node) -> Option<Vec<PodRule>> {
    let everything = merged(allowed.remove(&PeerPorts::Everything).unwrap_or_default());
    if everything == AddressBlock::everything() {
        return None;
    }
    let nodes = merged(node.own_addresses().collect());
    let mut rules: Vec<PodRule> = Vec::new();
    let mut numbers = 1..;
    let mut add = |kind: &str, ports: Option<&PolicyPort>, prefixes: &[AddressBlock]| {
        let peers: Vec<Option<AddressBlock>> = match prefixes == AddressBlock::everything() {
            true => vec![None],
            false => prefixes.iter().copied().map(Some).collect(),
        };
        for peer in peers {
            let number = numbers.next().unwrap_or_default();
            let name = format!("{}{kind}-{number}", direction.policy_type());
            rules.push(PodRule::allow(name, direction, ports.cloned(), peer));
        }
    };
    // A pod and its node always reach each other: the kubelet probes the pod.
    add("-node", None, &nodes);
    add("", None, &everything);
    let of_all = [nodes, everything].concat();
    let mut of_protocol: BTreeMap<Protocol, Vec<AddressBlock>> = BTreeMap::new();
    // Rules for all ports of a protocol precede rules for single ports.
    for (ports, prefixes) in allowed {
        let PeerPorts::Of(ports) = ports else {
            continue;
        };
        let of = of_protocol.entry(ports.protocol()).or_default();
        let mut prefixes = merged(prefixes);
        prefixes.retain(|one| !of_all.iter().chain(&*of).any(|all| all.covers(*one)));
        if matches!(ports, PolicyPort::All(_)) {
            of.extend(&prefixes);
        }
        add("", Some(&ports), &prefixes);
    }
    Some(rules)
}

#[cfg(test)]
mod tests;
