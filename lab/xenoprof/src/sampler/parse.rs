//! Parser of the records in the kernel's rings.

use perf_event::data::endian::Native;
use perf_event::data::parse::{ParseConfig, ParseError, Parser};
use perf_event::data::{
    Comm, Exit, Fork, Lost, LostSamples, Mmap2, RecordMetadata, Sample, Throttle, Visitor,
};

/// A record, with the CPU of its ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfRecord {
    /// `CLOCK_MONOTONIC_RAW`, nanoseconds; 0 if the record has no time.
    pub time_ns: u64,
    /// CPU.
    pub cpu: u32,
    /// Event of its ring, by its number among those of the sampler.
    pub event: u32,
    /// Contents.
    pub kind: RecordKind,
}

/// Contents of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A sample.
    Sample {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Addresses, innermost first.
        chain: Box<[Address]>,
    },
    /// A thread changed its name.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Name.
        name: String,
        /// True after an exec, which removes all mappings.
        exec: bool,
    },
    /// Code was mapped.
    Map {
        /// Process.
        pid: u32,
        /// Start address.
        start: u64,
        /// Length, bytes.
        len: u64,
        /// Offset in the file.
        offset: u64,
        /// File.
        path: String,
    },
    /// A thread was created, possibly with a new process.
    Fork {
        /// Process.
        pid: u32,
        /// Parent process.
        parent: u32,
        /// Thread.
        tid: u32,
    },
    /// A thread exited.
    Exit {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
    },
    /// Number of records that did not fit into the ring.
    Lost(u64),
    /// The kernel stops sampling a CPU, because interrupts come too often, or resumes it.
    Throttle {
        /// True if it stops.
        stops: bool,
    },
}

/// A code address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// In the kernel.
    Kernel(u64),
    /// In user space.
    User(u64),
}

/// Result of parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A record.
    Record(PerfRecord),
    /// An unused record, such as a data mapping.
    Uninteresting,
}

/// Parses the bytes of one record, without its header, from the ring of a CPU and an event.
///
/// # Errors
/// Returns an error if the bytes are truncated or inconsistent.
pub fn parse(
    (cpu, event): (u32, u32),
    kind: u32,
    misc: u16,
    body: &[u8],
    config: &ParseConfig<Native>,
) -> Result<Parsed, ParseError> {
    const HEADER_BYTES: usize = 8;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    let size = (HEADER_BYTES + body.len()) as u16;
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&misc.to_ne_bytes());
    bytes.extend_from_slice(&size.to_ne_bytes());
    bytes.extend_from_slice(body);
    Parser::new(bytes.as_slice(), config.clone()).parse_record(Reader { cpu, event })
}

struct Reader {
    cpu: u32,
    event: u32,
}

impl Reader {
    fn done(&self, metadata: &RecordMetadata, kind: RecordKind) -> Parsed {
        Parsed::Record(PerfRecord {
            time_ns: metadata.sample_id().time().unwrap_or(0),
            cpu: self.cpu,
            event: self.event,
            kind,
        })
    }

    fn throttle(&self, throttle: &Throttle, metadata: &RecordMetadata, stops: bool) -> Parsed {
        // If the record has a trailer, the record's time is from another clock than the trailer's.
        let time_ns = metadata.sample_id().time().unwrap_or(throttle.time);
        Parsed::Record(PerfRecord {
            time_ns,
            cpu: self.cpu,
            event: self.event,
            kind: RecordKind::Throttle { stops },
        })
    }
}

/// `PERF_RECORD_MISC_COMM_EXEC`: the name changed because of an exec.
const COMM_EXEC: u16 = 1 << 13;

impl<'a> Visitor<'a> for Reader {
    type Output = Parsed;

    fn visit_unimplemented(self, _: RecordMetadata) -> Parsed {
        Parsed::Uninteresting
    }

    fn visit_sample(self, sample: Sample<'a>, _: RecordMetadata) -> Parsed {
        Parsed::Record(PerfRecord {
            time_ns: sample.time().unwrap_or(0),
            cpu: sample.cpu().unwrap_or(self.cpu),
            event: self.event,
            kind: RecordKind::Sample {
                pid: sample.pid().unwrap_or(0),
                tid: sample.tid().unwrap_or(0),
                chain: chain(sample.callchain().unwrap_or_default()),
            },
        })
    }

