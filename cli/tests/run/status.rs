//! Exit status, and what is said when there is no command.

use crate::world::World;

#[test]
fn the_commands_status_is_handed_on() {
    let Some(world) = World::new(&[]) else { return };
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

/// 125 is never a command's own by custom, and always said to be ours.
#[test]
fn mistakes_are_told_and_start_nothing() {
    let Some(world) = World::new(&[]) else { return };
    for (args, part) in [
        (
            &["--ip", "10.9.0.2/32", "--", "true"][..],
            "no room for a gateway",
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
        (&["--name", "a/b", "--", "true"], "no name for an instance"),
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

/// A command's options are not `grantway`'s, with or without the dashes.
#[test]
fn what_follows_the_command_is_the_commands() {
    let Some(world) = World::new(&[]) else { return };
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
