//! Tests of the whole module, from the connection to the text.

use super::gather::tests::{AUDIT, DRIVER, GUEST, STATUS, main_loop};
use super::*;
use ::testing::{promtool, require};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The documentation of the metrics.
const DOCUMENTATION: &str = include_str!("../../../docs/metrics.md");

fn snapshot(driver: &str) -> Snapshot {
    let json = |text| serde_json::from_str(text).unwrap();
    Snapshot {
        status: serde_json::from_str(STATUS).unwrap(),
        audit: Some(serde_json::from_str(AUDIT).unwrap()),
        stats: [("driver".into(), json(driver)), ("web".into(), json(GUEST))].into(),
        took: Duration::from_micros(1500),
    }
}

fn source() -> MetricSource {
    MetricSource::new(UnixStream::pair().unwrap().0)
}

/// Returns both texts of a running machine.
fn texts() -> [Arc<str>; 2] {
    super::texts(&snapshot(DRIVER), &mut SeriesNames::default())
}

/// Returns the sample lines of a text.
fn samples(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

#[test]
fn every_kind_of_metric_has_its_value() {
    let [open, text] = texts();
    for line in [
        "grantway_build_info{machine=\"grantway\",version=\"0.1.0\"} 1",
        "grantway_domain_up{domain=\"driver\",program=\"driver\"} 1",
        "grantway_domain_restarts_total{domain=\"driver\"} 2",
        "grantway_domain_last_outage_seconds{domain=\"driver\"} 0.0125",
        "grantway_connection_up{backend=\"driver\",frontend=\"web\",interface=\"0\"} 1",
        "grantway_cpu_seconds_total{domain=\"web\",part=\"domain\"} 0.25",
        "grantway_hop_cpu_seconds_total{domain=\"driver\",hop=\"copy\"} 0.5",
        "grantway_port_frames_total{domain=\"driver\",port=\"vif.web-0\",direction=\"in\"} 21",
        "grantway_port_bytes_total{domain=\"driver\",port=\"nic.wire\",direction=\"out\"} 2058",
        "grantway_drops_total{domain=\"driver\",reason=\"forged_source\"} 3",
        "grantway_icmp_too_big_total{domain=\"driver\",result=\"sent\"} 6",
        "grantway_queue_frames{domain=\"driver\",port=\"vif.web-0\"} 4",
        "grantway_queue_bytes{domain=\"driver\",port=\"vif.web-0\"} 6056",
        "grantway_queue_oldest_seconds{domain=\"driver\",port=\"vif.web-0\"} 0.0025",
        "grantway_vm_connections_total{domain=\"web\",interface=\"0\"} 3",
        "grantway_vm_queue_pairs{domain=\"web\",interface=\"0\"} 2",
        "grantway_flows{domain=\"driver\",port=\"vif.web-0\"} 12",
        "grantway_flows_admitted_total{domain=\"driver\",port=\"vif.web-0\"} 40",
        "grantway_flows_displaced_total{domain=\"driver\",port=\"vif.web-0\"} 3",
        "grantway_flows_refused_total{domain=\"driver\",port=\"vif.web-0\"} 1",
        "grantway_rule_frames_total{domain=\"driver\",port=\"vif.web-0\",rule=\"inbound\"} 2",
        "grantway_rule_bytes_total{domain=\"driver\",port=\"vif.web-0\",rule=\"https\"} 700",
        "grantway_lro_segments_total{domain=\"driver\"} 100",
        "grantway_lro_flushes_total{domain=\"driver\",reason=\"timeout\"} 7",
        "grantway_lro_wait_seconds_bucket{domain=\"driver\",le=\"5e-05\"} 4",
        "grantway_lro_wait_seconds_bucket{domain=\"driver\",le=\"+Inf\"} 9",
        "grantway_lro_wait_seconds_sum{domain=\"driver\"} 0.102",
        "grantway_lro_wait_seconds_count{domain=\"driver\"} 9",
        "grantway_domain_outage_seconds_bucket{domain=\"driver\",le=\"0.008\"} 0",
        "grantway_domain_outage_seconds_bucket{domain=\"driver\",le=\"0.016\"} 1",
        "grantway_domain_outage_seconds_bucket{domain=\"driver\",le=\"16.384\"} 1",
        "grantway_domain_outage_seconds_bucket{domain=\"driver\",le=\"+Inf\"} 2",
        "grantway_domain_outage_seconds_sum{domain=\"driver\"} 20.0125",
        "grantway_domain_outage_seconds_count{domain=\"driver\"} 2",
        "grantway_grants_revoked_total 5",
        "grantway_pages{domain=\"driver\",state=\"mapped\"} 530",
    ] {
        for text in [&open, &text] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }
    assert!(open.ends_with("\n# EOF\n") && !text.contains("# EOF"));
    assert!(samples(&open).eq(samples(&text)));
}

#[test]
fn promtool_accepts_the_text() {
    require!(tool("promtool"));
    let [_, text] = texts();
    let words = promtool(&["check", "metrics"], &text);
    assert!(words.is_empty(), "{words}");
}

#[test]
fn the_documentation_lists_exactly_the_families() {
    let families = families::metric_families(&snapshot(DRIVER), &mut SeriesNames::default());
    let suffix = |family: &text::MetricFamily| match family.kind {
        "counter" => "_total",
        _ => "",
    };
    let defined: BTreeSet<String> = families
        .0
        .iter()
        .map(|(family, _)| format!("{}{}", family.name, suffix(family)))
        .collect();
    let documented: BTreeSet<String> = DOCUMENTATION
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(|name| name.split('{').next().unwrap_or_default().to_owned())
        .filter(|name| name.starts_with("grantway_"))
        .collect();
    assert_eq!(defined, documented);
    for (family, _) in &families.0 {
        if let Some(unit) = family.unit {
            assert!(family.name.ends_with(unit), "{}", family.name);
        }
    }
}

/// A hostile domain cannot break a line or add an unbounded number of series.
#[test]
fn a_hostile_domain_affects_only_its_samples() {
    let mut names = SeriesNames::default();
    let mut series = BTreeSet::new();
    for round in 0..20 {
        let many: Vec<String> = (0..200)
            .map(|n| format!(r#""r{round}_{n}": 1, "n{n}\"}} 1\ngrantway_up 1": 7"#))
            .collect();
        let many = many.join(",");
        let ports = many.replace(": 1", r#": {"traffic": {"in_packets": 1}}"#);
        let driver = format!(
            r#"{{"drops": {{{many}}}, "ports": {{{ports}}}, "lro": {{"flushed": {{{many}}},
               "segments": -1, "waits_ns": {{"x": 1, "-1": 2, "5": 18446744073709551615,
               "6": 3}}}}, "ledger": {{"tsc_hz": 0, "hops": {{"nic": {{"cycles": 5}}}}}}}}"#
        );
        let [open, _] = super::texts(&snapshot(&driver), &mut names);
        assert!(
            !open.lines().any(|line| line.starts_with("grantway_up ")),
            "{open}"
        );
        let of_driver = samples(&open).filter(|line| line.contains("domain=\"driver\""));
        let names = of_driver.map(|line| line.rsplit_once(' ').unwrap().0.to_owned());
        series.extend(names);
        let most = "grantway_lro_wait_seconds_bucket{domain=\"driver\",le=\"1e-05\"}";
        assert!(open.contains(&format!("{most} {}", u64::MAX)), "{open}");
    }
    assert!(series.len() < 600, "{}", series.len());
    for nonsense in [
        "7",
        "[]",
        r#"{"ports": [1], "drops": 3, "lro": "x", "ledger": null}"#,
    ] {
        super::texts(&snapshot(nonsense), &mut names);
    }
}