    fn visit_comm(self, comm: Comm<'a>, metadata: RecordMetadata) -> Parsed {
        let kind = RecordKind::Comm {
            pid: comm.pid,
            tid: comm.tid,
            name: text(&comm.comm),
            exec: metadata.misc() & COMM_EXEC != 0,
        };
        self.done(&metadata, kind)
    }

    fn visit_mmap2(self, map: Mmap2<'a>, metadata: RecordMetadata) -> Parsed {
        let kind = RecordKind::Map {
            pid: map.pid,
            start: map.addr,
            len: map.len,
            offset: map.pgoff,
            path: text(&map.filename),
        };
        self.done(&metadata, kind)
    }

    fn visit_fork(self, fork: Fork, metadata: RecordMetadata) -> Parsed {
        let kind = RecordKind::Fork {
            pid: fork.pid,
            parent: fork.ppid,
            tid: fork.tid,
        };
        self.done(&metadata, kind)
    }

    fn visit_exit(self, exit: Exit, metadata: RecordMetadata) -> Parsed {
        let kind = RecordKind::Exit {
            pid: exit.pid,
            tid: exit.tid,
        };
        self.done(&metadata, kind)
    }

    fn visit_lost(self, lost: Lost, metadata: RecordMetadata) -> Parsed {
        self.done(&metadata, RecordKind::Lost(lost.lost))
    }

    fn visit_lost_samples(self, lost: LostSamples, metadata: RecordMetadata) -> Parsed {
        self.done(&metadata, RecordKind::Lost(lost.lost))
    }

    fn visit_throttle(self, throttle: Throttle, metadata: RecordMetadata) -> Parsed {
        self.throttle(&throttle, &metadata, true)
    }

