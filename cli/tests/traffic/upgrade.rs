//! Upgrades the programs of a machine while its attached guests exchange streams.

use crate::machine::{Turn, grantway, in_folder, text};
use crate::processes::kill;
use netdev::netns::Namespace;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use testing::requirements::MACHINE;
use testing::{
    StopOnDrop, accept, child_of, place_machine, place_program, require, wait_for, wait_until,
    with_timeout,
};

const GUESTS: usize = 16;
/// The program of a NIC's device.
const DEVICE: &str = "device";
/// Length of the pattern: a prime, so that lost or repeated chunks are detected.
const PATTERN: usize = 251;

/// A machine whose programs are in a separate folder, and the namespaces that are attached to it.
struct Installed {
    folder: TempDir,
    namespaces: Vec<Namespace>,
    /// `grantway up`, if it stays in the foreground.
    up: Option<Child>,
}

impl Installed {
    /// Starts a machine in the foreground, or detached.
    fn new(foreground: bool) -> Self {
        let folder = TempDir::new().unwrap();
        place_machine(&grantway(), folder.path());
        let device = grantway().with_file_name(DEVICE);
        place_program(&device, &folder.path().join(DEVICE));
        let config = "[driver]\nrestart_pause_ms = 20\n\n[[nic]]\nname = \"wire\"\n\
                      kind = \"soft\"\naddresses = [\"10.0.0.100/24\"]\n";
        fs::write(folder.path().join("m.toml"), config).unwrap();
        let namespaces = (0..GUESTS).map(|_| Namespace::new().unwrap()).collect();
        let mut installed = Self {
            folder,
            namespaces,
            up: None,
        };
        match foreground {
            true => {
                let mut up = installed.command(&["up", "m.toml"]);
                installed.up = Some(up.stdout(Stdio::null()).spawn().unwrap());
                let is_up = || {
                    let status = installed.run(&["status", "--json"]);
                    let status = serde_json::from_slice::<Value>(&status.stdout);
                    status.is_ok_and(|status| status["up_took_ns"].is_u64())
                };
                wait_until("the machine does not start", is_up);
            }
            false => drop(installed.done(&["up", "m.toml", "--detach"])),
        }
        for (n, namespace) in installed.namespaces.iter().enumerate() {
            let path = namespace.path().display().to_string();
            let cidr = format!("{}/24", address(n));
            let name = format!("c{n}");
            let guest = format!(
                "[[vif]]\nendpoint = \"tap\"\nnetns = \"{path}\"\naddresses = [\"{cidr}\"]\n\
                 persistent = true\n"
            );
            fs::write(installed.folder.path().join("guest.toml"), guest).unwrap();
            installed.done(&["attach", &name, "--file", "guest.toml"]);
        }
        installed
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.folder.path().join("grantway"));
        in_folder(command.args(args), self.folder.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn done(&self, args: &[&str]) -> String {
        let run = self.run(args);
        let log = || fs::read_to_string(self.folder.path().join("run/grantway.log"));
        assert!(run.status.success(), "{args:?}: {run:?}\n{:?}", log());
        text(&run.stdout)
    }

    /// Replaces a program's file as a package manager does. The new file has the same bytes, except
    /// for one byte if `change` gives an offset and a value.
    fn replace(&self, name: &str, change: Option<(u64, u8)>) {
        let place = self.folder.path().join(name);
        let new = place.with_extension("new");
        // Another process writes the file: see `place_program`.
        let copied = Command::new("cp").arg(&place).arg(&new).status().unwrap();
        assert!(copied.success());
        if let Some((at, byte)) = change {
            let file = fs::File::options().write(true).open(&new).unwrap();
            file.write_all_at(&[byte], at).unwrap();
        }
        fs::rename(new, place).unwrap();
    }

    /// Returns the name, process id and executable file of each of the machine's processes.
    fn processes(&self) -> Vec<(String, u64, u64)> {
        let status: Value = serde_json::from_str(&self.done(&["status", "--json"])).unwrap();
        let core = status["pid"].as_u64().unwrap();
        let helpers = ["grantway-manager", "grantway-netd"].map(|name| {
            let pid = wait_for("no helper", || child_of(core, name));
            (name.to_owned(), pid)
        });
        let domains = status["domains"].as_array().unwrap().iter();
        let domains = domains.map(|domain| {
            let name = domain["name"].as_str().unwrap().to_owned();
            (name, domain["pid"].as_u64().unwrap())
        });
        let all = [("core".to_owned(), core)].into_iter().chain(helpers);
        let all = all.chain(domains).map(|(name, pid)| {
            let file = fs::metadata(format!("/proc/{pid}/exe")).unwrap().ino();
            (name, pid, file)
        });
        all.collect()
    }

    fn file_of(&self, program: &str) -> u64 {
        fs::metadata(self.folder.path().join(program))
            .unwrap()
            .ino()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = self.run(&["down"]);
        if let Some(up) = &mut self.up {
            let _ = up.kill();
            let _ = up.wait();
        }
    }
}

fn address(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1)
}

