//! Tests everything from a ring's bytes to the report, with data of a PMU counter that overflows by
//! NMI, so that machines without a PMU cover it, too.

use perf_event::SampleFlag;
use perf_event::data::parse::ParseConfig;
use std::path::PathBuf;
use xenoprof::attribute::Classing;
use xenoprof::attribute::rules::Rules;
use xenoprof::event::Event;
use xenoprof::model::{DomainKind, Head, Mode, ProfiledDomain, Session, Tier, file};
use xenoprof::resolve::{Resolver, Symbolizer};
use xenoprof::sampler::parse::{Parsed, PerfRecord, parse};
use xenoprof::show;
use xenoprof::show::report::{Form, Listing};

const PID: u64 = 70;
const KERNEL: u64 = 0xffff_ffff_8100_0000;
/// `PERF_CONTEXT_KERNEL`, `PERF_CONTEXT_USER`.
const IN_KERNEL: u64 = -128i64 as u64;
const IN_USER: u64 = -512i64 as u64;
/// Number of samples in the kernel, and in the program.
const SAMPLES: [usize; 2] = [150, 50];

/// The kernel's saved symbols.
const KALLSYMS: &str = "\
ffffffff81000000 T tun_get_user
ffffffff81001000 T do_syscall_64
ffffffff81002000 T after_the_last
";

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns a record with its header (kind, misc, size), as in the ring.
fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(8 + body.len()).unwrap();
    let header = [
        &kind.to_le_bytes()[..],
        &misc.to_le_bytes(),
        &size.to_le_bytes(),
    ];
    [&header.concat(), body].concat()
}

/// Returns the trailer of a record other than a sample: thread, time and CPU.
fn trailer(time: u64) -> [u64; 3] {
    [PID | PID << 32, time, 0]
}

fn sample(misc: u16, time: u64, chain: &[u64]) -> Vec<u8> {
    let head = [PID | PID << 32, time, 0, chain.len() as u64];
    record(9, misc, &words(&[&head, chain].concat()))
}

fn ring() -> Vec<u8> {
    /// `PERF_RECORD_MISC_EXACT_IP`: the address is that of the instruction that caused the
    /// overflow.
    const EXACT: u16 = 1 << 14;
    let name = [
        &words(&[PID | PID << 32])[..],
        b"driver\0\0",
        &words(&trailer(1)),
    ]
    .concat();
    let place = words(&[PID | PID << 32, 0x40_0000, 0x1000, 0, 0, 0, 0, 0]);
    let map = [&place[..], b"/opt/driver\0\0\0\0\0", &words(&trailer(2))].concat();
    let mut ring = [record(3, 0, &name), record(10, 2, &map)].concat();
    for time in 0..SAMPLES[0] {
        let chain = [
            IN_KERNEL,
            KERNEL + 0x10,
            KERNEL + 0x1010,
            IN_USER,
            0x40_0010,
        ];
        ring.extend(sample(1 | EXACT, 10 + time as u64, &chain));
    }
    // The kernel throttled the counter, and three records did not fit.
    ring.extend(record(
        5,
        0,
        &words(&[&[500, 1, 1][..], &trailer(500)].concat()),
    ));
    ring.extend(record(2, 0, &words(&[&[1, 3][..], &trailer(501)].concat())));
    for time in 0..SAMPLES[1] {
        ring.extend(sample(2 | EXACT, 600 + time as u64, &[IN_USER, 0x40_0020]));
    }
    ring
}

fn records(event: Event) -> Vec<PerfRecord> {
    let flags = SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU | SampleFlag::CALLCHAIN;
    let attr = *event.builder().sample(flags).sample_id_all(true).attrs();
    let config = ParseConfig::from(attr);
    let (ring, mut at, mut records) = (ring(), 0, Vec::new());
    while let Some(header) = ring.get(at..at + 8) {
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap());
        let misc = u16::from_le_bytes(header[4..6].try_into().unwrap());
        let size = usize::from(u16::from_le_bytes(header[6..].try_into().unwrap()));
        match parse((0, 0), kind, misc, &ring[at + 8..at + size], &config).unwrap() {
            Parsed::Record(record) => records.push(record),
            Parsed::Uninteresting => assert_eq!(kind, 5),
        }
        at += size;
    }
    records
}

fn session(event: Event, kallsyms: PathBuf) -> Session {
    let mut resolver = Resolver::new(0);
    for record in records(event) {
        resolver.take(record);
    }
    assert_eq!(resolver.kernel_lost(), &[((0, 0), 3)].into());
    let mut session = resolver.session(&mut Symbolizer::new(Some(kallsyms)), |_| 0);
    session.head = Head {
        version: file::VERSION,
        event: event.name().to_owned(),
        tier: Tier::PmuNmi,
        period: 2_300_000,
        ran_ns: 1_000_000_000,
        cpus: vec![0],
        tsc_hz: 2_300_000_000,
        ..Head::default()
    };
    session.domains = vec![ProfiledDomain {
        name: "driver".to_owned(),
        kind: DomainKind::Driver,
        mode: Mode::Passive,
        cpu_ns: Some(200_000_000),
        agent_ns: None,
        ledger: None,
        traffic: None,
        buffer: None,
        missing: None,
    }];
    session
}

#[test]
fn nmi_samples_need_no_reservations() {
    let folder = tempfile::tempdir().unwrap();
    let kallsyms = folder.path().join("kallsyms");
    std::fs::write(&kallsyms, KALLSYMS).unwrap();
    for event in [
        Event::Cycles,
        Event::Instructions,
        Event::CacheMisses,
        Event::DtlbMisses,
        Event::ItlbMisses,
    ] {
        let session = session(event, kallsyms.clone());
        assert_eq!(session.samples.len(), SAMPLES.iter().sum::<usize>());
        let mut text = Vec::new();
        let (rules, nearest) = (Rules::thesis(), Classing::Nearest);
        show::report(
            &session,
            &rules,
            nearest,
            Form::Text,
            &Listing::first(5),
            &mut text,
        )
        .unwrap();
        let text = String::from_utf8(text).unwrap();
        for part in [
            event.name(),
            "PMU, non-maskable interrupt",
            "tun_get_user",
            "75.0",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for doubt in ["10 points", "no PMU", "refused"] {
            assert!(!text.contains(doubt), "{doubt}: {text}");
        }
    }
}
