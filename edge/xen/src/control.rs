//! The control socket of `grantway status`, `stat`, `set`, `trace` and `down`.
//!
//! A thread serves one request at a time, each a line of JSON, and queries the driver through its
//! mailbox. It does not touch the data path.

use crate::hypercall_counters::HypercallCounters;
use abi::machine::{
    ControlError, ControlRequest, DomainReport, DomainStatus, Program, RelayReply, Status,
};
use nix::sys::socket::{getsockopt, sockopt};
use runtime::mailbox::MailboxClient;
use runtime::platform::HypercallCount;
use serde_json::{Value, json};
use shmem::domain_memory::DomainMemory;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum length of a request in bytes.
const REQUEST_MAX: u64 = 1 << 16;
/// Time that a client has to send its request, and to read the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// The driver's name.
const DRIVER: &str = "driver";

/// Listens at `path`, accessible only to this user. Removes the socket that a killed process has
/// left.
///
/// # Errors
///
/// Returns an error if another process answers there, or the socket cannot be created.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    match UnixStream::connect(path) {
        Ok(_) => {
            let why = format!(
                "{}: another process already serves this socket",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)?;
        }
        Err(_) => {}
    }
    // The process is still single-threaded, so no other thread creates files with this mask.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    listener.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Serves the socket.
#[derive(Debug)]
pub struct ControlServer {
    /// The instance's name.
    pub name: String,
    /// The user who started the process. Only this user and root may send requests.
    pub user: u32,
    /// The driver's memory.
    pub memory: DomainMemory,
    /// The driver's doorbell.
    pub doorbell: OwnedFd,
    /// The driver's hypercalls.
    pub counters: Arc<HypercallCounters>,
}

impl ControlServer {
    /// Serves requests forever, in a new thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread cannot be started.
    pub fn start(self, listener: UnixListener) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("control".to_owned());
        let begun = Instant::now();
        let mut asker = MailboxClient::new(&self.memory);
        thread
            .spawn(move || {
                for client in listener.incoming() {
                    // A failing client affects no other.
                    let _ = client.and_then(|client| self.serve(&client, &mut asker, begun));
                }
            })
            .map(drop)
    }

    fn serve(
        &self,
        mut client: &UnixStream,
        asker: &mut MailboxClient,
        begun: Instant,
    ) -> io::Result<()> {
        let uid = getsockopt(client, sockopt::PeerCredentials)?.uid();
        if uid != self.user && uid != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let mut line = String::new();
        BufReader::new(client.take(REQUEST_MAX)).read_line(&mut line)?;
        let request = serde_json::from_str(&line);
        let ends = matches!(request, Ok(ControlRequest::Down));
        let answer = match request {
            Ok(ControlRequest::Status) => Ok(json!(self.status(begun))),
            Ok(ControlRequest::Relay { domain, request }) if domain == DRIVER => {
                let reply = asker.request(request.as_bytes(), || self.ring());
                reply.map(|reply| {
                    let reply = String::from_utf8_lossy(&reply).into_owned();
                    json!(RelayReply { reply })
                })
            }
            Ok(ControlRequest::Relay { domain, .. }) => {
                Err(format!("no domain {domain}; the only one is {DRIVER}"))
            }
            Ok(ControlRequest::Grants) => {
                Err("Xen has the grants: `xl debug-keys g` prints them to `xl dmesg`".to_owned())
            }
            Ok(ControlRequest::Restart { .. }) => {
                Err("the toolstack restarts guests; end this process and start it again".to_owned())
            }
            Ok(
                ControlRequest::Attach { .. }
                | ControlRequest::Detach { .. }
                | ControlRequest::Reload { .. },
            ) => Err("the toolstack attaches guests: `xl network-attach`".to_owned()),
            Ok(ControlRequest::Rules { .. }) => Err(
                "rules are for guests of `grantway up`; frames of Xen guests are not filtered"
                    .to_owned(),
            ),
            Ok(ControlRequest::Down) => Ok(json!({})),
            Err(error) => Err(format!("not a request: {error}")),
        };
        let answer = answer.unwrap_or_else(|error| json!(ControlError { error }));
        write_line(&mut client, &answer)?;
        if ends {
            // Guests keep their interfaces, which the next process takes over.
            std::process::exit(0);
        }
        Ok(())
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    fn driver(&self) -> DomainReport {
        let asked =
            |of: fn(&HypercallCount) -> u64| self.counters.counts().map(|asked| of(&asked)).sum();
        DomainReport {
            name: DRIVER.to_owned(),
            id: 0,
            program: Program::Driver,
            state: "running".to_owned(),
            alive: true,
            pid: std::process::id() as i32,
            agent_pid: 0,
            cpu_ns: cpu_ns(),
            agent_cpu_ns: 0,
            worker_cpu_ns: 0,
            hypercalls: asked(|of| of.calls),
            operations: asked(|of| of.operations),
            system_calls: 0,
        }
    }

    fn status(&self, begun: Instant) -> Status {
        Status {
            name: self.name.clone(),
            pid: std::process::id(),
            up_ns: begun.elapsed().as_nanos() as u64,
            up_took_ns: None,
            monitor_cpu_ns: 0,
            missing: Vec::new(),
            domains: vec![DomainStatus {
                report: self.driver(),
                restarts: None,
                removed: Vec::new(),
                serves_vm: false,
            }],
            connections: Vec::new(),
        }
    }
}

/// Returns the CPU time of this process.
fn cpu_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

fn write_line(to: &mut impl Write, value: &Value) -> io::Result<()> {
    let mut line = value.to_string();
    line.push('\n');
    to.write_all(line.as_bytes())
}
