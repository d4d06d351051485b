//! `grantway prof`: a session of a real machine from the recording to flame graphs, and errors of
//! files, permissions and disks.

use crate::test_dir::{SIM, TestDir, UNPRIVILEGED_UID};
use serde_json::Value;
use std::process::Command;
use testing::{KillOnDrop, ProgramOutput, require, skip};

/// Returns whether this user may sample every process. If not, reports a skip.
fn may_sample(place: &TestDir) -> bool {
    let run = place.run(&["prof", "record", "--seconds", "0.1", "-o", "may.prof"]);
    if run.code == 3 {
        return skip(run.err);
    }
    assert!(run.ok(), "{run:?}");
    true
}

fn lines(run: &ProgramOutput) -> Vec<Value> {
    assert!(run.ok(), "{run:?}");
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    run.out.lines().map(line).collect()
}

fn figure<'a>(figures: &'a [Value], metric: &str) -> &'a Value {
    let found = figures.iter().find(|figure| figure["metric"] == metric);
    found.unwrap_or_else(|| panic!("no {metric}"))
}

/// Returns whether the kernel shows the addresses of its functions. If not, reports a skip.
fn kernel_is_open() -> bool {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    // Users without the permission see only zeros. The lowest symbol has address 0 for every user,
    // so the last one is checked.
    let last = symbols.lines().last();
    let is_open = last.is_some_and(|line| !line.starts_with("0000000000000000"));
    is_open || skip("the names of the kernel's functions: kallsyms are hidden")
}

/// Records a session of a command of this user, which every user may do.
fn recorded(place: &TestDir, name: &str) -> bool {
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let run = place.run(&["prof", "record", "-o", name, "--", "sh", "-c", busy]);
    if run.code == 3 {
        return skip(run.err);
    }
    assert!(run.ok(), "{run:?}");
    true
}

