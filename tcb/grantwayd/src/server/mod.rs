//! The main loop: one poll over everything, nothing that waits.

mod asks;
mod devices;
mod units;

use crate::args::Args;
use crate::child::Helper;
use crate::control::{self, Named};
use crate::netd::Control;
use abi::DomId;
use abi::core::{Record, Stage, Task, Tell, Text};
use link::sealed;
use monitor::Hypervisor;
use rustix::event::PollFlags;
use shmem::time::monotonic_ns;
use std::collections::BTreeMap;
use std::io::{self, Stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use units::{Bound, SOCKETS, Unit, Units, copies};

/// How long each step of the end may take: domains end, devices are closed, helpers end by
/// themselves. What one leaves of its time the next one has; what is left then ends with this
/// process.
const END_STEP_NS: u64 = 5_000_000_000;
/// How many steps there are: systemd waits longer than for all of them.
const END_STEPS: u64 = 3;
/// Asks of the manager that are seen to in one turn.
const ASKS_PER_TURN: usize = 64;

/// What became ready.
#[derive(Clone, Copy, Debug)]
enum Ready {
    Signal,
    ReaderGone,
    Manager,
    ManagerEnded,
    Netd,
    NetdEnded,
    Hypervisor,
}

/// What the manager knows of a domain.
#[derive(Default)]
struct Known {
    stage: Option<Stage>,
    /// The reading end of its console: its own never breaks.
    console: Option<OwnedFd>,
    /// Whether its connections were not all up since its start.
    is_unconnected: bool,
}

/// The core: everything that is trusted, and the ways to the two helpers, which are not trusted
/// with anybody's memory.
pub(crate) struct Core {
    hypervisor: Hypervisor,
    args: Args,
    manager: Helper,
    netd: Helper,
    control: Arc<Control>,
    units: Units,
    /// Sockets that outlive their domains, by the device that they are on.
    lasting: BTreeMap<u32, Bound>,
    /// The machine's description, as it came: the helpers' to read.
    machine: OwnedFd,
    /// What the manager wants the next one to know; none: the machine was never complete.
    kept: Option<OwnedFd>,
    /// What the first manager has opened; and the sockets among it, by their names.
    held: Vec<OwnedFd>,
    sockets: Vec<Named>,
    /// Every domain.
    known: BTreeMap<DomId, Known>,
    signals: UnixStream,
    /// Standard output, if its reader is to be watched.
    reader: Option<Stdout>,
    began_ns: u64,
    /// Set when everything ends: the token of the ask for it, if it was asked for.
    ending: Option<Option<u32>>,
    /// Set if the end is a failure: why, if that has not been told yet.
    failure: Option<Option<String>>,
    /// Whether who has started this is gone: what is persistent stays then, as after a failure.
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
            let lacks = "domains' programs that only their user can change";
            hypervisor.missing.insert(lacks);
        }
        let empty = sealed::write("machine", b"").map_err(|e| e.to_string())?;
        Ok(Self {
            hypervisor,
            manager: Helper::new(&args.beside, "grantway-manager", Some(&args.of_manager)),
            netd: Helper::new(&args.beside, "grantway-netd", None),
            control: Arc::default(),
            units: Units::default(),
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

    /// Starts both helpers, which take their time; then reads the machine.
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

    /// Serves until told to end, and ends everything.
    ///
    /// # Errors
    /// The machine failed: why, unless that was said already.
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
            self.tell(token, Tell::Done { value: 0 }, Vec::new());
        }
        // Their links close: both end by themselves, the manager after its last words.
        self.manager.hang_up();
        self.netd.hang_up();
        self.control.replace(None);
        // Who asked for the end hears of it from the manager.
        self.manager.end(ends_ns);
        self.netd.end(ends_ns);
        self.sockets.iter().for_each(control::remove);
        self.failure.map_or(Ok(()), Err)
    }

    fn welcome_manager(&mut self) {
        let message = Tell::Welcome {
            pid: std::process::id(),
            began_ns: self.began_ns,
            user: rustix::process::geteuid().as_raw(),
            has_kept: self.kept.is_some(),
            own_user: sandbox::user_of(self.manager.pid()),
        };
        let fds = [&self.machine].into_iter().chain(&self.kept);
        let fds = fds.chain(&self.held).map(AsFd::as_fd);
        match copies(fds) {
            Ok(fds) => self.tell(0, message, fds),
            Err(_) => self.manager.kill(),
        }
        let ways = self.known.iter().filter_map(|(&id, known)| {
            let ways = self.ways_to(id, known.console.as_ref()?);
            Some((id, ways.ok()?))
        });
        for (domain, ways) in ways.collect::<Vec<_>>() {
            self.tell(0, Tell::Console { domain }, ways);
        }
        self.known.values_mut().for_each(|known| known.stage = None);
        self.tell_lives();
        let lost =
            |(&unit, open): (_, &Unit)| open.lost.map(|is_removed| Tell::Lost { unit, is_removed });
        for tell in self.units.kept.iter().filter_map(lost).collect::<Vec<_>>() {
            self.tell(0, tell, Vec::new());
        }
    }

    /// Sends the manager a record.
    fn tell(&mut self, token: u32, message: Tell, fds: Vec<OwnedFd>) {
        self.manager.send(&Record { token, message }, fds);
    }

    /// Sends netd a record.
    fn task(&mut self, token: u32, message: Task, fds: Vec<OwnedFd>) {
        self.netd.send(&Record { token, message }, fds);
    }

    /// Tells the manager which domains have come to another stage.
    fn tell_lives(&mut self) {
        let mut news = Vec::new();
        for domain in self.hypervisor.domains() {
            let (domain, life) = (domain.id, &domain.life);
            let stage = life.stage;
            let known = self.known.entry(domain).or_default();
            if known.stage.replace(stage) != Some(stage) {
                let text = Text::cut(life.text());
                news.push(Tell::Life {
                    domain,
                    stage,
                    text,
                });
            }
            if stage == Stage::Gone {
                (known.console, known.is_unconnected) = (None, false);
                // With what it has not said is sound nobody can go on.
                let is_sound = |of: &Bound| of.control.is_sound.load(Ordering::Relaxed);
                let all = &mut self.lasting;
                all.retain(|_, of| of.socket.domain != domain || is_sound(of));
            }
            if known.is_unconnected && self.hypervisor.is_connected(domain) {
                known.is_unconnected = false;
                news.push(Tell::Connected { domain });
            }
        }
        for tell in news {
            self.tell(0, tell, Vec::new());
        }
    }

    /// Waits for something to happen, at most until the next deadline, and sees to it.
    fn turn(&mut self) {
        let now = monotonic_ns();
        let mut deadline = self.hypervisor.tick(now);
        if self.ending.is_some() {
            // The end has a deadline of its own.
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
        self.tell_lives();
        self.start_helpers(now);
    }

    /// Starts helpers again that have ended; at the end netd alone, if it has something to close.
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

    fn wait(&self, deadline_ns: Option<u64>, now_ns: u64) -> Vec<Ready> {
        let mut sources = vec![(Ready::Signal, self.signals.as_fd(), PollFlags::IN)];
        let of_domains = self.hypervisor.sources();
        sources.extend(of_domains.map(|fd| (Ready::Hypervisor, fd, PollFlags::IN)));
        if let Some(reader) = &self.reader
            && self.ending.is_none()
        {
            // Nothing is asked for: a pipe without a reader is reported as an error.
            sources.push((Ready::ReaderGone, reader.as_fd(), PollFlags::empty()));
        }
        sources.extend(self.manager.sources(Ready::Manager, Ready::ManagerEnded));
        sources.extend(self.netd.sources(Ready::Netd, Ready::NetdEnded));
        let timeout_ns = deadline_ns.map(|at| at.saturating_sub(now_ns));
        link::wait_for(&sources, timeout_ns)
    }

    fn handle(&mut self, ready: Ready) {
        let now = monotonic_ns();
        match ready {
            Ready::Signal => {
                let _ = rustix::io::read(&self.signals, &mut [0; 16]);
                self.ending.get_or_insert(None);
            }
            Ready::ReaderGone => {
                self.is_left = self.ending.is_none();
                self.ending.get_or_insert(None);
            }
            Ready::Manager => self.hear_manager(),
            Ready::ManagerEnded => {
                let left = self.manager.ended(now);
                self.hypervisor.close(left);
                if self.kept.is_none() && self.ending.is_none() {
                    // The next manager could not know what is built already.
                    let why = "the manager ended before the machine was ready";
                    self.failure = Some(Some(why.into()));
                    self.ending = Some(None);
                }
            }
            Ready::Netd => self.hear_netd(),
            Ready::NetdEnded => self.lose_netd(now),
            Ready::Hypervisor => self.hypervisor.handle(now),
        }
    }

    /// Sees to what the manager asks.
    fn hear_manager(&mut self) {
        for _ in 0..ASKS_PER_TURN {
            let Some(received) = self.manager.hear() else {
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
    fn the_end_is_over_before_systemd_loses_its_patience() {
        let service = include_str!("../../../../contrib/systemd/grantway.service");
        let mut limits = service.lines();
        let limit = limits.find_map(|line| line.strip_prefix("TimeoutStopSec="));
        let limit_ns = limit.unwrap().parse::<u64>().unwrap() * 1_000_000_000;
        assert!(limit_ns >= 2 * END_STEPS * END_STEP_NS);
    }
}
