//! A running machine.

use crate::Error;
use crate::acl;
use crate::control::send_request;
use crate::counters;
use crate::host_notes;
use crate::limits::check_limits;
use crate::log::{last_log_line_at, open_log};
use crate::metrics::{self, MetricsFormat};
use crate::process::wait_child;
use crate::runtime::{
    MONITOR, check_name, clear_stale, core_path, find, lock_of, remove_sockets, running_instances,
    runtime_dir,
};
use crate::saved_state;
use abi::machine::{
    Access, AttachReply, Audit, ConfigValue, ControlRequest, DetachReply, Machine, RelayReply,
    RestartReply, Status,
};
use abi::mailbox::MailboxRequest;
use abi::reload::{ReloadReply, RulesReply, SourceFile};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Destination of the monitor's log.
#[derive(Clone, Debug, Default)]
pub enum LogDestination {
    /// `NAME.log` in the runtime directory.
    #[default]
    Default,
    /// To this file.
    File(PathBuf),
    /// To the standard error of this process.
    Stderr,
}

/// Options for starting an instance.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// The monitor's program.
    pub program: &'static str,
    /// Destination of the monitor's log.
    pub log: LogDestination,
    /// A port of the loopback address that serves metrics, in addition to `NAME.metrics`.
    pub metrics_port: Option<u16>,
    /// Whether the instance outlives this process (otherwise it stops when the [`Instance`] is
    /// dropped).
    pub detach: bool,
    /// Whether the machine attaches the guests that the previous machine with its name has
    /// recorded, and records its guests for the next machine.
    pub leaves: bool,
    /// A note of its changes to the host, if any: written to `NAME.host` before the monitor starts,
    /// for [`crate::clear_notes`].
    pub host: Option<String>,
    /// Time limit for all domains to be ready.
    pub limit: Duration,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self {
            program: MONITOR,
            log: LogDestination::Default,
            metrics_port: None,
            detach: false,
            leaves: false,
            host: None,
            limit: Duration::from_secs(30),
        }
    }
}

/// Time limit of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit of a request for metrics, which queries every domain.
const METRICS_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit of a restart: 20 s each for the preceding start of the machine, the domain's end and
/// the domain's start.
const RESTART_TIMEOUT: Duration = Duration::from_secs(65);
/// Time limit of an attachment: 20 s each for the preceding start of the machine, the attachment,
/// and its reversal on failure.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(65);
/// Time limit of a reload: hundreds of guests, one after another.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Time limit of a shutdown when no caller waits for the result.
const DROP_TIMEOUT: Duration = Duration::from_secs(10);

/// A running machine: its monitor and domains.
#[derive(Debug)]
pub struct Instance {
    name: String,
    pub(crate) socket: PathBuf,
    /// The monitor, unless it outlives this value.
    pub(crate) child: Option<Child>,
    /// The monitor's process, if this value has started it.
    pub(crate) pid: Option<u32>,
    up_ms: Option<f64>,
    log: PathBuf,
    unread: Option<Error>,
}

/// The line that the monitor prints when it is ready or has failed.
#[derive(Deserialize)]
#[serde(untagged)]
enum FirstLine {
    Ready {
        ready: bool,
        up_ms: f64,
    },
    Error {
        error: String,
        #[serde(default)]
        cannot_run_here: bool,
    },
}

