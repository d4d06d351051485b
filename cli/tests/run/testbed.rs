//! A mock system, and the outside.

use netdev::netns::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper,
};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use testing::{
    ProgramOutput, Running, TIMEOUT, default_signals, place_machine, require, wait_until,
};

/// Permits one machine at a time, because tests share few CPUs.
static ONE: Mutex<()> = Mutex::new(());

/// The address of the system.
pub(crate) const SYSTEM: &str = "192.0.2.1";
/// The address of the outside.
pub(crate) const OUTSIDE: &str = "192.0.2.2";

/// Timeout for a program.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5 * TIMEOUT.as_secs());

pub(crate) struct Testbed {
    pub(crate) system: Namespace,
    pub(crate) outside: Namespace,
    pub(crate) folder: TempDir,
    /// The interfaces before the first command. With some modules, the kernel creates more than
    /// the loopback in every namespace.
    interfaces: Vec<String>,
    _one: MutexGuard<'static, ()>,
}

impl Testbed {
    /// Returns `None` and logs why if the testbed cannot be created here.
    pub(crate) fn new(needed: &[&str]) -> Option<Self> {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        require!(root, machine, tool("ip"), tool("nft"));
        for needed in needed {
            require!(tool(needed));
        }
        set_child_subreaper(Some(getpid())).unwrap();
        default_signals();
        let [system, outside] = [(), ()].map(|()| Namespace::new().unwrap());
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut world = Self {
            system,
            outside,
            folder,
            interfaces: Vec::new(),
            _one: one,
        };
        let far = world.outside.path().display().to_string();
        let link = [
            "link", "add", "up0", "type", "veth", "peer", "name", "down0",
        ];
        ip(&world.system, &[&link[..], &["netns", &far]].concat());
        for (namespace, ifname, address) in [
            (&world.system, "up0", SYSTEM),
            (&world.outside, "down0", OUTSIDE),
        ] {
            ip(namespace, &["link", "set", ifname, "up"]);
            ip(
                namespace,
                &["address", "add", &format!("{address}/24"), "dev", ifname],
            );
        }
        world.interfaces = world.interfaces();
        Some(world)
    }

    /// Returns the names of the system's interfaces.
    fn interfaces(&self) -> Vec<String> {
        let read = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let links = self.system.enter(read).unwrap();
        let names = links.lines().skip(2);
        let names = names.filter_map(|line| line.split(':').next());
        names.map(|name| name.trim().to_owned()).collect()
    }

    /// Returns a command that runs on the system.
    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("GRANTWAY_RUNTIME_DIR", self.runtime())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Running {
        let child = self.system.enter(|| command.spawn().unwrap()).unwrap();
        let watched = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        // After the timeout the program is killed. A test that waits for a missing line then sees
        // the end of the output.
        thread::spawn(move || {
            let mut ended = [PollFd::new(&watched, PollFlags::IN)];
            let longest = Timespec::try_from(PROGRAM_TIMEOUT).unwrap();
            if poll(&mut ended, Some(&longest)) == Ok(0) {
                let _ = pidfd_send_signal(&watched, Signal::KILL);
            }
        });
        Running::new(child)
    }

