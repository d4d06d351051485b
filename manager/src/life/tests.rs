use super::*;
use std::collections::BTreeMap;

mod model;

#[test]
fn an_outage_counts_in_the_class_that_bounds_it() {
    let class = |took_ns| {
        let mut known = Restarts::default();
        count_outage(&mut known, took_ns);
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
    let resumed = |stage| Lifecycle::resume(0, Some(10), Restarts::default(), Some(stage), 7);
    let mut life = resumed(Stage::Running);
    assert!(life.is_settled());
    life.restart("requested");
    assert!(!life.is_settled());
    assert!(!resumed(Stage::TornDown).is_settled(), "it must be started");
}

/// netd may take long to open the devices of a change of NICs.
#[test]
fn a_domain_that_exits_does_not_wait_for_further_devices() {
    let stage = Some(Stage::Running);
    let mut life = Lifecycle::resume(0, Some(10), Restarts::default(), stage, 0);
    life.begin_refit(vec![(0, 0)]);
    let workers = BTreeMap::new();
    let view = DomainView {
        id: Some(DomId(1)),
        stage: Some(Stage::TornDown),
        is_connected: false,
        devices: 1,
        ready: StartStage::Given,
        workers: &workers,
    };
    let opening = PendingOpen::of_token((0, 0), 1);
    life.devices = NeededDevices::Opening(vec![opening], Vec::new());
    assert_eq!(life.observe(&view, 1), [DomainEvent::Failed(None)]);
    life.end_refit();
    assert!(life.observe(&view, 1).is_empty());
    assert_eq!(step(&life, &view, 1), LifeStep::Do(LifeAction::Open));
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

#[test]
fn starts_that_never_succeed_back_off_to_seconds() {
    let mut life = Lifecycle::resume(0, Some(20), Restarts::default(), Some(Stage::TornDown), 0);
    let pause_ms = |life: &Lifecycle| match life.phase {
        LifePhase::Down { start_ns, .. } => start_ns / 1_000_000,
        _ => panic!("the domain is not down: {life:?}"),
    };
    let mut failed = |_| {
        life.failed("No such file".to_owned().into(), 0);
        pause_ms(&life)
    };
    let pauses: Vec<u64> = (0..14).map(&mut failed).collect();
    let expected = [
        0, 10, 20, 20, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000,
    ];
    assert_eq!(pauses, expected);
    // The domain's limit applies again after a process was ready.
    let workers = BTreeMap::new();
    let mut view = DomainView {
        id: Some(DomId(1)),
        stage: Some(Stage::Running),
        is_connected: true,
        devices: 0,
        ready: StartStage::Given,
        workers: &workers,
    };
    let mut pause_after_run_of = |run_ns| {
        view.stage = Some(Stage::Running);
        life.started(0);
        life.observe(&view, 0);
        view.stage = Some(Stage::TornDown);
        life.observe(&view, run_ns);
        pause_ms(&life) - run_ns / 1_000_000
    };
    assert_eq!(pause_after_run_of(0), 20);
    // The first restart after a healthy run has no pause.
    assert_eq!(pause_after_run_of(STEADY_NS), 0);
}

/// The kernel may still be removing an interface when a guest with an interface of the same name is
/// attached.
#[test]
fn a_first_start_waits_for_a_busy_device() {
    let refusal = |is_busy| CoreError {
        why: "it exists".into(),
        is_busy,
    };
    let busy = || ((2, 0), refusal(true));
    let mut life = Lifecycle::new(2, Some(10), 7);
    life.opened(vec![busy()], 7);
    assert!(matches!(&life.devices, NeededDevices::Busy(all) if *all == [(2, 0)]));
    life.opened(vec![busy()], 6 + REMOVAL_NS);
    assert!(matches!(&life.devices, NeededDevices::Busy(_)));
    let failed = |refusal| vec![DomainEvent::Failed(Some(refusal))];
    assert_eq!(
        life.opened(vec![busy()], 7 + REMOVAL_NS),
        failed(refusal(true))
    );
    // The permanent refusal is reported, not the temporary one.
    let both = vec![busy(), ((2, 1), refusal(false))];
    assert_eq!(
        Lifecycle::new(2, None, 7).opened(both, 8),
        failed(refusal(false))
    );
}
