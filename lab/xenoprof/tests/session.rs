//! Participants die, hang, lie and flood while another one behaves correctly. The session
//! continues, keeps the results of the correct participant, and reports the missing data.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testing::{KillOnDrop, TIMEOUT};
use xenoprof::host::process;
use xenoprof::model::{Mode, SampledEvent, Session, Tier};
use xenoprof::sampler::parse::{Address, PerfRecord, RecordKind};
use xenoprof::session::initiator::{Configuration, Initiator};
use xenoprof::session::message::{AddressName, DomainScope, SessionLink, SessionMessage, document};
use xenoprof::session::outcome::{FinalState, SessionOutcome};
use xenoprof::session::participant::{self, Participated};
use xenoprof::session::state::{Expected, Phase};

const SAMPLES: u64 = 1000;

/// A process that does nothing and exits with the test.
struct Idle(KillOnDrop);

impl Idle {
    fn start() -> Self {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn();
        Self(KillOnDrop(child.expect("`cat` starts")))
    }

    fn pid(&self) -> u32 {
        self.0.0.id()
    }

    /// Returns an address in its code, and the file that contains it.
    fn code(&self) -> (u64, String) {
        let test = std::env::current_exe().expect("this test's own file");
        loop {
            // Until the exec, the mappings are those of its parent.
            let found = process::mappings(self.pid());
            let program = found.into_iter().next().filter(|mapping| {
                mapping.path.starts_with('/') && Path::new(&mapping.path) != test
            });
            if let Some(program) = program {
                return (program.start + 0x40, program.path);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn samples(&self) -> Vec<PerfRecord> {
        let (address, _) = self.code();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
        let now_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        let sample = |n| PerfRecord {
            time_ns: now_ns + n,
            cpu: 0,
            event: 0,
            kind: RecordKind::Sample {
                pid: self.pid(),
                tid: self.pid(),
                chain: [Address::User(address)].into(),
            },
        };
        (0..SAMPLES).map(sample).collect()
    }
}

/// A participant that violates the protocol.
struct RogueParticipant {
    link: SessionLink,
    id: u64,
}

impl RogueParticipant {
    fn connect(socket: &Path) -> Self {
        let link = SessionLink::connect(socket).expect("the initiator listens");
        let mut rogue = Self { link, id: 0 };
        assert!(matches!(
            rogue.receive().0,
            SessionMessage::Configured { .. }
        ));
        rogue
    }

    fn reserve(socket: &Path, name: &str, mode: Mode, pid: u32) -> (Self, Vec<OwnedFd>) {
        let mut rogue = Self::connect(socket);
        rogue.send(SessionMessage::Register {
            name: name.to_owned(),
            mode,
            scope: DomainScope::Processes(vec![pid]),
        });
        let (message, descriptors) = rogue.receive();
        assert_eq!(message, SessionMessage::Reserved);
        (rogue, descriptors)
    }

    fn register(socket: &Path, name: &str, pid: u32) -> (Self, Vec<OwnedFd>) {
        let (rogue, descriptors) = Self::reserve(socket, name, Mode::Active, pid);
        rogue.send(SessionMessage::Ready);
        (rogue, descriptors)
    }

    /// Sends symbols as a sealed document of this length.
    fn send_symbols(&self, bytes: u64) {
        let symbols = document(|file| file.set_len(bytes)).expect("memory");
        let sent = self
            .link
            .send_all(self.id, SessionMessage::Symbols, &[symbols.as_fd()]);
        sent.expect("the initiator reads");
    }

    fn send(&self, message: SessionMessage) {
        self.link
            .send_all(self.id, message, &[])
            .expect("the initiator reads");
    }

    fn receive(&mut self) -> (SessionMessage, Vec<OwnedFd>) {
        let end = Instant::now() + TIMEOUT;
        while Instant::now() < end {
            if let Some((envelope, _, descriptors)) =
                self.link.receive().expect("the initiator answers")
            {
                self.id = envelope.session;
                return (envelope.message, descriptors);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("no answer");
    }

    fn until(&mut self, wanted: &SessionMessage) {
        while self.receive().0 != *wanted {}
    }
}

fn good(socket: &Path, pid: u32) -> JoinHandle<anyhow::Result<Participated>> {
    let options = participant::Participation {
        name: "good".to_owned(),
        mode: Mode::Active,
        pids: vec![pid],
        symbols: None,
        command: Vec::new(),
        socket: socket.to_owned(),
        wait: TIMEOUT,
    };
    std::thread::spawn(move || participant::run(&options))
}

fn open(socket: &Path, expected: &str, timeout: Duration) -> Initiator {
    let configuration = Configuration {
        id: 77,
        privileged: true,
        expected: Expected::parse(expected).expect("names"),
        timeout,
        event: Some(SampledEvent {
            event: "cpu-clock".to_owned(),
            tier: Tier::CpuClock,
            period: 1_000_000,
        }),
    };
    Initiator::open(socket, configuration).expect("opens")
}

fn socket(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("session")
}

fn member<'a>(outcome: &'a SessionOutcome, name: &str) -> &'a FinalState {
    let found = outcome.members.iter().find(|member| member.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {outcome:?}"))
}

fn lost(outcome: &SessionOutcome, name: &str) -> String {
    member(outcome, name).lost.clone().unwrap_or_default()
}

#[test]
fn faulty_participants_do_not_affect_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = socket(&folder);
    let names = ["good", "dead", "hanging", "lying", "flooding"];
    let idle = names.map(|_| Idle::start());
    let [own, dead, hanging, lying, flooding] = idle.each_ref().map(Idle::pid);
    let mut initiator = open(&socket, &names.join(","), TIMEOUT);
    let good = good(&socket, own);
    let (did_harm, harm) = mpsc::channel();
    let rogues = {
        let socket = socket.clone();
        std::thread::spawn(move || {
            let (mut dead, _) = RogueParticipant::register(&socket, "dead", dead);
            let (hanging, _) = RogueParticipant::register(&socket, "hanging", hanging);
            let (liar, descriptors) = RogueParticipant::register(&socket, "lying", lying);
            let (mut flooding, _) = RogueParticipant::register(&socket, "flooding", flooding);
            dead.receive();
            drop(dead);
            let ring = std::fs::File::from(descriptors.into_iter().next().expect("a ring"));
            let claim = (u64::MAX / 2).to_ne_bytes();
            ring.write_all_at(&claim, 64).expect("the ring is shared");
            did_harm.send(()).expect("the test waits");
            flooding.until(&SessionMessage::Drain);
            let named = AddressName {
                pid: 1,
                address: 1,
                module: "x".repeat(1000),
                offset: 0,
                frames: vec![("y".to_owned(), false)],
            };
            let flood = SessionMessage::Names {
                names: vec![named; 50],
            };
            let mut sent = 0u64;
            while flooding
                .link
                .send_all(flooding.id, flood.clone(), &[])
                .is_ok()
            {
                sent += 1;
            }
            (sent, hanging, liar)
        })
    };
    initiator.reserve(|| false);
    assert_eq!(initiator.phase(), Phase::Reserved);
    assert!(initiator.absent().is_empty(), "{:?}", initiator.absent());
    let demux = initiator.demux();
    initiator.arm();
    let served = initiator.serve();
    harm.recv().expect("the faulty participants have acted");
    for idle in &idle {
        let mut demux = demux.lock().unwrap_or_else(PoisonError::into_inner);
        demux.offer(&idle.samples(), u64::MAX);
    }
    let (outcome, ending) = served.drain(|| false);
    for name in names {
        let counts = member(&outcome, name).delivered.counts;
        assert_eq!(counts.offered, SAMPLES, "{name}");
        assert_eq!(counts.offered, counts.written + counts.dropped, "{name}");
    }
    let own = member(&outcome, "good");
    assert_eq!(own.lost, None);
    assert_eq!(own.received.read, Some(own.delivered.counts.written));
    assert_eq!(own.received.names.len(), 1, "all samples have one address");
    let program = idle.each_ref().map(Idle::code)[0].1.clone();
    assert!(
        own.received
            .names
            .iter()
            .all(|named| named.module == program)
    );
    assert_eq!(lost(&outcome, "dead"), "disconnected");
    assert!(lost(&outcome, "hanging").contains("in time"), "{outcome:?}");
    assert!(lost(&outcome, "lying").contains("indices"), "{outcome:?}");
    assert_eq!(member(&outcome, "lying").delivered.counts.written, 0);
    assert!(
        lost(&outcome, "flooding").contains("too much"),
        "{outcome:?}"
    );
    ending.report_sample_counts(&Session::default());
    let took = good.join().expect("no panic").expect("takes part");
    assert_eq!(took.read, SAMPLES);
    let (sent, _hanging, _liar) = rogues.join().expect("no panic");
    assert!(sent < 5000, "{sent} messages were accepted");
    assert!(!socket.exists(), "the session leaves its socket behind");
}

#[test]
fn documents_are_accepted_in_order_and_within_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = socket(&folder);
    let idle = Idle::start();
    let mut initiator = open(&socket, "web,db,log,app", TIMEOUT);
    let pid = idle.pid();
    let rogues = {
        let socket = socket.clone();
        std::thread::spawn(move || {
            let mut early = RogueParticipant::connect(&socket);
            early.send_symbols(10);
            let (mut active, _) = RogueParticipant::reserve(&socket, "web", Mode::Active, pid);
            active.send_symbols(10);
            let (mut late, _) = RogueParticipant::reserve(&socket, "db", Mode::Passive, pid);
            late.send(SessionMessage::Ready);
            late.send_symbols(10);
            let (mut greedy, _) = RogueParticipant::reserve(&socket, "log", Mode::Passive, pid);
            for _ in 0..3 {
                greedy.send_symbols(30 << 20);
            }
            [
                early.receive().0,
                active.receive().0,
                late.receive().0,
                greedy.receive().0,
            ]
        })
    };
    initiator.reserve(|| rogues.is_finished());
    let whys = rogues.join().expect("no panic").map(|reply| match reply {
        SessionMessage::Refused { why } => why,
        other => panic!("{other:?}"),
    });
    let turn = "sent a message out of order";
    assert_eq!(whys, [turn, turn, turn, "sent too much data"]);
}

#[test]
fn strangers_are_rejected_and_absent_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = socket(&folder);
    let idle = Idle::start();
    let mut initiator = open(&socket, "web,db", Duration::from_secs(10));
    let pid = idle.pid();
    let stranger = {
        let socket = socket.clone();
        std::thread::spawn(move || {
            let link = SessionLink::connect(&socket).expect("the initiator listens");
            let mut stranger = RogueParticipant { link, id: 0 };
            stranger.receive();
            stranger.send(SessionMessage::Register {
                name: "cache".to_owned(),
                mode: Mode::Active,
                scope: DomainScope::Processes(vec![pid]),
            });
            stranger.receive().0
        })
    };
    initiator.reserve(|| false);
    let Ok(SessionMessage::Refused { why }) = stranger.join() else {
        panic!("a stranger takes part");
    };
    assert!(why.contains("not expected"), "{why}");
    assert_eq!(initiator.absent(), ["web", "db"]);
    assert_eq!(initiator.phase(), Phase::Reserved, "the session continues");
}
