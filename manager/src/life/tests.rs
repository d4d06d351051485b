use super::*;

mod model;

#[test]
fn an_outage_counts_in_the_class_that_bounds_it() {
    let class = |took_ns| {
        let mut known = Restarts::default();
        note_outage(&mut known, took_ns);
        assert_eq!(known.outages_ns, took_ns);
        known.outages.iter().position(|count| *count == 1)
    };
    for (ns, expected) in [
        (0, 0),
        (1_000_000, 0),
        (1_000_001, 1),
        (2_000_000, 1),
        (10_600_000, 4),
        (16_384_000_000, 14),
        (16_384_000_001, 15),
        (u64::MAX, 15),
    ] {
        assert_eq!(class(ns), Some(expected), "{ns}");
    }
}

#[test]
fn a_resumed_domain_that_runs_is_settled() {
    let resumed = |stage| Life::resume(0, Some(10), Restarts::default(), Some(stage), 7);
    let mut life = resumed(Stage::Running);
    assert!(life.is_settled());
    life.restart("asked for");
    assert!(!life.is_settled());
    assert!(!resumed(Stage::Gone).is_settled(), "it is to be started");
}

#[test]
fn pauses_double_up_to_their_limit() {
    let ms = |in_a_row| pause_ns(in_a_row, 5_000_000_000) / 1_000_000;
    let all: Vec<u64> = (0..12).map(ms).collect();
    let expected = [0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000];
    assert_eq!(all, expected);
    assert_eq!(ms(u32::MAX), 5000);
    assert_eq!(pause_ns(9, 0), 0);
}

/// The kernel may still remove an interface when a guest with one of its name is attached.
#[test]
fn a_first_start_waits_for_a_busy_device() {
    let refusal = |is_busy| CoreError {
        why: "it exists".into(),
        is_busy,
    };
    let busy = || ((2, 0), refusal(true));
    let mut life = Life::new(2, Some(10), 7);
    life.opened(vec![busy()], 7);
    assert!(matches!(&life.devices, Devices::Busy(all) if *all == [(2, 0)]));
    life.opened(vec![busy()], 6 + REMOVAL_NS);
    assert!(matches!(&life.devices, Devices::Busy(_)));
    let failed = |refusal| vec![Event::Failed(Some(refusal))];
    assert_eq!(
        life.opened(vec![busy()], 7 + REMOVAL_NS),
        failed(refusal(true))
    );
    // The reason that is final is the one reported.
    let both = vec![busy(), ((2, 1), refusal(false))];
    assert_eq!(
        Life::new(2, None, 7).opened(both, 8),
        failed(refusal(false))
    );
}
