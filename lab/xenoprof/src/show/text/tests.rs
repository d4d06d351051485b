use super::*;
use crate::attribute::rules::Rules;
use crate::testing::{session, with_an_absent_domain, with_page_faults};

fn text(session: &Session) -> String {
    let found = Attribution::new(session, &Rules::thesis(), Classing::Nearest);
    report(session, &found, Classing::Nearest, &Listing::first(5))
}

#[test]
fn a_report_names_its_instruments() {
    let text = text(&session());
    for expected in [
        "no PMU: cpu-clock",
        "less than 10 points",
        "driver",
        "shmem::engine::copy",
        "tcp_v4_rcv",
        "guest: refused: 0 samples",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() < 150),
        "{text}"
    );
}

#[test]
fn another_event_has_its_samples_and_no_time() {
    let both = with_page_faults();
    let mut out = Vec::new();
    let (rules, listing) = (Rules::thesis(), Listing::first(5));
    let (form, nearest) = (crate::show::report::Form::Text, Classing::Nearest);
    crate::show::report(&both, &rules, nearest, form, &listing, &mut out).unwrap();
    let all = String::from_utf8(out).unwrap();
    let (first, second) = all.split_at(all.find("\npage-faults · every 2").unwrap());
    assert_eq!(first, text(&session()), "the other event changes nothing");
    for part in [
        "120 samples\nsoftware event: sampled where it happens\n",
        "Classes, % of each domain's page-faults",
        "Ran in, and on behalf of: % of all page-faults",
        "CPU 0: 7.7 % of the samples are missing",
    ] {
        assert!(second.contains(part), "{part}: {second}");
    }
    let row = |name: &str| {
        let mut lines = second.lines().map(str::split_whitespace);
        lines
            .find(|cells| cells.clone().next() == Some(name))
            .unwrap()
            .collect::<Vec<_>>()
    };
    assert_eq!(row("driver")[..3], ["driver", "240", "120"], "{second}");
    assert_eq!(
        row("shmem::engine::copy"),
        ["shmem::engine::copy", "driver", "75.0"]
    );
    for time in ["CPU ms", "Hop ledger", "raw/exact", "10 points", "guest"] {
        assert!(!second.contains(time), "{time}: {second}");
    }
}

#[test]
fn few_packets_are_no_denominator() {
    let mut session = session();
    session.domains[0].traffic = Some(crate::model::BridgeTraffic {
        frames: 12,
        bytes: 12 * 98,
    });
    let text = text(&session);
    let refused = "cycles/packet: refused: the driver domain carried 12 packets, fewer than";
    assert!(text.contains(refused), "{text}");
    assert!(!text.contains("cycles/byte"), "{text}");
    assert!(text.contains("Hop ledger, %"), "{text}");
}

#[test]
fn doubtful_domains_are_marked_unusable_ones_omitted() {
    let mut session = session();
    session.domains[0].cpu_ns = Some(110_000_000);
    let doubtful = text(&session);
    assert!(doubtful.contains("driver ?"), "{doubtful}");
    session.domains[0].cpu_ns = Some(200_000_000);
    let hopeless = text(&session);
    assert!(
        hopeless.contains("driver: refused: samples account for 0.50"),
        "{hopeless}"
    );
    assert!(!hopeless.contains("Functions of driver"));
}

#[test]
fn doubtful_times_outside_of_the_sum_are_marked() {
    let mut session = session();
    session.domains[0].kind = crate::model::DomainKind::Other;
    session.domains[0].cpu_ns = Some(65_000_000);
    let text = text(&session);
    assert!(
        text.contains("? driver: samples account for 1.54"),
        "{text}"
    );
}

#[test]
fn missing_samples_of_a_cpu_are_a_sentence() {
    let mut session = session();
    session.losses[0].delivered = 168;
    session.losses[0] = session.losses[0].closed();
    let text = text(&session);
    assert!(
        text.contains("CPU 0: 16.0 % of the samples are missing"),
        "{text}"
    );
}

#[test]
fn an_open_ledger_is_reported() {
    let mut session = session();
    if let Some(ledger) = &mut session.domains[0].ledger {
        ledger.cpu_ns *= 2;
    }
    assert!(text(&session).contains("its ledger accounts for 0.50"));
}

#[test]
fn ledger_correction_is_reported_with_its_reason() {
    let mut session = session();
    assert!(!text(&session).contains("corrected"));
    let set = |session: &mut Session, waited_ns, preempted| {
        let ledger = session.domains[0].ledger.as_mut().unwrap();
        // The process ran for 100 ms of the 200 ms between stamps.
        ledger.corrected = 230_000_000;
        (ledger.waited_ns, ledger.preempted) = (waited_ns, preempted);
    };
    set(&mut session, 90_000_000, 7);
    let preempted = text(&session);
    let expected = "driver: its ledger was corrected by 50 % ";
    let causes = ": preemption 45 %, sleeps and wake-ups 5 %; in all 100 ms; ";
    for part in [expected, causes, "driver *", "preempted 7 times"] {
        assert!(preempted.contains(part), "{part}: {preempted}");
    }
    assert!(
        preempted.contains("accounts for 2.00 of its exact"),
        "{preempted}"
    );
    set(&mut session, 10_000_000, 7);
    let of_cpu = session.losses.iter_mut().find(|l| l.domain.is_none());
    of_cpu.unwrap().steal = 80_000_000 / session.head.period;
    let stolen = text(&session);
    let causes = ": steal 40 %, preemption 5 %, sleeps and wake-ups 5 %;";
    assert!(stolen.contains(causes), "{stolen}");
}

#[test]
fn part_of_a_session_has_no_packets_or_losses() {
    let selection = Selection {
        threads: vec!["driver".to_owned()],
        time: "0.05,0.1".parse().ok(),
        event: None,
    };
    let mut session = session();
    session.samples = session.samples.repeat(4);
    session.domains[0].cpu_ns = Some(400_000_000);
    let part = selection.apply(session).unwrap();
    let found = Attribution::new(&part, &Rules::thesis(), Classing::Nearest);
    let listing = Listing {
        selection: Some(&selection),
        ..Listing::first(5)
    };
    let text = report(&part, &found, Classing::Nearest, &listing);
    for shown in [
        "only thread driver\n",
        "only time 0.05-0.1\n",
        "\nonly thread driver, ",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    for unknown in ["expected", "cycles/packet", "Hop ledger", "Samples by CPU"] {
        assert!(!text.contains(unknown), "{unknown}: {text}");
    }
    assert!(text.contains("shmem::engine::copy"), "{text}");
}

#[test]
fn missing_data_are_reported_without_a_row() {
    assert!(text(&with_an_absent_domain()).contains("\nweb: was not ready.\n"));
}
