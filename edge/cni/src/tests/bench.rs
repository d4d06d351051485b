//! The environment of a call: a folder and a mock machine.

use crate::program;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};
use tempfile::TempDir;

/// The result of a call.
pub(super) struct Answered {
    pub(super) is_done: bool,
    /// The answer; null if the call has none.
    pub(super) said: Value,
}

impl Answered {
    #[track_caller]
    pub(super) fn done(self) -> Value {
        assert!(self.is_done, "{}", self.said);
        self.said
    }

    /// Returns the failure's code, and its message with the details.
    #[track_caller]
    pub(super) fn failed(self) -> (u64, String) {
        assert!(!self.is_done, "{}", self.said);
        let text = |key: &str| self.said[key].as_str().unwrap().to_owned();
        assert!(!text("cniVersion").is_empty());
        let code = self.said["code"].as_u64().unwrap();
        (code, format!("{} ({})", text("msg"), text("details")))
    }
}

pub(super) struct Bench {
    folder: TempDir,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("m.sock")
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the configuration of a network of this bench.
    pub(super) fn conf(&self, more: Value) -> Value {
        let conf = json!({
            "cniVersion": "1.0.0",
            "name": "gwnet",
            "type": "grantway-cni",
            "ipam": { "type": "answers" },
        });
        self.with_folders(merged(conf, more))
    }

    /// Returns a configuration with the machine, state and addresses of this bench.
    pub(super) fn with_folders(&self, mut conf: Value) -> Value {
        conf["socket"] = json!(self.socket());
        conf["stateDir"] = json!(self.file("state"));
        if conf["ipam"].is_object() {
            conf["ipam"]["folder"] = json!(self.folder.path());
        }
        conf
    }

    /// Sets the addresses that the `ipam` plugin assigns.
    pub(super) fn set_ipam_addresses(&self, ips: &[&str], routes: Value) {
        let ips = ips.iter().map(|ip| {
            let (address, gateway) = ip.split_once(' ').unwrap_or((ip, ""));
            match gateway {
                "" => json!({ "address": address }),
                _ => json!({ "address": address, "gateway": gateway }),
            }
        });
        self.answers(
            json!({ "cniVersion": "1.0.0", "ips": ips.collect::<Vec<_>>(),
            "routes": routes }),
        );
    }

    pub(super) fn answers(&self, result: Value) {
        fs::write(self.file("ADD.answer"), result.to_string()).unwrap();
    }

    /// Returns the commands with which the `ipam` plugin was called since the last call of this
    /// function.
    pub(super) fn ipam_calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.file("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.file("calls"));
        calls.lines().map(str::to_owned).collect()
    }

    pub(super) fn call(&self, env: &[(&str, &str)], conf: &Value) -> Answered {
        let plugins = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/ipam");
        let mut vars: BTreeMap<String, String> = (env.iter())
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        vars.insert("CNI_PATH".to_owned(), plugins.to_owned());
        let (said, is_done) = program::run(vars, conf.to_string().as_bytes());
        let said = match said.as_str() {
            "" => Value::Null,
            said => serde_json::from_str(said).unwrap(),
        };
        Answered { is_done, said }
    }

    /// Returns a call for `eth0` of a container.
    pub(super) fn of(&self, command: &str, container: &str, conf: &Value) -> Answered {
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", "/run/netns/no-such-namespace"),
            ("CNI_IFNAME", "eth0"),
        ];
        self.call(&env, conf)
    }
}

/// Returns one object with the keys of another one added.
fn merged(mut to: Value, from: Value) -> Value {
    for (key, value) in from.as_object().cloned().unwrap_or_default() {
        to[key] = value;
    }
    to
}

/// State of the mock machine: its answers, and the requests that it has received.
#[derive(Default)]
struct MockState {
    guests: Mutex<Vec<String>>,
    attached: Mutex<Vec<Value>>,
    ends: AtomicBool,
}

/// A mock machine that accepts every guest except one whose `mtu` is 1.
pub(super) struct Fake {
    heart: Arc<MockState>,
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    pub(super) fn up(socket: &Path) -> Self {
        let _ = fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let heart = Arc::new(MockState::default());
        let its = Arc::clone(&heart);
        let thread = spawn(move || {
            for stream in listener.incoming() {
                if its.ends.load(Ordering::SeqCst) {
                    return;
                }
                its.serve(stream.unwrap());
            }
        });
        Self {
            heart,
            socket: socket.to_owned(),
            thread: Some(thread),
        }
    }

    pub(super) fn guests(&self) -> Vec<String> {
        self.heart.guests.lock().unwrap().clone()
    }

    /// Adds an existing guest.
    pub(super) fn with(self, guest: &str) -> Self {
        self.heart.guests.lock().unwrap().push(guest.to_owned());
        self
    }

    /// Returns the last attached guest.
    pub(super) fn last(&self) -> Value {
        let attached = self.heart.attached.lock().unwrap();
        attached.last().cloned().unwrap_or_default()
    }
}

impl MockState {
    fn serve(&self, mut stream: UnixStream) {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let Ok(request) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        let answer = self.answer(&request);
        // The client may have disconnected.
        let _ = stream.write_all(format!("{answer}\n").as_bytes());
    }

    fn answer(&self, request: &Value) -> Value {
        let mut guests = self.guests.lock().unwrap();
        let name = |value: &Value| value.as_str().unwrap().to_owned();
        match request["op"].as_str().unwrap() {
            "status" => status(&guests),
            "attach" => {
                let guest = &request["guest"];
                self.attached.lock().unwrap().push(guest.clone());
                let vif = &guest["vif"][0];
                if vif["mtu"] == 1 {
                    return json!({ "error": "`mtu` is 1" });
                }
                guests.push(name(&guest["name"]));
                json!({ "domain": guest["name"], "id": 3, "macs": [vif["mac"]], "took_ns": 1 })
            }
            "detach" => {
                let domain = name(&request["domain"]);
                guests.retain(|guest| *guest != domain);
                json!({ "domain": domain, "took_ns": 1 })
            }
            other => panic!("{other}"),
        }
    }
}

fn status(guests: &[String]) -> Value {
    let domain = |name: &String| {
        json!({
            "name": name, "id": 1, "program": "guest", "state": "running", "alive": true,
            "pid": 1, "agent_pid": 2, "cpu_ns": 0, "agent_cpu_ns": 0, "worker_cpu_ns": 0,
            "hypercalls": 0, "operations": 0, "system_calls": 0,
        })
    };
    let domains: Vec<Value> = guests.iter().map(domain).collect();
    json!({
        "name": "m", "pid": 1, "up_ns": 1, "up_took_ns": 1, "monitor_cpu_ns": 0, "missing": [],
        "connections": [], "domains": domains,
    })
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.heart.ends.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket);
        let ended = self.thread.take().map(JoinHandle::join);
        // A failing test already reports why.
        assert!(std::thread::panicking() || !matches!(ended, Some(Err(_))));
    }
}