/// Returns the offset of the version in a program's note, which follows the owner's name.
fn version_in(program: &Path) -> u64 {
    let bytes = fs::read(program).unwrap();
    let head = b"\x09\0\0\0\x04\0\0\0\x01\0\0\0Grantway\0\0\0\0";
    let at = bytes.windows(head.len()).position(|part| part == head);
    (at.unwrap() + head.len()) as u64
}

/// Sends a pattern until it is stopped. Returns the number of bytes.
fn send(mut to: TcpStream, stop: &AtomicBool) -> u64 {
    let pattern: Vec<u8> = (0..64 * PATTERN).map(|n| (n % PATTERN) as u8).collect();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        to.write_all(&pattern).expect("the stream is open");
        sent += pattern.len() as u64;
        thread::sleep(Duration::from_millis(5));
    }
    to.shutdown(Shutdown::Write).unwrap();
    sent
}

/// Receives and checks a pattern until its end. Returns the number of bytes.
fn take(mut from: TcpStream, received: &AtomicU64) -> u64 {
    let mut chunk = [0; 16_384];
    let mut got = 0;
    loop {
        let bytes = from.read(&mut chunk).expect("the stream is open");
        if bytes == 0 {
            return got;
        }
        for (n, byte) in chunk[..bytes].iter().enumerate() {
            assert_eq!(usize::from(*byte), (got as usize + n) % PATTERN);
        }
        got += bytes as u64;
        received.store(got, Ordering::Relaxed);
    }
}

/// Runs `body` during a stream to each guest from its neighbour. `body` gets the counters of
/// received bytes.
fn with_streams(installed: &Installed, body: impl FnOnce(&[AtomicU64])) {
    let received: Vec<AtomicU64> = (0..GUESTS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        let streams: Vec<_> = (0..GUESTS)
            .map(|n| {
                let inside = |n: usize| &installed.namespaces[n % GUESTS];
                let listen = || TcpListener::bind((address(n), 7000)).unwrap();
                let listener = inside(n).enter(listen).unwrap();
                let connect = || {
                    wait_for("no connection", || {
                        TcpStream::connect((address(n), 7000)).ok()
                    })
                };
                let out = with_timeout(inside(n + 1).enter(connect).unwrap());
                let back = accept(&listener);
                let (stop, received) = (&stop, &received[n]);
                (
                    scope.spawn(move || send(out, stop)),
                    scope.spawn(move || take(back, received)),
                )
            })
            .collect();
        body(&received);
        drop(stops);
        for (sent, got) in streams {
            assert_eq!(sent.join().unwrap(), got.join().unwrap());
        }
    });
}

/// Waits until every stream has received further bytes.
fn all_continue(received: &[AtomicU64]) {
    let now = |received: &AtomicU64| received.load(Ordering::Relaxed);
    let before: Vec<u64> = received.iter().map(now).collect();
    wait_until("a stream does not continue", || {
        let pairs = received.iter().zip(&before);
        pairs
            .into_iter()
            .all(|(received, before)| now(received) > *before)
    });
}

#[test]
fn streams_of_attached_guests_outlive_an_upgrade() {
    require!(machine);
    let _turn = Turn::wait();
    let installed = Installed::new(false);
    with_streams(&installed, |received| {
        all_continue(received);
        let before = installed.processes();
        for name in MACHINE.iter().chain(&[DEVICE, "grantway"]) {
            installed.replace(name, None);
        }
        installed.done(&["upgrade"]);
        all_continue(received);
        let after = installed.processes();
        for ((name, old, file), (same, new, its)) in before.iter().zip(&after) {
            assert_eq!(name, same);
            let program = match name.as_str() {
                "grantway-manager" | "grantway-netd" | "driver" => name,
                "device-wire" => DEVICE,
                _ => {
                    assert_eq!((old, file), (new, its), "{name} must be unchanged");
                    continue;
                }
            };
            assert_ne!(old, new, "{name}");
            assert_eq!(*its, installed.file_of(program), "{name}");
        }
        // With programs of another version, no process is touched.
        let core = installed.folder.path().join("grantwayd");
        installed.replace("grantwayd", Some((version_in(&core), 77)));
        let refused = installed.run(&["upgrade", "--all"]);
        assert_eq!(refused.status.code(), Some(3), "{refused:?}");
        let said = text(&refused.stderr);
        assert!(
            said.contains("the installed one version 77, and no `grantway up` in the foreground"),
            "{said}"
        );
        assert_eq!(installed.processes(), after);
        all_continue(received);
    });
    installed.done(&["down"]);
    // Without a machine `--all` does nothing; a named machine must run.
    installed.done(&["upgrade", "--all"]);
    assert_eq!(installed.run(&["upgrade"]).status.code(), Some(1));
}

