//! A folder for each test, with the program and a separate runtime directory.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use testing::{ProgramOutput, Running, default_signals, place_program, place_script, wait_for};

/// A machine that needs no TAP.
pub(crate) const SIM: &str = r#"
[[nic]]
name = "wire"
kind = "sim"
addresses = ["10.0.0.1/24"]

[[nic.app]]
kind = "tcp-echo"
port = 7

[[guest]]
name = "web"

[[guest.vif]]
endpoint = "stack"
addresses = ["10.0.0.2/24"]

[[guest.vif.app]]
kind = "ping"
to = "10.0.0.1"
count = 1000000
"#;

/// A machine whose wire is a TAP in the namespace `here`.
pub(crate) const TAPS: &str = r#"
[[nic]]
name = "wire"
kind = "tap"
netns = "here"
addresses = ["10.0.0.1/24"]

[[guest]]
name = "web"

[[guest.vif]]
endpoint = "echo"
"#;

/// A user without any rights.
pub(crate) const UNPRIVILEGED_UID: u32 = 65_534;

/// The program of `demo`, `exp` and `prof`.
const LAB: &str = "grantway-lab";

/// The programs of a machine and of its experiments.
const PROGRAMS: [&str; 9] = [
    "grantwayd",
    "grantwayd-lab",
    "grantway-netd",
    "grantway-manager",
    "driver",
    "driver-lab",
    "device",
    "guest",
    "pointers",
];

/// Returns the folder with all programs of this build. `cargo test` for this package alone builds
/// only some of them.
fn built_folder() -> &'static Path {
    let folder = Path::new(env!("CARGO_BIN_EXE_grantway")).parent().unwrap();
    let packages = [
        "grantwayd",
        "baselines",
        "netd",
        "manager",
        "driver",
        "lab-driver",
        "device",
        "guest",
        "pointers",
        "lab",
    ];
    testing::build_missing(folder, &[&PROGRAMS[..], &[LAB]].concat(), &packages);
    folder
}

/// The folder of a test.
pub(crate) struct TestDir {
    dir: TempDir,
}

impl TestDir {
    /// Returns a folder with `grantway` alone.
    pub(crate) fn without_lab() -> Self {
        default_signals();
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("grantway");
        // The program is copied, because it searches for other programs in the folder of its file.
        // A symbolic link would not work.
        place_program(Path::new(env!("CARGO_BIN_EXE_grantway")), &program);
        Self { dir }
    }

    /// Returns a folder with `grantway` and `grantway-lab`.
    pub(crate) fn new() -> Self {
        let place = Self::without_lab();
        place_program(&built_folder().join(LAB), &place.path(LAB));
        place
    }

    /// Returns a folder that also has the programs of a machine.
    pub(crate) fn with_machine() -> Self {
        let place = Self::new();
        let from = built_folder();
        for name in PROGRAMS {
            place_program(&from.join(name), &place.path(name));
        }
        place
    }

