//! The agent's objects in `contrib/kubernetes`, and its unit of systemd.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use yaml_rust2::{Yaml, YamlLoader};

/// The path of the program in the image, and in the package.
const PROGRAM: &str = "/usr/libexec/grantway/grantway-kube";

fn contrib(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/kubernetes");
    fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

/// Returns the only object of a kind in a file.
fn object(file: &str, kind: &str) -> Yaml {
    let objects = YamlLoader::load_from_str(&contrib(file)).unwrap();
    let of_kind = |object: &Yaml| object["kind"].as_str() == Some(kind);
    let mut found = objects.into_iter().filter(of_kind);
    let object = found.next().unwrap();
    assert!(found.next().is_none(), "two of {kind}");
    object
}

fn words(of: &Yaml) -> Vec<&str> {
    of.as_vec()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect()
}

/// Checks that the programs of a file may do this to these kinds alone, and have only these
/// capabilities.
fn check_rights(file: &str, verbs: &[&str], expected: &[(&str, &str)], capabilities: &[&str]) {
    let role = object(file, "ClusterRole");
    let mut kinds = BTreeSet::new();
    for rule in role["rules"].as_vec().unwrap() {
        assert_eq!(words(&rule["verbs"]), verbs);
        let groups = words(&rule["apiGroups"]);
        for resource in words(&rule["resources"]) {
            kinds.insert((groups[0].to_owned(), resource.to_owned()));
        }
    }
    let expected = expected.iter();
    let expected = expected.map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
    assert_eq!(kinds, expected.collect());

    let account = &object(file, "ServiceAccount")["metadata"];
    let binding = object(file, "ClusterRoleBinding");
    let set = object(file, "DaemonSet");
    let spec = &set["spec"]["template"]["spec"];
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    for named in [&binding["subjects"][0]["name"], &spec["serviceAccountName"]] {
        assert_eq!(named, &account["name"]);
    }
    for namespace in [
        &binding["subjects"][0]["namespace"],
        &set["metadata"]["namespace"],
    ] {
        assert_eq!(namespace, &account["namespace"]);
    }
    assert_eq!(
        set["spec"]["template"]["metadata"]["labels"],
        set["spec"]["selector"]["matchLabels"]
    );
    // The agent opens other pods, so it must not wait for one that opens it.
    assert_eq!(spec["hostNetwork"].as_bool(), Some(true));
    let security = &spec["containers"][0]["securityContext"];
    assert_eq!(words(&security["capabilities"]["drop"]), ["ALL"]);
    let added = &security["capabilities"]["add"];
    let added = if added.is_badvalue() {
        Vec::new()
    } else {
        words(added)
    };
    assert_eq!(added, capabilities);
    assert!(security["privileged"].is_badvalue());
}

#[test]
fn the_agent_may_only_read_four_kinds() {
    let kinds = [
        ("", "namespaces"),
        ("", "nodes"),
        ("", "pods"),
        ("networking.k8s.io", "networkpolicies"),
    ];
    check_rights("policies.yaml", &["list", "watch"], &kinds, &[]);
}

#[test]
fn the_program_of_routes_may_only_read_nodes() {
    let verbs = ["list", "watch"];
    check_rights("routes.yaml", &verbs, &[("", "nodes")], &["NET_ADMIN"]);
}

/// Runs the program with these arguments, outside a pod.
fn error_of(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grantway-kube"));
    let output = command
        .args(args)
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn commands_are_accepted_by_the_program() {
    for file in ["policies.yaml", "routes.yaml"] {
        let set = object(file, "DaemonSet");
        let command = &set["spec"]["template"]["spec"]["containers"][0]["command"];
        let command = words(command);
        assert_eq!(command[0], PROGRAM);
        let args: Vec<String> = command[1..]
            .iter()
            .map(|word| word.replace("$(NODE_NAME)", "node-1"))
            .collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let why = error_of(&args);
        assert!(why.contains("KUBERNETES_SERVICE_HOST is not set"), "{why}");
    }

    let unit = contrib("grantway-kube.service");
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .unwrap();
    let start = start
        .replace("${NODE_NAME}", "node-1")
        .replace("${KUBECONFIG}", "/nonexistent");
    let words: Vec<&str> = start.split(' ').collect();
    assert_eq!(words[0], PROGRAM);
    let why = error_of(&words[1..]);
    assert!(why.contains("/nonexistent: No such file"), "{why}");
}
