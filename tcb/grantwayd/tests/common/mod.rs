//! Runs `grantwayd` with probe domains.

#![allow(dead_code)]

use abi::hypercall::{BindOp, CreateGrantOp, HypercallKind};
use abi::machine::{Access, Connection, ControlRequest, Device, DomainSpec, Machine, Program};
use abi::{DomId, Handle, Slot};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Number of entries of the table in [`Daemon::share`].
const ENTRIES: u32 = 4;

pub(crate) fn domain(name: &str, program: Program) -> DomainSpec {
    DomainSpec {
        name: name.into(),
        program,
        frames: 16,
        grant_entries: 32,
        window_slots: 16,
        collateral: 2,
        foreign_pages: 0,
        weight: 1,
        restart_pause_ms: None,
        cpus: Vec::new(),
        devices: Vec::new(),
        config: "{}".into(),
    }
}

/// Returns a machine with a driver domain and `guests` guests (`g0` …), each connected to the
/// driver domain.
pub(crate) fn machine(guests: u16) -> Machine {
    let mut domains = vec![domain("driver", Program::Driver)];
    let mut connections = Vec::new();
    for n in 0..guests {
        domains.push(domain(&format!("g{n}"), Program::Guest));
        connections.push(Connection {
            backend: "driver".into(),
            frontend: format!("g{n}"),
            handle: 0,
        });
    }
    Machine {
        name: "test".into(),
        domains,
        connections,
        live: None,
        access: Access::default(),
    }
}

/// Adds a file that a domain may read.
pub(crate) fn with_file(machine: &mut Machine, domain: usize, path: &Path) {
    machine.domains[domain]
        .devices
        .push(Device::Read(path.display().to_string()));
}

/// Returns the core's program: `grantwayd`, or `grantwayd-lab` in the tests of `lab/baselines`.
pub(crate) fn core() -> &'static str {
    let shipped = option_env!("CARGO_BIN_EXE_grantwayd");
    shipped
        .or(option_env!("CARGO_BIN_EXE_grantwayd-lab"))
        .unwrap()
}

/// Programs of other packages, which a test of this package does not build.
const OTHER_PROGRAMS: [&str; 4] = [
    "grantway-netd",
    "grantway-manager",
    "probe-domain",
    "probe-helper",
];

/// Builds a program of another package if it is missing: a helper, or the probe domain. Returns its
/// path.
pub(crate) fn built(program: &str) -> PathBuf {
    let folder = Path::new(core()).parent().unwrap();
    let packages = ["netd", "manager", "probe-domain", "probe-helper"];
    testing::build_missing(folder, &OTHER_PROGRAMS, &packages);
    folder.join(program)
}

/// A running monitor.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) dir: tempfile::TempDir,
    out: BufReader<ChildStdout>,
}

impl Daemon {
    /// Starts a monitor. Returns the monitor and its first line of output.
    pub(crate) fn start(machine: &Machine) -> (Self, Value) {
        Self::start_as(machine, Command::new(core()))
    }

    /// Like [`Daemon::start`], with another command to which the arguments are appended.
    pub(crate) fn start_as(machine: &Machine, mut command: Command) -> (Self, Value) {
        let dir = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let probe = built("probe-domain");
        for program in ["driver", "driver-lab", "guest"] {
            testing::place_program(&probe, &dir.path().join(program));
        }
        let mut child = command
            .arg("--socket")
            .arg(dir.path().join("socket"))
            .arg("--log")
            .arg(dir.path().join("log"))
            .arg("--programs")
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let text = serde_json::to_vec(machine).unwrap();
        stdin.write_all(&text).unwrap();
        drop(stdin);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let line = serde_json::from_str(&line).unwrap_or(json!({ "line": line }));
        (Self { child, dir, out }, line)
    }

