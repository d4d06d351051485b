//! The command line without a monitor: output, messages, and exit statuses.

use crate::test_dir::{SIM, TAPS, TestDir, is_alive};
use testing::require;

#[test]
fn help_and_version_need_nothing() {
    let place = TestDir::new();
    let help = place.run(&["--help"]);
    assert!(help.ok() && help.out.contains("grantway demo") && help.out.contains("Exit status"));
    assert!(place.run(&["--version"]).out.starts_with("grantway "));
    let help = place.run(&["up", "--help"]);
    assert!(
        help.out.contains("grantway up examples/two-guests.toml"),
        "{help:?}"
    );
}

#[test]
fn wrong_usage_is_status_2() {
    let place = TestDir::new();
    for args in [
        &[][..],
        &["nonsense"],
        &["exp"],
        &["stat", "--table", "--json"],
        &["trace", "--wait", "0"],
    ] {
        assert_eq!(place.run(args).code, 2, "{args:?}");
    }
    let run = place.run(&["exp", "no-such-plan"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(
        run.err.contains("no-such-plan") && run.err.contains("base"),
        "{run:?}"
    );
}

/// Old names in a file are accepted with a warning on standard error.
#[test]
fn old_names_cause_a_warning_on_stderr() {
    let place = TestDir::new();
    let text = "[driver]\ngrants = \"mapped\"\n[[nic]]\nname = \"w\"\nkind = \"tap\"\n\
                netns = \"no-such-namespace\"\n";
    let file = place.file("old.toml", text);
    let run = place.run(&["up", &file]);
    assert_eq!((run.code, run.out.as_str()), (2, ""), "{run:?}");
    let warning = format!("warning: {file}:2: [driver]: `grants` is \"mapped\"");
    assert!(run.err.starts_with(&warning), "{run:?}");
    assert!(run.err.contains("no network namespace"), "{run:?}");
}

#[test]
fn plans_are_listed_for_people_and_scripts() {
    let place = TestDir::new();
    assert!(
        place
            .run(&["exp", "--list"])
            .out
            .lines()
            .any(|line| line == "base")
    );
    assert!(
        place
            .run(&["exp", "--list", "--json"])
            .out
            .contains("{\"plan\":\"base\"}\n")
    );
}

/// An installation may lack `grantway-lab`: help and completions still list its commands.
#[test]
fn commands_of_the_lab_name_the_missing_program() {
    let place = TestDir::without_lab();
    for args in [
        &["demo", "--quick"][..],
        &["exp", "--list"],
        &["prof", "record", "--", "true"],
    ] {
        let run = place.run(args);
        assert_eq!((run.code, run.out.as_str()), (3, ""), "{args:?}: {run:?}");
        let message = format!(
            "grantway: `grantway {}` needs the program grantway-lab, which is not installed: ",
            args[0]
        );
        assert!(run.err.starts_with(&message), "{run:?}");
        assert_eq!(run.err.lines().count(), 1, "{run:?}");
        assert!(place.run(&[args[0], "--help"]).ok(), "{args:?}");
        let help = place.run(&["--help"]);
        assert!(help.out.contains(&format!("\n  {}", args[0])), "{help:?}");
    }
    assert_eq!(place.run(&["exp"]).code, 2);
}

#[test]
fn completions_are_printed() {
    let place = TestDir::new();
    for shell in ["bash", "zsh", "fish"] {
        let run = place.run(&["completions", shell]);
        assert!(
            run.ok() && run.out.contains("grantway") && run.out.contains("detach"),
            "{shell}"
        );
    }
}

#[test]
fn a_missing_instance_is_reported_with_status_1() {
    let place = TestDir::new();
    for args in [
        &["status"][..],
        &["stat"],
        &["grants"],
        &["trace"],
        &["set", "a", "b", "c"],
        &["down"],
    ] {
        let run = place.run(args);
        assert_eq!((run.code, run.out.as_str()), (1, ""), "{args:?}");
        assert_eq!(
            run.err,
            "grantway: no instance named `grantway` is running; start one with \
             `grantway up CONFIG`\n"
        );
    }
    let run = place.run(&["status", "--name", "../x"]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("is not a name for an instance"), "{run:?}");
}

#[test]
fn mistakes_in_a_file_are_reported_with_status_2() {
    let place = TestDir::new();
    let run = place.run(&["up", "nowhere.toml"]);
    assert!(
        run.code == 2 && run.err.contains("nowhere.toml cannot be read"),
        "{run:?}"
    );

    let file = place.file(
        "bad.toml",
        &SIM.replace("kind = \"sim\"", "kind = \"sum\"\nspeed = 1"),
    );
    let run = place.run(&["up", &file]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(
        run.err
            .contains("bad.toml:4: [[nic]] 1: `kind` is \"sum\"; write "),
        "{run:?}"
    );

    let file = place.file("host.toml", &TAPS.replace("here", "no-such-namespace"));
    let run = place.run(&["up", &file]);
    assert_eq!(run.code, 2);
    assert!(run.err.contains("host.toml:5: "), "{run:?}");
    assert!(
        run.err
            .contains("create it with `ip netns add no-such-namespace`"),
        "{run:?}"
    );

    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file, "--name", "a b"]);
    assert!(
        run.code == 2 && run.err.contains("is not a name for an instance"),
        "{run:?}"
    );
}

/// The regular monitor does not implement these mechanisms.
#[test]
fn mechanisms_of_comparisons_are_refused_by_name() {
    let (place, half) = (TestDir::new(), TestDir::new());
    half.file("grantwayd-lab", "");
    for grants in ["copy", "map", "flip", "flip-copy", "persistent"] {
        let text = format!("{SIM}\n[driver]\ngrants = \"{grants}\"\n[buffers]\nsize = \"full\"\n");
        let file = place.file("compared.toml", &text);
        let run = place.run(&["up", &file]);
        assert_eq!(run.code, 2, "{run:?}");
        for message in ["compared.toml:", "grants", "grantwayd-lab", "--lab"] {
            assert!(run.err.contains(message), "{message}: {run:?}");
        }
        for (place, missing) in [(&place, "grantwayd-lab"), (&half, "driver-lab")] {
            let run = place.run(&["up", "--lab", &file]);
            assert_eq!(run.code, 3, "{run:?}");
            assert!(run.err.contains(&format!("{missing}: build")), "{run:?}");
        }
    }
}

#[test]
fn a_missing_monitor_program_is_status_3() {
    let place = TestDir::new();
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file]);
    assert_eq!((run.code, run.out.as_str()), (3, ""));
    assert!(
        run.err.contains("grantwayd: build the whole workspace"),
        "{run:?}"
    );
    assert_eq!(run.err.lines().count(), 1, "{run:?}");
}

