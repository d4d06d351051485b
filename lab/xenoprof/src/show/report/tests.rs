use super::*;
use crate::testing::{session, with_an_absent_domain, with_page_faults};

fn all(session: &Session) -> Vec<Figure> {
    let found = Attribution::new(session, &Rules::thesis(), Classing::Nearest);
    figures(session, &found, Classing::Nearest, &Listing::default())
}

#[test]
fn provenance_is_escaped() {
    let mut out = Vec::new();
    let provenance = serde_json::json!({ "\u{9b}2J": "\u{202e}" });
    write_json(&mut out, &provenance, &[]).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text, "{\"provenance\":{\"\\u009b2J\":\"\\u202e\"}}\n");
}

fn of<'a>(figures: &'a [Figure], metric: &str) -> &'a Figure {
    figures
        .iter()
        .find(|figure| figure.metric == metric)
        .unwrap_or_else(|| panic!("{metric}"))
}

#[test]
fn figures_of_a_known_session() {
    let figures = all(&session());
    let value = |metric: &str| of(&figures, metric).value.unwrap();
    let near = |metric: &str, expected: f64| {
        let value = value(metric);
        assert!((value / expected - 1.0).abs() < 1e-9, "{metric} {value}");
    };
    near("cycles.driver", 2.3e8);
    near("cycles_per_packet.driver", 2.3e5);
    near("cycles_per_byte.driver", 2.3e8 / 1.514e6);
    near("cycles_per_packet.total", 3.45e5);
    near("closure.driver", 1.0);
    near("raw_exact.driver", 1.0);
    near("share.driver.class.copy", 0.6);
    near("cycles_per_packet.driver.class.network", 0.4 * 2.3e5);
    near("cycles_per_packet.driver.hop.copy", 0.6 * 2.3e5);
    near("samples.driver.expected", 100.0);
    near("samples.driver.delivered", 100.0);
    assert_eq!(value("samples.driver.lost"), 0.0);
    near("on_behalf_of.driver", 2.3e8);
    near("share.driver.resolution", 0.1);
    assert_eq!(
        of(&figures, "closure.driver").verdict,
        Some(ComparisonVerdict::Equal)
    );
    let idle = figures.iter().any(|f| f.metric.starts_with("share.idle"));
    assert!(!idle, "an idle domain has no figures");
}

#[test]
fn a_report_on_a_domain_has_no_others() {
    let session = session();
    let found = Attribution::new(&session, &Rules::thesis(), Classing::Nearest);
    let listing = Listing {
        domain: Some("driver"),
        children: true,
        callers: true,
        by_total: true,
        ..Listing::first(3)
    };
    let figures = figures(&session, &found, Classing::Nearest, &listing);
    assert!(
        !figures
            .iter()
            .any(|f| f.metric.contains("guest") || f.metric.contains("total."))
    );
    let turn = of(&figures, "total_share.driver.function.driver::turn::run");
    assert_eq!(turn.value, Some(1.0));
    let call = "share.driver.function.shmem::engine::copy.from.driver::turn::run";
    assert_eq!(of(&figures, call).value, Some(0.6));
    let text = text::report(&session, &found, Classing::Nearest, &listing);
    assert!(
        !text.contains("guest") && text.contains("Functions of driver"),
        "{text}"
    );
    let wrong = Listing {
        domain: Some("drvier"),
        ..Listing::default()
    };
    let rules = Rules::thesis();
    let (how, form) = (Classing::Nearest, Form::Text);
    let error = report(&session, &rules, how, form, &wrong, &mut Vec::new()).unwrap_err();
    assert!(
        error.to_string().contains("known domains: driver"),
        "{error}"
    );
}

#[test]
fn a_line_of_two_functions_is_one_figure() {
    let mut session = session();
    session.frames[1].source = session.frames[0].source;
    let found = Attribution::new(&session, &Rules::thesis(), Classing::Nearest);
    let listing = Listing {
        lines: true,
        ..Listing::first(5)
    };
    let figures = figures(&session, &found, Classing::Nearest, &listing);
    let named = |metric: &str| {
        let found = figures.iter().filter(|figure| figure.metric == metric);
        found
            .map(|figure| figure.value.unwrap())
            .collect::<Vec<_>>()
    };
    let line = "share.driver.line./src/driver/turn.rs:10";
    assert_eq!(named(line), [0.6]);
    assert_eq!(
        named(&format!("total_{line}")),
        [1.0],
        "one stack counts once"
    );
}