#[test]
fn a_recorded_machine_is_shown_in_every_form() {
    let place = TestDir::with_machine();
    if !may_sample(&place) {
        return;
    }
    let file = place.file("good.toml", SIM);
    assert!(place.run(&["up", &file, "--detach"]).ok());
    let restarts = "sleep 1 && ./grantway restart web && sleep 2";
    let record = ["prof", "record", "--name", "grantway", "-o", "a.prof", "--"];
    let run = place.run(&[&record[..], &["sh", "-c", restarts]].concat());
    assert!(run.ok() && run.err.contains("a.prof"), "{run:?}");
    let run = place.run(&["prof", "record", "--seconds", "0.5", "-o", "b.prof"]);
    assert!(run.ok(), "{run:?}");
    let top = place.run(&["prof", "top", "--count", "1", "--interval", "1", "--json"]);
    assert!(place.run(&["down"]).ok());

    let report = place.run(&["prof", "report", "a.prof"]);
    for part in ["driver", "web", "monitor", "closure", "Samples by CPU"] {
        assert!(
            report.ok() && report.out.contains(part),
            "{part}: {report:?}"
        );
    }
    let figures = lines(&place.run(&["prof", "report", "a.prof", "--json"]));
    assert!(figures[0]["provenance"].is_object());
    for domain in ["driver", "web"] {
        let closure = figure(&figures, &format!("closure.{domain}"));
        let corrected = figure(&figures, &format!("corrected_share.{domain}"));
        let [closure, corrected] = [closure, corrected].map(|f| f["value"].as_f64().unwrap());
        let closure = closure * (1.0 - corrected);
        // Experiments on quiet machines check the exact closure. This test only checks that it is
        // plausible.
        assert!((0.5..1.5).contains(&closure), "{domain}: {closure}");
        let whole = figure(&figures, &format!("whole_stacks.{domain}"));
        let whole = whole["value"].as_f64().unwrap();
        // An idle domain has few samples, some of which belong to its start.
        assert!(whole > 0.0, "{domain}: none of its stacks reaches `main`");
        for part in ["expected", "delivered", "lost"] {
            assert!(figure(&figures, &format!("samples.{domain}.{part}"))["value"].is_number());
        }
    }
    let part = ["prof", "report", "a.prof", "--time", "0.5,", "--json"];
    let figures = lines(&place.run(&part));
    let of_part = |figure: &Value| figure["config"] == "session@time=0.5-";
    assert!(figures.len() > 1 && figures[1..].iter().all(of_part));
    for (option, value) in [("--time", "2,1"), ("--thread", "no-such-thread")] {
        let run = place.run(&["prof", "flame", "a.prof", option, value]);
        assert!(run.code == 2 && run.err.contains(value), "{run:?}");
    }
    let csv = place.run(&["prof", "report", "a.prof", "--csv"]);
    assert!(csv.out.starts_with("plan,config,metric,value,"), "{csv:?}");

    let diff = place.run(&["prof", "diff", "a.prof", "b.prof"]);
    assert!(diff.ok() && diff.out.contains("10 points"), "{diff:?}");
    assert!(lines(&place.run(&["prof", "diff", "a.prof", "b.prof", "--json"])).len() > 1);

    let flame = place.run(&["prof", "flame", "a.prof"]);
    assert!(flame.ok() && flame.out.starts_with("a.svg\n"), "{flame:?}");
    let picture = place.read("a.svg");
    assert!(picture.starts_with("<?xml") && picture.ends_with("</svg>"));
    if kernel_is_open() {
        assert!(picture.contains("do_syscall_64"), "the kernel's functions");
    }

    assert!(place.run(&["prof", "export", "a.prof"]).ok());
    let export: Value = serde_json::from_str(&place.read("a.json")).unwrap();
    let threads = export["threads"].as_array().unwrap().iter();
    let data = threads.filter_map(|thread| thread["markers"]["data"].as_array());
    let kinds: Vec<&Value> = data.flatten().map(|data| &data["type"]).collect();
    for kind in ["Restart", "Grants"] {
        assert!(
            kinds.iter().any(|found| *found == kind),
            "{kind}: {kinds:?}"
        );
    }

    for (format, file) in [
        ("folded", "a.folded"),
        ("perf", "a.perf"),
        ("pprof", "a.pb"),
    ] {
        let run = place.run(&["prof", "export", "a.prof", "--format", format]);
        assert!(run.ok() && run.out.trim() == file, "{run:?}");
    }
    assert!(
        place
            .read("a.folded")
            .lines()
            .any(|line| line.starts_with("driver;"))
    );
    assert!(place.read("a.perf").contains(" cpu-clock: \n\t"));

    let functions = ["--domain", "driver", "--children", "--callers"];
    let run = place.run(&[&["prof", "report", "a.prof"][..], &functions].concat());
    assert!(run.ok() && !run.out.contains("Functions of web"), "{run:?}");
    let run = place.run(&["prof", "report", "a.prof", "--domain", "drvier"]);
    assert!(
        run.code == 2 && run.err.contains("known domains: "),
        "{run:?}"
    );
    for command in [&["report"][..], &["annotate", "copy"]] {
        let class = ["a.prof", "--class", "copies"];
        let run = place.run(&[&["prof"], command, &class].concat());
        assert!(
            run.code == 2 && run.err.contains("; classes: xen, "),
            "{run:?}"
        );
    }

    let top = &lines(&top)[0];
    assert!(top["domains"]["driver"]["cpu"].is_number(), "{top}");
}

