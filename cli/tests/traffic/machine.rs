//! A real machine with its TAPs in network namespaces.
//!
//! Tests are skipped, with the reason, without root or a TAP driver, if a program is missing, or if
//! the machine's programs were not built in the same folder as `grantway` (`cargo test` in the
//! workspace builds them).

use netdev::netns::Namespace;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use tempfile::TempDir;
use testing::{ChildGuard, Running, default_signals, require, wait_for_exit, wait_until};

/// Maximum number of tests that run a machine at the same time. They mostly wait, but share few
/// CPUs.
const MACHINES_MAX: usize = 2;

/// The tests that run a machine.
static TURNS: Mutex<Turns> = Mutex::new(Turns { busy: 0, alone: 0 });

/// Signalled when a turn ends.
static TURN_ENDED: Condvar = Condvar::new();

/// The number of places that running tests occupy, and the number of tests that wait to run alone.
struct Turns {
    busy: usize,
    alone: usize,
}

/// The permission to run a machine, until this value is dropped. Holds the number of places that it
/// occupies.
pub(crate) struct Turn(usize);

impl Turn {
    /// Waits until fewer than [`MACHINES_MAX`] other tests run a machine and none waits to run
    /// alone.
    pub(crate) fn wait() -> Self {
        let turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = TURN_ENDED.wait_while(turns, |it| it.busy >= MACHINES_MAX || it.alone > 0);
        free.unwrap_or_else(PoisonError::into_inner).busy += 1;
        Self(1)
    }

    /// Waits until no other test runs a machine, and prevents others from starting one. Used by
    /// tests that need the CPUs.
    pub(crate) fn alone() -> Self {
        let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        turns.alone += 1;
        let free = TURN_ENDED.wait_while(turns, |it| it.busy > 0);
        let mut turns = free.unwrap_or_else(PoisonError::into_inner);
        turns.alone -= 1;
        turns.busy = MACHINES_MAX;
        Self(MACHINES_MAX)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.lock().unwrap_or_else(PoisonError::into_inner).busy -= self.0;
        TURN_ENDED.notify_all();
    }
}

/// A running machine and the namespaces of its TAPs.
pub(crate) struct Machine {
    pub(crate) up: Child,
    /// Kills `up`, and with it the machine, if the tests are killed.
    tied: ChildGuard,
    pub(crate) folder: TempDir,
    /// The namespaces, each with a TAP of the given name.
    pub(crate) places: Vec<(Namespace, String)>,
    _turn: Option<Turn>,
}

impl Machine {
    /// Starts a machine with a namespace for each of the interfaces `names`. `config` returns the
    /// configuration, given the paths of the namespaces. Returns `None` and logs why if the machine
    /// cannot run here.
    pub(crate) fn start<N: ToString>(
        needed: &[&str],
        names: &[N],
        config: impl FnOnce(&[String]) -> String,
    ) -> Option<Self> {
        let machine = Self::begin(needed, names, config)?;
        machine.wait_until_up();
        Some(machine)
    }

    /// Like [`Machine::start`], while no other test runs a machine.
    pub(crate) fn start_alone<N: ToString>(
        needed: &[&str],
        names: &[N],
        config: impl FnOnce(&[String]) -> String,
    ) -> Option<Self> {
        let machine = Self::in_turn(Turn::alone(), needed, names, config)?;
        machine.wait_until_up();
        Some(machine)
    }

    /// Starts a machine without waiting until it is ready.
    pub(crate) fn begin<N: ToString>(
        needed: &[&str],
        names: &[N],
        config: impl FnOnce(&[String]) -> String,
    ) -> Option<Self> {
        Self::in_turn(Turn::wait(), needed, names, config)
    }

    fn in_turn<N: ToString>(
        turn: Turn,
        needed: &[&str],
        names: &[N],
        config: impl FnOnce(&[String]) -> String,
    ) -> Option<Self> {
        require!(machine);
        default_signals();
        for needed in needed {
            require!(tool(needed));
        }
        let place = |name: &N| (Namespace::new().unwrap(), name.to_string());
        let places: Vec<_> = names.iter().map(place).collect();
        let paths: Vec<String> = places.iter().map(|(place, _)| path_of(place)).collect();
        let config = config(&paths);
        let needs_lab =
            config::parse("machine.toml", &config).is_ok_and(|c| c.driver.grants.needs_lab());
        if needs_lab {
            require!(program("grantwayd-lab"));
            require!(program("driver-lab"));
        }
        let options = if needs_lab { &["--lab"][..] } else { &[] };
        Some(Self::launch(&config, options, places, Some(turn)))
    }

    /// Starts another machine without namespaces, in addition to this one.
    pub(crate) fn beside(&self, config: &str) -> Self {
        let machine = Self::launch(config, &[], Vec::new(), None);
        machine.wait_until_up();
        machine
    }

