//! `grantway prof participate`: a domain's profiler.

use super::message::{AddressName, DomainScope, SessionLink, SessionMessage, document};
use super::ring::Consumer;
use crate::host::cpus::raw_ns;
use crate::host::process;
use crate::model::{Mode, Session, file};
use crate::record;
use crate::resolve::{Resolver, Symbolizer, lookup};
use crate::sampler::parse::{Address, PerfRecord, RecordKind};
use anyhow::{Context as _, bail};
use figures::{Failure, interrupt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time between reads of the ring.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout for an answer of the initiator.
const ANSWER: Duration = Duration::from_secs(10);
/// Approximate bytes of a message with names.
const NAMES_BYTES: usize = 32 << 10;
/// Maximum length of a function name in bytes, and maximum number of functions inlined at one
/// address.
const SYMBOL_MAX: usize = 512;
const FRAMES_MAX: usize = 16;

/// Options of a participation.
#[derive(Clone, Debug)]
pub struct Participation {
    /// Domain name.
    pub name: String,
    /// The side that attributes its samples.
    pub mode: Mode,
    /// Processes of the domain. Empty: its PID namespace.
    pub pids: Vec<u32>,
    /// Saved symbols of a passive domain.
    pub symbols: Option<PathBuf>,
    /// Command that an agent runs and samples.
    pub command: Vec<String>,
    /// Socket of the initiator.
    pub socket: PathBuf,
    /// Timeout for the initiator to listen.
    pub wait: Duration,
}

/// Result of a participation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Participated {
    /// Samples of the domain in the merged session.
    pub samples: u64,
    /// Samples received through the ring.
    pub read: u64,
    /// Number of addresses named.
    pub names: u64,
}

/// Takes part in one session, from registration to its end.
///
/// # Errors
/// Returns [`Failure::CannotRun`] if no session is being recorded, or the initiator refuses.
pub fn run(options: &Participation) -> anyhow::Result<Participated> {
    interrupt::watch();
    let link = connect(options)?;
    let mut session = ParticipantLink { link, id: 0 };
    let (message, _) = session.answer()?;
    let SessionMessage::Configured { .. } = message else {
        bail!("the initiator violated the protocol");
    };
    let scope = match (options.mode, options.pids.as_slice()) {
        (Mode::AgentOnly, _) => DomainScope::Elsewhere,
        (_, []) => DomainScope::Namespace,
        (_, pids) => DomainScope::Processes(pids.to_vec()),
    };
    session.send(SessionMessage::Register {
        name: options.name.clone(),
        mode: options.mode,
        scope,
    })?;
    let (message, descriptors) = session.answer()?;
    match message {
        SessionMessage::Reserved => {}
        SessionMessage::Refused { why } => {
            return Err(Failure::CannotRun(format!("the initiator refuses: {why}")).into());
        }
        _ => bail!("the initiator violated the protocol"),
    }
    if let Some(path) = &options.symbols {
        let text = std::fs::read(path).with_context(|| path.display().to_string())?;
        let symbols = document(|mut file| file.write_all(&text))?;
        session.send_with(SessionMessage::Symbols, &[symbols.as_fd()])?;
    }
    let ring = match <[OwnedFd; 2]>::try_from(descriptors) {
        Ok([memory, doorbell]) if options.mode == Mode::Active => {
            Some(Consumer::new(&memory, doorbell)?)
        }
        _ => None,
    };
    session.send(SessionMessage::Ready)?;
    eprintln!("`{}` is ready", options.name);
    Participant {
        options,
        session,
        ring,
        attributor: Attributor::new(),
        agent: None,
        took: Participated::default(),
    }
    .play()
}

fn connect(options: &Participation) -> anyhow::Result<SessionLink> {
    let end = Instant::now() + options.wait;
    loop {
        match SessionLink::connect(&options.socket) {
            Ok(link) => return Ok(link),
            Err(_) if Instant::now() < end => interrupt::sleep(CHECK_INTERVAL)?,
            Err(error) => {
                return Err(Failure::CannotRun(format!(
                    "no session with participants is recorded at {}: {error}",
                    options.socket.display()
                ))
                .into());
            }
        }
    }
}

/// The connection, and the session's id once known.
struct ParticipantLink {
    link: SessionLink,
    id: u64,
}

impl ParticipantLink {
    fn send(&self, message: SessionMessage) -> anyhow::Result<()> {
        self.send_with(message, &[])
    }