#[test]
fn one_machine_of_two_is_profiled() {
    let place = TestDir::with_machine();
    if !may_sample(&place) {
        return;
    }
    let file = place.file("good.toml", SIM);
    for name in ["a", "b"] {
        let up = place.run(&["up", &file, "--name", name, "--detach"]);
        assert!(up.ok(), "{up:?}");
    }
    let record = |more: &[&str]| place.run(&[&["prof", "record", "--seconds", "1"], more].concat());
    let one = record(&["--name", "a", "-o", "one.prof"]);
    let all = record(&["-o", "all.prof"]);
    let none = record(&["--name", "c", "-o", "none.prof"]);
    for name in ["a", "b"] {
        assert!(place.run(&["down", "--name", name]).ok());
    }
    assert!(one.ok() && !one.err.contains("machines"), "{one:?}");
    assert!(
        all.ok() && all.err.contains("2 machines together (a, b)"),
        "{all:?}"
    );
    assert!(
        !none.ok() && none.err.contains("no instance named `c`"),
        "{none:?}"
    );
    assert!(!place.has("none.prof"));

    let metrics = |file: &str| -> Vec<String> {
        let figures = lines(&place.run(&["prof", "report", file, "--json"]));
        let metrics = figures
            .iter()
            .filter_map(|figure| figure["metric"].as_str());
        metrics.map(str::to_owned).collect()
    };
    let [one, all] = ["one.prof", "all.prof"].map(metrics);
    let has = |metrics: &[String], metric: &str| metrics.iter().any(|found| found == metric);
    for domain in ["driver", "web", "monitor", "other instances"] {
        assert!(has(&one, &format!("cycles.{domain}")), "{domain}: {one:?}");
    }
    // A process outside the machine, which is not part of any sum.
    assert!(!has(&one, "cycles_per_packet.other instances"));
    assert!(!one.iter().any(|metric| metric.contains("b/")), "{one:?}");
    for domain in ["a/driver", "b/driver"] {
        assert!(has(&all, &format!("cycles.{domain}")), "{domain}: {all:?}");
    }
}

#[test]
fn only_the_machine_of_the_command_is_profiled() {
    let place = TestDir::with_machine();
    if !may_sample(&place) {
        return;
    }
    let file = place.file("good.toml", SIM);
    let up = place.run(&["up", &file, "--name", "elsewhere", "--detach"]);
    assert!(up.ok(), "{up:?}");
    let lasts = "./grantway up good.toml --name own --detach && sleep 2 && \
                 ./grantway down --name own";
    let record = ["prof", "record", "-o", "own.prof", "--", "sh", "-c", lasts];
    let run = place.run(&record);
    assert!(place.run(&["down", "--name", "elsewhere"]).ok());
    assert!(
        run.ok() && !run.err.contains("machines together"),
        "{run:?}"
    );

    let figures = lines(&place.run(&["prof", "report", "own.prof", "--json"]));
    let has = |metric: &str| figures.iter().any(|figure| figure["metric"] == metric);
    for domain in ["driver", "web", "monitor", "other instances"] {
        assert!(has(&format!("cycles.{domain}")), "{domain}: {figures:?}");
    }
    assert!(has("closure.driver"), "its counters were read: {figures:?}");
    assert!(!has("cycles_per_packet.other instances"));
    assert!(!has("cycles.elsewhere/driver"), "{figures:?}");
}

#[test]
fn an_invalid_session_is_status_2_with_its_line() {
    let place = TestDir::new();
    let wrong = |args: &[&str], part: &str| {
        let run = place.run(args);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{args:?} {run:?}");
        assert!(run.err.contains(part), "{args:?} {run:?}");
        assert_eq!(run.err.lines().count(), 1, "{run:?}");
    };
    let file = place.file("x.prof", "hello\n");
    for command in ["report", "flame", "export", "diff"] {
        let args = |file| match command {
            "diff" => vec!["prof", command, file, file],
            _ => vec!["prof", command, file],
        };
        wrong(&args("nowhere.prof"), "nowhere.prof: No such file");
        wrong(&args(&file), ":1: not a profile");
    }
    wrong(&["prof", "report"], "grantway.prof: No such file");
    if !recorded(&place, "good.prof") {
        return;
    }
    let text = place.read("good.prof");
    let (half, _) = text.split_at(text.len() / 2);
    let file = place.file("cut.prof", half);
    wrong(&["prof", "report", &file], "is truncated here");
    let file = place.file(
        "changed.prof",
        &(text.replacen("\"sh\"", "\"hs\"", 1) + "\n"),
    );
    wrong(&["prof", "report", &file], "checksum");
    wrong(
        &["prof", "flame", "good.prof", "--domain", "x"],
        "known domains: ",
    );
    wrong(&["prof", "report", "good.prof", "--rules", "none"], "none");
}

