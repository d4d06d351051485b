//! Tests accounts of known work.

use super::*;

fn burn(cycles: u64) {
    let from = tsc();
    while tsc().wrapping_sub(from) < cycles {
        std::hint::spin_loop();
    }
}

/// Works for `cycles` of the thread's CPU clock, which stops while other tasks have the CPU.
fn work(ledger: &Ledger, cycles: u64) {
    let from = thread_cpu_ns();
    while ledger.to_cycles(thread_cpu_ns() - from) < cycles {}
}

fn cycles(report: &Value, hop: &str) -> u64 {
    report["hops"][hop]["cycles"].as_u64().expect("a number")
}

#[test]
fn cycles_are_charged_to_the_earlier_hop() {
    let run = |_| {
        let ledger = Ledger::new(true);
        ledger.enter(Hop::Bridge);
        ledger.charge_to(Hop::Copy, || work(&ledger, 3_000_000));
        work(&ledger, 1_000_000);
        ledger.report()
    };
    // A preemption would change the result, so use a run without one. Another test covers
    // preemptions.
    let in_one_go = |report: &Value| report["corrected_cycles"].as_u64() < Some(200_000);
    let report = (0..1000).map(run).find(in_one_go).expect("one run");
    assert!(cycles(&report, "copy") >= 2_000_000, "{report}");
    assert!(cycles(&report, "bridge") >= 500_000, "{report}");
    assert!(cycles(&report, "nic") == 0, "{report}");
}

#[test]
fn sleep_is_not_charged() {
    let ledger = Ledger::new(true);
    ledger.sleep(|| std::thread::sleep(std::time::Duration::from_millis(50)));
    let report = ledger.report();
    assert!(cycles(&report, "idle") < ledger.hz / 100, "{report}");
    // The ledger reads the clock twice for the sleep and once for the report.
    assert_eq!(report["clock_reads"], 3, "{report}");
}

#[test]
fn many_short_sleeps_read_the_clock_rarely() {
    const SLEEPS: u64 = 2000;
    let ledger = Ledger::new(true);
    for _ in 0..SLEEPS {
        ledger.sleep(|| std::hint::black_box(()));
    }
    let report = ledger.report();
    let reads = report["clock_reads"].as_u64().expect("a number");
    assert!(reads < SLEEPS, "{report}");
}

#[test]
fn preemption_and_sleep_in_a_stretch_differ() {
    let long = || {
        let from = tsc();
        std::thread::sleep(std::time::Duration::from_millis(30));
        tsc().wrapping_sub(from)
    };
    let run = |_| {
        let ledger = Ledger::new(true);
        // The ledger now knows the cost of a sleep, and has begun a new stretch.
        ledger.sleep(|| ());
        ledger.enter(Hop::Copy);
        let asleep = ledger.sleep(long);
        // Simulates a preemption: the thread does not run, and the ledger does not know.
        let away = long();
        let report = ledger.report();
        assert!(cycles(&report, "copy") < ledger.hz / 100, "{report}");
        assert!(cycles(&report, "idle") < ledger.hz / 100, "{report}");
        let corrected = report["corrected_cycles"].as_u64().expect("a number");
        let expected = away / 2..away + asleep / 2;
        println!("{expected:?} {report}");
        expected.contains(&corrected)
    };
    // On a busy system, real preemptions may be added to the simulated one.
    assert!((0..20).any(run), "sleeps count as preemptions");
}

#[test]
fn expensive_stamps_are_sampled() {
    const HOPS: u64 = 12;
    let ledger = Ledger::new(true);
    let end_ns = thread_cpu_ns() + 200_000_000;
    while thread_cpu_ns() < end_ns {
        for _ in 0..100 {
            ledger.begin_turn();
            for _ in 0..HOPS / 2 {
                ledger.charge_to(Hop::Bridge, || burn(50));
                ledger.charge_to(Hop::Copy, || burn(400));
            }
            ledger.checkpoint();
        }
    }
    let report = ledger.report();
    let number = |key: &str| report[key].as_u64().expect("a number");
    // After a turn in which other tasks take the CPU, the turn seems long, and stamps seem cheap
    // for a while.
    if number("corrected_cycles") < ledger.hz / 100 {
        let stamps = number("stamps");
        assert!(
            stamps < number("turns") * HOPS,
            "at most half of all turns are stamped: {report}"
        );
    }
    let (bridge, copy) = (cycles(&report, "bridge"), cycles(&report, "copy"));
    assert!(bridge > 0 && copy > 2 * bridge, "{report}");
    // The distribution does not change the sum.
    let hops = report["hops"].as_object().expect("hops");
    let charged: u64 = hops.values().filter_map(|hop| hop["cycles"].as_u64()).sum();
    let used = ledger.to_cycles(number("cpu_ns"));
    assert!(charged.abs_diff(used) < used / 4, "{used} {report}");
    // From here on stamps are cheap.
    for _ in 0..64 {
        ledger.begin_turn();
        ledger.charge_to(Hop::Copy, || burn(ledger.hz / 1000));
        ledger.checkpoint();
    }
    assert_eq!((ledger.sampling.every(), ledger.stamped.get()), (1, true));
}

#[test]
fn ledger_reports_its_own_cost() {
    let report = Ledger::new(true).report();
    for part in ["stamp", "clock_read"] {
        let ns = report["cost_ns"][part].as_f64().expect("a number");
        assert!(ns > 0.5, "{report}");
    }
}

#[test]
fn time_without_the_cpu_is_taken_from_the_longest_hop() {
    let ledger = Ledger::new(true);
    ledger.enter(Hop::Nic);
    burn(100_000);
    ledger.enter(Hop::Copy);
    // Simulates a preemption: the thread does not run, and the ledger does not know.
    std::thread::sleep(std::time::Duration::from_millis(30));
    ledger.enter(Hop::Nic);
    let report = ledger.report();
    assert!(cycles(&report, "copy") < ledger.hz / 100, "{report}");
    assert!(report["corrected_cycles"].as_u64().expect("a number") > ledger.hz / 50);
}

/// Returns the closure of a ledger: the sum of its hops ÷ the time of the CPU clock.
fn closure() -> f64 {
    let before = thread_cpu_ns();
    let ledger = Ledger::new(true);
    for _ in 0..200 {
        ledger.charge_to(Hop::Bridge, || burn(20_000));
        ledger.sleep(|| std::thread::sleep(std::time::Duration::from_micros(100)));
    }
    let report = ledger.report();
    let sum: u64 = Hop::NAMES.iter().map(|name| cycles(&report, name)).sum();
    let cpu = report["cpu_ns"].as_u64().expect("a number") - before;
    sum as f64 / (cpu as f64 * ledger.hz as f64 / 1e9)
}

/// The ledger measures the cost of a sleep, which varies when other tasks run. So one of several
/// accounts must have a closure near 1, and no account a closure far from 1.
#[test]
fn the_account_closes_against_the_cpu_clock() {
    let closes = |closure: &f64| {
        assert!((0.5..1.5).contains(closure), "{closure}");
        (0.95..=1.05).contains(closure)
    };
    let mut all = (0..300).map(|_| closure());
    assert!(all.any(|closure| closes(&closure)), "none closes");
}