    /// Starts a machine and waits until it is ready.
    pub(crate) fn up(machine: &Machine) -> Self {
        let (daemon, line) = Self::start(machine);
        assert_eq!(line["ready"], true, "{line} {}", daemon.log());
        daemon
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Waits until the log contains this text. A separate thread writes the log.
    #[track_caller]
    pub(crate) fn logs(&self, part: &str) {
        eventually(part, || self.log().contains(part));
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(testing::TIMEOUT)).unwrap();
        stream
    }

    pub(crate) fn ask(&self, control: &ControlRequest) -> Value {
        self.ask_line(&line(control))
    }

    pub(crate) fn ask_line(&self, line: &[u8]) -> Value {
        let mut answer = String::new();
        self.send(line).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("answer: {answer:?}"))
    }

    fn send(&self, line: &[u8]) -> BufReader<UnixStream> {
        let mut stream = self.connect();
        stream.write_all(line).unwrap();
        BufReader::new(stream)
    }

    /// Sends an order to a probe domain. Returns the reply, or `{"error": …}`.
    pub(crate) fn order(&self, domain: &str, order: Value) -> Value {
        // The manager may answer *try again* while other clients use the domain.
        let is_busy = |answer: &Value| answer["error"].to_string().contains("; try again");
        let ask = || Some(self.ask(&relay(domain, &order))).filter(|answer| !is_busy(answer));
        let answer = testing::wait_for("the domain remains busy", ask);
        match answer["reply"].as_str() {
            Some(reply) => serde_json::from_str(reply).unwrap(),
            None => answer,
        }
    }

    /// Sends an order without waiting. The caller can read the reply later.
    pub(crate) fn begin(&self, domain: &str, order: &Value) -> BufReader<UnixStream> {
        self.send(&line(&relay(domain, order)))
    }

    /// Makes a domain execute a hypercall with one operation. Returns the operation's status and
    /// words.
    pub(crate) fn call(&self, domain: &str, kind: HypercallKind, words: [u64; 3]) -> (i64, Value) {
        let op = self.calls(domain, kind, &[words]).remove(0);
        (op[5].as_i64().unwrap(), op)
    }

    /// Makes a domain execute a hypercall. Returns the words of each operation.
    pub(crate) fn calls(&self, domain: &str, kind: HypercallKind, ops: &[[u64; 3]]) -> Vec<Value> {
        let call = json!({ "do": "call", "kind": kind as u32, "ops": ops });
        let answer = self.order(domain, call);
        assert_eq!(answer["result"], 0, "{answer}");
        answer["ops"].as_array().unwrap().clone()
    }

    /// Makes a domain execute a hypercall. Returns the status of each operation.
    pub(crate) fn statuses(&self, domain: &str, kind: HypercallKind, ops: &[[u64; 3]]) -> Vec<i64> {
        let ops = self.calls(domain, kind, ops);
        ops.iter().map(|op| op[5].as_i64().unwrap()).collect()
    }

    /// Returns the id and the state of the domain at the other end of a domain's first connection.
    pub(crate) fn other_end(&self, domain: &str) -> (u64, u64) {
        let (_, answer) = self.call(domain, HypercallKind::ConnectGet, [0; 3]);
        let word = |n: usize| answer[n].as_u64().unwrap_or_else(|| panic!("{answer}"));
        (word(1), word(4))
    }

    /// Makes the driver domain bind guest 0's table. Returns the status.
    pub(crate) fn bind(&self, table: Handle) -> i64 {
        let bind = BindOp {
            granter: DomId(1),
            table,
            first: Slot(0),
            tables: Slot(8),
            entries: ENTRIES,
        };
        self.call("driver", HypercallKind::TableBind, bind.encode())
            .0
    }

    /// Makes guest 0 fill its frame 3 with sevens and grant it. The driver domain maps it at slot
    /// 0.
    pub(crate) fn share(&self) -> Handle {
        let fill = json!({ "do": "fill", "frame": 3, "byte": 7 });
        self.order("g0", fill);
        let (status, made) = self.call("g0", HypercallKind::TableCreate, [0, ENTRIES.into(), 0]);
        assert_eq!(status, 0, "{made}");
        let table = Handle(made[1].as_u64().unwrap() as u32);
        assert_eq!(self.bind(table), 0);
        let create = CreateGrantOp {
            table,
            index: 0,
            frame: 3,
            readonly: false,
            io: false,
        };
        assert_eq!(
            self.call("g0", HypercallKind::GrantCreate, create.encode())
                .0,
            0
        );
        let read = json!({ "do": "read-slot", "slot": 0 });
        assert_eq!(self.order("driver", read), 7);
        table
    }

    /// Makes `domain` end a table. Returns the status.
    pub(crate) fn end_table(&self, domain: &str, table: Handle) -> i64 {
        self.call(domain, HypercallKind::TableEnd, [table.0.into(), 0, 0])
            .0
    }

    pub(crate) fn status(&self) -> Value {
        self.ask(&ControlRequest::Status)
    }

    pub(crate) fn audit(&self) -> Value {
        let audit = self.ask(&ControlRequest::Grants);
        assert_eq!(audit["leaked"], 0, "{audit}");
        audit
    }

    pub(crate) fn domain_status(&self, name: &str) -> Value {
        named(&self.status()["domains"], name)
    }

    pub(crate) fn domain_audit(&self, name: &str) -> Value {
        named(&self.audit()["domains"], name)
    }

    /// Waits until a domain is torn down. Returns the reason of its exit.
    pub(crate) fn await_exit(&self, name: &str) -> String {
        eventually("the domain is torn down", || {
            let audit = self.domain_audit(name);
            audit["owned"] == 0 && audit["mapped"] == 0 && audit["alive"] == false
        });
        let state = self.domain_status(name)["state"].clone();
        state.as_str().unwrap().to_owned()
    }

    /// Stops a domain's agent, which then does not answer.
    pub(crate) fn stop_agent(&self, name: &str) {
        let agent = self.domain_status(name)["agent_pid"].as_i64();
        signal(agent.unwrap(), Signal::STOP);
    }

    /// Returns the ids of all processes of the machine except the monitor.
    pub(crate) fn processes(&self) -> Vec<i64> {
        let status = self.status();
        let domains = status["domains"].as_array().unwrap();
        let pids = domains.iter().flat_map(|d| [&d["pid"], &d["agent_pid"]]);
        pids.filter_map(Value::as_i64).collect()
    }

    /// Shuts the machine down, and asserts that no process or file remains.
    pub(crate) fn down(mut self) {
        let pids = self.processes();
        assert_eq!(self.ask(&ControlRequest::Down), json!({}));
        let code = self.child.wait().unwrap();
        assert!(code.success(), "{code} {}", self.log());
        assert!(!self.socket().exists());
        assert!(pids.iter().all(|pid| !is_process(*pid)), "{pids:?}");
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn relay(domain: &str, order: &Value) -> ControlRequest {
    let (domain, request) = (domain.into(), order.to_string());
    ControlRequest::Relay { domain, request }
}

fn line(control: &ControlRequest) -> Vec<u8> {
    let mut line = serde_json::to_vec(control).unwrap();
    line.push(b'\n');
    line
}

fn named(list: &Value, name: &str) -> Value {
    let mut list = list.as_array().unwrap().iter();
    list.find(|entry| entry["name"] == name).unwrap().clone()
}

/// Returns whether the process exists and has not exited.
pub(crate) fn is_process(pid: i64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("Z").starts_with('Z'))
}

/// Waits until `condition` returns true.
#[track_caller]
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    testing::wait_until(&format!("not in time: {what}"), condition);
}

pub(crate) fn kill(pid: i64) {
    signal(pid, Signal::KILL);
}

pub(crate) fn signal(pid: i64, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}
