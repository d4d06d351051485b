//! The main loop: one poll over everything, nothing that waits.

mod requests;

use crate::build::Built;
use crate::client::{Client, Waits};
use crate::console::Console;
use crate::control::Socket;
use crate::log::Log;
use crate::restart::{Restart, RestartEvent};
use abi::DomId;
use monitor::{Hypervisor, Life, Source};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shmem::time::monotonic_ns;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Stdout};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// How long it may take until every domain runs and every connection is up.
const COMPLETE_NS: u64 = 20_000_000_000;
/// How long the end may take; what is left then ends with this process.
const END_NS: u64 = 5_000_000_000;
/// Clients at a time; further ones wait.
const CLIENTS_MAX: usize = 32;

/// What became ready.
#[derive(Clone, Copy, Debug)]
enum Ready {
    Signal,
    ReaderGone,
    Listener,
    Client(u64),
    Console(usize),
    Hypervisor(Source),
}

/// The running machine.
pub(crate) struct Server {
    name: String,
    hypervisor: Hypervisor,
    consoles: Vec<(DomId, Console)>,
    restarts: Vec<Restart>,
    socket: Socket,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    /// Who asked what lies in a domain's mailbox; the client may be gone.
    relays: BTreeMap<DomId, u64>,
    signals: UnixStream,
    /// Standard output, if its reader is to be watched.
    reader: Option<Stdout>,
    log: Log,
    began_ns: u64,
    complete_ns: Option<u64>,
    /// Domains whose end was written to the log.
    reported: BTreeSet<DomId>,
    ending: bool,
}

impl Server {
    pub(crate) fn new(
        name: String,
        built: Built,
        socket: Socket,
        signals: UnixStream,
        log: Log,
        began_ns: u64,
    ) -> Self {
        Self {
            name,
            hypervisor: built.hypervisor,
            consoles: built.consoles,
            restarts: built.restarts,
            socket,
            clients: BTreeMap::new(),
            next_client: 0,
            relays: BTreeMap::new(),
            signals,
            reader: None,
            log,
            began_ns,
            complete_ns: None,
            reported: BTreeSet::new(),
            ending: false,
        }
    }

    /// Makes the end of the reader of standard output the end of the machine.
    pub(crate) fn end_with_reader(&mut self) {
        self.reader = Some(io::stdout());
    }

    /// Serves until the machine is complete; returns how long that took, in nanoseconds.
    pub(crate) fn complete(&mut self) -> Result<u64, String> {
        let failure = loop {
            let now = monotonic_ns();
            if self.hypervisor.is_complete() {
                self.complete_ns = Some(now);
                return Ok(now.saturating_sub(self.began_ns));
            }
            if let Some(failure) = self.failure(now) {
                break failure;
            }
            self.turn();
        };
        self.end();
        Err(failure)
    }

    /// Why the machine will not become complete any more, if so.
    fn failure(&self, now_ns: u64) -> Option<String> {
        if self.ending {
            return Some("told to end before it was ready".into());
        }
        let over = |id: &DomId| self.hypervisor.life(*id).is_some_and(Life::is_over);
        if let Some(id) = self.hypervisor.ids().find(over) {
            let how = self.hypervisor.life(id).map_or("", |life| life.text());
            let console = self.consoles.iter().find(|(of, _)| *of == id);
            let said = match console.map_or("", |(_, console)| console.last_line()) {
                "" => String::new(),
                line => format!("; it said: {line}"),
            };
            return Some(format!(
                "domain {} did not start: {how}{said}",
                self.hypervisor.name(id)
            ));
        }
        let late = now_ns.saturating_sub(self.began_ns) >= COMPLETE_NS;
        late.then(|| "the connections were not up within 20 s".into())
    }

    /// Serves until told to end.
    pub(crate) fn run(&mut self) {
        while !self.ending {
            self.turn();
        }
        self.end();
    }

    /// Ends every domain, then tells who asked for it.
    fn end(&mut self) {
        self.ending = true;
        self.hypervisor.kill_all("ended");
        let deadline = monotonic_ns().saturating_add(END_NS);
        while !self.hypervisor.is_over() && monotonic_ns() < deadline {
            self.turn();
        }
        let now = monotonic_ns();
        for client in self.clients.values_mut() {
            if matches!(client.waits, Waits::End) {
                client.answer(&serde_json::json!({}), now);
            }
        }
    }

