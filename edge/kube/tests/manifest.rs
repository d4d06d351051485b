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

/// The kinds of a file's objects.
const KINDS: [&str; 4] = [
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "DaemonSet",
];

/// Returns the object of a kind in a file, which has one of each of [`KINDS`].
fn object(file: &str, kind: &str) -> Yaml {
    let objects = YamlLoader::load_from_str(&contrib(file)).unwrap();
    let kinds: Vec<_> = objects
        .iter()
        .map(|object| object["kind"].as_str())
        .collect();
    assert_eq!(kinds, KINDS.map(Some), "{file}");
    let of_kind = |object: &Yaml| object["kind"].as_str() == Some(kind);
    objects.into_iter().find(of_kind).unwrap()
}

/// Returns the only container of a DaemonSet's pods.
fn container(set: &Yaml) -> &Yaml {
    let spec = &set["spec"]["template"]["spec"];
    assert!(spec["initContainers"].is_badvalue());
    let containers = spec["containers"].as_vec().unwrap();
    assert_eq!(containers.len(), 1, "{containers:?}");
    &containers[0]
}

/// Returns the keys of a map.
fn keys(of: &Yaml) -> BTreeSet<&str> {
    let map = of.as_hash().unwrap();
    map.keys().map(|key| key.as_str().unwrap()).collect()
}

fn words(of: &Yaml) -> Vec<&str> {
    of.as_vec()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect()
}

/// The rights of a file's program.
struct Rights<'a> {
    /// API groups, resources and verbs.
    api: &'a [(&'a str, &'a str, &'a str)],
    capabilities: &'a [&'a str],
    /// Folders of the node.
    folders: &'a [&'a str],
}

fn keys_of<'a>(names: &[&'a str]) -> BTreeSet<&'a str> {
    names.iter().copied().collect()
}

/// Checks that a pod shares only the node's network and these folders.
fn check_pod(spec: &Yaml, folders: &[&str]) {
    let has_folders = |key| (!folders.is_empty()).then_some(key);
    let mut of_pod = keys_of(&[
        "containers",
        "dnsPolicy",
        "hostNetwork",
        "nodeSelector",
        "priorityClassName",
        "serviceAccountName",
        "terminationGracePeriodSeconds",
        "tolerations",
    ]);
    of_pod.extend(has_folders("volumes"));
    // Without other keys, a pod shares no other namespace and has no other security context.
    assert_eq!(keys(spec), of_pod);
    // The agent opens other pods, so it must not wait for one that opens it.
    assert_eq!(spec["hostNetwork"].as_bool(), Some(true));

    let container = &spec["containers"][0];
    let mut of_container = keys_of(&[
        "name",
        "image",
        "command",
        "env",
        "resources",
        "securityContext",
    ]);
    of_container.extend(has_folders("volumeMounts"));
    assert_eq!(keys(container), of_container);
    let variables = container["env"].as_vec().unwrap().iter();
    let variables: Vec<_> = variables.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["NODE_NAME"]);

    let list = |of: &Yaml| of.as_vec().cloned().unwrap_or_default();
    let (volumes, mounts) = (list(&spec["volumes"]), list(&container["volumeMounts"]));
    assert_eq!(
        (volumes.len(), mounts.len()),
        (folders.len(), folders.len())
    );
    for ((volume, mount), folder) in volumes.iter().zip(&mounts).zip(folders) {
        assert_eq!(keys(volume), keys_of(&["name", "hostPath"]));
        assert_eq!(keys(mount), keys_of(&["name", "mountPath"]));
        assert_eq!(volume["name"], mount["name"]);
        for path in [&volume["hostPath"]["path"], &mount["mountPath"]] {
            assert_eq!(path.as_str(), Some(*folder));
        }
    }
}

/// Checks that the program of a file has these rights alone.
fn check_rights(file: &str, rights: &Rights) {
    let role = object(file, "ClusterRole");
    // An aggregation rule would add rights that this file does not show.
    assert_eq!(
        keys(&role),
        keys_of(&["apiVersion", "kind", "metadata", "rules"])
    );
    let mut api = Vec::new();
    for rule in role["rules"].as_vec().unwrap() {
        let of_rule = ["apiGroups", "resources", "verbs"];
        assert_eq!(keys(rule), of_rule.into());
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                api.extend(words(&rule["verbs"]).iter().map(|verb| {
                    let right = [group, resource, verb];
                    right.map(str::to_owned)
                }));
            }
        }
    }
    api.sort();
    let expected = rights.api.iter();
    let expected = expected.map(|(group, resource, verb)| [*group, *resource, *verb]);
    assert_eq!(api, expected.collect::<Vec<_>>());

    let pod = &object(file, "DaemonSet")["spec"]["template"]["metadata"];
    // An annotation could lift a pod's confinement.
    assert_eq!(keys(pod), keys_of(&["labels"]));
    let account = object(file, "ServiceAccount");
    let binding = object(file, "ClusterRoleBinding");
    let set = object(file, "DaemonSet");
    let spec = &set["spec"]["template"]["spec"];
    assert_eq!(binding["roleRef"]["kind"], role["kind"]);
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let subjects = binding["subjects"].as_vec().unwrap();
    assert_eq!(subjects.len(), 1, "{subjects:?}");
    assert_eq!(subjects[0]["kind"], account["kind"]);
    let account = &account["metadata"];
    for named in [&subjects[0]["name"], &spec["serviceAccountName"]] {
        assert_eq!(named, &account["name"]);
    }
    for namespace in [&subjects[0]["namespace"], &set["metadata"]["namespace"]] {
        assert_eq!(namespace, &account["namespace"]);
    }
    assert_eq!(
        set["spec"]["template"]["metadata"]["labels"],
        set["spec"]["selector"]["matchLabels"]
    );
    check_pod(spec, rights.folders);

    let security = &container(&set)["securityContext"];
    let of_container = [
        "allowPrivilegeEscalation",
        "capabilities",
        "readOnlyRootFilesystem",
        "runAsUser",
    ];
    // Without the key `privileged`, a container is not privileged.
    assert_eq!(keys(security), of_container.into());
    assert_eq!(security["allowPrivilegeEscalation"].as_bool(), Some(false));
    assert_eq!(security["readOnlyRootFilesystem"].as_bool(), Some(true));
    let capabilities = &security["capabilities"];
    assert_eq!(words(&capabilities["drop"]), ["ALL"]);
    let added = capabilities["add"].as_vec().into_iter().flatten();
    let added: Vec<_> = added.map(|name| name.as_str().unwrap()).collect();
    assert_eq!(added, rights.capabilities);
}

#[test]
fn the_agent_may_only_read_four_kinds() {
    let rights = Rights {
        api: &[
            ("", "namespaces", "list"),
            ("", "namespaces", "watch"),
            ("", "nodes", "list"),
            ("", "nodes", "watch"),
            ("", "pods", "list"),
            ("", "pods", "watch"),
            ("networking.k8s.io", "networkpolicies", "list"),
            ("networking.k8s.io", "networkpolicies", "watch"),
        ],
        capabilities: &[],
        folders: &["/run/grantway"],
    };
    check_rights("policies.yaml", &rights);
}

#[test]
fn the_program_of_routes_may_only_read_nodes() {
    let rights = Rights {
        api: &[("", "nodes", "list"), ("", "nodes", "watch")],
        capabilities: &["NET_ADMIN"],
        folders: &[],
    };
    check_rights("routes.yaml", &rights);
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
        let command = words(&container(&set)["command"]);
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