#[test]
fn a_session_is_overwritten_only_with_force() {
    let place = TestDir::new();
    if !recorded(&place, "x.prof") {
        return;
    }
    let before = place.read("x.prof");
    let run = place.run(&["prof", "record", "-o", "x.prof", "--", "true"]);
    assert!(run.code == 2 && run.err.contains("--force"), "{run:?}");
    assert_eq!(place.read("x.prof"), before);
    let run = place.run(&["prof", "record", "-o", "x.prof", "--force", "--", "true"]);
    assert!(run.ok(), "{run:?}");
    assert_ne!(place.read("x.prof"), before);
    let run = place.run(&["prof", "record", "-o", "y.prof", "--", "sh", "-c", "exit 7"]);
    assert_eq!(run.code, 7, "the exit status is the command's: {run:?}");
    let run = place.run(&["prof", "record", "-o", "z.prof", "--", "/no/such"]);
    assert!(run.code == 2 && run.err.contains("/no/such"), "{run:?}");
    assert!(!place.has("z.prof"));
}

#[test]
fn a_full_disk_is_reported() {
    let place = TestDir::new();
    if !recorded(&place, "x.prof") {
        return;
    }
    for args in [
        &["prof", "record", "-o", "/dev/full", "--", "true"][..],
        &["prof", "export", "x.prof", "-o", "/dev/full"],
    ] {
        let run = place.run(args);
        assert_eq!(run.code, 1, "{args:?} {run:?}");
        assert!(
            run.err.contains("/dev/full") && run.err.contains("No space"),
            "{run:?}"
        );
    }
    let is_device = std::fs::metadata("/dev/full").unwrap();
    assert!(
        !is_device.is_file(),
        "the device file was replaced by a regular file"
    );
}

