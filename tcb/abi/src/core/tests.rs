//! Any bytes decode to a record or an error, and a record has one encoding.

use super::*;
use crate::machine::{Audit, ConnectionStatus, DomainAudit, DomainReport, GrantInUse, Program};
use crate::{DomId, XenbusState};
use proptest::prelude::*;

/// Returns every kind of message, with fields that use all their words.
fn core_requests() -> Vec<CoreRequest> {
    let (domain, dev) = (DomId(0xfedc), u32::MAX);
    let why = || Text::truncated(&"ü".repeat(64));
    vec![
        CoreRequest::Create {
            domain: NewDomain {
                replaces: Some(domain),
                name: why(),
                program: Program::Driver,
                frames: 1,
                grant_entries: 2,
                window_slots: 3,
                collateral: 4,
                weight: 6,
                devices: 5,
                cpus: [u64::MAX; CPU_WORDS],
                tsc_hz: 0,
                foreign_pages: 0,
            },
        },
        CoreRequest::Open { dev },
        CoreRequest::Close { dev },
        CoreRequest::GiveDevice {
            domain,
            dev,
            place: 1,
            controls: true,
        },
        CoreRequest::GiveSocket {
            socket: NewSocket {
                domain,
                on: dev,
                frames_owner: Some(domain),
                first_frame: 1,
                frames: 2,
                chunk_bytes: 3,
                entries: 4,
                rings_slot: 5,
                is_pci: true,
            },
        },
        CoreRequest::SkipDevice { domain },
        CoreRequest::Connect {
            backend: domain,
            frontend: domain,
            handle: u16::MAX,
        },
        CoreRequest::Start { domain },
        CoreRequest::Abandon { domain, why: why() },
        CoreRequest::Kill { domain, why: why() },
        CoreRequest::NotifyMailbox { domain },
        CoreRequest::KeepDescriptors {},
        CoreRequest::Status {},
        CoreRequest::Audit {},
        CoreRequest::KeepStateFile {},
        CoreRequest::End { failed: true },
        CoreRequest::Forget { domain },
    ]
}

