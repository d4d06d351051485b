//! Runs the program on the output of `kubectl get` and on other input.

use abi::machine::ConfigValue;
use config::live::state::{AttachedGuest, Origin};
use config::live::{self, LiveConfig, LiveSpec};
use config::rule::{FirewallRule, RuleDirection, RuleState};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::thread;

const CLUSTER: &str = include_str!("data/cluster.json");

/// Runs `grantway-kube rules` with these arguments and this standard input.
fn run(args: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grantway-kube"));
    command.arg("rules").args(args).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut to = child.stdin.take().unwrap();
    let text = stdin.to_vec();
    // A program that fails early does not read all of it.
    let writer = thread::spawn(move || to.write_all(&text));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    output
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the printed lines.
fn pods(output: &Output) -> Vec<Value> {
    let lines = text(&output.stdout).lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns printed rules as the driver domain of a running machine gets them, after `grantway
/// rules` has replaced those of a guest.
fn as_replaced(rules: &Value) -> Vec<FirewallRule> {
    let file = config::ConfigFile {
        name: "f".to_owned(),
        text: "[driver]\n".to_owned(),
    };
    let parsed = config::parse("f", &file.text).unwrap();
    let machine = live::machine(&parsed, &[file]).unwrap();
    let mut live = LiveSpec::from(machine.live.unwrap());
    let mut running = LiveConfig::of(&live).unwrap();
    let setting = |value: Value| serde_json::from_value::<ConfigValue>(value).unwrap();
    let guest = json!({ "name": "pod", "vif": [{ "endpoint": "echo" }] });
    let added = running.add(&setting(guest)).unwrap();
    let attached = AttachedGuest {
        guest: added.guest,
        origin: Origin {
            user: Some(7),
            ..Origin::default()
        },
    };
    live.attached.insert(added.domain.name, attached);
    let mut wanted = rules.clone();
    wanted["name"] = json!("pod");
    let guest = running.with_rules(&live, &setting(wanted)).unwrap();
    running.change(&guest).unwrap().vifs[0]
        .settings
        .rules
        .clone()
}

/// Checks the lines of node-1.
fn check(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    let pods = pods(output);
    let named: Vec<(&Value, &Value, &Value)> = pods
        .iter()
        .map(|pod| (&pod["namespace"], &pod["pod"], &pod["addresses"]))
        .collect();
    let expected = [
        (&json!("shop"), &json!("db-0"), &json!(["10.244.1.5"])),
        (&json!("shop"), &json!("web-0"), &json!(["10.244.1.7"])),
    ];
    assert_eq!(named, expected);
    assert_eq!(as_replaced(&pods[1]["rules"]), vec![]);

    let rules = as_replaced(&pods[0]["rules"]);
    let is_to_guest = |rule: &FirewallRule| rule.direction == Some(RuleDirection::Out);
    assert!(rules.iter().all(is_to_guest), "{rules:?}");
    let shown: Vec<_> = rules
        .iter()
        .map(|rule| {
            let source = rule.source.map(|source| (source.address, source.prefix));
            let ports = rule.destination_ports.as_ref().map(|ports| ports.0.clone());
            (
                rule.allow,
                source,
                rule.protocol.map(|one| one.0),
                ports,
                rule.state,
            )
        })
        .collect();
    let host = |address: &str| Some((address.parse().unwrap(), 32));
    let sql = Some(5432..=5432);
    let expected = [
        (true, host("10.244.1.1"), None, None, None),
        (true, host("192.0.2.11"), None, None, None),
        (true, host("10.244.1.7"), Some(6), sql.clone(), None),
        (true, host("10.244.2.9"), Some(6), sql, None),
        (false, None, None, None, Some(RuleState::New)),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn machines_accept_the_rules_of_every_pod() {
    check(&run(&["--node", "node-1"], CLUSTER.as_bytes()));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cluster.json");
    check(&run(&["--node", "node-1", "--file", file], b""));
    let other = pods(&run(&["--node", "node-2"], CLUSTER.as_bytes()));
    assert_eq!(other.len(), 1);
    assert_eq!(other[0]["pod"], "web-1");
}

#[test]
fn unknown_parts_deny_with_a_warning() {
    let strange = CLUSTER.replace("\"port\": \"sql\"", "\"port\": \"sql\", \"days\": []");
    assert_ne!(strange, CLUSTER);
    let output = run(&["--node", "node-1"], strange.as_bytes());
    assert!(output.status.success());
    let warnings = text(&output.stderr);
    let start = "grantway-kube: warning: NetworkPolicy shop/db: ingress rule 1";
    assert!(warnings.starts_with(start), "{warnings}");
    let allowed = as_replaced(&pods(&output)[0]["rules"]);
    let allowed = allowed.iter().filter(|rule| rule.allow);
    assert_eq!(allowed.count(), 2, "only the node");
}

#[test]
fn other_input_is_an_error_that_names_the_place() {
    let pod_without_name = CLUSTER.replace("\"name\": \"db-0\",", "");
    let policies_of_others = CLUSTER.replace("networking.k8s.io/v1", "example.com/v1");
    let cut = CLUSTER.get(..CLUSTER.len() / 2).unwrap();
    let no_address = CLUSTER.replace("\"InternalIP\"", "\"InternalDNS\"");
    for (input, expected) in [
        ("", "standard input: EOF"),
        (
            "apiVersion: v1\n",
            "standard input: expected value at line 1",
        ),
        (
            "{\"kind\": \"List\", \"items\": [7]}",
            "standard input: item 1: ",
        ),
        ("{\"kind\": \"List\", \"items\": [{}, \u{1b}", "item 1: "),
        (&pod_without_name, "item 6: Pod: it has no name"),
        (
            &policies_of_others,
            "item 10: an object of kind `NetworkPolicy`",
        ),
        (cut, "EOF while parsing"),
        (&no_address, "standard input: Node node-1 has no address"),
    ] {
        let output = run(&["--node", "node-1"], input.as_bytes());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with("grantway-kube: "), "{error}");
        assert!(error.contains(expected), "{error}");
        assert_eq!(text(&output.stdout), "");
    }
    let random = run(&["--node", "node-1"], &[0xff; 4096]);
    assert_eq!(random.status.code(), Some(2));

    let unknown = run(&["--node", "node\u{1b}[2J"], CLUSTER.as_bytes());
    assert_eq!(unknown.status.code(), Some(2));
    let error = text(&unknown.stderr);
    assert!(
        error.contains("standard input: it has no Node node\u{fffd}[2J"),
        "{error}"
    );

    let absent = run(&["--node", "node-1", "--file", "/nonexistent"], b"");
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent.stderr).contains("cannot read /nonexistent: No such file"));
}

#[test]
fn a_list_that_exceeds_the_limit_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.json");
    File::create(&path)
        .unwrap()
        .set_len((256 << 20) + 1)
        .unwrap();
    let output = run(&["--node", "node-1", "--file", path.to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).ends_with("cluster.json: it exceeds 256 MiB\n"));
}

#[test]
fn help_shows_how_to_call_it() {
    let output = run(&["--help"], b"");
    assert!(output.status.success());
    let help = text(&output.stdout);
    for part in [
        "kubectl get nodes,namespaces,pods,networkpolicies -A -o json",
        "--node",
        "--file",
    ] {
        assert!(help.contains(part), "{help}");
    }
}
