//! Runs experiments as a script does.

use crate::test_dir::{TestDir, wait};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets one experiment run at a time, because each uses all CPUs.
fn run_alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the figures in a run's standard output, without the provenance.
fn figures(out: &str) -> Vec<Value> {
    let mut lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
    let head: Value = lines.next().unwrap();
    assert!(head["provenance"]["placement"].is_string(), "{head}");
    lines.collect()
}

/// Returns a figure's median, and its note (empty without one).
fn figure<'a>(figures: &'a [Value], config: &str, metric: &str) -> (f64, &'a str) {
    let found = figures
        .iter()
        .find(|figure| figure["config"] == config && figure["metric"] == metric);
    let found = found.unwrap_or_else(|| panic!("no {metric} of {config}"));
    (
        found["value"].as_f64().unwrap(),
        found["note"].as_str().unwrap_or_default(),
    )
}

#[test]
fn small_frames_are_reported_with_their_settings() {
    let _alone = run_alone();
    let place = TestDir::with_machine();
    let only = "pointers-64,shared-64,ngm-64";
    let args = ["exp", "small", "--only", only, "--seconds", "0.5"];
    let run = place.run(&[&args[..], &["--quick", "--json"]].concat());
    assert!(run.ok(), "{run:?}");
    let figures = figures(&run.out);
    for config in ["pointers-64", "shared-64", "ngm-64", "ngm-64-touched"] {
        let (mpps, note) = figure(&figures, config, "packets");
        assert!(mpps > 0.0, "{config}");
        assert!(note.contains(" frames of a guest in flight"), "{note}");
        assert_eq!(
            note.contains("payload not touched"),
            !config.ends_with("touched"),
            "{config}: {note}"
        );
        for metric in [
            "cycles_per_packet.driver",
            "cycles_per_packet.guest",
            "cycles_per_packet.driver.hop.copy",
            "drops.no_request",
        ] {
            figure(&figures, config, metric);
        }
    }
    let (in_flight, _) = figure(&figures, "ngm-64-window-768", "in_flight");
    let (usual, _) = figure(&figures, "ngm-64", "in_flight");
    assert!(usual <= 128.0 && in_flight <= 768.0, "{usual} {in_flight}");
    figure(&figures, "ngm-64", "ratio.shared-64.packets");
    figure(&figures, "ngm-64", "ratio.pointers-64.packets");
}

/// A NIC with descriptor rings needs no TAP, and its device's cycles are printed.
#[test]
fn demo_runs_with_a_soft_nic() {
    let _alone = run_alone();
    let place = TestDir::with_machine();
    let run = place.run(&["demo", "--nic", "soft", "--json"]);
    assert!(run.ok(), "{run:?}");
    let figures = figures(&run.out);
    for config in ["grantway@dir=to_guest", "grantway@dir=from_guest"] {
        for metric in [
            "throughput",
            "transactions",
            "cycles_per_packet.driver",
            "cycles_per_packet.nic_device",
        ] {
            let (value, _) = figure(&figures, config, metric);
            assert!(value > 0.0, "{config}: {metric}");
        }
    }
    assert!(figure(&figures, "grantway", "grants.leaked").0 < 1.0);
}

/// A user's plan, with a wire that impairs frames and with neighbours of a guest.
const OWN: &str = r#"
name = "own"
about = "faults, acknowledgements at once, rivals, several wires"
requests = []
direction = ["to_guest"]
wake = ["halt"]
push = true

[full]
rounds = 3
warm_up_s = 0.2
window_s = 1.0

[quick]
rounds = 3
warm_up_s = 0.2
window_s = 0.5

[[column]]
name = "spoiled"
path = "machine"
place = ["one-core"]
faults = { loss_ppm = 100, reorder_ppm = 200000 }

[[column]]
name = "spoiled-bridge"
path = "bridge"
gro = "off"
faults = { loss_ppm = 100, reorder_ppm = 200000 }

[[column]]
name = "at-once"
path = "machine"
place = ["one-core"]
quick_ack = true

[[column]]
name = "crowded"
path = "machine"
place = ["one-core"]
rivals = [0, 2]

[[column]]
name = "wires"
path = "machine"
place = ["split"]
wires = [1, 4]
"#;