impl Instance {
    /// Starts the monitor, passes it the machine, and waits until every domain is ready.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is in use or invalid, `grantwayd` is missing, or it cannot
    /// build the machine in time. Nothing keeps running in these cases.
    pub fn start(machine: &Machine, options: &StartOptions) -> Result<Self, Error> {
        check_name(&machine.name)?;
        check_limits(machine)?;
        let program = core_path(options.program)?;
        let dir = runtime_dir()?;
        let socket = dir.join(format!("{}.sock", machine.name));
        let log = match &options.log {
            LogDestination::Default => Some(dir.join(format!("{}.log", machine.name))),
            LogDestination::File(file) => Some(file.clone()),
            LogDestination::Stderr => None,
        };

        let lock = lock_of(&dir, options.limit)?;
        clear_stale(&socket, &machine.name, ANSWER_TIMEOUT)?;
        let mut machine = machine.clone();
        let mut unread = None;
        if let Some(live) = machine.live.as_mut().filter(|_| options.leaves) {
            // The machine starts without it.
            live.left = saved_state::saved_state_in(&dir, &machine.name)
                .unwrap_or_else(|error| {
                    unread = Some(error);
                    None
                })
                .unwrap_or_default();
        }
        if let Some(note) = &options.host {
            host_notes::write_in(&dir, &machine.name, note)?;
        }
        // Its manager has exited: the control socket did not answer.
        let metrics = metrics::path_of(&socket);
        let _ = fs::remove_file(&metrics);
        let mut command = Command::new(&program);
        if let Some(log) = &log {
            command.arg("--log").arg(log).stderr(open_log(log)?);
        }
        command
            .arg("--socket")
            .arg(&socket)
            .arg("--metrics")
            .arg(&metrics)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A terminal's Ctrl-C must not reach it, because this process shuts it down.
            .process_group(0);
        if options.leaves {
            command
                .arg("--state")
                .arg(saved_state::path_of(&dir, &machine.name));
        }
        if let Some(port) = options.metrics_port {
            command.arg("--metrics-port").arg(port.to_string());
        }
        if !options.detach {
            // With this option, the machine stops when this process exits for any reason.
            command.arg("--with-reader");
        }
        let child = command.spawn();
        let child = child.map_err(|e| Error::io(format!("start {}", program.display()), e))?;
        let mut starting = Starting {
            pid: child.id(),
            child: Some(child),
            log: log.unwrap_or_else(|| "standard error".into()),
            socket: socket.clone(),
        };
        let up_ms = starting.wait(&machine, options.limit)?;
        if machine.access != Access::default() {
            acl::open_to_groups(&dir, &socket, &machine.access)?;
        }
        drop(lock);
        let pid = starting.pid;
        let child = starting.child.take().filter(|_| !options.detach);
        let log = std::mem::take(&mut starting.log);
        Ok(Self {
            name: machine.name,
            socket,
            child,
            pid: Some(pid),
            up_ms: Some(up_ms),
            log,
            unread,
        })
    }

    /// Connects to the running instance `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not run, or denies access.
    pub fn connect(name: &str) -> Result<Self, Error> {
        check_name(name)?;
        Self::connect_at(name, find(name)?)
    }

    /// Connects by the control socket's path, for callers in another user namespace, where its
    /// folder appears to belong to another user.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Instance::connect`].
    pub fn connect_at(name: &str, socket: PathBuf) -> Result<Self, Error> {
        if let Err(e) = UnixStream::connect(&socket) {
            return Err(match e.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => Error::NoInstance {
                    name: name.to_owned(),
                    running: running_instances().unwrap_or_default(),
                },
                _ => Error::io(format!("connect to {}", socket.display()), e),
            });
        }
        let log = socket.with_extension("log");
        Ok(Self {
            name: name.to_owned(),
            socket,
            child: None,
            pid: None,
            up_ms: None,
            log,
            unread: None,
        })
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the monitor's process id, or `None` if this value has not started it: see
    /// [`Instance::status`].
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns its control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the path of the monitor's log; if this value has not started it, the default path.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the milliseconds until every domain was ready, as the monitor measures them, or
    /// `None` if this value has not started it.
    #[must_use]
    pub fn up_ms(&self) -> Option<f64> {
        self.up_ms
    }

    /// Returns the reason why it has not read the previous machine's state, or `None` if it has.
    #[must_use]
    pub fn unread_state(&self) -> Option<&Error> {
        self.unread.as_ref()
    }

    /// Returns domains, processes and connections.
    ///
    /// # Errors
    ///
    /// Returns an error if the monitor does not answer in time.
    pub fn status(&self) -> Result<Status, Error> {
        send_request(&self.socket, &ControlRequest::Status, ANSWER_TIMEOUT)
    }

    /// Returns the audit of grants.
    ///
    /// # Errors
    ///
    /// Returns an error if the monitor does not answer in time.
    pub fn grants(&self) -> Result<Audit, Error> {
        send_request(&self.socket, &ControlRequest::Grants, ANSWER_TIMEOUT)
    }

