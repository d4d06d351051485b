//! Sandboxes of other programs, which are attached by their process.

use crate::attach::{attach, domains, empty};
use crate::machine::Machine;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use testing::requirements::Root;
use testing::{accept, child_of, require, wait_for, wait_for_exit, wait_until};

/// The command of a sandbox, which sends its input to the first guest and receives it back.
const SEND_COMMAND: &str = "busybox nc 10.0.0.1 7000";

/// A running sandbox, whose command has not started yet.
struct Sandbox {
    child: Child,
    go: ChildStdin,
}

impl Sandbox {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let go = child.stdin.take().unwrap();
        Self { child, go }
    }

    /// Attaches a sandbox, by PID or by path, and waits until it is reachable.
    fn attach(machine: &Machine, netns: &str) {
        machine.ask(&["attach", "box", "--netns", netns, "--ip", "10.0.0.9/24"]);
        wait_until("no answer to a ping", || {
            let ping = ["-c", "1", "-W", "1", "10.0.0.9"];
            machine.run(0, "ping", &ping).status.success()
        });
    }

    /// Starts the sandbox's command, which sends a file to the first guest and receives it back.
    /// Then the sandbox ends, and its guest is detached.
    fn talks(mut self, machine: &Machine, sent: &[u8]) {
        let bind = || TcpListener::bind(("10.0.0.1", 7000)).unwrap();
        let listener = machine.places[0].0.enter(bind).unwrap();
        let mut got = Vec::new();
        let mut stdout = self.child.stdout.take().unwrap();
        self.go.write_all(b"go\n").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = accept(&listener);
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                stream.write_all(&received).unwrap();
            });
            stdout.read_to_end(&mut got).unwrap();
        });
        assert!(got == sent, "{} bytes instead of {}", got.len(), sent.len());
        assert!(wait_for_exit(&mut self.child).success());
        wait_until("its guest still exists", || {
            domains(machine) == ["driver", "c0"]
        });
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a file that sandboxes send, and its content.
fn file(folder: &Path) -> (PathBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    let path = folder.join("file");
    fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

/// The sandbox's command starts after the sandbox is attached, and finds its network configured.
#[test]
fn bubblewrap_is_attached_before_its_command_starts() {
    require!(userns);
    let Some(machine) = empty(&["ping", "bwrap", "busybox"]) else {
        return;
    };
    attach(&machine, 0);
    for by_path in [false, true] {
        let (file, bytes) = file(machine.folder.path());
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"]);
        command.args(["--proc", "/proc", "--dev", "/dev"]);
        command.args(["--ro-bind", &file.display().to_string(), "/dev/file"]);
        // bwrap waits for standard input, and prints its process id on standard error.
        command.args(["--block-fd", "0", "--info-fd", "2", "--", "sh", "-c"]);
        command.arg(format!("exec {SEND_COMMAND} </dev/file"));
        let mut sandbox = Sandbox::start(command.stderr(Stdio::piped()));
        let mut report = String::new();
        let stderr = sandbox.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut report).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).expect(&report);
        let pid = report["child-pid"].to_string();
        let netns = match by_path {
            true => format!("/proc/{pid}/ns/net"),
            false => pid,
        };
        Sandbox::attach(&machine, &netns);
        sandbox.talks(&machine, &bytes);
    }
    machine.end();
}

/// The sandbox is attached by its first process, which `machinectl` calls the leader.
#[test]
fn nspawn_is_attached_by_pid_and_by_path() {
    require!(nspawn);
    let Some(machine) = empty(&["ping", "busybox"]) else {
        return;
    };
    attach(&machine, 0);
    let root = Root::new().unwrap();
    let (_, bytes) = file(root.path());
    for by_path in [false, true] {
        let script = format!("echo up; read go; exec /bin/{SEND_COMMAND} </file");
        let mut command = root.nspawn();
        let mut sandbox = Sandbox::start(command.args(["sh", "-c", &script]));
        let mut up = [0; 3];
        let stdout = sandbox.child.stdout.as_mut().unwrap();
        stdout.read_exact(&mut up).unwrap();
        assert_eq!(&up, b"up\n");
        let nspawn = u64::from(sandbox.child.id());
        let leader = wait_for("no first process", || child_of(nspawn, "busybox"));
        let netns = match by_path {
            true => format!("/proc/{leader}/ns/net"),
            false => leader.to_string(),
        };
        Sandbox::attach(&machine, &netns);
        sandbox.talks(&machine, &bytes);
    }
    machine.end();
}
