//! Tests the agent with a real machine, whose pods are namespaces that the CNI plugin attaches.

use crate::api::{Api, NAMESPACES, NODES, PODS, POLICIES};
use crate::node::{Node, pod, policy};
use client::pods::{self, PodRecord};
use netdev::netns::Namespace;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use testing::{ChildGuard, default_signals, require, wait_until};

/// The address in the Node object. No packet between the node and its pods has this address.
const NODE_ADDRESS: &str = "192.0.2.1";
/// The addresses of the machine's NIC, from which the node sends to its pods.
const GATEWAYS: [&str; 2] = ["10.244.1.1/24", "fd00:244:1::1/64"];
const POD_SUBNETS: [&str; 2] = ["10.244.1.0/24", "fd00:244:1::/64"];

/// A node with a machine.
struct RealNode {
    node: Node,
    host: Namespace,
    up: Child,
    /// Kills the machine if these tests are killed.
    _tied: ChildGuard,
}

fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join(name)
}

impl RealNode {
    /// Returns `None` and logs why if the machine cannot run here.
    fn up() -> Option<Self> {
        require!(
            machine,
            program("grantway"),
            program("grantway-cni"),
            tool("ping")
        );
        default_signals();
        let node = Node::without_machine();
        let host = Namespace::new().unwrap();
        let config = format!(
            "[driver]\nrestart_pause_ms = 20\nflow_tables = 256\n\
             [[nic]]\nname = \"host\"\nkind = \"tap\"\nifname = \"gw\"\nnetns = \"{}\"\n\
             addresses = {GATEWAYS:?}\n",
            host.path().display()
        );
        fs::write(node.file("machine.toml"), config).unwrap();
        let up = grantway(&node, &["up", "machine.toml", "--name", "m"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let real = Self {
            _tied: ChildGuard::new(up.id()),
            node,
            host,
            up,
        };
        wait_until("the machine does not come up", || {
            let status = real.request(&json!({ "op": "status" }));
            status.is_some_and(|status| !status["up_took_ns"].is_null())
        });
        Some(real)
    }

    fn socket(&self) -> PathBuf {
        self.node.file("m.sock")
    }

    /// Returns the machine's answer, if it runs.
    fn request(&self, request: &Value) -> Option<Value> {
        let mut stream = UnixStream::connect(self.socket()).ok()?;
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).ok()
    }

    /// Attaches a namespace as the pod `name` of the namespace `shop`, with addresses of both
    /// families.
    fn attach(&self, name: &str, address: &str) -> Namespace {
        let namespace = Namespace::new().unwrap();
        let conf = json!({
            "cniVersion": "1.0.0", "name": "pods", "type": "grantway-cni",
            "socket": self.socket(), "stateDir": self.node.folder(), "networkPolicy": true,
            "runtimeConfig": { "ips": [format!("{address}/24"), format!("{}/64", v6(address))] },
        });
        let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID=uid-of-{name}");
        let mut plugin = Command::new(program("grantway-cni"))
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", name)
            .env("CNI_NETNS", namespace.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_ARGS", args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = plugin.stdin.take().unwrap();
        stdin.write_all(conf.to_string().as_bytes()).unwrap();
        drop(stdin);
        let output = plugin.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        namespace
    }

    fn start_agent(&mut self, api: &Api) {
        self.node.start_agent(api);
    }

    /// Ends the machine.
    fn end(mut self) {
        let down = grantway(&self.node, &["down", "--name", "m"])
            .output()
            .unwrap();
        assert!(down.status.success(), "{down:?}");
        assert!(self.up.wait().unwrap().success());
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        // A test has failed; terminating `up` also stops the machine.
        if self.up.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.up.kill();
            let _ = self.up.wait();
        }
    }
}

fn grantway(node: &Node, args: &[&str]) -> Command {
    let mut command = Command::new(program("grantway"));
    let command_of_folder = command.args(args).stdin(Stdio::null());
    command_of_folder
        .env("GRANTWAY_RUNTIME_DIR", node.folder())
        .current_dir(node.folder());
    command
}

/// Returns the IPv6 address of the pod with this IPv4 address.
fn v6(address: &str) -> String {
    let host = address.rsplit('.').next().unwrap();
    format!("fd00:244:1::{host}")
}

fn ping(from: &Namespace, address: &str) -> Output {
    let ping = || {
        Command::new("ping")
            .args(["-c", "1", "-W", "1", address])
            .output()
    };
    from.enter(ping).unwrap().unwrap()
}

fn answers_ping(from: &Namespace, address: &str) -> bool {
    ping(from, address).status.success()
}

#[track_caller]
fn reaches(from: &Namespace, address: &str) {
    wait_until(&format!("no answer of {address}"), || {
        answers_ping(from, address)
    });
}

/// Returns a cluster with one node.
fn cluster() -> Api {
    let api = Api::new(true);
    let address = json!({ "type": "InternalIP", "address": NODE_ADDRESS });
    api.put(
        NODES,
        json!({
            "metadata": { "name": "node-1" },
            "spec": { "podCIDRs": POD_SUBNETS },
            "status": { "addresses": [address] },
        }),
    );
    api.put(NAMESPACES, json!({ "metadata": { "name": "shop" } }));
    api
}

/// Returns the ingress of a policy that allows the pods of an application.
fn from(app: &str) -> Value {
    json!([{ "from": [{ "podSelector": { "matchLabels": { "app": app } } }] }])
}

#[test]
fn policies_decide_about_packets() {
    const DB: &str = "10.244.1.5";
    const LATE_POD: &str = "10.244.1.8";
    let Some(mut real) = RealNode::up() else {
        return;
    };
    let api = cluster();
    crate::node::write_token(&real.node, "first");
    for (name, app, address) in [
        ("db", "db", DB),
        ("web", "web", "10.244.1.6"),
        ("cron", "cron", "10.244.1.7"),
        ("late", "db", LATE_POD),
    ] {
        api.put(PODS, pod(name, app, address));
    }
    let _db = real.attach("db", DB);
    let web = real.attach("web", "10.244.1.6");
    let cron = real.attach("cron", "10.244.1.7");
    // No agent has opened them.
    assert!(!answers_ping(&web, DB) && !answers_ping(&real.host, DB));
    api.put(POLICIES, policy("db", "db", &from("web")));
    real.start_agent(&api);
    reaches(&web, DB);
    reaches(&real.host, DB);
    reaches(&real.host, &v6(DB));
    assert!(!answers_ping(&cron, DB) && !answers_ping(&cron, &v6(DB)));
    api.put(POLICIES, policy("db", "db", &from("cron")));
    reaches(&cron, DB);
    assert!(!answers_ping(&web, DB));
    // A pod gets another label.
    api.put(PODS, pod("web", "cron", "10.244.1.6"));
    reaches(&web, DB);
    api.put(PODS, pod("web", "web", "10.244.1.6"));
    wait_until("web still reaches db", || !answers_ping(&web, DB));

    real.node.kill_agent();
    reaches(&cron, DB);
    assert!(!answers_ping(&web, DB));
    let _late = real.attach("late", LATE_POD);
    assert!(!answers_ping(&cron, LATE_POD) && !answers_ping(&real.host, LATE_POD));
    api.remove(POLICIES, "shop/db");
    real.start_agent(&api);
    for address in [DB, LATE_POD] {
        reaches(&web, address);
        reaches(&cron, address);
    }
    real.end();
}

/// Maximum duration of a change: ten times the documented second, because the system may be busy.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// Changes the rules of all pods of a full node, and prints how long that takes.
#[test]
fn a_change_reaches_a_hundred_pods() {
    const PODS_COUNT: usize = 100;
    const POLICIES_COUNT: usize = 50;
    let Some(mut real) = RealNode::up() else {
        return;
    };
    let api = cluster();
    crate::node::write_token(&real.node, "first");
    let records = real.node.file("pods");
    for n in 0..PODS_COUNT {
        let name = format!("p{n}");
        api.put(PODS, pod(&name, "all", &format!("10.244.1.{}", n + 10)));
        attach_sink(&real, &records, &name);
    }
    for n in 0..POLICIES_COUNT {
        let port = json!([{ "ports": [{ "port": 1000 + n }] }]);
        api.put(POLICIES, policy(&format!("policy-{n}"), "all", &port));
    }
    real.start_agent(&api);
    real.node.await_message("all rules are set");
    let stat = || -> Option<Value> {
        let stat = json!({ "op": "relay", "domain": "driver", "request": "{\"op\":\"stat\"}" });
        serde_json::from_str(real.request(&stat)?["reply"].as_str()?).ok()
    };
    // A request for counters has its turn while the agent changes the rules of many pods.
    let rules = || rules_of_pods(&stat().expect("the counters are refused"));
    // All pods get other rules, which allow only the node.
    for (change, expected) in [(json!([]), 4), (json!([{}]), 0)] {
        for n in 1..POLICIES_COUNT {
            let name = format!("shop/policy-{n}");
            if expected > 0 {
                api.remove(POLICIES, &name);
            }
        }
        let began = Instant::now();
        api.put(POLICIES, policy("policy-0", "all", &change));
        wait_until("some pods have other rules", || {
            rules() == [expected; PODS_COUNT]
        });
        let took = began.elapsed();
        println!("{PODS_COUNT} pods have other rules after {took:?}");
        assert!(took <= DELAY_MAX, "{took:?}");
    }

    // The driver domain reports the counters of this number of rules in several replies.
    const PORTS_COUNT: usize = 200;
    let ports = (0..PORTS_COUNT).map(|n| json!({ "port": 1000 + 2 * n }));
    let many = json!([{ "ports": ports.collect::<Vec<_>>() }]);
    api.put(POLICIES, policy("policy-0", "all", &many));
    wait_until("grantway does not show all rules", || {
        let stat = grantway(&real.node, &["stat", "driver", "--name", "m", "--json"]);
        let counts = output_of(stat).map(|stat| rules_of_pods(&stat["driver"]));
        counts.is_some_and(|counts| counts == [PORTS_COUNT + 4; PODS_COUNT])
    });
    wait_until("one reply has all rules", || {
        stat().is_some_and(|stat| stat["next"].is_u64())
    });
    real.end();
}

/// Returns the number of rules of each pod.
fn rules_of_pods(stat: &Value) -> Vec<usize> {
    let ports = stat["ports"].as_object().unwrap().iter();
    let of_pods = ports.filter(|(name, _)| name.starts_with("vif.p"));
    let counts = of_pods.map(|(_, port)| port["rules"].as_object().map_or(0, |rules| rules.len()));
    counts.collect()
}

/// Returns what a command prints, if it succeeds.
fn output_of(mut command: Command) -> Option<Value> {
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).ok()
}

/// Attaches a closed guest without a namespace, and records it as a pod.
fn attach_sink(real: &RealNode, records: &Path, name: &str) {
    let record = PodRecord {
        namespace: "shop".to_owned(),
        pod: name.to_owned(),
        uid: format!("uid-of-{name}"),
    };
    pods::put(records, name, &record).unwrap();
    let rule = json!([{ "name": "unknown-policy", "action": "deny", "state": "new" }]);
    let vif = json!([{ "endpoint": "sink", "rule": rule }]);
    let guest = json!({ "name": name, "vif": vif });
    let attached = real
        .request(&json!({ "op": "attach", "guest": guest }))
        .unwrap();
    assert_eq!(attached["domain"], json!(name), "{attached}");
}
