//! A node of a cluster: namespaces for a runtime and a machine.

use crate::cri::{Fields, Message, call};
use crate::machine::names;
use serde_json::Value;
use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;
use testing::wait_until;

/// Namespaces for a runtime: mounts, processes and links.
pub(crate) struct Node {
    /// The first process of the namespaces. All processes inside exit with it.
    shell: Child,
    /// Its process id outside the namespaces.
    pid: String,
    folder: TempDir,
    /// Daemons that were started inside, by the names of their programs.
    daemons: Vec<(String, Child)>,
}

impl Node {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("node")).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/runtime/containerd.sh");
        let own = ["--mount", "--net", "--pid", "--fork", "--kill-child"];
        let shell = Command::new("unshare")
            .args(own)
            .args(["--mount-proc", "--propagation", "private", "sh", script])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(File::create(folder.path().join("said")).unwrap())
            .spawn()
            .unwrap();
        let mut node = Self {
            shell,
            pid: String::new(),
            folder,
            daemons: Vec::new(),
        };
        let shell = node.shell.id().into();
        wait_until("the namespaces are not ready", || {
            // The shell becomes `cat` when it is ready.
            testing::child_of(shell, "cat").is_some() && node.read("said").contains("ready")
        });
        let pid = testing::child_of(shell, "cat").unwrap();
        node.pid = pid.to_string();
        node
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Returns its control group.
    pub(crate) fn cgroup(&self) -> String {
        let folder = self.folder.path().file_name().unwrap().to_string_lossy();
        format!("/grantway-test-{}", folder.trim_start_matches('.'))
    }

    /// Returns the names in one of the node's folders.
    fn names(&self, folder: &str) -> Vec<String> {
        names(&Path::new("/proc").join(&self.pid).join("root").join(folder))
    }

    /// Returns the plugin's pending cleanups.
    pub(crate) fn undone(&self) -> Vec<String> {
        self.names("run/grantway/cni")
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Returns a command that runs inside.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.pid, "--mount", "--net", "--pid"])
            .arg(program.as_ref())
            .env("PLUGINS", self.path("plugins"))
            .env("FILES", self.path("node"))
            .env("POD_CIDR", "10.99.0.0/24")
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, program: impl AsRef<Path>, args: &[&str]) -> Output {
        self.command(program).args(args).output().unwrap()
    }

    pub(crate) fn output_of(&self, program: impl AsRef<Path>, args: &[&str]) -> String {
        let run = self.run(program, args);
        assert!(run.status.success(), "{args:?}: {run:?}");
        String::from_utf8(run.stdout).unwrap()
    }

    fn daemon(&mut self, program: impl AsRef<Path>, args: &[&str]) {
        let name = program.as_ref().file_name().unwrap().to_str().unwrap();
        let path = self.path(&format!("{name}.log"));
        let log = File::options().create(true).append(true).open(path);
        let log = log.unwrap();
        let mut command = self.command(&program);
        command.args(args).stdout(log.try_clone().unwrap());
        let child = command.stderr(log).spawn().unwrap();
        self.daemons.push((name.to_owned(), child));
    }

    pub(crate) fn start_machine(&mut self) {
        let file = self.path("machine.toml");
        self.daemon(grantway(), &["up", &file]);
        self.await_machine();
    }

    pub(crate) fn await_machine(&self) {
        wait_until("the machine does not come up", || {
            !self.status()["up_took_ns"].is_null()
        });
    }

    pub(crate) fn start_containerd(&mut self) {
        let file = self.path("containerd.toml");
        self.daemon("containerd", &["--config", &file]);
        wait_until("no containerd", || {
            self.cri("Version", &Message::default()).is_ok()
        });
    }

    pub(crate) fn ctr(&self, args: &[&str]) -> String {
        let socket = self.path("containerd.sock");
        self.output_of("ctr", &[&["--address", &socket], args].concat())
    }

    pub(crate) fn cri(&self, method: &str, asked: &Message) -> Result<Fields, String> {
        call(&self.path("containerd.sock"), method, asked)
    }

    fn status(&self) -> Value {
        let status = RefCell::new(Value::Null);
        wait_until("the machine does not answer", || {
            let run = self.run(grantway(), &["status", "--json"]);
            *status.borrow_mut() = serde_json::from_slice(&run.stdout).unwrap_or_default();
            run.status.success()
        });
        status.into_inner()
    }

    pub(crate) fn guests(&self) -> usize {
        let status = self.status();
        let domains = status["domains"].as_array().unwrap().iter();
        let guests = domains.filter(|domain| domain["program"] == "guest");
        guests.count()
    }

    /// Returns the number of assigned addresses.
    pub(crate) fn leases(&self) -> usize {
        let names = self.names("var/lib/cni/networks/grantway");
        names.iter().filter(|name| name.starts_with("10.")).count()
    }

    /// Kills the driver domain, and waits for the next one.
    pub(crate) fn kill_driver(&self) {
        let driver = || {
            let status = self.status();
            let mut domains = status["domains"].as_array().unwrap().iter();
            let driver = domains.find(|domain| domain["name"] == "driver").unwrap();
            driver["pid"].as_u64()
        };
        let answers = || self.run(grantway(), &["stat", "driver"]).status.success();
        wait_until("no driver domain", answers);
        let old = driver().unwrap();
        self.output_of("sh", &["-c", &format!("kill -9 {old}")]);
        wait_until("no other driver domain", || {
            driver().is_some_and(|pid| pid != old) && answers()
        });
    }

    pub(crate) fn kill_containerd(&mut self) {
        let is_it = |(name, _): &(String, Child)| name == "containerd";
        let number = self.daemons.iter().position(is_it).unwrap();
        let (name, mut entered) = self.daemons.swap_remove(number);
        let pid = testing::child_of(entered.id().into(), &name).unwrap();
        let kill = format!("kill -9 {pid}");
        let killed = Command::new("sh").args(["-c", &kill]).status();
        assert!(killed.unwrap().success());
        entered.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("machine: {}", self.read("logs/machine.log"));
            for (name, _) in &self.daemons {
                eprintln!("{name}: {}", self.read(&format!("{name}.log")));
            }
        }
        // The first process inside exits when its input ends, and all others exit with it.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
        for (_, daemon) in &mut self.daemons {
            let _ = daemon.wait();
        }
        // Only control groups outlive the node.
        let own = format!("*{}", self.cgroup());
        let _ = Command::new("find")
            .args(["/sys/fs/cgroup", "-depth", "-type", "d"])
            .args(["(", "-path", &own, "-o", "-path", &format!("{own}/*"), ")"])
            .args(["-exec", "rmdir", "{}", "+"])
            .stderr(Stdio::null())
            .status();
    }
}

pub(crate) fn grantway() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_grantway-cni")).with_file_name("grantway")
}
