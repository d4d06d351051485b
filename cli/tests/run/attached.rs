//! A command that is attached to a running machine.

use crate::signals::{sleeping, unique_sleep};
use crate::testbed::{OUTSIDE, SYSTEM, Testbed, grantway, wait_until_none};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use testing::{ProgramOutput, Running, group_id, require, wait_for};

const MACHINE: &str = "[machine]\nname = \"m\"\nchange_group = \"adm\"\n\
                       [[nic]]\nname = \"lan\"\nkind = \"tap\"\nifname = \"gw0\"\n\
                       addresses = [\"10.9.0.1/24\"]\nuplink = { nat = true }\n";
/// A configuration without keys that are reserved for machines of root.
const OWN: &str = "[machine]\nname = \"m\"\n[[nic]]\nname = \"lan\"\nkind = \"local\"\n\
                   addresses = [\"10.9.0.1/24\"]\n";
/// A user without groups.
const USER: u32 = 54_321;

/// A script that prints a command's view of its network.
const SCRIPT: &str = "ip -o -4 address show dev eth0; ip route; id -u; exit 7";

/// A machine that runs until this value is dropped.
struct Machine<'a> {
    world: &'a Testbed,
    /// The machine's owner: user and group.
    owner: (u32, u32),
    up: Running,
}

impl<'a> Machine<'a> {
    fn start(world: &'a Testbed) -> Self {
        Self::start_as(world, (0, 0), MACHINE)
    }

    fn start_as(world: &'a Testbed, owner: (u32, u32), text: &str) -> Self {
        let file = world.folder.path().join("m.toml");
        fs::write(&file, text).unwrap();
        let file = file.display().to_string();
        let mut up = spawn_as(world, owner, &["--json", "up", &file]);
        up.line_with("up_ms");
        Self { world, owner, up }
    }

    /// Returns the answer to a query, if the machine answers.
    fn query(&self, what: &str) -> Option<Value> {
        let args = ["--json", what, "--name", "m"];
        let ran = spawn_as(self.world, self.owner, &args).finish();
        serde_json::from_str(&ran.out).ok()
    }

    /// Returns the names of the machine's guests.
    fn guests(&self) -> Vec<String> {
        let status = wait_for("no status", || self.query("status"));
        let domains = status["domains"].as_array().unwrap().iter();
        let names = domains.map(|domain| domain["name"].as_str().unwrap().to_owned());
        names.filter(|name| name != "driver").collect()
    }

    /// Waits until the machine has no guest, and checks that no grant is leaked.
    #[track_caller]
    fn wait_until_empty(&self) {
        wait_until_none(|| self.guests());
        assert_eq!(wait_for("no audit", || self.query("grants"))["leaked"], 0);
    }
}

/// Starts `grantway ARGS` as another user.
fn spawn_as(world: &Testbed, (user, group): (u32, u32), args: &[&str]) -> Running {
    let mut command = world.command(&world.program(), args);
    world.spawn(command.uid(user).gid(group))
}

/// Runs `grantway run --machine m ARGS` as another user.
fn run_as(world: &Testbed, owner: (u32, u32), args: &[&str]) -> ProgramOutput {
    spawn_as(world, owner, &[&["run", "--machine", "m"], args].concat()).finish()
}

/// The command gets an unused address of the machine's network, and the machine's default route.
#[test]
fn an_attached_command_leaves_nothing_behind() {
    let Some(world) = Testbed::new(&["curl"]) else {
        return;
    };
    let machine = Machine::start(&world);
    let ran = world
        .start(&["--machine", "m", "--", "sh", "-c", SCRIPT])
        .finish();
    assert_eq!((ran.code, ran.err.as_str()), (7, ""), "{ran:?}");
    let has = |part: &str| assert!(ran.out.contains(part), "{part}: {ran:?}");
    has("inet 10.9.0.2/24");
    has("default via 10.9.0.1");
    machine.wait_until_empty();
    let url = format!("http://{}/", world.serve_web());
    let mut words = vec![
        "--json",
        "run",
        "--machine",
        "m",
        "--report",
        "--network",
        "lan",
    ];
    words.extend(["--", "curl", "-sS", "--max-time", "120", &url]);
    let ran = world
        .spawn(&mut world.command(&grantway(), &words))
        .finish();
    assert_eq!(
        (ran.code, ran.out),
        (0, format!("you are {SYSTEM}\n")),
        "{}",
        ran.err
    );
    let report: Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(report["reach"]["leaked"], 0, "{report}");
    assert!(
        report["passed"]["from_command"]["frames"].as_u64() > Some(3),
        "{report}"
    );
    assert!(report["passed"]["to_outside"].is_null(), "{report}");
    machine.wait_until_empty();
}

