//! Unmodified programs across a real machine: a wire and two guests on TAPs, each in a network
//! namespace of its own, with `ping`, `curl`, `iperf3` and `tcpdump`.
//!
//! Skipped, with the reason, without root, without a TAP driver, where a program is absent, and
//! where the machine's own programs were not built beside `grantway` (`cargo test` in the
//! workspace builds them).

use nic_linux::SetupError;
use nic_linux::setup::TapSpec;
use nic_linux::setup::netns::Namespace;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// One machine at a time: they share few CPUs.
static ONE: Mutex<()> = Mutex::new(());
/// Bytes of the file that `curl` carries.
const FILE_BYTES: usize = 100_000_000;

const WIRE: usize = 0;
const WEB: usize = 1;
const DB: usize = 2;
const NAMES: [&str; 3] = ["wire", "web", "db"];
const IPV4: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
const IPV6: [&str; 3] = ["fd00::1", "fd00::2", "fd00::3"];

/// Every way that traffic can take.
const WAYS: [(usize, usize); 4] = [(WIRE, WEB), (WEB, WIRE), (WEB, DB), (DB, WEB)];

/// A running machine, and the namespaces that its TAPs are in.
struct Machine {
    up: Child,
    folder: TempDir,
    namespaces: [Namespace; 3],
    _one: MutexGuard<'static, ()>,
}

impl Machine {
    /// A machine of the usual configuration. None, with the reason told: it cannot run here.
    fn start(needed: &[&str]) -> Option<Self> {
        Self::start_with("", needed)
    }

    /// A machine whose configuration begins with `switches`.
    fn start_with(switches: &str, needed: &[&str]) -> Option<Self> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = |why: String| {
            eprintln!("skipped: {why}");
            None
        };
        for program in ["grantwayd", "driver", "guest"] {
            let path = grantway().with_file_name(program);
            if !path.exists() {
                return skip(format!("{} is not built", path.display()));
            }
        }
        for program in needed {
            if !is_there(program) {
                return skip(format!("no {program} here"));
            }
        }
        let namespaces = [(); 3].map(|()| Namespace::new());
        let namespaces = match namespaces {
            [Ok(wire), Ok(web), Ok(db)] => [wire, web, db],
            [Err(error), ..] | [_, Err(error), _] | [.., Err(error)] => {
                return skip(format!("no network namespace: {error}"));
            }
        };
        let probe = TapSpec {
            ifname: "probe".into(),
            netns: Some(path_of(&namespaces[WIRE])),
            mtu: 1500,
            ..TapSpec::default()
        };
        if let Err(error @ SetupError::NoTun { .. }) = nic_linux::open_tap(&probe) {
            return skip(error.to_string());
        }
        let folder = TempDir::new().unwrap();
        fs::write(
            folder.path().join("machine.toml"),
            config(switches, &namespaces),
        )
        .unwrap();
        let mut command = Command::new(grantway());
        command
            .arg("--json")
            .arg("up")
            .arg(folder.path().join("machine.toml"));
        let up = in_folder(&mut command, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let machine = Self {
            up,
            folder,
            namespaces,
            _one: one,
        };
        machine.wait_until_up();
        Some(machine)
    }

    fn wait_until_up(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let run = self.grantway(&["status", "--json"]);
            let status: Option<Value> = serde_json::from_slice(&run.stdout).ok();
            if status.is_some_and(|status| !status["up_took_ns"].is_null()) {
                return;
            }
            assert!(Instant::now() < end, "the machine did not come up: {run:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn grantway(&self, args: &[&str]) -> Output {
        let mut command = Command::new(grantway());
        in_folder(command.args(args), self.folder.path())
            .output()
            .unwrap()
    }

    /// Starts a program in a namespace.
    fn spawn(&self, place: usize, program: &str, args: &[&str]) -> Running {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.folder.path());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Running(Some(
            self.namespaces[place]
                .enter(|| command.spawn().unwrap())
                .unwrap(),
        ))
    }

    /// Runs a program in a namespace to its end.
    fn run(&self, place: usize, program: &str, args: &[&str]) -> Output {
        self.spawn(place, program, args).output()
    }

