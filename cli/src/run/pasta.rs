//! Connects a user namespace to the outside with `pasta`, if installed. pasta creates an interface
//! in the network namespace and carries its packets through ordinary sockets.
//!
//! pasta runs in the namespaces that `grantway run` leaves, and does not always detect that the
//! namespace that it serves has disappeared. Therefore a supervisor process between the two
//! terminates pasta when `grantway run` exits for any reason.

use super::network::{self, HostFamilies};
use abi::machine::{Forward, PortProtocol};
use anyhow::Context;
use config::Cidr;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGTERM;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tool::helper;

/// Name of the supervisor among the hidden subcommands.
pub(crate) const HELPER: &str = "pasta";
/// Timeout for pasta to create a default route in the namespace.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// The IPv6 address inside and its gateway. Their network is not routed elsewhere.
const IPV6: [&str; 2] = ["fd67:7261:6e74::2", "fd67:7261:6e74::1"];

/// The supervisor's task.
#[derive(Serialize, Deserialize)]
struct Task {
    /// The process whose network namespace pasta joins. The supervisor and pasta exit with it.
    of: u32,
    program: PathBuf,
    /// The IPv4 address inside. It must differ from this system's. Otherwise packets for this
    /// system would not leave the namespace.
    inside: Cidr,
    gateway: IpAddr,
    forward: Vec<Forward>,
}

/// The supervisor's process before it starts pasta, or `None` if pasta is not installed.
#[derive(Debug)]
pub(super) struct PastaSupervisor(Option<Child>);

impl PastaSupervisor {
    /// Starts the supervisor, which then waits for [`PastaSupervisor::join`].
    pub(super) fn start(forward: &[Forward]) -> anyhow::Result<Self> {
        let Some(program) = find() else {
            return Ok(Self(None));
        };
        let (inside, gateway) = network::unused()?;
        let task = Task {
            of: std::process::id(),
            program,
            inside,
            gateway,
            forward: forward.to_vec(),
        };
        let child = helper::own(HELPER)?
            .arg(serde_json::to_string(&task)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // In a separate process group, the supervisor does not receive a terminal's Ctrl-C.
            .process_group(0)
            .spawn()
            .context("start the supervisor of pasta")?;
        Ok(Self(Some(child)))
    }

    /// Makes pasta join the network namespace that this process has entered. Returns the
    /// supervisor's process id, or the reason why the outside is not reachable.
    pub(super) fn join(mut self) -> Result<i32, String> {
        let Some(child) = &mut self.0 else {
            return Err("an uplink needs root, or the program `pasta`".to_owned());
        };
        if let Some(mut stdin) = child.stdin.take() {
            // If the supervisor has already exited, the read below detects it.
            let _ = stdin.write_all(b"\n");
        }
        let start = Instant::now();
        while !HostFamilies::reached().is_any() {
            if let Ok(Some(status)) = child.try_wait() {
                self.0 = None;
                return Err(format!("pasta cannot be used ({status})"));
            }
            if start.elapsed() > READY_TIMEOUT {
                let seconds = READY_TIMEOUT.as_secs();
                return Err(format!(
                    "pasta has created no default route within {seconds} s"
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = child.id().cast_signed();
        self.0 = None;
        Ok(pid)
    }
}

impl Drop for PastaSupervisor {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // SIGKILL would leave pasta running.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            let _ = child.wait();
        }
    }
}

/// Returns the path of pasta.
fn find() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let programs = std::env::split_paths(&folders).map(|folder| folder.join("pasta"));
    programs.into_iter().find(|program| program.is_file())
}

/// Main function of the supervisor.
pub(crate) fn main(task: &str) -> anyhow::Result<()> {
    let task: Task = helper::parse(task)?;
    let parent = i32::try_from(task.of).ok().and_then(Pid::from_raw);
    let parent = parent.context("no process")?;
    let parent = pidfd_open(parent, PidfdFlags::empty()).context("watch grantway run")?;
    let (end, asked) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGTERM, asked)?;
    let mut go = [0; 1];
    if std::io::stdin().read(&mut go)? == 0 {
        return Ok(());
    }
    let mut child = Command::new(&task.program)
        .args(arguments(&task))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {}", task.program.display()))?;
    let pasta = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    // The last message is used only if pasta exits by itself.
    let words = child.stderr.take().map(last_log_line);
    let mut watched = [
        PollFd::new(&parent, PollFlags::IN),
        PollFd::new(&end, PollFlags::IN),
        PollFd::new(&pasta, PollFlags::IN),
    ];
    while poll(&mut watched, None) == Err(rustix::io::Errno::INTR) {}
    let Some(status) = child.try_wait()? else {
        child.kill().context("end pasta")?;
        child.wait()?;
        return Ok(());
    };
    let words = words
        .and_then(|words| words.join().ok())
        .unwrap_or_default();
    anyhow::bail!("pasta has exited ({status}): {}", words.trim())
}

/// Reads lines in a new thread, which returns the last one.
fn last_log_line(from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let lines = BufReader::new(from).lines().map_while(Result::ok);
        lines.last().unwrap_or_default()
    })
}

/// Returns the arguments for pasta in the foreground, without forwarding to this system's loopback.
fn arguments(task: &Task) -> Vec<String> {
    let ports = |transport| {
        let ports = task.forward.iter().filter(|f| f.transport == transport);
        let ports: Vec<String> = ports.map(|forward| forward.port.to_string()).collect();
        match ports.is_empty() {
            true => "none".to_owned(),
            false => ports.join(","),
        }
    };
    let fixed = [
        "--foreground",
        "--quiet",
        "--config-net",
        "--no-map-gw",
        "-T",
        "none",
        "-U",
        "none",
    ];
    let fixed = fixed.map(str::to_owned).into_iter();
    let [ipv6, ipv6_gateway] = IPV6.map(str::to_owned);
    let addresses = [
        ("-a", task.inside.address.to_string()),
        ("-n", task.inside.prefix.to_string()),
        ("-g", task.gateway.to_string()),
        // pasta ignores these options on a system without an IPv6 default route.
        ("-a", ipv6),
        ("-g", ipv6_gateway),
    ];
    let addresses = addresses.into_iter();
    let addresses = addresses.flat_map(|(option, value)| [option.to_owned(), value]);
    let forwarded = [
        "-t".to_owned(),
        ports(PortProtocol::Tcp),
        "-u".to_owned(),
        ports(PortProtocol::Udp),
    ];
    fixed
        .chain(addresses)
        .chain(forwarded)
        .chain([task.of.to_string()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pasta_forwards_only_the_given_ports() {
        let task = |forward: &[&str]| Task {
            of: 7,
            program: PathBuf::from("pasta"),
            inside: "10.64.0.6/30".parse().unwrap(),
            gateway: "10.64.0.5".parse().unwrap(),
            forward: forward
                .iter()
                .map(|text| text.parse::<config::PortForward>().unwrap().0)
                .collect(),
        };
        let words = |forward: &[&str]| arguments(&task(forward)).join(" ");
        assert!(words(&[]).ends_with(" -t none -u none 7"));
        assert!(
            words(&[]).contains("--no-map-gw -T none -U none -a 10.64.0.6 -n 30 -g 10.64.0.5 ")
        );
        let both = [
            "tcp:80=10.0.0.2:80",
            "udp:53=10.0.0.2:53",
            "tcp:81=10.0.0.2:1",
        ];
        assert!(words(&both).ends_with(" -t 80,81 -u 53 7"));
    }
}
