//! A node: a fake machine, records of pods, and the agent.

use crate::api::{Api, NAMESPACES, NODES};
use client::pods::{self, PodRecord};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Deadline of a condition: several of the agent's longest pauses, 10 s each, because on a busy
/// system it may fail repeatedly during a fault.
const DEADLINE: Duration = Duration::from_secs(180);

/// The rules of guests, as a machine has them.
type Rules = Arc<Mutex<BTreeMap<String, Value>>>;

pub(crate) struct Node {
    folder: TempDir,
    rules: Rules,
    requests: Arc<Mutex<u64>>,
    agent: Option<Child>,
    messages: Arc<Mutex<Vec<String>>>,
}

impl Node {
    /// Returns a node whose machine runs, but whose agent does not.
    pub(crate) fn new() -> Self {
        let node = Self::without_machine();
        node.start_machine();
        node
    }

    pub(crate) fn without_machine() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            rules: Rules::default(),
            requests: Arc::default(),
            agent: None,
            messages: Arc::default(),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a machine, which replaces an earlier one.
    pub(crate) fn start_machine(&self) {
        let path = self.file("m.sock");
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (rules, requests) = (Arc::clone(&self.rules), Arc::clone(&self.requests));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (rules, requests) = (Arc::clone(&rules), Arc::clone(&requests));
                thread::spawn(move || {
                    *requests.lock().unwrap() += 1;
                    answer(stream.unwrap(), &rules)
                });
            }
        });
    }

    /// Attaches a pod; its guest has the rule `closed`.
    pub(crate) fn attach(&self, guest: &str, namespace: &str, pod: &str, uid: &str) {
        let record = PodRecord {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            uid: uid.to_owned(),
        };
        pods::put(&self.file("pods"), guest, &record).unwrap();
        let closed = json!("closed");
        self.rules.lock().unwrap().insert(guest.to_owned(), closed);
    }

    /// Starts the agent with a token over TLS, or over plain HTTP.
    pub(crate) fn start_agent(&mut self, api: &Api) {
        let mut args = vec!["--server".to_owned(), api.url()];
        if api.url().starts_with("https") {
            fs::write(self.file("ca"), &api.certificate).unwrap();
            for (key, name) in [("--ca-file", "ca"), ("--token-file", "token")] {
                args.extend([key.to_owned(), self.file(name).display().to_string()]);
            }
        }
        self.start_agent_with(&args);
    }

    pub(crate) fn start_agent_with(&mut self, args: &[String]) {
        let mut agent = Command::new(env!("CARGO_BIN_EXE_grantway-kube"))
            .args(["agent", "--node", "node-1", "--socket"])
            .args([self.file("m.sock"), "--pods".into(), self.file("pods")])
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(agent.stderr.take().unwrap()).lines();
        let messages = Arc::clone(&self.messages);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                messages.lock().unwrap().push(line);
            }
        });
        self.agent = Some(agent);
    }

    pub(crate) fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// Returns the names of a guest's rules.
    pub(crate) fn rules(&self, guest: &str) -> Value {
        match self.rules.lock().unwrap().get(guest) {
            Some(Value::Array(rules)) => rules.iter().map(|rule| rule["name"].clone()).collect(),
            other => other.cloned().unwrap_or_default(),
        }
    }

    /// Returns the number of requests that the machine has answered.
    pub(crate) fn requests(&self) -> u64 {
        *self.requests.lock().unwrap()
    }

    /// Waits until a guest's rules have these names.
    #[track_caller]
    pub(crate) fn await_rules(&self, guest: &str, names: &Value) {
        self.wait(&format!("rules {names}"), || self.rules(guest) == *names);
    }

    /// Waits for a message with this text.
    #[track_caller]
    pub(crate) fn await_message(&self, text: &str) {
        let has = |message: &String| message.contains(text);
        let said = || self.messages.lock().unwrap().iter().any(has);
        self.wait(&format!("message `{text}`"), said);
    }

    /// Waits for a condition.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + DEADLINE;
        while !is_so() {
            let messages = || self.messages.lock().unwrap().join("\n");
            let rules = || self.rules.lock().unwrap().clone();
            assert!(
                Instant::now() < end,
                "no {what}: {}\n{:?}",
                messages(),
                rules()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

fn answer(mut stream: UnixStream, rules: &Rules) {
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let request: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(request["op"], "rules");
    let guest = request["guest"]["name"].as_str().unwrap();
    let new = request["guest"]["vif"][0]["rule"].clone();
    let answer = match rules.lock().unwrap().get_mut(guest) {
        Some(present) => {
            *present = new;
            json!({ "domain": guest, "took_ns": 1 })
        }
        None => json!({ "error": format!("no guest is named {guest}") }),
    };
    // The agent may have been killed.
    let _ = stream.write_all(format!("{answer}\n").as_bytes());
}

/// Adds a node and a namespace.
pub(crate) fn add_basics(api: &Api) {
    api.put(
        NODES,
        json!({ "metadata": { "name": "node-1" }, "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.1" }] } }),
    );
    api.put(
        NAMESPACES,
        json!({ "metadata": { "name": "shop", "labels": { "team": "shop" } } }),
    );
}

/// Returns a pod of the namespace `shop`.
pub(crate) fn pod(name: &str, app: &str, address: &str) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": name, "uid": format!("uid-of-{name}"),
            "labels": { "app": app } },
        "spec": { "nodeName": "node-1", "containers": [] },
        "status": { "podIP": address, "phase": "Running" },
    })
}

/// Returns a policy of the namespace `shop` that allows ingress from `from` only.
pub(crate) fn policy(name: &str, app: &str, from: &Value) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "podSelector": { "matchLabels": { "app": app } }, "ingress": from },
    })
}

/// Writes the token of the agent.
pub(crate) fn write_token(node: &Node, token: &str) {
    write(&node.file("token"), token);
}

/// Replaces a file atomically, as the kubelet does.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, format!("{text}\n")).unwrap();
    fs::rename(&new, path).unwrap();
}
