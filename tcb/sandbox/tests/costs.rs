//! Prints the cost of starts and mappings on this machine: `cargo test --release -p sandbox --test
//! costs -- --ignored --nocapture`.

mod common;

use abi::Slot;
use common::{GUEST, TestDomain, serialize};
use sandbox::PageMap;
use std::time::{Duration, Instant};

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

#[test]
#[ignore = "is a measurement"]
fn start_and_mapping_costs_are_bounded() {
    let Some(_guard) = serialize() else { return };
    let ready = |_| {
        let began = Instant::now();
        let mut target = TestDomain::new();
        let started = began.elapsed();
        assert_eq!(target.execute(0, &[]), Some(Ok(u64::MAX)));
        (started, began.elapsed())
    };
    let (started, ready): (Vec<_>, Vec<_>) = (0..50).map(ready).unzip();
    println!(
        "start: spawn returned {:?}, program answers {:?}",
        median(started),
        median(ready)
    );
    for (kind, cpus) in [
        ("domain on any CPU", &[][..]),
        ("domain on CPU 0", &[0]),
        ("domain on the last CPU", &[1]),
    ] {
        let mut target = TestDomain::on(cpus);
        let agent = &mut target.domain.agent;
        for (pages, stride) in [(1, 1), (16, 1), (64, 1), (256, 1), (64, 2)] {
            let maps: Vec<_> = (0..pages)
                .map(|n| PageMap {
                    slot: Slot(n * stride),
                    memory: GUEST,
                    frame: n * stride,
                    writable: true,
                })
                .collect();
            let slots: Vec<_> = maps.iter().map(|map| map.slot).collect();
            let (mut mapped, mut unmapped) = (Vec::new(), Vec::new());
            for _ in 0..2000 {
                let began = Instant::now();
                agent.map(&maps).expect("mapped");
                let half = Instant::now();
                agent.unmap(&slots).expect("unmapped");
                mapped.push(half - began);
                unmapped.push(half.elapsed());
            }
            println!(
                "{kind}: {pages} pages {}: map {:?}, unmap {:?}",
                if stride == 1 { "adjacent" } else { "scattered" },
                median(mapped),
                median(unmapped)
            );
        }
    }
}