/// A pod can have the maximum number of rules, with other names after each change of policies.
#[test]
fn every_rule_of_a_pod_has_its_counter() {
    const RULES: usize = 256;
    let mut names = SeriesNames::default();
    for direction in ["ingress", "egress"] {
        let rules: Vec<String> = (0..RULES)
            .map(|n| format!(r#""{direction}-{n}": {{"frames": {n}, "bytes": 1}}"#))
            .collect();
        let rules = rules.join(",");
        let driver = format!(
            r#"{{"ports": {{"vif.web-0": {{"rules": {{{rules}}}}},
               "nic.wire": {{"rules": {{{rules}}}}}}}}}"#
        );
        let mut snapshot = snapshot(&driver);
        // A guest cannot add rules.
        let web = serde_json::from_str(&driver.replace("gress-", "-")).unwrap();
        snapshot.stats.insert("web".to_owned(), web);
        let [open, _] = super::texts(&snapshot, &mut names);
        let of_rules = samples(&open).filter(|line| line.starts_with("grantway_rule_"));
        assert_eq!(of_rules.count(), 2 * 2 * RULES);
        for port in ["vif.web-0", "nic.wire"] {
            for n in 0..RULES {
                let line = format!(
                    "grantway_rule_frames_total{{domain=\"driver\",port=\"{port}\",\
                     rule=\"{direction}-{n}\"}} {n}"
                );
                assert!(open.lines().any(|one| one == line), "{line}");
            }
        }
    }
}

