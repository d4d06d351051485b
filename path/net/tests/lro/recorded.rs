//! Real TCP, recorded on TAPs between two network namespaces: losses with retransmissions (IPv4),
//! reordering with SACKs (IPv6), and neither (IPv6). LR-2, LR-20.

use crate::common::frame_of;
use crate::rig::{by_flow, wide, wire};
use net::lro::{AggregateForm, Flush, Lro, Reason, Settings};
use nic::pcap::FrameReader;

fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/tests/data/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let mut reader = FrameReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(record) = reader.peek().unwrap() {
        assert!(record.complete);
        frames.push(reader.bytes().to_vec());
        reader.advance();
    }
    frames
}

/// Plays a recording with `batch` packets per poll. Checks that segmentation restores the
/// recording.
fn play(name: &str, settings: Settings, batch: usize) -> Lro {
    let recorded = frames(name);
    let mut lro = Lro::new(settings, 11);
    let mut out = Vec::new();
    for (n, packets) in (0..).zip(recorded.chunks(batch)) {
        let mut frames = packets.iter().map(|bytes| frame_of(bytes, &[])).collect();
        lro.poll(n * 10_000, &mut frames, &mut out);
    }
    lro.drain(1_000_000_000, &mut out);
    assert_eq!(by_flow(&recorded), by_flow(&wire(&out)), "{name}");
    let counters = lro.counters();
    assert_eq!(counters.bad_checksums, 0);
    assert_eq!(counters.segments, counters.aggregates + counters.merged);
    lro
}

#[test]
fn recordings_are_reversible() {
    let flushes = [
        Flush::Poll,
        Flush::Polls(2),
        Flush::After { us: 30 },
        Flush::Adaptive,
    ];
    for name in ["v4-loss", "v6-reorder", "v6"] {
        for flush in flushes {
            for form in [AggregateForm::Skb, AggregateForm::Page] {
                for batch in [1, 3, 16, 1000] {
                    let settings = Settings {
                        flush,
                        form,
                        ..wide()
                    };
                    play(name, settings, batch);
                }
            }
        }
    }
}

#[test]
fn recordings_contain_their_cases() {
    let loss = play("v4-loss", wide(), 1000);
    assert!(loss.counters().flushed(Reason::Sequence) > 0);
    let reorder = play("v6-reorder", wide(), 1000);
    assert!(reorder.counters().flushed(Reason::Sequence) > 0);
    let plain = play("v6", wide(), 1000);
    assert_eq!(plain.counters().flushed(Reason::Sequence), 0);
    for lro in [loss, reorder, plain] {
        assert!(lro.counters().merged > 0);
    }
}
