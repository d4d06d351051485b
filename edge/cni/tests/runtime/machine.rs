//! A running machine, with a namespace that represents the host, and the plugin as a runtime calls
//! it.

use netdev::netns::Namespace;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;
use testing::{require, wait_until};

/// The address of the host, which is the containers' gateway.
pub(crate) const HOST: &str = "10.99.0.1";

/// A running machine.
pub(crate) struct Machine {
    up: Child,
    pub(crate) folder: TempDir,
    pub(crate) host: Namespace,
}

/// The plugin's answer.
pub(crate) struct Answer {
    pub(crate) is_done: bool,
    /// The answer, or null without one.
    pub(crate) said: Value,
}

impl Machine {
    /// Returns `None` and logs why if the machine cannot run here.
    pub(crate) fn up() -> Option<Self> {
        require!(
            machine,
            program("grantway"),
            cni_plugin("host-local"),
            tool("ping"),
            tool("ip")
        );
        let folder = TempDir::new().unwrap();
        let host = Namespace::new().unwrap();
        let file = folder.path().join("machine.toml");
        let config = format!(
            "[[nic]]\nname = \"host\"\nkind = \"tap\"\nifname = \"gw\"\nnetns = \"{}\"\n\
             addresses = [\"{HOST}/24\", \"fd99::1/64\"]\n",
            host.path().display()
        );
        fs::write(&file, config).unwrap();
        let mut up = grantway(&folder);
        let up = up.args(["--json", "up"]).arg(file).stdout(Stdio::piped());
        let machine = Self {
            up: up.spawn().unwrap(),
            folder,
            host,
        };
        let is_up = || {
            machine
                .status()
                .is_some_and(|now| !now["up_took_ns"].is_null())
        };
        wait_until("the machine does not come up", is_up);
        Some(machine)
    }

    fn status(&self) -> Option<Value> {
        let run = grantway(&self.folder).args(["status", "--json"]).output();
        serde_json::from_slice(&run.unwrap().stdout).ok()
    }

    /// Returns the counters of one of its domains.
    pub(crate) fn stat(&self, domain: &str) -> Value {
        let run = grantway(&self.folder)
            .args(["stat", domain, "--json"])
            .output();
        let value: Value = serde_json::from_slice(&run.unwrap().stdout).unwrap();
        value[domain].clone()
    }

    /// Returns the names of its guests.
    pub(crate) fn guests(&self) -> Vec<String> {
        let status = self.status().unwrap();
        let domains = status["domains"].as_array().unwrap().iter();
        let guests = domains.filter(|domain| domain["program"] == "guest");
        guests
            .map(|guest| guest["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Ends it.
    pub(crate) fn down(&mut self) {
        let down = grantway(&self.folder).arg("down").output().unwrap();
        assert!(down.status.success(), "{down:?}");
        assert!(self.up.wait().unwrap().success());
    }

    /// Returns a network of the machine, with addresses of both families.
    pub(crate) fn network(&self) -> Value {
        let folder = self.folder.path();
        json!({
            "cniVersion": "1.0.0",
            "name": "gwnet",
            "type": "grantway-cni",
            "socket": folder.join("run/grantway.sock"),
            "stateDir": folder.join("state"),
            "ipam": {
                "type": "host-local",
                "dataDir": folder.join("leases"),
                "ranges": [[{ "subnet": "10.99.0.0/24" }], [{ "subnet": "fd99::/64" }]],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
            },
        })
    }

    /// Returns the assigned addresses.
    pub(crate) fn leases(&self) -> Vec<String> {
        let leases = fs::read_dir(self.folder.path().join("leases/gwnet"));
        let names = leases.into_iter().flatten().map(|entry| {
            let name = entry.unwrap().file_name();
            name.into_string().unwrap()
        });
        let mut names: Vec<_> = names
            .filter(|name| name.starts_with(|first: char| first.is_ascii_hexdigit()))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The test has failed; terminating `up` also stops the machine.
        if self.up.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = grantway(&self.folder).arg("down").output();
            let _ = self.up.kill();
            let _ = self.up.wait();
        }
    }
}

fn grantway(folder: &TempDir) -> Command {
    let test = std::env::current_exe().unwrap();
    let program: PathBuf = test.ancestors().nth(2).unwrap().join("grantway");
    let mut command = Command::new(program);
    command
        .env("GRANTWAY_RUNTIME_DIR", folder.path().join("run"))
        .current_dir(folder.path())
        .stdin(Stdio::null());
    command
}

/// Returns the answer of a plugin with this input.
pub(crate) fn answered(plugin: &mut Command, value: &Value) -> Output {
    let plugin = plugin.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut plugin = plugin.spawn().unwrap();
    let mut stdin = plugin.stdin.take().unwrap();
    stdin.write_all(value.to_string().as_bytes()).unwrap();
    drop(stdin);
    plugin.wait_with_output().unwrap()
}

/// Calls the plugin for `eth0` of a container, in the environment of a runtime.
pub(crate) fn call(command: &str, container: &str, netns: &str, conf: &Value) -> Answer {
    let mut plugin = Command::new(env!("CARGO_BIN_EXE_grantway-cni"));
    let plugin = plugin
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", container)
        .env("CNI_NETNS", netns)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web")
        .env("CNI_PATH", testing::requirements::CNI_PLUGINS.join(":"));
    let output = answered(plugin, conf);
    let text = String::from_utf8(output.stdout).unwrap();
    Answer {
        is_done: output.status.success(),
        said: match text.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap(),
        },
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn done(self) -> Value {
        assert!(self.is_done, "{}", self.said);
        self.said
    }

    /// Returns the error code of a failed call.
    #[track_caller]
    pub(crate) fn failed(self) -> u64 {
        assert!(!self.is_done, "{}", self.said);
        self.said["code"].as_u64().unwrap()
    }
}

/// Folder of the scripts.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/runtime");
const PLUGIN: &str = env!("CARGO_BIN_EXE_grantway-cni");

/// Runs a script of this folder, with a temporary folder and in new namespaces.
#[track_caller]
pub(crate) fn run_script(name: &str) {
    testing::run_script(&Path::new(SCRIPTS).join(name), PLUGIN.as_ref());
}

/// Like [`run_script`], on Debian 13.
#[track_caller]
pub(crate) fn run_script_on_debian_13(name: &str) {
    testing::run_script_on_debian_13(&Path::new(SCRIPTS).join(name), PLUGIN.as_ref());
}

/// Runs a program in a namespace.
pub(crate) fn run(namespace: &Namespace, program: &str, args: &[&str]) -> Output {
    let run = || Command::new(program).args(args).output().unwrap();
    namespace.enter(run).unwrap()
}

/// Waits until an address answers.
#[track_caller]
pub(crate) fn reaches(namespace: &Namespace, address: &str) {
    wait_until(&format!("no answer of {address}"), || {
        let ping = run(namespace, "ping", &["-c", "1", "-W", "1", address]);
        ping.status.success()
    });
}

/// Returns whether an interface of this name exists.
pub(crate) fn has_interface(namespace: &Namespace, name: &str) -> bool {
    let read = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    namespace.enter(read).unwrap().contains(name)
}

pub(crate) fn path(namespace: &Namespace) -> String {
    namespace.path().display().to_string()
}

/// Returns the names in a folder, or no names if it does not exist.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}
