//! A machine as a service: notifications to systemd, the unit, configuration fragments, and groups.

use crate::test_dir::{SIM, TestDir, is_alive, wait};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testing::{group_id, require};

/// A mock service manager and the notifications it has received.
struct Manager {
    socket: UnixDatagram,
    path: String,
    received: String,
}

impl Manager {
    fn new(place: &TestDir) -> Self {
        let path = place.file("notify", "");
        std::fs::remove_file(&path).unwrap();
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let received = String::new();
        Self {
            socket,
            path,
            received,
        }
    }

    /// Returns the environment of a service whose watchdog has a period of 300 ms.
    fn environment(&self) -> [(&str, &str); 2] {
        [("NOTIFY_SOCKET", &self.path), ("WATCHDOG_USEC", "300000")]
    }

    fn receive(&mut self) -> &str {
        let mut message = [0; 4096];
        while let Ok(bytes) = self.socket.recv(&mut message) {
            self.received += str::from_utf8(&message[..bytes]).unwrap();
        }
        &self.received
    }

    fn wait_for(&mut self, part: &str) {
        wait(|| self.receive().contains(part).then_some(()));
    }
}

#[test]
fn systemd_is_notified_of_each_state() {
    let place = TestDir::with_machine();
    let file = place.file("m.toml", SIM);
    let mut manager = Manager::new(&place);
    let running = place.start_with(&["up", &file], &manager.environment());
    manager.wait_for("WATCHDOG=1\nSTATUS=grantway: 2 of 2 domains run, 0 restarts\n");
    let received = manager.receive();
    assert!(
        received.starts_with("READY=1\nSTATUS=grantway is up\n"),
        "{received}"
    );
    assert_eq!(received.matches("READY=1").count(), 1, "{received}");
    assert!(!received.contains("STOPPING"), "{received}");
    // The watchdog is notified repeatedly.
    wait(|| (manager.receive().matches("WATCHDOG=1").count() > 2).then_some(()));
    let run = running.terminate();
    assert_eq!(run.code, 0, "{run:?}");
    assert!(
        manager.receive().ends_with("STOPPING=1\n"),
        "{}",
        manager.received
    );
}

#[test]
fn a_silent_machine_does_not_feed_the_watchdog() {
    let place = TestDir::new();
    place.monitor("cat > /dev/null; echo '{\"ready\":true,\"up_ms\":1}'; exec sleep 60");
    let file = place.file("m.toml", SIM);
    let mut manager = Manager::new(&place);
    let running = place.start_with(&["up", &file], &manager.environment());
    manager.wait_for("READY=1\n");
    std::thread::sleep(Duration::from_secs(1));
    running.terminate();
    let received = manager.receive();
    assert!(
        !received.contains("WATCHDOG") && received.contains("STOPPING"),
        "{received}"
    );
}

/// Without a watchdog the machine is not queried. Without systemd no notification is sent.
#[test]
fn a_monitor_is_queried_only_for_a_watchdog() {
    let place = TestDir::with_machine();
    let file = place.file("m.toml", SIM);
    let mut manager = Manager::new(&place);
    let running = place.start_with(&["up", &file], &manager.environment()[..1]);
    manager.wait_for("READY=1\n");
    std::thread::sleep(Duration::from_millis(600));
    let run = running.terminate();
    assert_eq!(run.code, 0, "{run:?}");
    let received = manager.receive();
    assert_eq!(received, "READY=1\nSTATUS=grantway is up\nSTOPPING=1\n");
}