    /// Returns the names of other files in the folder.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let name = |entry: std::io::Result<fs::DirEntry>| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let known = ["grantway", LAB, "run", "out"].contains(&name.as_str());
            (!known && !PROGRAMS.contains(&name.as_str())).then_some(name)
        };
        entries.filter_map(name).collect()
    }

    /// Returns the processes that use a file in the folder, except for those that run `grantway`.
    pub(crate) fn users(&self) -> Vec<String> {
        let here = self.dir.path().to_str().unwrap();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok())
            .filter(|words| words.contains(here) && !words.contains(&format!("{here}/grantway")))
            .collect()
    }

    /// Returns whether a file exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Replaces the monitor by a shell script with this text.
    pub(crate) fn monitor(&self, script: &str) {
        place_script(&self.path("grantwayd"), script);
    }

    /// Lets other users change the runtime directory.
    pub(crate) fn open_runtime_dir(&self) {
        let path = self.path("run");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    }

    /// Lets all users use the folder.
    pub(crate) fn open_to_all(&self) {
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(self.dir.path(), everybody).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        self.command_by(Command::new(self.path("grantway")), args)
    }

    fn command_by(&self, mut command: Command, args: &[&str]) -> Command {
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("GRANTWAY_RUNTIME_DIR", self.path("run"))
            .env("TMPDIR", self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs `grantway ARGS` until it exits.
    pub(crate) fn run(&self, args: &[&str]) -> ProgramOutput {
        let child = self.command(args).spawn().unwrap();
        ProgramOutput::of(child)
    }

    /// Runs `grantway ARGS` on a terminal until it exits, and presses keys after a pause.
    pub(crate) fn on_a_terminal(
        &self,
        args: &[&str],
        pause: Duration,
        keys: &str,
    ) -> ProgramOutput {
        let program = self.path("grantway");
        let line = format!(
            "stty cols 120 rows 30; {} {}",
            program.display(),
            args.join(" ")
        );
        let mut command = Command::new("script");
        command
            .args(["-qec", &line, "/dev/null"])
            .env("GRANTWAY_RUNTIME_DIR", self.path("run"))
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::sleep(pause);
        stdin.write_all(keys.as_bytes()).unwrap();
        let run = ProgramOutput::of(child);
        drop(stdin);
        run
    }

    /// Runs `grantway ARGS` without other programs on the search path.
    pub(crate) fn run_without_programs(&self, args: &[&str]) -> ProgramOutput {
        let mut command = self.command(args);
        let child = command.env("PATH", self.dir.path()).spawn().unwrap();
        ProgramOutput::of(child)
    }

    /// Runs `grantway ARGS` as another user.
    pub(crate) fn run_as(&self, user: u32, args: &[&str]) -> ProgramOutput {
        self.run_as_group(user, user, args)
    }

    /// Runs `grantway ARGS` as another user with another group.
    pub(crate) fn run_as_group(&self, user: u32, group: u32, args: &[&str]) -> ProgramOutput {
        let mut command = self.command(args);
        let child = command.uid(user).gid(group).spawn().unwrap();
        ProgramOutput::of(child)
    }

    /// Runs `grantway ARGS` as a user, under a limit in `prlimit`'s syntax.
    pub(crate) fn run_limited(&self, user: u32, limit: &str, args: &[&str]) -> ProgramOutput {
        let mut prlimit = Command::new("prlimit");
        prlimit
            .arg(limit)
            .arg(self.path("grantway"))
            .uid(user)
            .gid(user);
        let child = self.command_by(prlimit, args).spawn().unwrap();
        ProgramOutput::of(child)
    }

    /// Starts `grantway ARGS`, with the output in the file `out`.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        self.start_with(args, &[])
    }

    /// Starts `grantway ARGS` with these environment variables.
    pub(crate) fn start_with(&self, args: &[&str], variables: &[(&str, &str)]) -> Running {
        self.start_into(args, variables, Stdio::piped())
    }

    /// Starts `grantway ARGS` as the first process of a new PID namespace.
    pub(crate) fn start_apart(&self, args: &[&str]) -> Running {
        self.started(self.command_apart(args))
    }

    /// Runs `grantway ARGS` in a new PID namespace until it exits.
    pub(crate) fn run_apart(&self, args: &[&str]) -> ProgramOutput {
        let child = self.command_apart(args).spawn().unwrap();
        ProgramOutput::of(child)
    }

    fn command_apart(&self, args: &[&str]) -> Command {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        unshare.arg(self.path("grantway"));
        self.command_by(unshare, args)
    }

    /// Starts `grantway ARGS` with another standard error.
    pub(crate) fn start_into(
        &self,
        args: &[&str],
        variables: &[(&str, &str)],
        err: impl Into<Stdio>,
    ) -> Running {
        let mut command = self.command(args);
        command.envs(variables.iter().copied()).stderr(err);
        self.started(command)
    }

    fn started(&self, mut command: Command) -> Running {
        let out = fs::File::create(self.path("out")).unwrap();
        let child = command.stdout(out).spawn().unwrap();
        Running::writing_to(child, self.path("out"))
    }

    /// Waits for a file that another process writes atomically. Returns its content.
    pub(crate) fn wait_for(&self, name: &str) -> String {
        wait(|| Some(self.read(name)).filter(|text| !text.is_empty()))
    }

    /// Waits until a file exists. Returns false if the program exits before.
    pub(crate) fn wait_for_file_or_end(&self, name: &str, running: &Running) -> bool {
        wait(|| match self.has(name) {
            true => Some(true),
            false => (!is_alive(&running.pid().to_string())).then_some(false),
        })
    }

    /// Waits until a running program has printed a text.
    pub(crate) fn wait_for_output(&self, running: &Running, part: &str) {
        wait(|| running.written().contains(part).then_some(()));
    }

    /// Returns the content of a file, or an empty text if it does not exist.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name))
            .unwrap_or_default()
            .trim()
            .to_owned()
    }
}

/// Waits until a process has exited.
pub(crate) fn wait_for_end(pid: &str) {
    wait(|| (!is_alive(pid)).then_some(()));
}

/// Waits until `ready` returns a value.
#[track_caller]
pub(crate) fn wait<T>(ready: impl FnMut() -> Option<T>) -> T {
    wait_for("no result in time", ready)
}

/// Returns whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, state)| state);
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}