#[test]
fn samples_that_contradict_exact_time_give_no_class() {
    let mut session = session();
    // The exact time is twice the time of the samples.
    session.domains[0].cpu_ns = Some(200_000_000);
    let figures = all(&session);
    let refused = of(&figures, "share.driver.class.copy");
    assert_eq!(refused.value, None);
    assert_eq!(refused.verdict, Some(ComparisonVerdict::NotMeasurable));
    assert!(refused.note.as_ref().unwrap().contains("0.50"));
    // The total is not affected.
    assert!(of(&figures, "cycles.driver").value.is_some());
    session.domains[0].cpu_ns = Some(110_000_000);
    let figures = all(&session);
    let flagged = of(&figures, "share.driver.class.copy");
    assert_eq!(flagged.verdict, Some(ComparisonVerdict::Unresolved));
    assert!(flagged.note.as_ref().unwrap().contains("0.91"));
}

#[test]
fn few_samples_give_no_classes() {
    let mut session = session();
    session.samples.truncate(100);
    session.domains[0].cpu_ns = Some(50_000_000);
    let figures = all(&session);
    let refused = of(&figures, "share.driver.class.copy");
    assert!(refused.note.as_ref().unwrap().starts_with("50 samples"));
}

#[test]
fn a_domain_without_data_has_a_reason() {
    let figures = all(&with_an_absent_domain());
    let web = of(&figures, "cycles.web");
    assert_eq!(web.verdict, Some(ComparisonVerdict::NotMeasurable));
    assert_eq!(web.note.as_deref(), Some("was not ready"));
}

#[test]
fn without_a_driver_no_figure_is_per_packet() {
    let mut session = session();
    session.domains[0].traffic = None;
    let figures = all(&session);
    assert!(figures.iter().all(|f| !f.metric.starts_with("cycles_per")));
}

#[test]
fn only_the_event_that_measures_time_has_cycles() {
    let mut out = Vec::new();
    let (rules, listing) = (Rules::thesis(), Listing::default());
    let (both, form) = (with_page_faults(), Form::Json);
    report(&both, &rules, Classing::Nearest, form, &listing, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    let of = |config: &str| -> Vec<serde_json::Value> {
        let lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
        lines
            .filter(|figure: &serde_json::Value| figure["config"] == config)
            .collect()
    };
    assert_eq!(of("session").len(), all(&session()).len());
    let faults = of("session@event=page-faults");
    let value = |metric: &str| {
        let mut found = faults.iter().filter(|figure| figure["metric"] == metric);
        found.next().map(|figure| figure["value"].as_f64().unwrap())
    };
    assert_eq!(value("share.driver.class.copy"), Some(0.75));
    assert_eq!(value("samples.driver.delivered"), Some(120.0));
    let is_time = |figure: &&serde_json::Value| {
        let metric = figure["metric"].as_str().unwrap();
        ["cycles", "ran_in", "on_behalf_of", "closure"]
            .iter()
            .any(|of| metric.starts_with(of))
    };
    assert_eq!(faults.iter().find(is_time), None);
    // An event that is chosen has the exact times of the session.
    let chosen = all(&both.of_event(1));
    let per_packet = "cycles_per_packet.driver";
    let expected = super::tests::of(&all(&session()), per_packet).value;
    assert_eq!(super::tests::of(&chosen, per_packet).value, expected);
    let by_class = |f: &Figure| f.metric.starts_with("cycles_per_packet.driver.class");
    assert!(!chosen.iter().any(by_class));
}

#[test]
fn few_packets_refuse_figures_with_the_reason() {
    for (frames, reason) in [(0, "no packets"), (999, "999 packets, fewer than 1000")] {
        let mut session = session();
        session.domains[0].traffic = Some(crate::model::BridgeTraffic {
            frames,
            bytes: frames * 1514,
        });
        let figures = all(&session);
        for name in ["driver", "guest", "total"] {
            for unit in ["packet", "byte"] {
                let refused = of(&figures, &format!("cycles_per_{unit}.{name}"));
                assert_eq!(refused.verdict, Some(ComparisonVerdict::NotMeasurable));
                assert!(refused.note.as_ref().unwrap().contains(reason));
            }
        }
        let hops = |f: &Figure| f.metric.contains(".hop.") || f.value.is_some();
        let per_packet = figures
            .iter()
            .filter(|f| f.metric.starts_with("cycles_per"));
        assert_eq!(per_packet.filter(|f| hops(f)).count(), 0);
    }
}

#[test]
fn intervals_contain_the_share() {
    for (count, of) in [(0, 1), (0, 100), (50, 100), (100, 100), (1, 3)] {
        let [lo, hi] = interval(count, of);
        let share = count as f64 / of as f64;
        assert!(0.0 <= lo && lo <= share && share <= hi && hi <= 1.0);
    }
    let [lo, hi] = interval(50, 100);
    assert!((lo - 0.404).abs() < 0.001 && (hi - 0.596).abs() < 0.001);
}