/// The log is written to the journal and not to a file. Its lines begin with priorities.
#[test]
fn in_the_journal_lines_have_priorities() {
    let place = TestDir::with_machine();
    let file = place.file("m.toml", SIM);
    let journal = place.file("journal", "");
    let journal = std::fs::File::options().append(true).open(journal).unwrap();
    let meta = journal.metadata().unwrap();
    let stream = format!("{}:{}", meta.dev(), meta.ino());
    let running = place.start_into(&["up", &file], &[("JOURNAL_STREAM", &stream)], journal);
    place.wait_for_output(&running, "is up");
    let restart = place.run(&["restart", "web"]);
    assert!(restart.ok(), "{restart:?}");
    running.terminate();
    let lines = place.read("journal");
    assert!(lines.contains("<4>grantwayd: web: killed"), "{lines}");
    assert!(lines.lines().all(|line| line.starts_with('<')), "{lines}");
    assert!(!place.has("run/grantway.log"));
    // A usage error has a priority, too.
    let wrong = place.file("journal", "");
    let wrong = std::fs::File::options().append(true).open(wrong).unwrap();
    let running = place.start_into(&["up", "/no/file"], &[("JOURNAL_STREAM", &stream)], wrong);
    assert_eq!(running.finish().code, 2);
    assert!(
        place
            .read("journal")
            .starts_with("<3>grantway: /no/file cannot be read")
    );
}

/// Checks the repository's unit with the program under test.
#[test]
fn the_unit_is_valid_and_confines() {
    require!(tool("systemd-analyze"));
    let unit = include_str!("../../../contrib/systemd/grantway.service");
    assert!(unit.contains("\nType=notify\n") && unit.contains("\nWatchdogSec="));
    assert!(unit.contains("\nExecReload=/usr/bin/grantway reload /etc/"));
    let place = TestDir::new();
    let program = env!("CARGO_BIN_EXE_grantway");
    let path = place.file(
        "grantway.service",
        &unit.replace("/usr/bin/grantway", program),
    );
    let analyze = |args: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        let done = command.args(args).arg(&path).output().unwrap();
        let said = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8(said).unwrap())
    };
    assert_eq!(analyze(&["verify", "--man=no"]), (true, String::new()));
    let (is_enough, said) = analyze(&["security", "--offline=yes", "--no-pager", "--threshold=49"]);
    assert!(is_enough, "{said}");
}

#[test]
fn fragments_are_part_of_a_configuration() {
    let place = TestDir::new();
    place.monitor("cat > machine.json; echo '{\"ready\":true,\"up_ms\":1}'");
    let file = place.file("m.conf", SIM);
    std::fs::create_dir(format!("{file}.d")).unwrap();
    let guest = "[[guest]]\nname = \"db\"\n[[guest.vif]]\nendpoint = \"echo\"\n";
    place.file("m.conf.d/10-db.toml", guest);
    place.file("m.conf.d/20-name.toml", "[machine]\nname = \"office\"\n");
    let run = place.run(&["up", &file, "--detach", "--json"]);
    assert!(
        run.ok() && run.out.contains("\"name\":\"office\""),
        "{run:?}"
    );
    assert!(place.read("machine.json").contains("\"name\":\"db\""));
    place.file("m.conf.d/30-wrong.toml", "\n[driver]\nspins = 1\n");
    let run = place.run(&["up", &file]);
    assert_eq!((run.code, run.out.as_str()), (2, ""), "{run:?}");
    let wrong = "m.conf.d/30-wrong.toml:3: [driver]: unknown key `spins`";
    assert!(run.err.contains(wrong), "{run:?}");
}

#[test]
fn a_missing_group_is_reported_with_its_line() {
    let place = TestDir::new();
    let groups = "[machine]\nlook_group = \"no-such-group\"\n";
    let file = place.file("m.toml", &format!("{groups}{SIM}"));
    let run = place.run(&["up", &file]);
    assert_eq!(run.code, 2, "{run:?}");
    let received =
        "m.toml:2: [machine]: the group no-such-group does not exist; create it with `groupadd";
    assert!(run.err.contains(received), "{run:?}");
}