    /// Waits until somebody listens on a TCP port in a namespace.
    fn wait_for_listener(&self, place: usize, port: u16) {
        let end = Instant::now() + Duration::from_secs(20);
        let wanted = format!(":{port:04X} ");
        let listens = || {
            ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"]
                .iter()
                .any(|file| {
                    let text = fs::read_to_string(file).unwrap_or_default();
                    text.lines()
                        .any(|line| line.contains(&wanted) && line.contains(" 0A "))
                })
        };
        while !self.namespaces[place].enter(listens).unwrap() {
            assert!(Instant::now() < end, "nobody listens on port {port}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the machine: everything granted is accounted for, and nothing stays behind.
    fn end(mut self) {
        let audit = self.grantway(&["grants", "--json"]);
        let audit: Value = serde_json::from_slice(&audit.stdout).unwrap();
        assert_eq!(audit["leaked"], 0, "{audit}");
        let down = self.grantway(&["down"]);
        assert!(down.status.success(), "{down:?}");
        assert!(self.up.wait().unwrap().success());
        for (namespace, name) in self.namespaces.iter().zip(NAMES) {
            let left = namespace
                .enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap())
                .unwrap();
            assert!(!left.contains(name), "{left}");
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A test that failed: `up` takes the machine down with it.
        if self.up.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.grantway(&["down"]);
            let _ = self.up.kill();
            let _ = self.up.wait();
        }
    }
}

/// A program that does not outlive its test.
struct Running(Option<Child>);

impl Running {
    fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// Ends it in the way of Ctrl-C, so that it can write what it has.
    fn interrupt(mut self) -> Output {
        let child = self.0.take().unwrap();
        let pid = child.id().to_string();
        Command::new("kill").args(["-INT", &pid]).status().unwrap();
        child.wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn grantway() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_grantway"))
}

fn in_folder<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    let runtime = folder.join("run");
    command
        .env("GRANTWAY_RUNTIME_DIR", runtime)
        .current_dir(folder)
        .stdin(Stdio::null())
}

fn is_there(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

fn path_of(namespace: &Namespace) -> String {
    namespace.path().display().to_string()
}

fn config(switches: &str, namespaces: &[Namespace; 3]) -> String {
    let end = |n: usize| {
        format!(
            "ifname = \"{}\"\nnetns = \"{}\"\naddresses = [\"{}/24\", \"{}/64\"]\n",
            NAMES[n],
            path_of(&namespaces[n]),
            IPV4[n],
            IPV6[n]
        )
    };
    let guest = |n: usize| {
        format!(
            "[[guest]]\nname = \"{}\"\n[[guest.vif]]\nendpoint = \"tap\"\n{}",
            NAMES[n],
            end(n)
        )
    };
    format!(
        "{switches}\n[[nic]]\nname = \"wire\"\nkind = \"tap\"\n{}{}{}",
        end(WIRE),
        guest(WEB),
        guest(DB)
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn ping_and_ping6_go_every_way() {
    let Some(machine) = Machine::start(&["ping"]) else {
        return;
    };
    for (from, to) in WAYS {
        for (family, address) in [("-4", IPV4[to]), ("-6", IPV6[to])] {
            let run = machine.run(
                from,
                "ping",
                &[family, "-c", "5", "-i", "0.05", "-w", "10", address],
            );
            let out = text(&run.stdout);
            assert!(
                out.contains("5 received"),
                "{} to {address}: {out}",
                NAMES[from]
            );
            assert!(!out.contains("DUP!"), "{out}");
        }
        // A datagram that is cut into fragments.
        let run = machine.run(
            from,
            "ping",
            &["-c", "2", "-i", "0.05", "-w", "10", "-s", "8000", IPV4[to]],
        );
        assert!(
            text(&run.stdout).contains("2 received"),
            "{}",
            text(&run.stdout)
        );
    }
    machine.end();
}

/// Lets `curl` fetch a file of `bytes` random bytes every way.
fn carry_files(machine: &Machine, bytes: usize) {
    let mut content = vec![0u8; bytes];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for part in content.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
    }
    fs::write(machine.folder.path().join("file"), content).unwrap();
    let sum = |file: &str| {
        let run = Command::new("sha256sum")
            .arg(machine.folder.path().join(file))
            .output()
            .unwrap();
        text(&run.stdout).split(' ').next().unwrap().to_owned()
    };
    let wanted = sum("file");
    for (from, to) in WAYS {
        let server = machine.spawn(
            from,
            "python3",
            &["-m", "http.server", "--bind", IPV4[from], "8000"],
        );
        machine.wait_for_listener(from, 8000);
        let url = format!("http://{}:8000/file", IPV4[from]);
        let args = ["-sS", "--max-time", "120", "-o", "copy", &url];
        let run = machine.run(to, "curl", &args);
        let way = format!("{} to {}", NAMES[from], NAMES[to]);
        assert!(run.status.success(), "{way}: {}", text(&run.stderr));
        assert_eq!(sum("copy"), wanted, "{way}");
        drop(server);
    }
}

const FOR_FILES: &[&str] = &["curl", "python3", "sha256sum"];

#[test]
fn files_of_100_mb_arrive_as_they_left() {
    let Some(machine) = Machine::start(FOR_FILES) else {
        return;
    };
    carry_files(&machine, FILE_BYTES);
    machine.end();
}

#[test]
fn files_arrive_whatever_the_switches_say() {
    for switches in [
        "[driver]\ngrants = \"copy\"",
        "[driver]\ngrants = \"map\"",
        "[driver]\noffloads = \"none\"",
        "[driver]\noffloads = \"checksum\"",
        "[buffers]\nsize = \"full\"",
        "[buffers]\nto_guest = 64\nfrom_guest = 32",
        "[ring]\nslots = 256",
        "[driver]\ntick_us = 100\nempty_ticks = 20",
    ] {
        let Some(machine) = Machine::start_with(switches, FOR_FILES) else {
            return;
        };
        eprintln!("{switches}");
        carry_files(&machine, 5_000_000);
        machine.end();
    }
}

/// Runs `iperf3` both ends and answers the client's report.
fn iperf3(machine: &Machine, from: usize, to: usize, args: &[&str]) -> Value {
    let server = machine.spawn(to, "iperf3", &["-s", "-1"]);
    machine.wait_for_listener(to, 5201);
    let mut all = vec!["-c", IPV4[to], "-J", "-t", "2"];
    all.extend(args);
    let run = machine.run(from, "iperf3", &all);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(run.status.success(), "{report}");
    drop(server);
    report
}

#[test]
fn iperf3_with_four_streams_goes_every_way() {
    let Some(machine) = Machine::start(&["iperf3"]) else {
        return;
    };
    for (from, to) in WAYS {
        let report = iperf3(&machine, from, to, &["-P", "4", "-C", "cubic"]);
        let bits = report["end"]["sum_received"]["bits_per_second"]
            .as_f64()
            .unwrap();
        assert!(bits > 20e6, "{} to {}: {bits} b/s", NAMES[from], NAMES[to]);
        let streams = report["end"]["streams"].as_array().unwrap();
        assert!(
            streams
                .iter()
                .all(|stream| stream["receiver"]["bytes"].as_u64() > Some(0))
        );
    }
    machine.end();
}

#[test]
fn iperf3_over_udp_goes_every_way() {
    let Some(machine) = Machine::start(&["iperf3"]) else {
        return;
    };
    for (from, to) in WAYS {
        // Datagrams of one frame, and of several fragments.
        for size in ["1400", "8000"] {
            // A receiver that gets no CPU for a while loses what its socket cannot hold: the best
            // of three counts.
            let mut lost = f64::INFINITY;
            for _ in 0..3 {
                let report = iperf3(&machine, from, to, &["-u", "-b", "5M", "-l", size]);
                let sum = &report["end"]["sum"];
                assert!(sum["packets"].as_u64() > Some(100), "{sum}");
                lost = lost.min(sum["lost_percent"].as_f64().unwrap());
                if lost < 5.0 {
                    break;
                }
            }
            assert!(
                lost < 5.0,
                "{} to {}, {size}: {lost} % lost",
                NAMES[from],
                NAMES[to]
            );
        }
    }
    machine.end();
}

/// Lengths of the packets in a capture, as they were on the wire.
fn packet_lengths(capture: &[u8]) -> Vec<u32> {
    let word = |at: usize| {
        let bytes = capture.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    assert!(
        matches!(word(0), Some(0xa1b2_c3d4 | 0xa1b2_3c4d)),
        "a little-endian capture"
    );
    let mut at = 24;
    let mut lengths = Vec::new();
    while let (Some(kept), Some(length)) = (word(at + 8), word(at + 12)) {
        lengths.push(length);
        at += 16 + kept as usize;
    }
    lengths
}

#[test]
fn only_frames_of_the_mtu_are_on_the_wire() {
    let Some(machine) = Machine::start(&["iperf3", "tcpdump"]) else {
        return;
    };
    for (from, to) in [(WEB, WIRE), (WIRE, WEB)] {
        let args = [
            "-i",
            NAMES[WIRE],
            "-s",
            "80",
            "-c",
            "20000",
            "-U",
            "-w",
            "capture",
            "tcp",
        ];
        let tcpdump = machine.spawn(WIRE, "tcpdump", &args);
        let end = Instant::now() + Duration::from_secs(10);
        let capture = machine.folder.path().join("capture");
        while fs::metadata(&capture).map_or(0, |file| file.len()) < 24 {
            assert!(Instant::now() < end, "tcpdump did not start");
            thread::sleep(Duration::from_millis(20));
        }
        iperf3(&machine, from, to, &[]);
        tcpdump.interrupt();
        let lengths = packet_lengths(&fs::read(&capture).unwrap());
        let full = lengths.iter().filter(|length| **length == 1514).count();
        assert!(full > 500, "{full} full frames of {}", lengths.len());
        assert_eq!(lengths.iter().max(), Some(&1514));
        fs::remove_file(capture).unwrap();
    }
    machine.end();
}

#[test]
fn segments_reach_another_guest_whole() {
    let Some(machine) = Machine::start(&["iperf3"]) else {
        return;
    };
    let before = read_counters(&machine).unwrap();
    iperf3(&machine, WEB, DB, &["-C", "cubic"]);
    let after = read_counters(&machine).unwrap();
    let mean = (after.0 - before.0) / (after.1 - before.1).max(1);
    assert!(mean > 3000, "{mean} bytes a packet");
    machine.end();
}

/// Bytes and packets that the guest "db" has received on its TAP.
fn read_counters(machine: &Machine) -> Option<(u64, u64)> {
    let text = machine.namespaces[DB]
        .enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default())
        .ok()?;
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("db:"))?;
    let mut numbers = line
        .split_whitespace()
        .map(|number| number.parse().unwrap_or(0));
    Some((numbers.next()?, numbers.next()?))
}