#[test]
fn two_events_of_one_session_are_kept_apart() {
    let place = TestDir::new();
    // A loop uses the CPU, and the start of each process causes page faults.
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; \
                for i in 1 2 3 4 5 6 7 8 9; do /bin/true; done";
    let record = [
        "prof",
        "record",
        "-e",
        "cpu-clock,page-faults",
        "-o",
        "two.prof",
    ];
    let run = place.run(&[&record[..], &["--", "sh", "-c", busy]].concat());
    if run.code == 3 {
        return skip(run.err);
    }
    assert!(
        run.ok() && run.err.contains(" samples (cpu-clock "),
        "{run:?}"
    );

    let prof = |args: &[&str]| {
        let run = place.run(&[&["prof"], args].concat());
        assert!(run.ok(), "{args:?} {run:?}");
        run
    };
    let figures = lines(&prof(&["report", "two.prof", "--json"]));
    let delivered = |config: &str| {
        let is_it = |f: &&Value| f["config"] == config && f["metric"] == "samples.sh.delivered";
        let found = figures
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("no {config}"));
        found["value"].as_f64().unwrap()
    };
    assert!(delivered("session") > 0.0, "{figures:?}");
    assert!(delivered("session@event=page-faults") > 0.0, "{figures:?}");
    // The profiler's own page faults would cause further ones.
    let is_own = |f: &Value| {
        f["config"] == "session@event=page-faults" && f["metric"] == "samples.profiler.delivered"
    };
    assert!(!figures.iter().any(is_own), "{figures:?}");
    let all = prof(&["report", "two.prof"]).out;
    let one = prof(&["report", "two.prof", "--event", "page-faults"]).out;
    let has = |text: &str, event: &str| text.lines().any(|l| l.starts_with(&format!("{event} · ")));
    assert!(has(&all, "cpu-clock") && has(&all, "page-faults"), "{all}");
    assert!(!has(&one, "cpu-clock") && has(&one, "page-faults"), "{one}");

    for event in ["cpu-clock", "page-faults"] {
        let of_event = ["two.prof", "--event", event];
        let folded = ["export", "--format", "folded", "-o", "x.folded"];
        prof(&[&folded[..], &of_event].concat());
        assert!(
            place
                .read("x.folded")
                .lines()
                .any(|line| line.starts_with("sh;"))
        );
        prof(&[&["flame", "--domain", "sh"][..], &of_event].concat());
        let unit = match event {
            "cpu-clock" => "s of CPU time",
            other => other,
        };
        assert!(place.read("two-sh.svg").contains(unit), "{event}");
        let diff = prof(&[&["diff", "two.prof"][..], &of_event].concat());
        assert!(diff.out.contains("By function, % of the "), "{diff:?}");
    }
    for (format, file) in [
        ("perf", "two.perf"),
        ("firefox", "two.json"),
        ("pprof", "two.pb"),
    ] {
        prof(&["export", "two.prof", "--format", format]);
        let bytes = std::fs::read(place.path(file)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("page-faults"), "{format}");
    }
    let perf = place.read("two.perf");
    assert!(perf.contains(" cpu-clock: \n\t") && perf.contains(" 1 page-faults: \n\t"));
    let wrong = place.run(&["prof", "annotate", "x", "two.prof", "--event", "cycles"]);
    let known = "sampled events: cpu-clock, page-faults";
    assert!(wrong.code == 2 && wrong.err.contains(known), "{wrong:?}");
}

#[test]
fn a_missing_counter_is_reported_in_one_sentence() {
    let place = TestDir::new();
    for event in [
        "cycles",
        "instructions",
        "cache-misses",
        "dtlb-misses",
        "itlb-misses",
    ] {
        let file = format!("{event}.prof");
        let run = place.run(&[
            "prof", "record", "--event", event, "-o", &file, "--", "true",
        ]);
        if run.ok() {
            // This machine has a real or emulated PMU.
            assert!(place.has(&file), "{run:?}");
            continue;
        }
        assert_eq!((run.code, run.out.as_str()), (3, ""), "{run:?}");
        assert!(
            run.err.contains(event) && run.err.contains("PMU"),
            "{run:?}"
        );
        assert_eq!(run.err.lines().count(), 1, "{run:?}");
        assert!(!place.has(&file));
    }
    let record = ["prof", "record", "-o", "/dev/null", "-e"];
    let with = |events: &str| place.run(&[&record[..], &[events, "--", "true"]].concat());
    let run = with("cylces");
    assert!(run.code == 2 && run.err.contains("cycles, "), "{run:?}");
    let run = with("cpu-clock,cycles");
    let is_named = run.code == 3 && run.err.contains("PMU counter for cycles");
    assert!(
        run.ok() || is_named && run.err.lines().count() == 1,
        "{run:?}"
    );
    let run = with("cpu-clock,cpu-clock");
    assert!(run.code == 2 && run.err.contains("named twice"), "{run:?}");
}