    /// Returns the counters of the manager and the domains, in a format of monitoring systems.
    ///
    /// # Errors
    ///
    /// Returns an error if the manager does not answer in time, or serves no metrics.
    pub fn metrics(&self, format: MetricsFormat) -> Result<String, Error> {
        metrics::fetch(&metrics::path_of(&self.socket), format, METRICS_TIMEOUT)
    }

    /// Queries a domain.
    ///
    /// # Errors
    ///
    /// Returns an error if the monitor or the domain does not answer in time, or rejects the
    /// request.
    pub fn relay(
        &self,
        domain: &str,
        request: &MailboxRequest,
    ) -> Result<serde_json::Value, Error> {
        self.relay_within(domain, request, ANSWER_TIMEOUT)
    }

    /// Queries a domain with a shorter deadline.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Instance::relay`], or an error if no answer arrives in time.
    pub fn relay_within(
        &self,
        domain: &str,
        request: &MailboxRequest,
        time: Duration,
    ) -> Result<serde_json::Value, Error> {
        let request =
            serde_json::to_string(request).map_err(|e| Error::InvalidAnswer(e.to_string()))?;
        let relay = ControlRequest::Relay {
            domain: domain.to_owned(),
            request,
        };
        let relayed: RelayReply = send_request(&self.socket, &relay, time)?;
        let reply: serde_json::Value = serde_json::from_str(&relayed.reply)
            .map_err(|e| Error::InvalidAnswer(format!("domain {domain}: {e}")))?;
        let refused = reply.as_object().filter(|object| object.len() == 1);
        match refused
            .and_then(|object| object.get("error"))
            .and_then(|e| e.as_str())
        {
            Some(error) => Err(Error::Refused(format!("domain {domain}: {error}"))),
            None => Ok(reply),
        }
    }

    /// Returns all counters of a domain.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Instance::relay`].
    pub fn stat(&self, domain: &str) -> Result<serde_json::Value, Error> {
        self.stat_within(domain, ANSWER_TIMEOUT)
    }

    /// Returns all counters of a domain, with a shorter deadline.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Instance::relay`], or an error if no answer arrives in time.
    pub fn stat_within(&self, domain: &str, time: Duration) -> Result<serde_json::Value, Error> {
        let end = Instant::now() + time;
        let ask = |request: &MailboxRequest| {
            let left = end.saturating_duration_since(Instant::now());
            self.relay_within(domain, request, left)
        };
        let endless = Error::InvalidAnswer(format!("domain {domain}: its counter list is endless"));
        counters::query_all_counters(ask, endless)
    }

    /// Restarts a domain; returns when it is connected.
    ///
    /// # Errors
    ///
    /// Returns an error if the domain does not exist, cannot be restarted, or does not become
    /// ready.
    pub fn restart(&self, domain: &str) -> Result<RestartReply, Error> {
        let domain = domain.to_owned();
        send_request(
            &self.socket,
            &ControlRequest::Restart { domain },
            RESTART_TIMEOUT,
        )
    }

    /// Attaches a guest, described as in a section `[[guest]]`; returns when it is connected.
    ///
    /// # Errors
    ///
    /// Returns an error if its description has mistakes, or it does not start. In both cases no
    /// part of the guest remains.
    pub fn attach(&self, guest: ConfigValue) -> Result<AttachReply, Error> {
        send_request(
            &self.socket,
            &ControlRequest::Attach { guest },
            CHANGE_TIMEOUT,
        )
    }

    /// Removes a guest. Returns when no part of it remains.
    ///
    /// # Errors
    ///
    /// Returns an error if no guest has this name, or a part of it is still in use.
    pub fn detach(&self, domain: &str) -> Result<DetachReply, Error> {
        let domain = domain.to_owned();
        send_request(
            &self.socket,
            &ControlRequest::Detach { domain },
            CHANGE_TIMEOUT,
        )
    }

