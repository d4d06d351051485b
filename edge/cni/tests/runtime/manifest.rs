//! The objects of a cluster, in `contrib/kubernetes`.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use yaml_rust2::{Yaml, YamlLoader};

/// Returns the path of a file of `contrib/kubernetes`.
pub(crate) fn contrib(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/kubernetes");
    Path::new(folder).join(name)
}

/// Returns the object of this kind.
fn object(kind: &str) -> Yaml {
    let text = fs::read_to_string(contrib("grantway.yaml")).unwrap();
    let objects = YamlLoader::load_from_str(&text).unwrap().into_iter();
    let mut found = objects.filter(|object| object["kind"].as_str() == Some(kind));
    let object = found.next().unwrap();
    assert!(found.next().is_none(), "two of {kind}");
    object
}

/// Returns a file that the ConfigMap installs on the nodes.
pub(crate) fn file(name: &str) -> String {
    let text = &object("ConfigMap")["data"][name];
    text.as_str().unwrap().to_owned()
}

fn list(of: &Yaml) -> impl Iterator<Item = &Yaml> {
    of.as_vec().into_iter().flatten()
}

fn names<'a>(of: &'a Yaml, key: &str) -> BTreeSet<&'a str> {
    list(of).map(|one| one[key].as_str().unwrap()).collect()
}

#[test]
fn the_network_of_a_cluster_is_that_of_the_example() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/cni");
    let example = fs::read_to_string(Path::new(example).join("10-grantway.conflist")).unwrap();
    let mut example: Value = serde_json::from_str(&example).unwrap();
    // kube-proxy translates packets at the node.
    example["plugins"][0]["routed"] = true.into();
    let own = file("10-grantway.conflist")
        .replace("@RANGES@", r#"[{ "subnet": "10.88.7.0/24" }]"#)
        .replace("@ROUTES@", r#"{ "dst": "0.0.0.0/0" }"#);
    let own: Value = serde_json::from_str(&own).unwrap();
    assert_eq!(own, example);
}

#[test]
fn references_of_the_daemonset_exist() {
    let set = object("DaemonSet");
    let spec = &set["spec"]["template"]["spec"];
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels, &set["spec"]["selector"]["matchLabels"]);

    assert_eq!(spec["hostNetwork"].as_bool(), Some(true));
    let volumes = names(&spec["volumes"], "name");
    let mut mounted = BTreeSet::new();
    for container in list(&spec["initContainers"]).chain(list(&spec["containers"])) {
        mounted.extend(names(&container["volumeMounts"], "name"));
        assert_eq!(
            container["image"],
            list(&spec["containers"]).next().unwrap()["image"]
        );
    }
    assert_eq!(mounted, volumes);
    let config = list(&spec["volumes"]).find(|volume| !volume["configMap"].is_badvalue());
    let config = &config.unwrap()["configMap"]["name"];
    assert_eq!(config, &object("ConfigMap")["metadata"]["name"]);

    // The service account may query the API server.
    let account = &object("ServiceAccount")["metadata"];
    assert_eq!(spec["serviceAccountName"], account["name"]);
    let binding = object("ClusterRoleBinding");
    let subject = &binding["subjects"][0];
    assert_eq!(subject["name"], account["name"]);
    for namespace in [&subject["namespace"], &set["metadata"]["namespace"]] {
        assert_eq!(namespace, &account["namespace"]);
    }
    let role = object("ClusterRole");
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let rule = &role["rules"][0];
    assert_eq!(rule["resources"][0].as_str(), Some("nodes"));
    assert_eq!(rule["verbs"][0].as_str(), Some("get"));
}

#[test]
fn probes_and_script_arguments_are_complete() {
    let set = object("DaemonSet");
    let spec = &set["spec"]["template"]["spec"];
    let machine = &spec["containers"][0];
    let words = |of: &Yaml| -> Vec<String> {
        list(of)
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        words(&machine["command"]),
        ["grantway", "up", "/node/grantway.conf"]
    );
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let command = words(&machine[probe]["exec"]["command"]);
        assert_eq!(command, ["grantway", "status"], "{probe}");
    }
    let node = &spec["initContainers"][0];
    let script = fs::read_to_string(contrib("node.sh")).unwrap();
    for name in names(&node["env"], "name") {
        assert!(script.contains(&format!("${{{name}:-")), "{name}");
    }
    for command in ["render", "install"] {
        let said = node["command"][2].as_str().unwrap();
        assert!(said.contains(&format!("node.sh {command}")), "{said}");
        assert!(script.contains(&format!("\n{command}) ")), "{command}");
    }
}