    fn send_with(
        &self,
        message: SessionMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> anyhow::Result<()> {
        self.link
            .send_all(self.id, message, descriptors)
            .context("the initiator has disconnected")
    }

    fn receive(&mut self) -> anyhow::Result<Option<(SessionMessage, Vec<OwnedFd>)>> {
        let received = self
            .link
            .receive()
            .context("the initiator has disconnected")?;
        Ok(received.map(|(envelope, _, descriptors)| {
            self.id = envelope.session;
            (envelope.message, descriptors)
        }))
    }

    fn answer(&mut self) -> anyhow::Result<(SessionMessage, Vec<OwnedFd>)> {
        let end = Instant::now() + ANSWER;
        while Instant::now() < end {
            interrupt::check()?;
            wait(&[self.link.as_fd()]);
            if let Some(received) = self.receive()? {
                return Ok(received);
            }
        }
        bail!("the initiator does not answer")
    }
}

fn wait(fds: &[BorrowedFd<'_>]) {
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: CHECK_INTERVAL.subsec_nanos().into(),
    };
    let mut fds: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    // After a signal the next check happens early.
    let _looked = poll(&mut fds, Some(&limit));
}

/// A registered participant.
struct Participant<'a> {
    options: &'a Participation,
    session: ParticipantLink,
    ring: Option<Consumer>,
    attributor: Attributor,
    agent: Option<Agent>,
    took: Participated,
}

impl Participant<'_> {
    fn play(mut self) -> anyhow::Result<Participated> {
        loop {
            interrupt::check()?;
            let mut fds = vec![self.session.link.as_fd()];
            fds.extend(self.ring.as_ref().map(Consumer::doorbell));
            wait(&fds);
            self.drain()?;
            match self.session.receive()? {
                None => {}
                Some((SessionMessage::Armed { at_raw_ns }, _)) => self.armed(at_raw_ns),
                Some((SessionMessage::Drain, _)) => self.send_results()?,
                Some((SessionMessage::Merged { samples }, _)) => {
                    self.took.samples = samples;
                    return Ok(self.took);
                }
                Some((SessionMessage::Refused { why }, _)) => {
                    return Err(Failure::CannotRun(format!("the initiator refuses: {why}")).into());
                }
                Some(_) => bail!("the initiator violated the protocol"),
            }
        }
    }

    fn armed(&mut self, at_raw_ns: u64) {
        if self.options.mode == Mode::AgentOnly {
            self.agent = Some(Agent::start(&self.options.command, at_raw_ns));
        }
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        let mut records = Vec::new();
        ring.drain(&mut records)?;
        self.took.read = ring.read;
        for record in records {
            self.attributor.take(record);
        }
        Ok(())
    }

    fn send_results(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        if let Some(agent) = self.agent.take() {
            let session = agent.stop()?;
            let profile = document(|file| file::write(file, &session))?;
            self.session
                .send_with(SessionMessage::Profile, &[profile.as_fd()])?;
        }
        let mut names = Vec::new();
        let mut bytes = 0;
        for named in self.attributor.names() {
            self.took.names += 1;
            let symbols: usize = named
                .frames
                .iter()
                .map(|(symbol, _)| symbol.len() + 16)
                .sum();
            bytes += symbols + named.module.len() + 96;
            names.push(named);
            if bytes > NAMES_BYTES {
                bytes = 0;
                let names = std::mem::take(&mut names);
                self.session.send(SessionMessage::Names { names })?;
            }
        }
        if !names.is_empty() {
            self.session.send(SessionMessage::Names { names })?;
        }
        let read = self.took.read;
        self.session.send(SessionMessage::Drained { read })
    }
}

/// Attributes a domain's samples inside the domain, with the domain's mappings and files.
struct Attributor {
    resolver: Resolver,
    known: BTreeSet<u32>,
    addresses: BTreeSet<(u32, u64)>,
}

impl Attributor {
    fn new() -> Self {
        Self {
            resolver: Resolver::new(0),
            known: BTreeSet::new(),
            addresses: BTreeSet::new(),
        }
    }

    fn take(&mut self, record: PerfRecord) {
        if let RecordKind::Sample { pid, chain, .. } = &record.kind {
            if self.known.insert(*pid) {
                self.resolver.process(*pid, &process::mappings(*pid));
            }
            for (depth, address) in chain.iter().enumerate() {
                if let Address::User(address) = *address {
                    self.addresses.insert((*pid, lookup(depth, address)));
                }
            }
        }
        self.resolver.take(record);
    }

    fn names(&mut self) -> Vec<AddressName> {
        let mut names = self
            .resolver
            .names(&mut Symbolizer::new(None), &self.addresses);
        for named in &mut names {
            // Keep the innermost functions, which are the most specific.
            let surplus = named.frames.len().saturating_sub(FRAMES_MAX);
            named.frames.drain(..surplus);
            for (symbol, _) in &mut named.frames {
                let end = symbol.floor_char_boundary(SYMBOL_MAX);
                symbol.truncate(end);
            }
        }
        names
    }
}

/// An agent's sampler: records a whole session of its command, in a thread.
struct Agent {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Session>>,
}

impl Agent {
    fn start(command: &[String], at_raw_ns: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let options = record::RecordOptions {
            hz: Some(record::DEFAULT_HZ),
            command: command.to_vec(),
            own: true,
            stop: Some(Arc::clone(&stop)),
            ..record::RecordOptions::default()
        };
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_nanos(at_raw_ns.saturating_sub(raw_ns())));
            Ok(record::run(&options)?.0)
        });
        Self { stop, thread }
    }

    fn stop(self) -> anyhow::Result<Session> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(done) => done,
            Err(_) => bail!("the agent's sampler panicked"),
        }
    }
}