#[test]
fn without_rights_only_own_commands_are_profiled() {
    let place = TestDir::new();
    // Only root can become another user.
    require!(root);
    place.open_to_all();
    let own = ["prof", "record", "-o", "own.prof", "--"];
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let run = place.run_as(UNPRIVILEGED_UID, &[&own[..], &["sh", "-c", busy]].concat());
    if run.code == 3 {
        return skip(run.err);
    }
    assert!(run.ok(), "{run:?}");
    let all = place.run_as(
        UNPRIVILEGED_UID,
        &["prof", "record", "--seconds", "0.1", "-o", "all.prof"],
    );
    if all.ok() {
        return skip("a perf_event_paranoid above 0: every user may profile everything");
    }
    assert!(run.err.contains("unprivileged"), "{run:?}");
    let report = place.run_as(UNPRIVILEGED_UID, &["prof", "report", "own.prof"]);
    assert!(
        report.ok() && report.out.contains("unprivileged: "),
        "{report:?}"
    );
    assert!(report.out.contains("sh"), "{report:?}");

    assert!(
        all.code == 3 && all.err.contains("needs privileges"),
        "{all:?}"
    );
    assert_eq!(all.err.lines().count(), 1, "{all:?}");
    assert!(!place.has("all.prof"));
    let several = [
        "prof",
        "record",
        "--participants",
        "web",
        "--socket",
        "s",
        "-o",
        "x.prof",
    ];
    let run = place.run_as(UNPRIVILEGED_UID, &[&several[..], &["--", "true"]].concat());
    assert!(
        run.code == 3 && run.err.contains("several domains needs privileges"),
        "{run:?}"
    );
}

#[test]
fn a_killed_recorder_does_not_block_others() {
    let place = TestDir::new();
    let record = ["prof", "record", "-o", "x.prof", "--"];
    let running = place.start(&[&record[..], &["sh", "-c", LONG_COMMAND]].concat());
    if !place.wait_for_file_or_end("started", &running) {
        let run = running.finish();
        assert_eq!(run.code, 3, "{run:?}");
        return skip(run.err);
    }
    let meanwhile = place.run(&[&record[..], &["true"]].concat());
    assert_eq!(
        meanwhile.code, 2,
        "another recorder writes the file: {meanwhile:?}"
    );
    running.kill();
    let run = place.run(&["prof", "report", "x.prof"]);
    assert!(
        run.code == 2 && run.err.contains("not a profile"),
        "{run:?}"
    );
    let run = place.run(&[&record[..], &["true"]].concat());
    assert!(run.ok(), "{run:?}");
    assert!(place.run(&["prof", "report", "x.prof"]).ok());
}

#[test]
fn a_killed_participant_is_named_in_the_report() {
    let place = TestDir::new();
    if !may_sample(&place) {
        return;
    }
    let idle = idle();
    let part = |name: &str| {
        let pid = idle.0.id().to_string();
        let args = ["prof", "participate", name, "--socket", "s", "--pid", &pid];
        place.start(&[&args[..], &["--wait", "120"]].concat())
    };
    let (killed, stays) = (part("dies"), part("stays"));
    let record = [
        "prof",
        "record",
        "--participants",
        "dies,stays",
        "--timeout",
        "120",
    ];
    let rest = [
        "--socket",
        "s",
        "-o",
        "x.prof",
        "--",
        "sh",
        "-c",
        LONG_COMMAND,
    ];
    let running = place.start(&[&record[..], &rest].concat());
    assert!(place.wait_for_file_or_end("started", &running));
    killed.kill();
    place.file("enough", "");
    let run = running.finish();
    assert!(run.ok(), "{run:?}");
    let stays = stays.finish();
    assert!(
        stays.ok() && stays.err.contains("`stays` is ready"),
        "{stays:?}"
    );
    let report = place.run(&["prof", "report", "x.prof"]);
    let missing = "dies: its profiler disconnected";
    assert!(report.ok() && report.out.contains(missing), "{report:?}");
    assert!(!report.out.contains("stays: its profiler"), "{report:?}");
    assert!(!place.has("s"), "the socket must be removed");
}

/// A command that runs until a file exists or its folder is removed. It closes standard error, so
/// that a killed parent's test need not wait for it.
const LONG_COMMAND: &str = "touch started; exec 2>/dev/null; \
                     while [ -e started ] && [ ! -e enough ]; do sleep 0.05; done";

/// Starts a process that runs until the test ends.
fn idle() -> KillOnDrop {
    KillOnDrop(Command::new("sleep").arg("3600").spawn().unwrap())
}
