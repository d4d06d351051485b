//! The main loop: one `poll` over all sources, no other blocking call.

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

/// How long each step of the shutdown may take: domains end, devices are closed, helpers end by
/// themselves. A step passes unused time to the next one; anything left over ends with this
/// process.
const END_STEP_NS: u64 = 5_000_000_000;
/// The number of steps: systemd waits longer than all of them take.
const END_STEPS: u64 = 3;
/// The largest number of the manager's requests handled per turn.
const ASKS_PER_TURN: usize = 64;

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
    /// The reading end of its console, which stays open so that writes never fail.
    console: Option<OwnedFd>,
    /// Whether some of its connections have not been up since its start.
    is_unconnected: bool,
    /// Page frames that the driver domain's successor gets if there is no socket over them. With
    /// sockets, [`Core::left_by`] selects the frames.
    left: RetainedFrames,
}

/// The core: the trusted state, and the two helpers, which have no access to any domain's memory.
pub(crate) struct Core {
    hypervisor: Hypervisor,
    args: Args,
    manager: Helper,
    netd: Helper,
    control: Arc<NetdLink>,
    units: DevHandles,
    /// Sockets that outlive their domains, by their device.
    lasting: BTreeMap<u32, BoundSocket>,
    /// The machine's description from standard input, which only the helpers interpret.
    machine: OwnedFd,
    /// The manager's state for its successor; `None` until the machine is complete.
    kept: Option<OwnedFd>,
    /// Descriptors that the first manager opened, and the names of the sockets among them.
    held: Vec<OwnedFd>,
    sockets: Vec<SocketFile>,
    /// Every domain.
    known: BTreeMap<DomId, ReportedState>,
    signals: UnixStream,
    /// Standard output, if its reader is to be watched.
    reader: Option<Stdout>,
    began_ns: u64,
    /// Set when the machine ends; contains the token of the request to end it, if any.
    ending: Option<Option<u32>>,
    /// Set if the machine failed; contains the reason if it was not reported yet.
    failure: Option<Option<String>>,
    /// Whether the process that started this one has exited: then persistent devices stay, as after
    /// a failure.
    is_left: bool,
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
            manager: Helper::new(&args.beside, "grantway-manager", Some(&args.of_manager)),
            netd: Helper::new(&args.beside, "grantway-netd", None),
            control: Arc::default(),
            units: DevHandles::default(),
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
            is_left: false,
        })
    }

    /// Starts both helpers, which run concurrently; then reads the machine.
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
        self.welcome_netd();
        self.welcome_manager();
        Ok(())
    }

    /// Serves until the machine ends, and ends everything.
    ///
    /// # Errors
    /// The reason of a failed machine, unless it was reported already.
    pub(crate) fn run(mut self) -> Result<(), Option<String>> {
        while self.ending.is_none() {
            self.turn();
        }
        self.control.end();
        self.hypervisor.kill_all("ended");
        let ends_ns = monotonic_ns().saturating_add(END_STEPS * END_STEP_NS);
        let is_time_for = |steps: u64| monotonic_ns() + steps * END_STEP_NS < ends_ns;
        while !self.hypervisor.is_over() && is_time_for(2) {
            self.turn();
        }
        if self.failure.is_none() && !self.is_left {
            let open = self.units.kept.range(..SOCKETS).map(|(&unit, _)| unit);
            for unit in open.chain(self.units.opening()).collect::<Vec<_>>() {
                let _nobody_waits = self.close(0, unit);
            }
        }
        while self.units.is_any_closing() && is_time_for(1) {
            self.turn();
        }
        if let Some(Some(token)) = self.ending {
            self.send_to_manager(token, CoreMessage::Done { value: 0 }, Vec::new());
        }
        // Closing the links ends both helpers; the manager first sends its last answers.
        self.manager.hang_up();
        self.netd.hang_up();
        self.control.replace(None);
        // netd returns a PCI device to the system once these descriptors are closed.
        self.units.kept.clear();
        // The manager answers the client that requested the end.
        self.manager.end(ends_ns);
        self.netd.end(ends_ns);
        self.sockets.iter().for_each(control::remove);
        self.failure.map_or(Ok(()), Err)
    }

    fn welcome_manager(&mut self) {
        let message = CoreMessage::Welcome {
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
        let ways = self.known.iter().filter_map(|(&id, known)| {
            let ways = self.ways_to(id, known.console.as_ref()?);
            Some((id, ways.ok()?))
        });
        for (domain, ways) in ways.collect::<Vec<_>>() {
            self.send_to_manager(0, CoreMessage::Console { domain }, ways);
        }
        self.known.values_mut().for_each(|known| known.stage = None);
        self.report_lives();
        let lost = |(&unit, of): (_, &DevHandle)| {
            of.lost
                .map(|is_removed| CoreMessage::Lost { unit, is_removed })
        };
        for send_to_manager in self.units.kept.iter().filter_map(lost).collect::<Vec<_>>() {
            self.send_to_manager(0, send_to_manager, Vec::new());
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

    /// Reports domains that have reached another stage to the manager.
    fn report_lives(&mut self) {
        let mut news = Vec::new();
        for domain in self.hypervisor.domains() {
            let (domain, life) = (domain.id, &domain.life);
            let stage = life.stage;
            let known = self.known.entry(domain).or_default();
            if known.stage.replace(stage) != Some(stage) {
                let text = Text::cut(life.text());
                news.push(CoreMessage::Life {
                    domain,
                    stage,
                    text,
                });
            }
            if stage == Stage::Gone {
                (known.console, known.is_unconnected) = (None, false);
                // A successor can continue only with sockets that the domain has reported as sound.
                let is_sound = |of: &BoundSocket| of.control.is_sound.load(Ordering::Relaxed);
                let all = &mut self.lasting;
                if all.values().any(|of| of.socket.domain == domain) {
                    known.left = None;
                }
                all.retain(|_, of| of.socket.domain != domain || is_sound(of));
            }
            if known.is_unconnected && self.hypervisor.is_connected(domain) {
                known.is_unconnected = false;
                news.push(CoreMessage::Connected { domain });
            }
        }
        for send_to_manager in news {
            self.send_to_manager(0, send_to_manager, Vec::new());
        }
    }

    /// Waits for an event, until the next deadline at most, and handles it.
    fn turn(&mut self) {
        let now = monotonic_ns();
        let mut deadline = self.hypervisor.tick(now);
        if self.ending.is_some() {
            // The shutdown has a separate deadline.
            deadline = deadline.into_iter().chain([now + 10_000_000]).min();
        } else {
            let due = [self.manager.due_ns(), self.netd.due_ns()];
            deadline = deadline.into_iter().chain(due.into_iter().flatten()).min();
        }
        for ready in self.wait(deadline, now) {
            self.handle(ready);
        }
        let now = monotonic_ns();
        self.close_left();
        self.report_lives();
        self.start_helpers(now);
    }

    /// Restarts helpers that have ended; during the shutdown only netd, if it has devices to close.
    fn start_helpers(&mut self, now: u64) {
        let ends = self.ending.is_some();
        if ends && !self.units.is_any_closing() {
            return;
        }
        if self.netd.start_again(now) {
            self.welcome_netd();
        }
        if !ends && self.manager.start_again(now) {
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
            // No events are requested: poll reports a pipe without a reader as an error.
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
                self.is_left = self.ending.is_none();
                self.ending.get_or_insert(None);
            }
            CoreSource::Manager => self.read_manager(),
            CoreSource::ManagerEnded => {
                let left = self.manager.ended(now);
                self.hypervisor.close(left);
                // The next manager's tokens begin at 1 again. It ignores answers with token 0.
                for (token, waits) in self.units.waiting.values_mut() {
                    *token = 0;
                    if let PendingRequest::Closed(Some(closed_by)) = waits {
                        *closed_by = 0;
                    }
                }
                if self.kept.is_none() && self.ending.is_none() {
                    // The next manager would not know which domains exist.
                    let why = "the manager ended before the machine was ready";
                    self.failure = Some(Some(why.into()));
                    self.ending = Some(None);
                }
            }
            CoreSource::Netd => self.read_netd(),
            CoreSource::NetdEnded => self.lose_netd(now),
            CoreSource::Hypervisor => self.hypervisor.handle(now),
        }
    }

    /// Handles requests of the manager.
    fn read_manager(&mut self) {
        for _ in 0..ASKS_PER_TURN {
            let Some(received) = self.manager.receive() else {
                return;
            };
            self.ask(received);
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
        assert!(limit_ns >= 2 * END_STEPS * END_STEP_NS);
    }
}