    fn visit_unthrottle(self, throttle: Throttle, metadata: RecordMetadata) -> Parsed {
        self.throttle(&throttle, &metadata, false)
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// `PERF_CONTEXT_MAX`: this value and all higher ones mark the kind of the addresses that follow in
/// a chain.
const CONTEXT_MAX: u64 = -4095i64 as u64;
const CONTEXT_KERNEL: u64 = -128i64 as u64;
const CONTEXT_GUEST_KERNEL: u64 = -2176i64 as u64;

fn chain(raw: &[u64]) -> Box<[Address]> {
    let mut kernel = false;
    let mut chain = Vec::with_capacity(raw.len());
    for &value in raw {
        if value >= CONTEXT_MAX {
            kernel = matches!(value, CONTEXT_KERNEL | CONTEXT_GUEST_KERNEL);
        } else if kernel {
            chain.push(Address::Kernel(value));
        } else {
            chain.push(Address::User(value));
        }
    }
    chain.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use perf_event::{Builder, SampleFlag};
    use proptest::prelude::*;

    /// Returns the configuration that `sampler::ring` uses.
    fn config(builder: &mut Builder<'_>) -> ParseConfig<Native> {
        let attr = *builder
            .sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU | SampleFlag::CALLCHAIN)
            .sample_id_all(true)
            .attrs();
        ParseConfig::from(attr)
    }

    fn clock() -> ParseConfig<Native> {
        config(&mut Event::CpuClock.builder())
    }

    fn words(parts: &[u64]) -> Vec<u8> {
        parts.iter().flat_map(|part| part.to_le_bytes()).collect()
    }

    fn packed(low: u32, high: u32) -> u64 {
        u64::from(high) << 32 | u64::from(low)
    }

    fn record(kind: u32, misc: u16, body: &[u8]) -> PerfRecord {
        match parse((1, 0), kind, misc, body, &clock()) {
            Ok(Parsed::Record(record)) => record,
            other => panic!("{other:?}"),
        }
    }

    /// A timer sample in the middle of a system call, as written by Linux 6.18.
    #[test]
    fn timer_samples_are_parsed() {
        let body = words(&[
            packed(6605, 6605),
            0x0000_0b2c_7f21_0a11,
            packed(1, 0),
            6,
            CONTEXT_KERNEL,
            0xffff_ffff_81db_4320,
            0xffff_ffff_81e6_6590,
            -512i64 as u64,
            0x5555_5557_0b7c,
            0x5555_5557_1000,
        ]);
        let record = record(9, 1, &body);
        assert_eq!((record.time_ns, record.cpu), (0x0b2c_7f21_0a11, 1));
        let RecordKind::Sample { pid, tid, chain } = record.kind else {
            panic!("{record:?}")
        };
        assert_eq!((pid, tid), (6605, 6605));
        assert_eq!(
            *chain,
            [
                Address::Kernel(0xffff_ffff_81db_4320),
                Address::Kernel(0xffff_ffff_81e6_6590),
                Address::User(0x5555_5557_0b7c),
                Address::User(0x5555_5557_1000),
            ]
        );
    }

    /// A sample of a PMU counter that overflowed inside a guest has the same format, with another
    /// event, an exact address (misc bit 14) and a guest's context.
    #[test]
    fn pmu_samples_are_parsed() {
        for event in [Event::Cycles, Event::DtlbMisses, Event::ItlbMisses] {
            let config = config(&mut event.builder());
            let body = words(&[
                packed(7, 8),
                99,
                packed(3, 0),
                4,
                CONTEXT_GUEST_KERNEL,
                0xffff_ffff_8100_0000,
                -2560i64 as u64,
                0x40_0000,
            ]);
            let parsed = parse((0, 2), 9, 4 | 1 << 14, &body, &config).unwrap();
            let expected = PerfRecord {
                time_ns: 99,
                cpu: 3,
                event: 2,
                kind: RecordKind::Sample {
                    pid: 7,
                    tid: 8,
                    chain: [
                        Address::Kernel(0xffff_ffff_8100_0000),
                        Address::User(0x40_0000),
                    ]
                    .into(),
                },
            };
            assert_eq!(parsed, Parsed::Record(expected), "{}", event.name());
        }
    }

    /// Returns the trailer that `sample_id_all` adds: thread, time, CPU.
    fn trailer(body: &[u8]) -> Vec<u8> {
        let mut bytes = body.to_vec();
        bytes.extend(words(&[packed(5, 6), 77, packed(1, 0)]));
        bytes
    }

    #[test]
    fn side_band_records_are_parsed() {
        let comm = trailer(&[&words(&[packed(5, 6)])[..], b"driver\0\0"].concat());
        assert_eq!(
            record(3, COMM_EXEC, &comm),
            PerfRecord {
                time_ns: 77,
                cpu: 1,
                event: 0,
                kind: RecordKind::Comm {
                    pid: 5,
                    tid: 6,
                    name: "driver".to_owned(),
                    exec: true
                },
            }
        );
        let map = [
            words(&[packed(5, 6), 0x1000, 0x2000, 0x3000]),
            words(&[packed(8, 1), 42, 0, packed(5, 2)]),
            b"/bin/driver\0\0\0\0\0".to_vec(),
        ];
        assert_eq!(
            record(10, 2, &trailer(&map.concat())).kind,
            RecordKind::Map {
                pid: 5,
                start: 0x1000,
                len: 0x2000,
                offset: 0x3000,
                path: "/bin/driver".to_owned()
            }
        );
        let task = trailer(&words(&[packed(9, 5), packed(10, 6), 70]));
        assert_eq!(
            record(7, 0, &task).kind,
            RecordKind::Fork {
                pid: 9,
                parent: 5,
                tid: 10
            }
        );
        assert_eq!(
            record(4, 0, &task).kind,
            RecordKind::Exit { pid: 9, tid: 10 }
        );
        let lost = trailer(&words(&[3, 12]));
        assert_eq!(record(2, 0, &lost).kind, RecordKind::Lost(12));
        let throttle = trailer(&words(&[1, 2, 3]));
        let stops = |kind| record(kind, 0, &throttle).kind;
        assert_eq!(stops(5), RecordKind::Throttle { stops: true });
        assert_eq!(stops(6), RecordKind::Throttle { stops: false });
        assert_eq!(record(5, 0, &throttle).time_ns, 77);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_parse_or_fail(
            kind in 0u32..24,
            misc in any::<u16>(),
            body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let _either = parse((0, 0), kind, misc, &body, &clock());
        }
    }
}