    fn launch(
        config: &str,
        options: &[&str],
        places: Vec<(Namespace, String)>,
        turn: Option<Turn>,
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("machine.toml");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(grantway());
        command.arg("--json").arg("up").arg(file).args(options);
        let up = in_folder(&mut command, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            tied: ChildGuard::new(up.id()),
            up,
            folder,
            places,
            _turn: turn,
        }
    }

    fn wait_until_up(&self) {
        wait_until("the machine does not start", || self.is_up());
    }

    fn is_up(&self) -> bool {
        let run = self.grantway(&["status", "--json"]);
        let status: Option<Value> = serde_json::from_slice(&run.stdout).ok();
        status.is_some_and(|status| !status["up_took_ns"].is_null())
    }

    /// Waits until a machine whose core was killed has stopped.
    pub(crate) fn has_died(&mut self) {
        assert!(!wait_for_exit(&mut self.up).success());
    }

    /// Restarts the machine from its file. The previous machine's resources may be busy for a
    /// moment.
    pub(crate) fn start_again(&mut self) {
        let file = self.folder.path().join("machine.toml");
        let mut command = Command::new(grantway());
        let command = in_folder(command.arg("up").arg(file), self.folder.path());
        command.stdout(Stdio::null());
        self.up = command.spawn().unwrap();
        wait_until("the machine does not restart", || {
            if self.up.try_wait().unwrap().is_some() {
                self.up = command.spawn().unwrap();
            }
            self.is_up()
        });
        self.tied = ChildGuard::new(self.up.id());
    }

    pub(crate) fn grantway(&self, args: &[&str]) -> Output {
        let mut command = Command::new(grantway());
        in_folder(command.args(args), self.folder.path())
            .output()
            .unwrap()
    }

    /// Starts `grantway ARGS`.
    pub(crate) fn start_grantway(&self, args: &[&str]) -> Running {
        let mut command = Command::new(grantway());
        let command = in_folder(command.args(args), self.folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new(command.spawn().unwrap())
    }

    /// Starts a program in a namespace.
    pub(crate) fn spawn(&self, place: usize, program: &str, args: &[&str]) -> Running {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.folder.path());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = self.places[place].0.enter(|| command.spawn().unwrap());
        Running::new(child.unwrap())
    }

    /// Runs a program in a namespace until it exits.
    pub(crate) fn run(&self, place: usize, program: &str, args: &[&str]) -> Output {
        self.spawn(place, program, args).output()
    }

    /// Waits until a server listens on a TCP port in a namespace.
    pub(crate) fn wait_for_listener(&self, place: usize, port: u16) {
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
        wait_until(&format!("no server listens on port {port}"), || {
            self.places[place].0.enter(listens).unwrap()
        });
    }

    /// Returns the output of `grantway ARGS --json`.
    pub(crate) fn ask(&self, args: &[&str]) -> Value {
        let run = self.grantway(&[args, &["--json"]].concat());
        assert!(run.status.success(), "{args:?}: {run:?}");
        serde_json::from_slice(&run.stdout).unwrap()
    }

    /// Ends the machine. Checks that it has leaked no grant and left no process or interface.
    /// Returns the namespaces.
    pub(crate) fn end(mut self) -> Vec<(Namespace, String)> {
        let audit = self.ask(&["grants"]);
        assert_eq!(audit["leaked"], 0, "{audit}");
        let status = self.ask(&["status"]);
        let domains = status["domains"].as_array().unwrap().iter();
        let mut pids: Vec<_> = domains.flat_map(|d| [&d["pid"], &d["agent_pid"]]).collect();
        pids.push(&status["pid"]);
        let down = self.grantway(&["down"]);
        assert!(down.status.success(), "{down:?}");
        assert!(wait_for_exit(&mut self.up).success());
        for pid in pids {
            let pid = pid.as_u64().unwrap();
            assert!(!Path::new(&format!("/proc/{pid}/exe")).exists(), "{pid}");
        }
        for (namespace, name) in &self.places {
            let left = namespace
                .enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap())
                .unwrap();
            assert!(!left.contains(name), "{left}");
        }
        std::mem::take(&mut self.places)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The test has failed. `up` stops the machine when it is terminated.
        if self.up.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.grantway(&["down"]);
            let _ = self.up.kill();
            let _ = self.up.wait();
        }
    }
}

pub(crate) fn grantway() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_grantway"))
}

pub(crate) fn in_folder<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    let runtime = folder.join("run");
    command
        .env("GRANTWAY_RUNTIME_DIR", runtime)
        .current_dir(folder)
        .stdin(Stdio::null())
}

fn path_of(namespace: &Namespace) -> String {
    namespace.path().display().to_string()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