#[test]
fn a_users_plan_impairs_the_wire_and_adds_load() {
    testing::require!(root, tap, tool("nft"), tool("ip"), tool("ethtool"));
    let _alone = run_alone();
    let place = TestDir::with_machine();
    let file = place.file("own.toml", OWN);
    let run = place.run(&["exp", &file, "--quick", "--json"]);
    assert!(run.ok(), "{run:?}");
    let figures = figures(&run.out);
    let value = |config: &str, metric: &str| figure(&figures, config, metric).0;
    assert!(value("spoiled", "sack_share") > 0.0);
    assert!(value("spoiled-bridge", "throughput") > 0.0);
    // A delayed acknowledgement would cover two segments.
    assert!(value("at-once", "segments_per_ack") < 1.5);
    assert!(value("crowded@rivals=2", "throughput.rivals") > 0.0);
    let none = figures.iter().any(|figure| {
        figure["config"] == "crowded@rivals=0" && figure["metric"] == "throughput.rivals"
    });
    assert!(!none, "without neighbours the figure is absent");
    for wires in ["wires@wires=1", "wires@wires=4"] {
        assert!(value(wires, "throughput") > 0.0);
    }
    assert_eq!(place.leftovers(), ["own.toml"]);
}

/// A plan with a web server, which is queried over a machine and over the kernel's network path.
const WEB: &str = r#"
name = "web"
about = "a web server"
requests = []
direction = ["to_guest"]
wake = ["halt"]

[web]
offered = [50, 100]
bytes = 1024

[full]
rounds = 3
warm_up_s = 0.1
window_s = 1.0

[quick]
rounds = 3
warm_up_s = 0.1
window_s = 0.5

[[column]]
name = "machine"
path = "machine"
place = ["one-core"]
"#;

#[test]
fn a_web_server_is_measured_and_leaves_nothing() {
    testing::require!(root, tap, tool("nginx"), tool("httperf"));
    let _alone = run_alone();
    let place = TestDir::with_machine();
    let run = place.run(&["exp", &place.file("web.toml", WEB), "--quick", "--json"]);
    assert!(run.ok(), "{run:?}");
    let figures = figures(&run.out);
    let value = |config: &str, metric: &str| figure(&figures, config, metric).0;
    for config in ["machine@offered=50", "machine@offered=100"] {
        assert!(value(config, "replies") > 0.0);
        assert!(value(config, "connection_ms.p50") > 0.0);
        assert!(value(config, "cycles_per_request.driver") > 0.0);
        assert!(value(config, "unanswered") < 1.0);
    }
    assert!(value("machine", "peak_replies") >= value("machine@offered=50", "replies"));
    assert_eq!(place.leftovers(), ["web.toml"]);
    assert_eq!(place.users(), Vec::<String>::new());
}

#[test]
fn a_missing_web_server_is_named_by_its_package() {
    testing::require!(root, tap);
    let place = TestDir::with_machine();
    let plan = place.file("web.toml", WEB);
    let run = place.run_without_programs(&["exp", &plan, "--quick", "--json"]);
    assert!(run.ok(), "{run:?}");
    let figures = figures(&run.out);
    let absent = figures
        .iter()
        .find(|f| f["config"] == "machine@offered=any");
    let absent = absent.unwrap();
    assert_eq!(absent["verdict"], "not-measurable", "{absent}");
    let note = absent["note"].as_str().unwrap();
    for package in ["package nginx", "package httperf"] {
        assert!(note.contains(package), "{note}");
    }
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    testing::require!(root, tap);
    let _alone = run_alone();
    let place = TestDir::with_machine();
    let of_machines = || -> Vec<String> {
        let files = fs::read_dir(place.folder().join("run"));
        let names = files.into_iter().flatten().flatten();
        let names = names.filter_map(|file| file.file_name().into_string().ok());
        names.filter(|name| name.starts_with("attach-")).collect()
    };
    let processes = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let programs = all.filter_map(|process| fs::read_link(process.path().join("exe")).ok());
        programs
            .filter(|exe| exe.starts_with(place.folder()))
            .count()
    };
    let running = place.start(&["exp", "attach", "--quick"]);
    wait(|| (!of_machines().is_empty()).then_some(()));
    // `grantway` is one of these processes.
    wait(|| (processes() > 1).then_some(()));
    let run = running.terminate();
    assert_eq!(run.code, 130, "{run:?}");
    assert_eq!(of_machines(), Vec::<String>::new());
    wait(|| (processes() == 0).then_some(()));
}