#[test]
fn streams_of_attached_guests_outlive_another_core() {
    require!(machine);
    let _turn = Turn::wait();
    let installed = Installed::new(true);
    with_streams(&installed, |received| {
        all_continue(received);
        let before = installed.processes();
        for name in MACHINE.iter().chain(&[DEVICE, "grantway"]) {
            installed.replace(name, None);
        }
        let core = installed.folder.path().join("grantwayd");
        installed.replace("grantwayd", Some((version_in(&core), 77)));
        // A version that rejects the file is reported before any process is touched.
        let file = installed.folder.path().join("m.toml");
        let good = fs::read_to_string(&file).unwrap();
        fs::write(&file, "[driver]\nnew_key = 1\n").unwrap();
        let refused = installed.run(&["upgrade"]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(
            said.contains("continues unchanged") && said.contains("new_key"),
            "{said}"
        );
        let pids = |all: Vec<(String, u64, u64)>| all.into_iter().map(|(_, pid, _)| pid);
        assert!(pids(installed.processes()).eq(pids(before.clone())));
        all_continue(received);
        fs::write(&file, good).unwrap();
        let said = installed.done(&["upgrade", "--file", "m.toml"]);
        assert!(said.contains("was restarted"), "{said}");
        eprint!("{said}");
        all_continue(received);
        let after = installed.processes();
        assert_eq!(before.len(), after.len());
        for (name, pid, file) in &after {
            assert!(before.iter().all(|(_, old, _)| old != pid), "{name}");
            let program = match name.as_str() {
                "core" => "grantwayd",
                "grantway-manager" | "grantway-netd" | "driver" => name,
                "device-wire" => DEVICE,
                _ => "guest",
            };
            assert_eq!(*file, installed.file_of(program), "{name}");
        }
        // The upgrade is repeated, now with equal versions.
        let said = installed.done(&["upgrade"]);
        assert!(said.contains("runs the installed programs"), "{said}");
        all_continue(received);
    });
    installed.done(&["down"]);
}

/// If no driver domain answers in time, the next driver domain has the rules from before the
/// request.
#[test]
fn rules_without_a_driver_are_undone() {
    require!(machine);
    let _turn = Turn::wait();
    let installed = Installed::new(false);
    let file = |name: &str| {
        let rule = format!("[[vif]]\n[[vif.rule]]\nname = \"{name}\"\naction = \"allow\"\n");
        let file = installed.folder.path().join(name);
        fs::write(file.with_extension("toml"), rule).unwrap();
        format!("{name}.toml")
    };
    installed.done(&["rules", "c1", "--file", &file("old")]);
    let program = installed.folder.path().join("driver");
    let away = program.with_extension("away");
    fs::rename(&program, &away).unwrap();
    let processes = installed.processes();
    let (_, driver, _) = processes
        .iter()
        .find(|(name, ..)| name == "driver")
        .unwrap();
    assert!(kill(*driver));
    let refused = installed.run(&["rules", "c1", "--file", &file("new")]);
    let why = text(&refused.stderr);
    assert!(!refused.status.success(), "{why}");
    assert!(why.contains("did not answer within 20 s"), "{why}");
    fs::rename(&away, &program).unwrap();
    let rules = wait_for("no driver domain", || {
        let stat = installed.run(&["stat", "driver", "--json"]);
        let stat: Value = serde_json::from_slice(&stat.stdout).ok()?;
        let rules = stat["driver"]["ports"]["vif.c1-0"]["rules"].as_object()?;
        Some(rules.keys().cloned().collect::<Vec<_>>())
    });
    assert_eq!(rules, ["old"]);
    // The driver domain also receives the request that undoes the late request.
    wait_until("the guest is still being changed", || {
        let changed = installed.run(&["rules", "c1", "--file", "new.toml"]);
        changed.status.success()
    });
}