/// Serves the metrics of a fictitious machine at a path.
fn serve_at(dir: &Path, silent: &'static [&'static str]) -> PathBuf {
    let path = dir.join("x.metrics");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (scraper, _) = main_loop(silent);
    let mut source = source();
    source.scraper = scraper;
    let user = rustix::process::geteuid().as_raw();
    let listener = ScrapeListener::new(listener.into(), Some(user));
    thread::spawn(move || listen::serve(&[listener], |format| source.text(format)));
    path
}

fn get(path: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn both_formats_are_served_by_http() {
    let dir = tempfile::tempdir().unwrap();
    let path = serve_at(dir.path(), &[]);
    let plain = get(&path, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(plain.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
    let open = "Accept: application/openmetrics-text; version=1.0.0\r\n";
    let open = get(&path, &format!("GET /metrics HTTP/1.1\r\n{open}\r\n"));
    assert!(open.contains("application/openmetrics-text") && open.ends_with("# EOF\n"));
    let (head, body) = open.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains(&format!("Content-Length: {}", body.len())),
        "{head}"
    );
    let missing = get(&path, "GET /else HTTP/1.1\r\n\r\n");
    assert!(missing.starts_with("HTTP/1.1 404 ") && missing.ends_with("are at /metrics\n"));
    for request in [
        "HEAD /metrics HTTP/1.1\r\n\r\n",
        "HEAD /else HTTP/1.1\r\n\r\n",
    ] {
        let head = get(&path, request);
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        assert!(!head.contains("Content-Length: 0"), "{head}");
    }
    assert!(get(&path, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
}

/// A client that sends nothing or half a request, or does not read its answer, delays no other
/// client.
#[test]
fn slow_clients_delay_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = serve_at(dir.path(), &[]);
    let silent: Vec<UnixStream> = (0..10)
        .map(|n| {
            let mut stream = UnixStream::connect(&path).unwrap();
            let part = "GET /metrics HTTP/1.1\r\n\r\n".get(..2 * n).unwrap();
            stream.write_all(part.as_bytes()).unwrap();
            stream
        })
        .collect();
    for _ in 0..50 {
        let answer = get(&path, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    drop(silent);
}

/// Beyond the limit, connections without a complete request are evicted immediately.
#[test]
fn connections_without_a_request_are_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let path = serve_at(dir.path(), &[]);
    let answers_quickly = |_| {
        let many: Vec<UnixStream> = (0..100)
            .map(|n| {
                let mut stream = UnixStream::connect(&path).unwrap();
                let part = ["", "GET /metrics"][n % 2];
                stream.write_all(part.as_bytes()).unwrap();
                stream
            })
            .collect();
        let began = Instant::now();
        for _ in 0..10 {
            let answer = get(&path, "GET /metrics HTTP/1.1\r\n\r\n");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        let took = began.elapsed();
        println!("answered in {took:?}");
        drop(many);
        // A connection that was not evicted would count for 5 s.
        took < Duration::from_secs(4)
    };
    // A busy system may stall an attempt for as long.
    assert!((0..5).any(answers_quickly), "connections are not evicted");
}

#[test]
fn concurrent_readers_share_one_snapshot() {
    let (scraper, requests) = main_loop(&[]);
    let mut source = source();
    source.scraper = scraper;
    source.reuse_age = Duration::from_secs(600);
    let first = source.text(MetricFormat::OpenMetrics).unwrap();
    let again = source.text(MetricFormat::OpenMetrics).unwrap();
    source.text(MetricFormat::Text).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    drop(source);
    assert_eq!(requests.join().unwrap().len(), 5);
}