#[test]
fn mistakes_in_a_users_plan_are_located() {
    let place = TestDir::new();
    for (from, to, message) in [
        ("about =", "abuot =", "line 3, column 1"),
        (
            "loss_ppm = 100,",
            "loss_ppm = 500001,",
            "column `spoiled`: `loss_ppm`",
        ),
        (
            "wires = [1, 4]",
            "wires = [5]",
            "column `wires`: 1 to 4 `wires`",
        ),
        (
            "name = \"own\"",
            "name = \"../own\"",
            "name: use lower-case",
        ),
    ] {
        let path = &place.file("own.toml", &OWN.replacen(from, to, 1));
        let run = place.run(&["exp", path]);
        assert_eq!(run.code, 2, "{run:?}");
        assert!(
            run.err.contains(path.as_str()) && run.err.contains(message),
            "{run:?}"
        );
    }
    let run = place.run(&["exp", "gone.toml"]);
    assert!(run.code == 2 && run.err.contains("gone.toml: "), "{run:?}");
}

/// Returns a counter of the kernel's pool of 2 MB pages.
fn huge_pages(counter: &str) -> String {
    let pool = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB");
    fs::read_to_string(pool.join(counter)).unwrap_or_default()
}

/// A single test, because all runs share one pool of huge pages.
#[test]
fn peers_run_and_leave_nothing_behind() {
    let pages = || huge_pages("nr_hugepages");
    let _alone = run_alone();
    let place = TestDir::with_machine();
    let before = pages();
    let all = ["exp", "peers", "--json", "--quick", "--seconds"];
    // The programs of `memif` and `ovs` also meet the requirements of vhost.
    let run = place.run(&[&all[..], &["0.5", "--only", "ngm,memif,ovs"]].concat());
    if run.code == 3 {
        return testing::skip(run.err);
    }
    assert!(run.ok(), "{run:?}");
    let figures = figures(&run.out);
    for size in ["64", "1514"] {
        // `ngm` has the same total number of frames as the peers.
        let (in_flight, note) = figure(&figures, &format!("ngm@size={size}"), "in_flight");
        assert!(
            in_flight <= 256.0 && note.contains("and 512 buffers posted"),
            "{in_flight} {note}"
        );
    }
    for peer in ["memif", "ovs-dpdk"] {
        for size in ["64", "1514"] {
            let config = format!("{peer}@size={size}");
            let (mpps, note) = figure(&figures, &config, "packets");
            assert!(mpps > 0.0 && note.contains("pages of 2 MB"), "{note}");
            assert!(figure(&figures, &config, "cycles_per_packet.driver").0 > 0.0);
            let (ratio, note) = figure(
                &figures,
                &format!("ngm-default@size={size}"),
                &format!("ratio.{peer}.packets"),
            );
            assert!(ratio > 0.0 && note.contains("pages of 4 KB"), "{note}");
            assert!(note.contains("against: 768 frames in flight"), "{note}");
            assert!(
                note.contains("copied once") && note.contains("copied twice"),
                "{note}"
            );
        }
    }
    // Columns that touch every byte are compared only with each other.
    for peer in ["memif-touched", "ovs-dpdk-touched"] {
        for size in ["64", "1514"] {
            let own = format!("ngm-touched@size={size}");
            let (ratio, note) = figure(&figures, &own, &format!("ratio.{peer}.packets"));
            assert!(ratio > 0.0, "{note}");
            assert_eq!(note.matches("payload touched").count(), 2, "{note}");
        }
    }
    assert_eq!((pages(), place.leftovers()), (before.clone(), Vec::new()));
    assert_eq!(place.users(), Vec::<String>::new());

    let running = place.start(&[&all[..], &["60", "--only", "ovs"]].concat());
    // Once the guest uses the switch's port, both the guest and the switch run.
    wait(|| {
        place
            .users()
            .iter()
            .any(|words| words.contains("virtio_user"))
            .then_some(())
    });
    // Another program may have reserved enough pages before, so the pool does not always grow.
    wait(|| (pages() != huge_pages("free_hugepages")).then_some(()));
    let run = running.terminate();
    assert_eq!(run.code, 130, "{run:?}");
    assert_eq!((pages(), place.leftovers()), (before, Vec::new()));
    assert_eq!(place.users(), Vec::<String>::new());
}

#[test]
fn missing_peers_are_named_by_their_packages() {
    let place = TestDir::new();
    let run = place.run_without_programs(&["exp", "peers", "--quick", "--json"]);
    assert_eq!((run.code, run.out.as_str()), (3, ""), "{run:?}");
    for package in ["dpdk-dev", "openvswitch-switch-dpdk"] {
        assert!(run.err.contains(package), "{run:?}");
    }
    assert_eq!(run.err.lines().count(), 1, "{run:?}");
}