#[test]
fn one_group_may_query_and_another_may_change() {
    require!(root);
    const USER: u32 = 54_321;
    let place = TestDir::with_machine();
    place.open_to_all();
    let groups = "[machine]\nlook_group = \"games\"\nchange_group = \"adm\"\n";
    let file = place.file("m.toml", &format!("{groups}{SIM}"));
    let up = place.run(&["up", &file, "--detach", "--json"]);
    assert!(up.ok(), "{up:?}");
    let up: Value = serde_json::from_str(&up.out).unwrap();
    let [look, change] = ["games", "adm"].map(group_id);
    for args in [&["status"][..], &["stat", "driver"], &["grants"]] {
        let run = place.run_as_group(USER, look, args);
        assert!(run.ok(), "{args:?}: {run:?}");
        let run = place.run_as_group(USER, USER, args);
        assert_eq!((run.code, run.out.as_str()), (3, ""), "{args:?}: {run:?}");
    }
    let set = &["set", "driver", "lro.flush", "poll"][..];
    let reload = &["reload", &file, "--dry-run"][..];
    for args in [set, reload, &["restart", "web"], &["down"]] {
        let run = place.run_as_group(USER, look, args);
        let is_refused = !run.ok() && run.err.contains("you have read access only");
        assert!(is_refused, "{args:?}: {run:?}");
    }
    for args in [set, reload, &["restart", "web"], &["status"], &["down"]] {
        let run = place.run_as_group(USER, change, args);
        assert!(run.ok(), "{args:?}: {run:?}");
    }
    // `down` has waited until the machine stopped, although this user may not signal the machine.
    assert!(!is_alive(&up["pid"].to_string()));
}

/// The client is in another PID namespace, like a node's programs for a machine in a container. The
/// kernel then reports no process id of the client.
#[test]
fn a_client_of_another_pid_namespace_is_served() {
    require!(root, tool("unshare"));
    let place = TestDir::with_machine();
    let file = place.file("m.toml", SIM);
    let running = place.start_apart(&["up", &file]);
    place.wait_for_output(&running, "is up");
    // In this namespace the machine's process ids are unused or belong to other processes, which
    // must not be mistaken for the machine's.
    let upgrade = place.run_apart(&["upgrade"]);
    assert_eq!(upgrade.code, 3, "{upgrade:?}");
    assert!(
        upgrade
            .err
            .contains("a PID namespace that this process cannot see"),
        "{upgrade:?}"
    );
    for args in [
        &["status"][..],
        &["metrics"],
        &["restart", "web"],
        &["down"],
    ] {
        let run = place.run(args);
        assert!(
            run.ok(),
            "{args:?}: {run:?}\n{}",
            place.read("run/grantway.log")
        );
    }
    assert_eq!(running.finish().code, 0);
}

/// Runs a script of the package with programs that record their calls. A temporary folder is the
/// system's root, and contains another root.
struct Installs {
    place: TestDir,
    script: String,
}

impl Installs {
    fn new() -> Self {
        let place = TestDir::new();
        let folder = place.folder().display().to_string();
        let says = format!("#!/bin/sh\necho \"${{0##*/}}\" \"$@\" >> {folder}/called\n");
        for root in ["", "other/"] {
            for below in ["run/grantway", "usr/bin", "etc/grantway"] {
                std::fs::create_dir_all(place.folder().join(root).join(below)).unwrap();
            }
            let program = place.folder().join(root).join("usr/bin/grantway");
            let upgrade = "echo in \"$GRANTWAY_RUNTIME_DIR\" >> called; exit $STATUS\n";
            testing::place_script(&program, &format!("{says}{upgrade}"));
            place.file(&format!("{root}etc/grantway/grantway.conf"), "");
        }
        let systemctl = format!("{says}[ \"$2\" != is-active ] || exit $ACTIVE\n");
        testing::place_script(&place.folder().join("systemctl"), &systemctl);
        testing::place_script(&place.folder().join("deb-systemd-invoke"), &says);
        // `cargo deb` expands the placeholder to this text.
        let script = include_str!("../../../contrib/debian/scripts/postinst");
        let script = script.replace(
            "#DEBHELPER#",
            "systemctl --system daemon-reload\ndeb-systemd-invoke start grantway.service || true",
        );
        let script = script
            .replace("\"$root/", &format!("\"{folder}$root/"))
            .replace("=$root/", &format!("={folder}$root/"))
            .replace("[ -d /run/systemd/system ]", "[ -d / ]");
        let script = place.file("postinst", &script);
        Self { place, script }
    }

