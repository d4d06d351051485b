use super::*;
use crate::model::Tier;
use crate::testing::{session, with_page_faults};

/// Returns point B, in which a different function than in A uses the time of the copy.
fn slow() -> Session {
    let mut session = session();
    session.frames[1].symbol = "tcp_collapse".to_owned();
    session
}

fn diff(a: &Session, b: &Session) -> Diff {
    Diff::new(a, b, &Rules::thesis(), Classing::Nearest, Some("driver"))
}

#[test]
fn the_largest_difference_is_first() {
    let text = diff(&session(), &slow()).text(2);
    let functions: Vec<&str> = text
        .split("By function")
        .nth(1)
        .unwrap()
        .lines()
        .skip(3)
        .collect();
    assert!(functions[0].contains("shmem::engine::copy"), "{text}");
    assert!(functions[0].contains("60.00") && functions[0].contains("absent"));
    assert!(functions[1].contains("tcp_collapse") && functions[1].contains("+60.00"));
    assert!(functions[2].contains("other functions") && functions[2].contains("40.00"));
}

#[test]
fn small_differences_are_unresolved_without_nmi() {
    let mut b = session();
    let last = b.samples.iter().rposition(|sample| sample.3 == 1).unwrap();
    b.samples[last].3 = 4;
    let verdict = |a: &Session, b: &Session| {
        let figures = diff(a, b).figures(0);
        let copy = figures
            .into_iter()
            .find(|f| f.metric == "difference.class.copy")
            .unwrap();
        assert!((copy.value.unwrap() + 0.01).abs() < 1e-9);
        copy.verdict
    };
    assert_eq!(verdict(&session(), &b), Some(ComparisonVerdict::Unresolved));
    let mut a = session();
    a.head.tier = Tier::PmuNmi;
    b.head.tier = Tier::PmuNmi;
    assert_eq!(verdict(&a, &b), None);
}

#[test]
fn differences_of_long_sessions_have_intervals() {
    let long = |n: u32| {
        let mut session = session();
        session.head.tier = Tier::PmuNmi;
        let samples = session.samples.clone();
        session.samples = samples.repeat(6);
        session.domains[0].cpu_ns = Some(600_000_000);
        // In every second window, some copies count as time of the network.
        let width_ns = session.head.ran_ns / 10;
        let copies = session.samples.iter_mut().filter(|sample| sample.3 == 1);
        for (at, sample) in copies.enumerate() {
            let is_even = (sample.0 / width_ns).is_multiple_of(2);
            sample.3 = if is_even && at as u32 % 10 < n { 4 } else { 1 };
        }
        session
    };
    let copy = |a: u32, b: u32| {
        let figures = diff(&long(a), &long(b)).figures(0);
        let of = |f: &Figure| f.metric == "difference.class.copy";
        figures.into_iter().find(of).unwrap()
    };
    let same = copy(3, 3);
    assert!(
        same.lo.unwrap() < -0.01 && same.hi.unwrap() > 0.01,
        "{same:?}"
    );
    assert_eq!(same.verdict, Some(ComparisonVerdict::Unresolved));
    let other = copy(0, 9);
    assert!(
        other.hi.unwrap() < 0.0 && other.verdict.is_none(),
        "{other:?}"
    );
    assert!(diff(&long(0), &long(9)).text(1).contains("95 % interval"));
    // The legend contains exactly the notes to which a mark refers.
    let notes = |diff: Diff| {
        let text = diff.text(1);
        [SCATTER_NOTE, COARSE_NOTE].map(|note| text.contains(&format!("?: {note}.")))
    };
    assert_eq!(notes(diff(&long(3), &long(3))), [true, false]);
    let mut coarse = long(3);
    coarse.head.tier = Tier::default();
    assert_eq!(notes(diff(&coarse, &coarse)), [false, true]);
}