#[test]
fn an_open_runtime_directory_is_refused() {
    let place = TestDir::new();
    place.open_runtime_dir();
    let run = place.run(&["status"]);
    assert_eq!(run.code, 3);
    assert!(run.err.contains("GRANTWAY_RUNTIME_DIR"), "{run:?}");
}

#[test]
fn errors_of_the_monitor_are_quoted() {
    let place = TestDir::new();
    place.monitor("cat > /dev/null; echo '{\"error\":\"no TAP for you\"}'; exit 1");
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file]);
    assert_eq!(
        (run.code, run.err.as_str()),
        (1, "grantway: no TAP for you\n")
    );
}

#[test]
fn a_system_that_cannot_run_any_machine_is_status_3() {
    let place = TestDir::new();
    let line = r#"{"error":"no seccomp","cannot_run_here":true}"#;
    place.monitor(&format!("cat > /dev/null; echo '{line}'; exit 1"));
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file]);
    assert_eq!((run.code, run.err.as_str()), (3, "grantway: no seccomp\n"));
}

#[test]
fn a_monitor_that_dies_shows_the_end_of_its_log() {
    let place = TestDir::new();
    place.monitor("echo first >&2; echo 'the last words' >&2; exit 77");
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("exit status: 77"), "{run:?}");
    assert!(
        run.err.trim_end().ends_with("grantway.log: the last words"),
        "{run:?}"
    );
}

#[test]
fn invalid_answers_of_the_monitor_are_rejected() {
    let place = TestDir::new();
    place.monitor("cat > /dev/null; echo hello; sleep 60");
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file]);
    assert!(
        run.code == 1 && run.err.contains("is invalid: hello"),
        "{run:?}"
    );
}

#[test]
fn up_runs_until_a_signal_and_ends_the_monitor() {
    let place = TestDir::new();
    place.monitor(
        "cat > machine.json; echo $$ > pid; echo '{\"ready\":true,\"up_ms\":1.5}'; exec sleep 60",
    );
    let file = place.file("good.toml", SIM);
    let running = place.start(&["up", &file, "--name", "test", "--json"]);
    let pid = place.wait_for("pid");
    let machine = place.read("machine.json");
    assert!(machine.contains("\"name\":\"test\"") && machine.contains("\"program\":\"driver\""));
    place.wait_for_output(&running, "up_ms");
    assert!(is_alive(&pid));
    let run = running.terminate();
    assert!(
        run.out.contains("\"name\":\"test\"") && run.out.contains("\"up_ms\":1.5"),
        "{run:?}"
    );
    assert_eq!(run.out.lines().count(), 1, "{run:?}");
    // This monitor answered no client, so `up` reports a failure, although the monitor has exited.
    assert_eq!(run.code, 1, "{run:?}");
    assert!(!is_alive(&pid));
}

#[test]
fn up_detects_the_exit_of_the_monitor() {
    let place = TestDir::new();
    place.monitor("cat > /dev/null; echo '{\"ready\":true,\"up_ms\":1}'; exit 9");
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file]);
    assert_eq!(run.code, 1);
    assert!(
        run.err
            .contains("has ended unexpectedly (exit status: 9); its log is "),
        "{run:?}"
    );
}

/// A domain may have written the last line of a log.
#[test]
fn the_last_log_line_has_no_terminal_codes() {
    require!(root, tap);
    let place = TestDir::new();
    place.monitor(
        "cat > /dev/null; echo '{\"ready\":true,\"up_ms\":1}'; printf 'x\\033[2Jy\\n' >&2; exit 9",
    );
    let run = place.run(&["run", "--no-uplink", "--", "sleep", "60"]);
    assert_eq!(run.code, 129, "{run:?}");
    assert!(run.err.contains("(exit status: 9): x"), "{run:?}");
    assert!(!run.err.contains('\x1b'), "{run:?}");
}

#[test]
fn up_explains_how_to_reach_the_machine() {
    let place = TestDir::new();
    place.monitor("cat > /dev/null; echo '{\"ready\":true,\"up_ms\":3}'");
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file, "--detach", "--name", "office"]);
    assert!(run.ok(), "{run:?}");
    for part in [
        "office is up after 3 ms",
        "1 NIC",
        "10.0.0.2/24",
        "grantway down --name office",
    ] {
        assert!(run.out.contains(part), "{part}: {run:?}");
    }
}
