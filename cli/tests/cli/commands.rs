//! The command line as a person or a script meets it, without a monitor: what is said, where, and
//! with which exit status.

use crate::place::{Place, SIM, TAPS, is_alive};
use testing::require;

#[test]
fn help_and_version_need_nothing() {
    let place = Place::new();
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
    let place = Place::new();
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

/// Old names in a file are accepted with a warning, which scripts that read stdout never see.
#[test]
fn old_names_are_warned_of_on_stderr() {
    let place = Place::new();
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
    let place = Place::new();
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

#[test]
fn completions_are_printed() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let run = place.run(&["completions", shell]);
        assert!(
            run.ok() && run.out.contains("grantway") && run.out.contains("detach"),
            "{shell}"
        );
    }
}

#[test]
fn no_instance_is_one_sentence_and_status_1() {
    let place = Place::new();
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
    assert!(run.err.contains("no name for an instance"), "{run:?}");
}

#[test]
fn mistakes_in_a_file_are_status_2_with_file_line_and_remedy() {
    let place = Place::new();
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
            .contains("make it with `ip netns add no-such-namespace`"),
        "{run:?}"
    );

    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file, "--name", "a b"]);
    assert!(
        run.code == 2 && run.err.contains("no name for an instance"),
        "{run:?}"
    );
}

/// The monitor that is meant for use has no code for them.
#[test]
fn mechanisms_of_comparisons_are_refused_by_name() {
    let place = Place::new();
    for grants in ["copy", "map", "flip", "persistent"] {
        let text = format!("{SIM}\n[driver]\ngrants = \"{grants}\"\n[buffers]\nsize = \"full\"\n");
        let file = place.file("compared.toml", &text);
        let run = place.run(&["up", &file]);
        assert_eq!(run.code, 2, "{run:?}");
        for told in ["compared.toml:", "grants", "grantwayd-lab", "--lab"] {
            assert!(run.err.contains(told), "{told}: {run:?}");
        }
        // There is no such program here.
        let run = place.run(&["up", "--lab", &file]);
        assert_eq!(run.code, 3, "{run:?}");
        assert!(run.err.contains("grantwayd-lab: build"), "{run:?}");
    }
}

#[test]
fn no_monitor_program_is_status_3() {
    let place = Place::new();
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
    let place = Place::new();
    place.open_runtime_dir();
    let run = place.run(&["status"]);
    assert_eq!(run.code, 3);
    assert!(run.err.contains("GRANTWAY_RUNTIME_DIR"), "{run:?}");
}

#[test]
fn a_monitor_that_cannot_is_quoted() {
    let place = Place::new();
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
    let place = Place::new();
    let line = r#"{"error":"no seccomp","cannot_run_here":true}"#;
    place.monitor(&format!("cat > /dev/null; echo '{line}'; exit 1"));
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file]);
    assert_eq!((run.code, run.err.as_str()), (3, "grantway: no seccomp\n"));
}

#[test]
fn a_monitor_that_dies_shows_the_end_of_its_log() {
    let place = Place::new();
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
fn a_monitor_that_babbles_is_not_believed() {
    let place = Place::new();
    place.monitor("cat > /dev/null; echo hello; sleep 60");
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file]);
    assert!(
        run.code == 1 && run.err.contains("makes no sense: hello"),
        "{run:?}"
    );
}

#[test]
fn up_stays_until_a_signal_and_takes_the_monitor_along() {
    let place = Place::new();
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
    // This monitor answers nobody, which is a failure, but it is gone all the same.
    assert_eq!(run.code, 1, "{run:?}");
    assert!(!is_alive(&pid));
}

#[test]
fn up_notices_when_the_monitor_ends_by_itself() {
    let place = Place::new();
    place.monitor("cat > /dev/null; echo '{\"ready\":true,\"up_ms\":1}'; exit 9");
    let file = place.file("good.toml", SIM);
    let run = place.run(&["up", &file]);
    assert_eq!(run.code, 1);
    assert!(
        run.err
            .contains("has ended by itself (exit status: 9); its log is "),
        "{run:?}"
    );
}

/// The last line of a log may be a domain's.
#[test]
fn last_words_of_a_machine_are_nothing_that_a_terminal_obeys() {
    require!(root, tap);
    let place = Place::new();
    place.monitor(
        "cat > /dev/null; echo '{\"ready\":true,\"up_ms\":1}'; printf 'x\\033[2Jy\\n' >&2; exit 9",
    );
    let run = place.run(&["run", "--no-uplink", "--", "sleep", "60"]);
    assert_eq!(run.code, 129, "{run:?}");
    assert!(run.err.contains("(exit status: 9): x"), "{run:?}");
    assert!(!run.err.contains('\x1b'), "{run:?}");
}

#[test]
fn people_are_told_how_to_reach_it() {
    let place = Place::new();
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
