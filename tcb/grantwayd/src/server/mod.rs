//! The main loop: one `poll` over all sources, and no other blocking call.

mod devices;
mod handles;
mod requests;

use crate::args::Args;
use crate::child::Helper;
use crate::control::{self, SocketFile};
use crate::netd::NetdLink;
use abi::DomId;
use abi::core::{CoreMessage, NetdRequest, Record, Stage, Text};
use handles::{BoundSocket, DevHandle, DevHandles, PendingRequest, SOCKETS, copies};
use link::sealed;
use monitor::{Hypervisor, RetainedFrames};
use rustix::event::PollFlags;
use shmem::time::monotonic_ns;
use std::collections::BTreeMap;
use std::io::{self, Stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Time limit of each step of the shutdown: domains exit, netd closes devices, helpers exit. If a
/// step needs less time, the next step may use the rest. The exit of this process removes all
/// remaining objects after the last step.
const SHUTDOWN_STEP_NS: u64 = 5_000_000_000;
/// Number of shutdown steps. systemd's timeout is longer than all steps together.
const SHUTDOWN_STEPS: u64 = 3;
/// Maximum number of the manager's requests per turn.
const REQUESTS_PER_TURN: usize = 64;

/// A source that is ready.
#[derive(Clone, Copy, Debug)]
enum CoreSource {
    Signal,
    ReaderGone,
    Manager,
    ManagerEnded,
    Netd,
    NetdEnded,
    Hypervisor,
}

/// The state of a domain as last reported to the manager.
#[derive(Default)]
struct ReportedState {
    stage: Option<Stage>,
    /// The reading end of the domain's console, which remains open so that writes never fail.
    console: Option<OwnedFd>,
    /// True from the domain's start until all its connections are up for the first time.
    is_unconnected: bool,
    /// Page frames that the driver domain's successor inherits if no socket uses page frames.
    /// Otherwise [`Core::retained_frames`] selects the frames.
    retained: RetainedFrames,
}

/// The core: the trusted state, and the two helpers, which have no access to domains' memory.
pub(crate) struct Core {
    hypervisor: Hypervisor,
    args: Args,
    manager: Helper,
    netd: Helper,
    control: Arc<NetdLink>,
    devs: DevHandles,
    /// Sockets that outlive their domains, by their device.
    lasting: BTreeMap<u32, BoundSocket>,
    /// The machine's description from standard input, which only the helpers interpret.
    machine: OwnedFd,
    /// The manager's state for its successor; `None` until the machine is complete.
    kept: Option<OwnedFd>,
    /// Descriptors that the first manager opened, and the names of the sockets among them.
    held: Vec<OwnedFd>,
    sockets: Vec<SocketFile>,
    /// The state of every domain as last reported to the manager.
    known: BTreeMap<DomId, ReportedState>,
    signals: UnixStream,
    /// Standard output, if the core must detect that its reader has exited.
    reader: Option<Stdout>,
    began_ns: u64,
    /// Set when the machine is shutting down. Contains the token of the manager's request, if any.
    ending: Option<Option<u32>>,
    /// Set if the machine failed. Contains the reason if it was not reported yet.
    failure: Option<Option<String>>,
    /// Whether the process that started this one has exited. Persistent devices then remain, as
    /// after a failure.
    is_orphaned: bool,
}

impl Core {
    pub(crate) fn new(
        mut hypervisor: Hypervisor,
        args: Args,
        signals: UnixStream,
        began_ns: u64,
    ) -> Result<Self, String> {
        if !control::is_ours(&args.programs) {
            let lacks = "programs of domains that only their user can change";
            hypervisor.missing.insert(lacks);
        }
        let empty = sealed::write("machine", b"").map_err(|e| e.to_string())?;
        Ok(Self {
            hypervisor,
            manager: Helper::new(&args.helpers, "grantway-manager", Some(&args.manager_args)),
            netd: Helper::new(&args.helpers, "grantway-netd", None),
            control: Arc::default(),
            devs: DevHandles::default(),
            lasting: BTreeMap::new(),
            machine: empty,
            kept: None,
            held: Vec::new(),
            sockets: Vec::new(),
            known: BTreeMap::new(),
            signals,
            reader: args.with_reader.then(io::stdout),
            args,
            began_ns,
            ending: None,
            failure: None,
            is_orphaned: false,
        })
    }

    /// Starts both helpers, and then reads the machine while they start.
    pub(crate) fn start(
        &mut self,
        machine: impl FnOnce() -> io::Result<Vec<u8>>,
    ) -> Result<(), String> {
        let now = monotonic_ns();
        self.netd.start(now)?;
        self.manager.start(now)?;
        let machine =
            machine().map_err(|e| format!("reading the machine from standard input: {e}"))?;
        self.machine = sealed::write("machine", &machine).map_err(|e| e.to_string())?;
        self.init_netd();
        self.welcome_manager();
        Ok(())
    }

    /// Serves until the machine is shut down, and then stops domains, devices and helpers.
    ///
    /// # Errors
    /// Returns the reason of the machine's failure, unless it was reported already.
    pub(crate) fn run(mut self) -> Result<(), Option<String>> {
        while self.ending.is_none() {
            self.process_events();
        }
        self.control.end();
        self.hypervisor.kill_all("ended");
        let ends_ns = monotonic_ns().saturating_add(SHUTDOWN_STEPS * SHUTDOWN_STEP_NS);
        let is_time_for = |steps: u64| monotonic_ns() + steps * SHUTDOWN_STEP_NS < ends_ns;
        while !self.hypervisor.is_over() && is_time_for(2) {
            self.process_events();
        }
        if self.failure.is_none() && !self.is_orphaned {
            let open = self.devs.kept.range(..SOCKETS).map(|(&dev, _)| dev);
            for dev in open.chain(self.devs.opening()).collect::<Vec<_>>() {
                let _answer = self.close(0, dev);
            }
        }
        while self.devs.is_any_closing() && is_time_for(1) {
            self.process_events();
        }
        if let Some(Some(token)) = self.ending {
            self.send_to_manager(token, CoreMessage::Done { value: 0 }, Vec::new());
        }
        // Both helpers exit when their links are closed; the manager first sends its last answers.
        self.manager.close_link();
        self.netd.close_link();
        self.control.replace(None);
        // netd can return a PCI device to the system only after these descriptors are closed.
        self.devs.kept.clear();
        // The manager first answers the client that requested the shutdown.
        self.manager.end(ends_ns);
        self.netd.end(ends_ns);
        self.sockets.iter().for_each(control::remove);
        self.failure.map_or(Ok(()), Err)
    }

    fn welcome_manager(&mut self) {
        let message = CoreMessage::Init {
            pid: std::process::id(),
            began_ns: self.began_ns,
            user: rustix::process::geteuid().as_raw(),
            has_kept: self.kept.is_some(),
            own_user: sandbox::user_of(self.manager.pid()),
        };
        let fds = [&self.machine].into_iter().chain(&self.kept);
        let fds = fds.chain(&self.held).map(AsFd::as_fd);
        match copies(fds) {
            Ok(fds) => self.send_to_manager(0, message, fds),
            Err(_) => self.manager.kill(),
        }
        let descriptors = self.known.iter().filter_map(|(&id, known)| {
            let descriptors = self.manager_descriptors(id, known.console.as_ref()?);
            Some((id, descriptors.ok()?))
        });
        for (domain, descriptors) in descriptors.collect::<Vec<_>>() {
            self.send_to_manager(0, CoreMessage::Console { domain }, descriptors);
        }
        self.known.values_mut().for_each(|known| known.stage = None);
        self.report_lives();
        let lost = |(&dev, of): (_, &DevHandle)| {
            of.lost
                .map(|is_removed| CoreMessage::DeviceLost { dev, is_removed })
        };
        for message in self.devs.kept.iter().filter_map(lost).collect::<Vec<_>>() {
            self.send_to_manager(0, message, Vec::new());
        }
    }

    /// Sends the manager a record.
    fn send_to_manager(&mut self, token: u32, message: CoreMessage, fds: Vec<OwnedFd>) {
        self.manager.send(&Record { token, message }, fds);
    }

    /// Sends netd a record.
    fn send_to_netd(&mut self, token: u32, message: NetdRequest, fds: Vec<OwnedFd>) {
        self.netd.send(&Record { token, message }, fds);
    }

    /// Reports changed stages and connections of domains to the manager.
    fn report_lives(&mut self) {
        let mut messages = Vec::new();
        for domain in self.hypervisor.domains() {
            let (domain, life) = (domain.id, &domain.liveness);
            let stage = life.stage;
            let known = self.known.entry(domain).or_default();
            if known.stage.replace(stage) != Some(stage) {
                let text = Text::truncated(life.text());
                messages.push(CoreMessage::StageChanged {
                    domain,
                    stage,
                    text,
                });
            }
            if stage == Stage::TornDown {
                (known.console, known.is_unconnected) = (None, false);
                // A successor can use only sockets that the domain has reported as sound.
                let is_sound = |of: &BoundSocket| of.control.is_sound.load(Ordering::Relaxed);
                let all = &mut self.lasting;
                if all.values().any(|of| of.socket.domain == domain) {
                    known.retained = None;
                }
                all.retain(|_, of| of.socket.domain != domain || is_sound(of));
            }
            if known.is_unconnected && self.hypervisor.is_connected(domain) {
                known.is_unconnected = false;
                messages.push(CoreMessage::Connected { domain });
            }
        }
        for message in messages {
            self.send_to_manager(0, message, Vec::new());
        }
    }

    /// Waits for events, at most until the next deadline, and handles them.
    fn process_events(&mut self) {
        let now = monotonic_ns();
        let mut deadline = self.hypervisor.tick(now);
        if self.ending.is_some() {
            // Short, because `run` checks the deadlines of the shutdown after each call.
            deadline = deadline.into_iter().chain([now + 10_000_000]).min();
        } else {
            let due = [self.manager.due_ns(), self.netd.due_ns()];
            deadline = deadline.into_iter().chain(due.into_iter().flatten()).min();
        }
        for ready in self.wait(deadline, now) {
            self.handle(ready);
        }
        let now = monotonic_ns();
        self.close_unused_sockets();
        self.report_lives();
        self.start_helpers(now);
    }

    /// Restarts helpers that have exited. During the shutdown, restarts only netd, if it has
    /// devices to close.
    fn start_helpers(&mut self, now: u64) {
        let ends = self.ending.is_some();
        if ends && !self.devs.is_any_closing() {
            return;
        }
        if self.netd.restart_if_due(now) {
            self.init_netd();
        }
        if !ends && self.manager.restart_if_due(now) {
            self.welcome_manager();
        }
    }

    fn wait(&self, deadline_ns: Option<u64>, now_ns: u64) -> Vec<CoreSource> {
        let mut sources = vec![(CoreSource::Signal, self.signals.as_fd(), PollFlags::IN)];
        let of_domains = self.hypervisor.sources();
        sources.extend(of_domains.map(|fd| (CoreSource::Hypervisor, fd, PollFlags::IN)));
        if let Some(reader) = &self.reader
            && self.ending.is_none()
        {
            // No events are requested, because poll reports a pipe without a reader as an error
            // anyway.
            sources.push((CoreSource::ReaderGone, reader.as_fd(), PollFlags::empty()));
        }
        sources.extend(
            self.manager
                .sources(CoreSource::Manager, CoreSource::ManagerEnded),
        );
        sources.extend(self.netd.sources(CoreSource::Netd, CoreSource::NetdEnded));
        let timeout_ns = deadline_ns.map(|at| at.saturating_sub(now_ns));
        link::wait_for(&sources, timeout_ns)
    }

    fn handle(&mut self, ready: CoreSource) {
        let now = monotonic_ns();
        match ready {
            CoreSource::Signal => {
                let _ = rustix::io::read(&self.signals, &mut [0; 16]);
                self.ending.get_or_insert(None);
            }
            CoreSource::ReaderGone => {
                self.is_orphaned = self.ending.is_none();
                self.ending.get_or_insert(None);
            }
            CoreSource::Manager => self.read_manager(),
            CoreSource::ManagerEnded => {
                let left = self.manager.ended(now);
                self.hypervisor.close(left);
                // The next manager counts tokens from 1 again, and ignores answers with token 0.
                for (token, waits) in self.devs.waiting.values_mut() {
                    *token = 0;
                    if let PendingRequest::Closed(Some(closed_by)) = waits {
                        *closed_by = 0;
                    }
                }
                if self.kept.is_none() && self.ending.is_none() {
                    // The next manager would not know which domains exist.
                    let why = "the manager exited before the machine was ready";
                    self.failure = Some(Some(why.into()));
                    self.ending = Some(None);
                }
            }
            CoreSource::Netd => self.read_netd(),
            CoreSource::NetdEnded => self.netd_exited(now),
            CoreSource::Hypervisor => self.hypervisor.handle_events(now),
        }
    }

    /// Handles the next requests of the manager.
    fn read_manager(&mut self) {
        for _ in 0..REQUESTS_PER_TURN {
            let Some(received) = self.manager.receive() else {
                return;
            };
            self.handle_request(received);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shutdown_ends_before_systemds_timeout() {
        let service = include_str!("../../../../contrib/systemd/grantway.service");
        let mut limits = service.lines();
        let limit = limits.find_map(|line| line.strip_prefix("TimeoutStopSec="));
        let limit_ns = limit.unwrap().parse::<u64>().unwrap() * 1_000_000_000;
        assert!(limit_ns >= 2 * SHUTDOWN_STEPS * SHUTDOWN_STEP_NS);
    }
}
