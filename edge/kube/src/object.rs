//! Objects of the kinds that policies need, decoded once.

use crate::api::{Metadata, Node, ObjectName, Pod};
use crate::policy::PodPolicy;
use crate::selector::Labels;
use serde_json::Value;

/// The kinds of objects that policies need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Nodes.
    Nodes,
    /// Namespaces.
    Namespaces,
    /// Pods.
    Pods,
    /// Network policies.
    Policies,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Nodes, Self::Namespaces, Self::Pods, Self::Policies];

    /// Returns the kind of an object, by its keys `apiVersion` and `kind`.
    ///
    /// # Errors
    ///
    /// Returns an error if policies do not need its kind.
    pub fn of(object: &Value) -> Result<Self, String> {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        match (text("apiVersion"), text("kind")) {
            ("v1", "Node") => Ok(Self::Nodes),
            ("v1", "Namespace") => Ok(Self::Namespaces),
            ("v1", "Pod") => Ok(Self::Pods),
            ("networking.k8s.io/v1", "NetworkPolicy") => Ok(Self::Policies),
            (version, kind) => Err(format!(
                "an object of kind `{kind}`, version `{version}`: request \
                 `nodes,namespaces,pods,networkpolicies`"
            )),
        }
    }

    /// Returns the name of one object of this kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nodes => "Node",
            Self::Namespaces => "Namespace",
            Self::Pods => "Pod",
            Self::Policies => "NetworkPolicy",
        }
    }

    /// Returns the path of all its objects at the API server.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Nodes => "/api/v1/nodes",
            Self::Namespaces => "/api/v1/namespaces",
            Self::Pods => "/api/v1/pods",
            Self::Policies => "/apis/networking.k8s.io/v1/networkpolicies",
        }
    }
}

/// An object of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A node.
    Node(Node),
    /// The labels of a namespace.
    Namespace(Labels),
    /// A pod.
    Pod(Pod),
    /// A network policy.
    Policy(PodPolicy),
}

/// Returns the name and the contents of an object of this kind.
///
/// # Errors
///
/// Returns an error if it has no name, or is a pod with unknown parts.
pub fn decoded(kind: Kind, object: &Value) -> Result<(ObjectName, Object), String> {
    let (name, metadata) = named(kind, object)?;
    let object = match kind {
        Kind::Nodes => Object::Node(Node::of(object)),
        Kind::Namespaces => Object::Namespace(metadata.labels),
        Kind::Pods => match Pod::of(metadata, object) {
            Some(pod) => Object::Pod(pod),
            None => return Err(format!("Pod {name} is not understood")),
        },
        Kind::Policies => Object::Policy(PodPolicy::of(object)),
    };
    Ok((name, object))
}

/// Returns the name and the metadata of an object of this kind.
///
/// # Errors
///
/// Returns an error if it has no name.
pub fn named(kind: Kind, object: &Value) -> Result<(ObjectName, Metadata), String> {
    let of = kind.name();
    let metadata =
        Metadata::of(object).ok_or_else(|| format!("{of}: `metadata` is not understood"))?;
    let name = metadata.object();
    if name.name.is_empty() {
        return Err(format!("{of}: it has no name"));
    }
    let has_namespace = matches!(kind, Kind::Pods | Kind::Policies);
    if has_namespace == name.namespace.is_empty() {
        let has = if has_namespace { "no" } else { "a" };
        return Err(format!("{of} {}: it has {has} namespace", name.name));
    }
    Ok((name, metadata))
}