    /// Waits for something to happen, at most until the next deadline, and sees to it.
    fn turn(&mut self) {
        let now = monotonic_ns();
        let mut deadline = self.hypervisor.tick(now);
        let clients = self.clients.values().filter_map(Client::deadline_ns);
        let consoles = self
            .consoles
            .iter()
            .filter_map(|(_, console)| console.deadline_ns(now));
        for at in clients.chain(consoles) {
            deadline = Some(deadline.map_or(at, |d| d.min(at)));
        }
        if self.restarts_now() {
            let due = self
                .restarts
                .iter()
                .filter_map(|r| r.due_ns(&self.hypervisor));
            deadline = deadline.into_iter().chain(due).min();
        }
        let look_again_ns = match (self.ending, self.complete_ns) {
            // The end has a deadline of its own.
            (true, _) => Some(10_000_000),
            // No descriptor tells when the last connection comes up.
            (false, None) => Some(500_000),
            (false, Some(_)) => None,
        };
        if let Some(ns) = look_again_ns {
            let soon = now.saturating_add(ns);
            deadline = Some(deadline.map_or(soon, |d| d.min(soon)));
        }
        for ready in self.wait(deadline, now) {
            self.handle(ready);
        }
        let now = monotonic_ns();
        self.requests(now);
        self.relay(now);
        self.report_ends();
        self.restart(now);
        self.clients.retain(|_, client| !client.is_over(now));
    }

    /// Writes to the log which domains have ended, and how.
    fn report_ends(&mut self) {
        // An id that is given out again is another domain's.
        let over = |id: &DomId| self.hypervisor.life(*id).is_some_and(Life::is_over);
        self.reported.retain(over);
        for id in self.hypervisor.ids() {
            let Some(life) = self.hypervisor.life(id) else {
                continue;
            };
            if life.is_over() && self.reported.insert(id) {
                let line = format!("{}: {}", self.hypervisor.name(id), life.text());
                self.log.line("grantwayd", &line);
            }
        }
    }

    /// Whether a domain that has ended may be started again: not before the machine was complete,
    /// for then its start has failed.
    fn restarts_now(&self) -> bool {
        self.complete_ns.is_some() && !self.ending
    }

    /// Starts domains again that have ended.
    fn restart(&mut self, now: u64) {
        if !self.restarts_now() {
            return;
        }
        for restart in &mut self.restarts {
            let events = restart.turn(&mut self.hypervisor, now);
            self.reported.extend(restart.stillborn());
            for event in events {
                match event {
                    RestartEvent::Line(line) => self.log.line("grantwayd", &line),
                    RestartEvent::Replaced(old, new, fresh) => {
                        let mut consoles = self.consoles.iter_mut();
                        if let Some((id, console)) = consoles.find(|(id, _)| *id == old) {
                            console.drain(&mut self.log, now);
                            (*id, *console) = (new, fresh);
                        }
                    }
                }
            }
        }
    }

    fn wait(&self, deadline_ns: Option<u64>, now_ns: u64) -> Vec<Ready> {
        let mut sources = Vec::new();
        self.hypervisor.watch(&mut sources);
        let mut sources: Vec<_> = sources
            .into_iter()
            .map(|(s, fd)| (Ready::Hypervisor(s), fd, PollFlags::IN))
            .collect();
        sources.push((Ready::Signal, self.signals.as_fd(), PollFlags::IN));
        if let Some(reader) = &self.reader
            && !self.ending
        {
            // Nothing is asked for: a pipe without a reader is reported as an error.
            sources.push((Ready::ReaderGone, reader.as_fd(), PollFlags::empty()));
        }
        if self.clients.len() < CLIENTS_MAX && !self.ending {
            sources.push((Ready::Listener, self.socket.fd(), PollFlags::IN));
        }
        for (id, client) in &self.clients {
            let flags = if client.has_output() {
                PollFlags::OUT
            } else {
                PollFlags::IN
            };
            sources.push((Ready::Client(*id), client.fd(), flags));
        }
        for (at, (_, console)) in self.consoles.iter().enumerate() {
            if let Some(fd) = console.watch(now_ns) {
                sources.push((Ready::Console(at), fd, PollFlags::IN));
            }
        }
        let timeout = deadline_ns.map(|at| {
            let ns = at.saturating_sub(now_ns);
            Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            }
        });
        let mut fds: Vec<PollFd<'_>> = sources
            .iter()
            .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let ready = sources
            .iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|((ready, ..), _)| *ready).collect()
    }

    fn handle(&mut self, ready: Ready) {
        let now = monotonic_ns();
        match ready {
            Ready::Signal => {
                let _ = rustix::io::read(&self.signals, &mut [0; 16]);
                self.ending = true;
            }
            Ready::ReaderGone => self.ending = true,
            Ready::Listener => {
                if let Some(stream) = self.socket.accept() {
                    self.clients
                        .insert(self.next_client, Client::new(stream, now));
                    self.next_client += 1;
                }
            }
            Ready::Client(id) => {
                let Some(client) = self.clients.get_mut(&id) else {
                    return;
                };
                if client.has_output() {
                    client.send(now)
                } else {
                    client.receive(now)
                }
            }
            Ready::Console(at) => {
                if let Some((_, console)) = self.consoles.get_mut(at) {
                    console.take(&mut self.log, now);
                }
            }
            Ready::Hypervisor(source) => {
                // What it printed last is worth having before its end is reported.
                if let Source::Ended(id) = source {
                    for (_, console) in self.consoles.iter_mut().filter(|(of, _)| *of == id) {
                        console.drain(&mut self.log, now);
                    }
                }
                self.hypervisor.handle(source, now);
            }
        }
    }
}
