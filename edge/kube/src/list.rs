//! A `List` of objects, as `kubectl get -o json` prints it.
//!
//! A mistake in the list is an error: a skipped object could be a policy that isolates a pod.

use crate::compile::Cluster;
use crate::object::{Kind, decoded};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

/// Decodes the objects of a cluster. Holds one undecoded object at a time.
///
/// # Errors
///
/// Returns an error if the text is not a list, or an object has another kind, has no name, occurs
/// twice, or is a pod with unknown parts. The error names the object and its position.
pub fn cluster(text: &[u8]) -> Result<Cluster, String> {
    let list: ObjectList = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if list.kind != "List" {
        return Err(format!("its `kind` is `{}` instead of `List`", list.kind));
    }
    let Items(cluster) = list.items;
    if cluster.namespaces.is_empty() {
        return Err("it has no Namespace: request `nodes,namespaces,pods,networkpolicies`".into());
    }
    Ok(cluster)
}

#[derive(Deserialize)]
struct ObjectList {
    kind: String,
    items: Items,
}

struct Items(Cluster);

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(ItemsVisitor).map(Self)
    }
}

struct ItemsVisitor;

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = Cluster;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Cluster, A::Error> {
        let mut cluster = Cluster::default();
        let mut known = BTreeSet::new();
        let mut number: usize = 0;
        while let Some(object) = items.next_element::<Value>()? {
            number = number.saturating_add(1);
            let decode = |kind| decoded(kind, &object).map(|decoded| (kind, decoded));
            let (kind, (name, object)) = (Kind::of(&object).and_then(decode))
                .map_err(|why| A::Error::custom(format_args!("item {number}: {why}")))?;
            if !known.insert((kind, name.clone())) {
                let twice = format_args!("item {number}: {name} occurs twice");
                return Err(A::Error::custom(twice));
            }
            cluster.put(name, object);
        }
        Ok(cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(kind: &str, metadata: Value) -> Value {
        json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata })
    }

    fn read(items: &[Value]) -> Result<Cluster, String> {
        let list = json!({ "apiVersion": "v1", "items": items, "kind": "List" });
        cluster(list.to_string().as_bytes())
    }

    #[test]
    fn objects_are_added_by_kind() {
        let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": "p", "namespace": "n" }, "spec": { "podSelector": {} } });
        let items = [
            object("Node", json!({ "name": "n" })),
            object("Namespace", json!({ "name": "n" })),
            object("Pod", json!({ "name": "n", "namespace": "n" })),
            policy,
        ];
        let cluster = read(&items).unwrap();
        let counts = [
            cluster.nodes.len(),
            cluster.namespaces.len(),
            cluster.pods.len(),
            cluster.policies.len(),
        ];
        assert_eq!(counts, [1; 4]);
    }

    #[test]
    fn mistakes_name_the_object() {
        let namespace = object("Namespace", json!({ "name": "n" }));
        let old = json!({ "apiVersion": "extensions/v1beta1", "kind": "NetworkPolicy",
            "metadata": { "name": "p", "namespace": "n" } });
        let bad_port = json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "p", "namespace": "n" },
            "spec": { "containers": [{ "ports": [{ "containerPort": 65_536 }] }] } });
        for (item, expected) in [
            (json!(7), "item 2: an object of kind ``"),
            (
                object("Service", json!({ "name": "s" })),
                "item 2: an object of kind `Service`",
            ),
            (old, "version `extensions/v1beta1`"),
            (
                object("Pod", json!(7)),
                "item 2: Pod: `metadata` is not understood",
            ),
            (object("Node", json!({})), "item 2: Node: it has no name"),
            (
                object("Pod", json!({ "name": "p" })),
                "item 2: Pod p: it has no namespace",
            ),
            (
                object("Node", json!({ "name": "a", "namespace": "n" })),
                "item 2: Node a: it has a namespace",
            ),
            (bad_port, "item 2: Pod n/p is not understood"),
            (namespace.clone(), "item 2: /n occurs twice"),
        ] {
            let error = read(&[namespace.clone(), item.clone()]).unwrap_err();
            assert!(error.contains(expected), "{item}: {error}");
        }
        assert!(read(&[]).unwrap_err().contains("no Namespace"));
    }

    #[test]
    fn text_that_is_no_list_is_rejected() {
        let deep = "[".repeat(100_000);
        for (text, expected) in [
            ("", "EOF while parsing"),
            ("{\"items\": [}", "line 1 column 12"),
            ("[]", "invalid length 0"),
            ("{\"kind\": \"List\"}", "missing field `items`"),
            ("{\"items\": []}", "missing field `kind`"),
            ("{\"items\": 7, \"kind\": \"List\"}", "a list of objects"),
            (
                "{\"items\": [], \"kind\": \"PodList\"}",
                "`PodList` instead of `List`",
            ),
            (
                "{\"items\": [], \"kind\": \"List\"} x",
                "trailing characters",
            ),
            (&deep, ""),
        ] {
            let error = cluster(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
