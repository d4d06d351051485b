//! Compares the shares of processes with those of `perf record` in the same window. They agree
//! within three points, or within ten if other programs prevent one of the two from taking every
//! sample.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::time::Duration;
use testing::KillOnDrop;
use xenoprof::record::{self, RecordOptions};

/// Maximum difference of a share in points.
const POINTS: f64 = 10.0;

/// Starts a shell that repeats this script.
fn busy(script: &str) -> KillOnDrop {
    let child = Command::new("sh").args(["-c", script]).spawn();
    KillOnDrop(child.expect("`sh` starts"))
}

/// Returns the number of each process's samples within a time.
fn count(samples: &[(u32, u64)], within: &Range<u64>) -> BTreeMap<u32, f64> {
    let mut counts = BTreeMap::new();
    for (pid, _) in samples.iter().filter(|sample| within.contains(&sample.1)) {
        *counts.entry(*pid).or_default() += 1.0;
    }
    counts
}

/// Parses a line of `perf script`: `PID SECONDS.NANOSECONDS:`.
fn line(text: &str) -> Option<(u32, u64)> {
    let mut words = text.split_whitespace();
    let pid = words.next()?.parse().ok()?;
    let (seconds, ns) = words.next()?.strip_suffix(':')?.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    Some((pid, seconds * 1_000_000_000 + ns.parse::<u64>().ok()?))
}

#[test]
fn process_totals_agree_with_perf() {
    let works = Command::new("perf")
        .args([
            "record",
            "-q",
            "-a",
            "-e",
            "cpu-clock",
            "-k",
            "CLOCK_MONOTONIC_RAW",
            "-o",
            "/dev/null",
            "true",
        ])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .status();
    if !works.is_ok_and(|status| status.success()) {
        return testing::skip("`perf record -a`");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("perf.data");
    let busy = [
        busy("while :; do :; done"),
        busy("while :; do head -c 2000000 /dev/zero >/dev/null; done"),
    ];
    let mut perf = Command::new("perf")
        .args(["record", "-q", "-a", "-e", "cpu-clock", "-F", "997"])
        .args(["-k", "CLOCK_MONOTONIC_RAW", "-o"])
        .arg(&data)
        // perf starts this command when it begins to sample, and exits when the command does.
        .args(["sh", "-c", "echo; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("perf starts");
    let mut samples = perf.stdout.take().expect("a pipe");
    samples.read_exact(&mut [0]).expect("perf samples");
    let options = RecordOptions {
        hz: Some(997),
        limit: Some(Duration::from_secs(4)),
        ..RecordOptions::default()
    };
    let (session, _) = record::run(&options).expect("records");
    // perf exits after its command, whose standard input is closed first.
    let ended = perf.wait().expect("perf ends");
    assert!(ended.success(), "{ended}");
    drop(busy);

    let text = Command::new("perf")
        .args(["script", "--ns", "-F", "pid,time", "-i"])
        .arg(&data)
        .output()
        .expect("perf reads what it wrote");
    let text = String::from_utf8_lossy(&text.stdout);
    let theirs: Vec<(u32, u64)> = text.lines().filter_map(line).collect();
    let start_ns = session.head.started_raw_ns;
    let ours: Vec<(u32, u64)> = session
        .samples
        .iter()
        .map(|sample| {
            let pid = session.thread(sample).map_or(0, |thread| thread.pid);
            (pid, start_ns + sample.0)
        })
        .collect();
    // The time range that both have observed.
    let seen = |samples: &[(u32, u64)]| {
        let times = samples.iter().map(|sample| sample.1);
        Some(times.clone().min()?..times.max()?)
    };
    let (Some(here), Some(there)) = (seen(&ours), seen(&theirs)) else {
        panic!("{} and {} samples", ours.len(), theirs.len());
    };
    let both = here.start.max(there.start)..here.end.min(there.end);
    let [ours, theirs] = [&ours, &theirs].map(|samples| count(samples, &both));
    let (all_ours, all_theirs): (f64, f64) = (ours.values().sum(), theirs.values().sum());
    assert!(
        all_ours > 1000.0 && all_theirs > 1000.0,
        "{all_ours} {all_theirs}"
    );
    let mut compared = 0;
    for (pid, count) in &ours {
        let share = 100.0 * count / all_ours;
        let other = 100.0 * theirs.get(pid).copied().unwrap_or(0.0) / all_theirs;
        if share.max(other) < 5.0 {
            continue;
        }
        compared += 1;
        eprintln!("process {pid}: {share:.1} % here, {other:.1} % by perf");
        assert!(
            (share - other).abs() <= POINTS,
            "process {pid}: {share:.1} % here, {other:.1} % by perf"
        );
    }
    assert!(compared > 0, "no process has five percent: {ours:?}");
}