    /// Upgrades from this version and returns the recorded calls. `status` and `active` are the
    /// exit statuses of `upgrade` and of the check whether the service runs.
    fn upgrade_calls(
        &self,
        version: &str,
        [status, active]: [u8; 2],
        root: Option<&str>,
    ) -> Vec<String> {
        let _ = std::fs::remove_file(self.place.folder().join("called"));
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("sh");
        command
            .args([&self.script, "configure", version])
            .current_dir(self.place.folder())
            .env("PATH", format!("{}:{path}", self.place.folder().display()))
            .env("STATUS", status.to_string())
            .env("ACTIVE", active.to_string())
            .env_remove("DPKG_ROOT");
        if let Some(root) = root {
            command.env("DPKG_ROOT", root);
        }
        let run = command.output().unwrap();
        assert!(run.status.success(), "{run:?}");
        let calls = std::fs::read_to_string(self.place.folder().join("called"));
        let folder = self.place.folder().display().to_string();
        let calls = calls.unwrap_or_default().replace(&folder, "");
        calls.lines().map(str::to_owned).collect()
    }
}

#[test]
fn only_its_own_machine_restarts_the_service() {
    let installs = Installs::new();
    let upgraded = [
        "grantway upgrade --all --file /etc/grantway/grantway.conf",
        "in /run/grantway",
    ];
    let looked = ["systemctl --quiet is-active grantway.service"];
    let restarted = ["deb-systemd-invoke restart grantway.service"];
    let started = [
        "systemctl --system daemon-reload",
        "deb-systemd-invoke start grantway.service",
    ];
    assert_eq!(
        installs.upgrade_calls("", [3, 0], None),
        started,
        "a new one"
    );
    // The statuses mean: all machines can be upgraded, another machine cannot, the file is invalid,
    // the service's machine cannot.
    for status in [0, 1, 2] {
        let calls = installs.upgrade_calls("0.1", [status, 0], None);
        assert_eq!(calls, [&upgraded[..], &started].concat(), "{status}");
    }
    let all = [&upgraded[..], &looked, &restarted, &started].concat();
    assert_eq!(installs.upgrade_calls("0.1", [3, 0], None), all);
    let all = [&upgraded[..], &looked, &started].concat();
    assert_eq!(
        installs.upgrade_calls("0.1", [3, 3], None),
        all,
        "no service"
    );
    // An installation into another root must not affect the running system.
    let upgraded = [
        "grantway upgrade --all --file /other/etc/grantway/grantway.conf",
        "in /other/run/grantway",
    ];
    assert_eq!(
        installs.upgrade_calls("0.1", [3, 0], Some("/other")),
        upgraded
    );
    let empty: [&str; 0] = [];
    assert_eq!(installs.upgrade_calls("", [3, 0], Some("/other")), empty);
    // The cases are: no machine uses the file, and no machine runs.
    let conf = installs.place.folder().join("etc/grantway/grantway.conf");
    std::fs::remove_file(conf).unwrap();
    let all = [
        &["grantway upgrade --all", "in /run/grantway"][..],
        &started,
    ];
    assert_eq!(installs.upgrade_calls("0.1", [3, 0], None), all.concat());
    std::fs::remove_dir(installs.place.folder().join("run/grantway")).unwrap();
    assert_eq!(installs.upgrade_calls("0.1", [3, 0], None), started);
}

#[test]
fn every_command_has_a_manual_page() {
    let place = TestDir::new();
    let folder = format!("{}/man", place.folder().display());
    let run = place.run(&["manual", &folder]);
    assert!(run.ok(), "{run:?}");
    let page = |name: &str| std::fs::read_to_string(Path::new(&folder).join(name)).unwrap();
    for name in ["up", "down", "status", "prof-record", "manual"] {
        let text = page(&format!("grantway-{name}.1"));
        assert!(
            text.contains(".SH NAME") && text.contains("grantway"),
            "{name}"
        );
    }
    assert!(page("grantway.1").contains("grantway\\-up(1)"));
    let pages = std::fs::read_dir(&folder).unwrap();
    let hidden = pages
        .flatten()
        .any(|page| page.file_name() == "grantway-internal.1");
    assert!(!hidden);
}