#[test]
fn the_mean_of_windows_is_the_share() {
    let mut session = session();
    session.samples = session.samples.repeat(6);
    session.domains[0].cpu_ns = Some(500_000_000);
    let half_ns = session.head.ran_ns / 2;
    // Most of the copies are in the first half, so that windows differ in size.
    let mut number = 0;
    session.samples.retain(|sample| {
        number += 1;
        sample.3 != 1 || sample.0 < half_ns || number % 3 == 0
    });
    // The guest runs in the second half only.
    session.threads[1].domain = 2;
    session.domains[2].cpu_ns = Some(350_000_000);
    session.samples.retain(|s| s.2 != 1 || s.0 > half_ns);
    let diff = Diff::new(
        &session,
        &session,
        &Rules::thesis(),
        Classing::Nearest,
        None,
    );
    assert!(diff.left_out.is_empty(), "{diff:?}");
    assert_eq!(diff.a.windows.len(), windows::WINDOWS);
    for (class, share) in &diff.a.classes {
        let of = |window: &Point| window.classes.get(class).unwrap_or(&0.0) / 10.0;
        let mean: f64 = diff.a.windows.iter().map(of).sum();
        assert!((mean - share).abs() < 1e-9, "{class}: {mean} {share}");
    }
}

#[test]
fn domains_without_usable_samples_are_left_out() {
    let mut b = session();
    b.domains[0].cpu_ns = Some(1);
    let diff = diff(&session(), &b);
    let text = diff.text(3);
    assert!(
        text.contains("without driver: in B samples account for"),
        "{text}"
    );
    assert!(diff.functions().is_empty(), "{text}");
}

#[test]
fn a_domain_of_one_point_is_left_out_of_both() {
    let mut b = session();
    b.domains[2].name = "other guest".to_owned();
    let diff = Diff::new(&session(), &b, &Rules::thesis(), Classing::Nearest, None);
    let text = diff.text(3);
    assert!(text.contains("without guest: it is not in B"), "{text}");
    assert!(
        text.contains("without other guest: it is not in A"),
        "{text}"
    );
    let domains: Vec<&str> = diff.per_packet().iter().map(|row| row.0).collect();
    assert_eq!(domains, ["driver"]);
}

#[test]
fn cycles_per_packet_are_compared_by_domain() {
    let mut b = session();
    b.domains[0].cpu_ns = Some(110_000_000);
    let diff = Diff::new(&session(), &b, &Rules::thesis(), Classing::Nearest, None);
    let text = diff.text(3);
    assert!(
        text.contains("By domain, cycles/packet") && text.contains("1.10"),
        "{text}"
    );
    let figures = diff.figures(0);
    let of = |config: &str, domain: &str| {
        let metric = format!("cycles_per_packet.{domain}");
        let found = figures
            .iter()
            .find(|f| f.config == config && f.metric == metric);
        found.unwrap().value.unwrap()
    };
    assert!((of("B-A", "driver") - 0.23e5).abs() < 1.0);
    assert!((of("A", "total") - 3.45e5).abs() < 1.0);
    b.domains[0].traffic = None;
    let diff = Diff::new(&session(), &b, &Rules::thesis(), Classing::Nearest, None);
    let refused = "cycles/packet: refused: in B the driver domain's packets are unknown";
    assert!(diff.text(3).contains(refused));
}

#[test]
fn events_without_time_are_compared_by_number() {
    let both = with_page_faults();
    assert_eq!(
        diff(&both, &both).text(3),
        diff(&session(), &session()).text(3)
    );
    let faults = both.of_event(1);
    assert!(comparable(&both, &session()).is_ok() && comparable(&both, &faults).is_err());
    let text = diff(&faults, &faults).text(3);
    assert!(text.contains("By function, % of the page-faults"), "{text}");
    let copy = text
        .lines()
        .find(|line| line.contains("shmem::engine::copy"));
    assert!(copy.unwrap().contains("75.00"), "{text}");
}
