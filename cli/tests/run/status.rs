//! Exit statuses, and messages without a command.

use crate::testbed::Testbed;

#[test]
fn the_commands_status_is_returned() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    for (command, code) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["/no/such/program"], 127),
        (&["no-such-program"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let ran = world.run(&[&["--"], command].concat());
        assert_eq!(ran.code, code, "{command:?}: {ran:?}");
        assert_eq!(
            ran.err.is_empty(),
            !command[0].contains("no") && code != 126,
            "{ran:?}"
        );
    }
}

/// The monitor starts but cannot create a domain's memory.
#[test]
fn a_machine_that_cannot_start_leaves_nothing() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let script = format!("ulimit -v 60000; exec {} run -- true", world.program());
    let ran = world.spawn(&mut world.command("sh", &["-c", &script]));
    let ran = ran.finish();
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(ran.err.contains("Cannot allocate memory"), "{ran:?}");
    assert_eq!(world.leftovers(), [""; 0], "{ran:?}");
}

/// By convention 125 is never a command's status. It shows that grantway has failed.
#[test]
fn mistakes_are_reported_and_start_nothing() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    for (args, part) in [
        (
            &["--ip", "10.9.0.2/32", "--", "true"][..],
            "no address for a gateway",
        ),
        (&["--ip", "10.9.0.2", "--", "true"], "like 10.9.0.2/24"),
        (
            &["--ip", "192.0.2.9/24", "--", "true"],
            "192.0.2.0/24 overlaps",
        ),
        (
            &["--forward", "tcp:80", "--", "true"],
            "--forward tcp:80: write it like",
        ),
        (
            &[
                "--forward",
                "tcp:80=10.1.1.1:80",
                "--ip",
                "10.9.0.2/24",
                "--",
                "true",
            ],
            "10.9.0.2",
        ),
        (&["--mtu", "100", "--", "true"], "576"),
        (
            &["--name", "a/b", "--", "true"],
            "is not a name for an instance",
        ),
        (&["--nonsense", "--", "true"], "--nonsense"),
        (&[], "<CMD>"),
    ] {
        let ran = world.run(args);
        assert_eq!((ran.code, ran.out.as_str()), (125, ""), "{args:?}: {ran:?}");
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
    let help = world.run(&["--help"]);
    assert!(
        help.code == 0 && help.out.contains("grantway run -- curl"),
        "{help:?}"
    );
}

/// Options after the command belong to the command, with or without `--`.
#[test]
fn options_after_the_command_belong_to_it() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    for args in [
        &["--", "echo", "--report", "--", "-q"][..],
        &["echo", "--report", "--", "-q"],
    ] {
        let ran = world.run(args);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (0, "--report -- -q\n"),
            "{ran:?}"
        );
    }
}