/// Two commands run at the same time, one of them with a chosen address.
#[test]
fn commands_of_a_machine_reach_each_other() {
    let Some(world) = Testbed::new(&["ping"]) else {
        return;
    };
    let machine = Machine::start(&world);
    let ours = ["--machine", "m", "--guest", "first", "--ip", "10.9.0.77/24"];
    let stays = ["--", "sh", "-c", "echo runs; cat"];
    let mut command = world.command(&grantway(), &[&["run"], &ours[..], &stays].concat());
    let mut first = world.spawn(command.stdin(std::process::Stdio::piped()));
    first.line_with("runs");
    assert_eq!(machine.guests(), ["first"]);
    let ping = ["ping", "-c", "1", "-w", "60", "10.9.0.77"];
    let ran = world
        .start(&[&["--machine", "m", "--"], &ping[..]].concat())
        .finish();
    assert_eq!(ran.code, 0, "{ran:?}");
    // The name and the address are in use.
    for (options, part) in [
        (&["--guest", "first"][..], "first"),
        (&["--ip", "10.9.0.77/24"], "10.9.0.77"),
        (&["--network", "wan"], "no NIC is named wan"),
    ] {
        let all = [&["--machine", "m"], options, &["--", "true"]].concat();
        let ran = world.start(&all).finish();
        assert_eq!(ran.code, 125, "{ran:?}");
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
    first.end_of_input();
    assert_eq!(first.finish().code, 0);
    machine.wait_until_empty();
    let ran = world.start(&["--machine", "other", "--", "true"]).finish();
    assert!(ran.code == 125 && ran.err.contains("other"), "{ran:?}");
}

#[test]
fn a_killed_run_is_detached() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let machine = Machine::start(&world);
    let long = unique_sleep(7);
    let script = format!("sleep {long} & echo runs; wait");
    let mut run = world.start(&["--machine", "m", "--", "sh", "-c", &script]);
    run.line_with("runs");
    assert_eq!(machine.guests().len(), 1);
    run.signal(Signal::KILL);
    machine.wait_until_empty();
    wait_until_none(|| sleeping(std::slice::from_ref(&long)));
}

#[test]
fn the_end_of_a_machine_hangs_up_its_commands() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let machine = Machine::start(&world);
    let mut run = world.start(&[
        "--machine",
        "m",
        "--",
        "sh",
        "-c",
        "echo runs; exec sleep 1000",
    ]);
    run.line_with("runs");
    machine.up.signal(Signal::TERM);
    let ran = run.finish();
    assert_eq!(ran.code, 129, "{ran:?}");
    assert!(ran.err.contains("the machine has ended"), "{ran:?}");
}

/// The command's user namespace is a descendant of that of root's machine, which can thus create
/// the interface in the command's network namespace.
#[test]
fn only_users_who_may_attach_run_commands() {
    require!(userns);
    let Some(world) = Testbed::new(&["ping"]) else {
        return;
    };
    let machine = Machine::start(&world);
    let args = ["-q", "--", "sh", "-c", SCRIPT];
    let ran = run_as(&world, (USER, group_id("adm")), &args);
    assert_eq!((ran.code, ran.err.as_str()), (7, ""), "{ran:?}");
    let has = |part: &str| assert!(ran.out.contains(part), "{part}: {ran:?}");
    has("inet 10.9.0.2/24");
    has("\n0\n");
    machine.wait_until_empty();
    let dns = [
        "--dns",
        OUTSIDE,
        "--",
        "sh",
        "-c",
        "ping -c 1 -w 60 10.9.0.1 && cat /etc/resolv.conf",
    ];
    let ran = run_as(&world, (USER, group_id("adm")), &dns);
    assert!(ran.code == 0 && ran.out.contains(OUTSIDE), "{ran:?}");
    machine.wait_until_empty();
    let ran = run_as(&world, (USER, USER), &args);
    assert_eq!((ran.code, ran.out.as_str()), (125, ""), "{ran:?}");
    assert!(machine.guests().is_empty());
}

/// The command's namespaces are in the machine's user namespace.
#[test]
fn an_unprivileged_machine_serves_its_users_commands() {
    require!(userns);
    let Some(world) = Testbed::new(&["ping"]) else {
        return;
    };
    let runtime = world.runtime();
    fs::create_dir_all(&runtime).unwrap();
    std::os::unix::fs::chown(&runtime, Some(USER), Some(USER)).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
    let machine = Machine::start_as(&world, (USER, USER), OWN);
    let args = [
        "--",
        "sh",
        "-c",
        "ping -c 1 -w 60 10.9.0.1 > /dev/null && exit 7",
    ];
    let ran = run_as(&world, (USER, USER), &args);
    assert_eq!(ran.code, 7, "{ran:?}");
    machine.wait_until_empty();
    machine.up.signal(Signal::TERM);
    assert_eq!(machine.up.finish().code, 0);
    let empty = "[machine]\nname = \"m\"\n";
    let _machine = Machine::start_as(&world, (USER, USER), empty);
    let ran = run_as(&world, (USER, USER), &args);
    assert!(
        ran.code == 125 && ran.err.contains("without privileges"),
        "{ran:?}"
    );
}
