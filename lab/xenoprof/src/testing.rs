//! A small session for tests.

use crate::loss::Loss;
use crate::model::{
    BridgeTraffic, CallStack, Code, DomainKind, Head, HopLedger, Location, Marker, MarkerKind,
    Mode, Module, ProfiledDomain, Sample, SampledEvent, Session, Space, StackFrame, Thread, Tier,
};

fn domain(name: &str, kind: DomainKind, cpu_ns: u64) -> ProfiledDomain {
    ProfiledDomain {
        name: name.to_owned(),
        kind,
        mode: Mode::Passive,
        cpu_ns: Some(cpu_ns),
        agent_ns: None,
        ledger: None,
        traffic: None,
        buffer: None,
        missing: None,
    }
}

fn frame(module: u32, symbol: &str) -> StackFrame {
    StackFrame {
        module,
        symbol: symbol.to_owned(),
        inlined: false,
        code: None,
        source: None,
    }
}

/// Returns that session with an additional domain without data.
pub(crate) fn with_an_absent_domain() -> Session {
    let mut session = session();
    session.domains.push(ProfiledDomain {
        name: "web".to_owned(),
        cpu_ns: None,
        ledger: None,
        missing: Some("was not ready".to_owned()),
        ..session.domains[0].clone()
    });
    session
}

/// Returns that session with a second event: every second page fault of the driver domain was
/// sampled, 90 in a copy and 30 in a system call.
pub(crate) fn with_page_faults() -> Session {
    let mut session = session();
    session.head.more_events.push(SampledEvent {
        event: "page-faults".to_owned(),
        tier: Tier::Software,
        period: 2,
    });
    let faults = (0..120).map(|n| Sample(n * 1_000_000, 0, 0, if n % 4 == 0 { 4 } else { 1 }, 1));
    session.samples.extend(faults);
    session.samples.sort_by_key(|sample| sample.0);
    session.losses.push(Loss {
        event: 1,
        expected: 130,
        delivered: 120,
        kernel_lost: 10,
        ..Loss::default()
    });
    session
}

/// Returns a session with samples of 1 ms: a driver domain copies (60 samples) and writes to a TAP,
/// whose stack runs in the same call (40 samples); a CPU is idle (100 samples).
pub(crate) fn session() -> Session {
    let mut driver = domain("driver", DomainKind::Driver, 100_000_000);
    driver.ledger = Some(HopLedger {
        hops: [
            ("copy".to_owned(), 138_000_000),
            ("nic".to_owned(), 92_000_000),
        ]
        .into(),
        cpu_ns: 100_000_000,
        stamps: 1000,
        ..HopLedger::default()
    });
    driver.traffic = Some(BridgeTraffic {
        frames: 1000,
        bytes: 1_514_000,
    });
    let marker = |domain, kind, counts: &[(&str, u64)]| Marker {
        domain,
        kind,
        from_ns: 10_000_000,
        to_ns: 30_000_000,
        counts: counts
            .iter()
            .map(|&(name, n)| (name.to_owned(), n))
            .collect(),
    };
    let thread = |pid, domain, name: &str| Thread {
        pid,
        tid: pid,
        name: name.to_owned(),
        domain,
    };
    let module = |path: &str, space| Module {
        path: path.to_owned(),
        space,
        build_id: None,
    };
    let samples = (0..200u64).map(|n| match n % 10 {
        0..3 => Sample(n * 1_000_000, 0, 0, 1, 0),
        3..5 => Sample(n * 1_000_000, 0, 0, 4, 0),
        _ => Sample(n * 1_000_000, 1, 1, 5, 0),
    });
    let loss = |cpu, domain, expected, delivered| {
        Loss {
            cpu,
            domain,
            expected,
            delivered,
            ..Loss::default()
        }
        .closed()
    };
    let mut session = Session {
        head: Head {
            version: crate::model::file::VERSION,
            id: 1,
            event: "cpu-clock".to_owned(),
            period: 1_000_000,
            ran_ns: 200_000_000,
            cpus: vec![0, 1],
            tsc_hz: 2_300_000_000,
            provenance: serde_json::json!({"kernel": "6.18"}),
            ..Head::default()
        },
        domains: vec![
            driver,
            domain("idle", DomainKind::Idle, 0),
            domain("guest", DomainKind::Guest, 50_000_000),
        ],
        threads: vec![thread(5, 0, "driver"), thread(0, 1, "idle")],
        modules: vec![
            module("/bin/driver", Space::User),
            module("[kernel]", Space::Kernel),
        ],
        frames: vec![
            frame(0, "driver::turn::run"),
            frame(0, "shmem::engine::copy"),
            frame(1, "tun_get_user"),
            frame(1, "tcp_v4_rcv"),
            frame(1, "pv_native_safe_halt"),
        ],
        stacks: vec![
            CallStack(None, 0),
            CallStack(Some(0), 1),
            CallStack(Some(0), 2),
            CallStack(Some(2), 3),
            CallStack(Some(3), 3),
            CallStack(None, 4),
        ],
        samples: samples.collect(),
        markers: vec![
            marker(0, MarkerKind::Restart, &[]),
            marker(0, MarkerKind::Drops, &[("no_request", 5), ("too_long", 2)]),
            marker(2, MarkerKind::Grants, &[("granted", 64), ("revoked", 3)]),
        ],
        losses: vec![
            loss(0, None, 200, 100),
            loss(0, Some(0), 100, 100),
            loss(1, None, 200, 100),
        ],
        ..Session::default()
    };
    session.files = ["/src/driver/turn.rs", "/src/shmem/engine.rs"]
        .map(str::to_owned)
        .into();
    session.modules[0].build_id = Some("c0de".to_owned());
    session.frames[0].code = Some(Code(0x1010, 0x1000));
    session.frames[0].source = Some(Location(0, 10));
    session.frames[1].code = Some(Code(0x2004, 0x2000));
    session.frames[1].source = Some(Location(1, 20));
    session
}