#[test]
fn every_message_survives_encoding() {
    for (number, message) in (0..).zip(core_requests()) {
        let record = Record {
            token: u32::MAX - number,
            message,
        };
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
    let life = CoreMessage::StageChanged {
        domain: DomId(3),
        stage: Stage::TornDown,
        text: Text::truncated("killed"),
    };
    let bound = NetdReply::Bound {
        rings: [RingExtent { page: 7, pages: 9 }; 4],
        is_reusable: true,
    };
    let control = NetdRequest::Control {
        dev: 3,
        words: [u64::MAX, 1],
    };
    let (token, message) = (0, life);
    let record = Record { token, message };
    assert_eq!(Record::decode(&record.encode()), Ok(record));
    let (token, message) = (1, bound);
    let record = Record { token, message };
    assert_eq!(Record::decode(&record.encode()), Ok(record));
    let (token, message) = (2, control);
    let record = Record { token, message };
    assert_eq!(Record::decode(&record.encode()), Ok(record));
    let dev = u32::MAX;
    for is_removed in [false, true] {
        let (token, message) = (0, CoreMessage::DeviceLost { dev, is_removed });
        let record = Record { token, message };
        assert_eq!(Record::decode(&record.encode()), Ok(record));
        let (token, message) = (0, NetdReply::Lost { dev, is_removed });
        let record = Record { token, message };
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
}

#[test]
fn malformed_records_are_named_errors() {
    let good = Record {
        token: 1,
        message: CoreRequest::Open { dev: 1 },
    }
    .encode();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        Record::<CoreRequest>::decode(&bytes)
    };
    assert_eq!(
        Record::<CoreRequest>::decode(&good[1..]),
        Err(Malformed::Size(BYTES - 1))
    );
    assert_eq!(Record::<CoreRequest>::decode(&[]), Err(Malformed::Size(0)));
    assert_eq!(changed(4, 9), Err(Malformed::Version(9)));
    assert_eq!(changed(0, 99), Err(Malformed::Kind(99)));
    assert_eq!(changed(12, 1), Err(Malformed::Field(2)), "the token");
    assert_eq!(changed(20, 1), Err(Malformed::Field(3)), "more than u32");
    assert_eq!(changed(BYTES - 1, 1), Err(Malformed::TrailingBytes));
}

#[test]
fn a_text_is_cut_between_characters() {
    let long = "ü".repeat(100);
    assert_eq!(Text::truncated(&long).as_str(), "ü".repeat(TEXT_MAX / 2));
    let odd = format!("x{long}");
    assert_eq!(Text::truncated(&odd).as_str().len(), TEXT_MAX - 1);
}

fn audit() -> Audit {
    let grant = GrantInUse {
        gref: 1,
        frame: 2,
        by: "driver".into(),
        mappings: 3,
        writable: true,
    };
    Audit {
        domains: vec![DomainAudit {
            name: "g0".into(),
            alive: true,
            lingers: false,
            owned: 1,
            granted: 2,
            mapped: 3,
            collateral_used: 4,
            in_use: vec![grant.clone(), grant],
        }],
        leaked: 1,
        created: 2,
        revoked: 3,
        forced: 4,
    }
}

fn status() -> CoreStatus {
    CoreStatus {
        cpu_ns: 1,
        netd_cpu_ns: 2,
        missing: vec!["a separate user id".into()],
        domains: vec![DomainReport {
            name: "driver".into(),
            id: 1,
            program: Program::Driver,
            state: "running".into(),
            alive: true,
            pid: -1,
            agent_pid: 7,
            cpu_ns: 1,
            agent_cpu_ns: 2,
            worker_cpu_ns: 3,
            hypercalls: 4,
            operations: 5,
            system_calls: 6,
        }],
        connections: vec![ConnectionStatus {
            backend: "driver".into(),
            frontend: "g0".into(),
            handle: 3,
            backend_state: XenbusState::Connected,
            frontend_state: XenbusState::Closing,
        }],
    }
}

#[test]
fn reports_survive_encoding_unless_truncated() {
    let (status, audit) = (status(), audit());
    let bytes = encode_report(&status);
    assert_eq!(decode_report(&bytes), Some(status));
    assert!((0..bytes.len()).all(|len| decode_report::<CoreStatus>(&bytes[..len]).is_none()));
    let bytes = encode_report(&audit);
    assert_eq!(decode_report(&bytes), Some(audit));
    assert!((0..bytes.len()).all(|len| decode_report::<Audit>(&bytes[..len]).is_none()));
}

/// Words as a hostile helper might send them: small ones more often, so that they form valid
/// fields.
fn words() -> impl Strategy<Value = Vec<u64>> {
    let word = prop_oneof![8 => Just(0u64), 8 => 0..40u64, 1 => any::<u64>()];
    proptest::collection::vec(word, WORDS)
}

fn canonical<M: Message>(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(record) = Record::<M>::decode(bytes) {
        let again = record.encode();
        prop_assert_eq!(again.as_slice(), bytes);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 4096,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_are_one_record_or_an_error(mut words in words(), kind in 0..20u64) {
        words[0] = u64::from(VERSION) << 32 | kind;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        canonical::<CoreRequest>(&bytes)?;
        canonical::<CoreMessage>(&bytes)?;
        canonical::<NetdRequest>(&bytes)?;
        canonical::<NetdReply>(&bytes)?;
    }

    #[test]
    fn any_bytes_are_one_report_or_an_error(
        bytes in proptest::collection::vec(prop_oneof![4 => Just(0u8), 1 => any::<u8>()], 0..400),
    ) {
        if let Some(status) = decode_report::<CoreStatus>(&bytes) {
            prop_assert_eq!(encode_report(&status), bytes.clone());
        }
        if let Some(audit) = decode_report::<Audit>(&bytes) {
            prop_assert_eq!(encode_report(&audit), bytes);
        }
    }
}