    /// Starts `grantway run ARGS`.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let grantway = grantway();
        self.spawn(&mut self.command(&grantway, &[&["run"], args].concat()))
    }

    /// Runs `grantway run ARGS` until it exits, and checks that it has left nothing.
    pub(crate) fn run(&self, args: &[&str]) -> ProgramOutput {
        let ran = self.start(args).finish();
        let left = self.leftovers();
        assert!(left.is_empty(), "{args:?} has left {left:?}: {ran:?}");
        ran
    }

    /// Returns the path of `grantway` in a folder where every user may execute it.
    pub(crate) fn program(&self) -> String {
        let program = self.folder.path().join("grantway");
        if !program.exists() {
            place_machine(Path::new(&grantway()), self.folder.path());
        }
        program.display().to_string()
    }

    pub(crate) fn runtime(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Returns everything that exists now but did not exist at the start.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let names = self.interfaces().into_iter();
        let new = names.filter(|name| !self.interfaces.contains(name));
        left.extend(new.map(|name| format!("the interface {name}")));
        let read = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        let forwarding = self.system.enter(read).unwrap();
        if forwarding.trim() != "0" {
            left.push("forwarding".to_owned());
        }
        let tables = self
            .spawn(&mut self.command("nft", &["list", "tables"]))
            .finish();
        left.extend(tables.out.lines().map(str::to_owned));
        let files = fs::read_dir(self.runtime()).into_iter().flatten();
        left.extend(files.map(|file| file.unwrap().path().display().to_string()));
        left.extend(self.processes());
        left
    }

    /// Returns the running programs of a command. Excludes programs of other tests: orphans become
    /// children of this process.
    pub(crate) fn processes(&self) -> Vec<String> {
        let folder = Path::new(&grantway()).parent().unwrap().to_owned();
        let parents = parents();
        let ours = |pid: &u32| {
            let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            let name = exe.file_name()?.to_str()?;
            let is_started = name.starts_with("grantway") || ["driver", "guest"].contains(&name);
            let is_ours =
                exe.parent() == Some(&folder) && is_started || exe.starts_with(self.folder.path());
            let mut above = std::iter::successors(Some(pid), |pid| parents.get(pid));
            let is_ours = is_ours && above.any(|pid| *pid == std::process::id());
            is_ours.then(|| format!("{pid} {}", exe.display()))
        };
        parents.keys().filter_map(ours).collect()
    }

    /// Waits until the system is as at the start.
    #[track_caller]
    pub(crate) fn wait_until_clean(&self) {
        wait_until_none(|| self.leftovers());
    }

    /// Starts a web server outside. It runs until the end of the test, and answers with the address
    /// of its client.
    pub(crate) fn serve_web(&self) -> String {
        serve_web(&self.outside, OUTSIDE)
    }

    /// Starts a web server on the system itself, at one of its addresses.
    pub(crate) fn serve_web_here(&self, address: &str) -> String {
        serve_web(&self.system, address)
    }

    /// Starts a name server outside that resolves every name to the outside's address.
    pub(crate) fn serve_names(&self) {
        let bound = self
            .outside
            .enter(|| UdpSocket::bind((OUTSIDE, 53)).unwrap());
        let socket = bound.unwrap();
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut query) {
                // A question's name ends with an empty label. Type and class follow.
                let name = query[12..len].iter().position(|&byte| byte == 0).unwrap();
                let end = 12 + name + 5;
                let is_ipv4 = query[end - 3] == 1;
                let mut answer = query[..end].to_vec();
                answer[2..12].copy_from_slice(&[
                    0x81,
                    0x80,
                    0,
                    1,
                    0,
                    u8::from(is_ipv4),
                    0,
                    0,
                    0,
                    0,
                ]);
                if is_ipv4 {
                    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 2]);
                }
                socket.send_to(&answer, from).unwrap();
            }
        });
    }
}

fn serve_web(namespace: &Namespace, address: &str) -> String {
    let bound = namespace.enter(|| TcpListener::bind((address, 0)).unwrap());
    let listener = bound.unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let from = stream.peer_addr().unwrap().ip();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let answer = format!("HTTP/1.0 200 OK\r\n\r\nyou are {from}\n");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    format!("{address}:{port}")
}

pub(crate) fn grantway() -> String {
    env!("CARGO_BIN_EXE_grantway").to_owned()
}

/// Returns each process's parent.
pub(crate) fn parents() -> BTreeMap<u32, u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let parent = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        Some((pid, rest.split(' ').nth(1)?.parse().ok()?))
    };
    processes.filter_map(parent).collect()
}

/// Waits until `remaining` returns an empty list.
#[track_caller]
pub(crate) fn wait_until_none(mut remaining: impl FnMut() -> Vec<String>) {
    let mut before = Vec::new();
    wait_until("some items remain", || {
        let left = remaining();
        if left != before {
            println!("remaining: {left:?}");
        }
        before = left;
        before.is_empty()
    });
}

fn ip(namespace: &Namespace, args: &[&str]) {
    let status = namespace.enter(|| Command::new("ip").args(args).status().unwrap());
    assert!(status.unwrap().success(), "ip {args:?}");
}