    /// Replaces the firewall rules of an attached guest; returns when they are in force. `guest`
    /// has its `name`, and the list `vif` with `firewall`, `inbound` and `rule` of each interface.
    ///
    /// # Errors
    ///
    /// Returns an error if no attached guest has this name, the rules have mistakes, or the driver
    /// domain rejects them. In each case the previous rules stay in force.
    pub fn rules(&self, guest: ConfigValue) -> Result<RulesReply, Error> {
        send_request(
            &self.socket,
            &ControlRequest::Rules { guest },
            CHANGE_TIMEOUT,
        )
    }

    /// Applies edited files to the machine, or with `dry_run` only returns the steps. Returns when
    /// this is done or has failed.
    ///
    /// # Errors
    ///
    /// Returns an error if the files have mistakes, or a change needs a new machine. In both cases
    /// nothing was changed.
    pub fn reload(&self, files: Vec<SourceFile>, dry_run: bool) -> Result<ReloadReply, Error> {
        send_request(
            &self.socket,
            &ControlRequest::Reload { files, dry_run },
            RELOAD_TIMEOUT,
        )
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.child.is_some() {
            let _ = self.end(DROP_TIMEOUT);
        }
    }
}

/// A monitor that is not ready yet: killed when dropped.
struct Starting {
    pid: u32,
    child: Option<Child>,
    log: PathBuf,
    /// The control socket, removed if the start fails.
    socket: PathBuf,
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
            remove_sockets(&self.socket);
        }
    }
}

impl Starting {
    /// Passes the machine's description to the monitor and waits for the ready line; returns its
    /// `up_ms`.
    fn wait(&mut self, machine: &Machine, limit: Duration) -> Result<f64, Error> {
        let deadline = Instant::now() + limit;
        let Some(child) = &mut self.child else {
            return Err(Error::InvalidAnswer("no process".to_owned()));
        };
        let text = serde_json::to_vec(machine).map_err(|e| Error::InvalidAnswer(e.to_string()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A separate thread writes, because the description of a large machine does not fit
            // into the pipe. If the monitor exits early, the other pipe reports this with the
            // reason.
            std::thread::spawn(move || stdin.write_all(&text));
        }
        let mut line = Vec::new();
        let complete = match &mut child.stdout {
            Some(stdout) => read_line(stdout, &mut line, deadline)
                .map_err(|e| Error::io("read from the monitor", e))?,
            None => true,
        };
        if !complete {
            return Err(Error::TimedOut {
                what: "the start".to_owned(),
                limit,
                hint: format!(
                    "; the monitor's log is {}{}",
                    self.log.display(),
                    last_log_line_at(&self.log)
                ),
            });
        }
        match serde_json::from_slice(&line) {
            Ok(FirstLine::Ready { ready: true, up_ms }) => Ok(up_ms),
            Ok(FirstLine::Error {
                error: why,
                cannot_run_here,
            }) => {
                // It reverts its changes to the host before it exits.
                wait_child(child, ANSWER_TIMEOUT);
                Err(Error::Start {
                    why,
                    cannot_run_here,
                })
            }
            Err(_) if line.is_empty() => {
                wait_child(child, ANSWER_TIMEOUT);
                let how = match child.try_wait() {
                    Ok(Some(status)) => status.to_string(),
                    _ => "without a message".to_owned(),
                };
                Err(Error::ExitedEarly {
                    how,
                    log: self.log.clone(),
                    last: last_log_line_at(&self.log),
                })
            }
            _ => Err(Error::InvalidAnswer(
                String::from_utf8_lossy(&line).into_owned(),
            )),
        }
    }
}

/// Reads up to a newline or the end into `line`; returns false if that takes too long.
fn read_line(
    from: &mut std::process::ChildStdout,
    line: &mut Vec<u8>,
    deadline: Instant,
) -> std::io::Result<bool> {
    /// Limit of the first line's length.
    const LINE_MAX: usize = 1 << 20;
    let mut byte = [0; 1];
    while line.len() < LINE_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(std::io::Error::other)?;
        let mut fds = [PollFd::new(from, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        match from.read(&mut byte)? {
            0 => return Ok(true),
            _ if byte == [b'\n'] => return Ok(true),
            _ => line.extend_from_slice(&byte),
        }
    }
    Ok(true)
}
