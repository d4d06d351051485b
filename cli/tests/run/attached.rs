//! A command behind a machine that runs.

use crate::signals::{seconds, sleeping};
use crate::world::{OUTSIDE, Ran, Running, SYSTEM, World, grantway, wait_until_none};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use testing::{group_id, require, wait_for};

const MACHINE: &str = "[machine]\nname = \"m\"\nchange_group = \"adm\"\n\
                       [[nic]]\nname = \"lan\"\nkind = \"tap\"\nifname = \"gw0\"\n\
                       addresses = [\"10.9.0.1/24\"]\nuplink = { nat = true }\n";
/// The same without what only root's may have.
const OWN: &str = "[machine]\nname = \"m\"\n[[nic]]\nname = \"lan\"\nkind = \"local\"\n\
                   addresses = [\"10.9.0.1/24\"]\n";
/// Somebody of no group.
const USER: u32 = 54_321;

/// What a command says of its network.
const SCRIPT: &str = "ip -o -4 address show dev eth0; ip route; id -u; exit 7";

/// A machine that runs until this is dropped.
struct Machine<'a> {
    world: &'a World,
    /// Whose it is: user and group.
    who: (u32, u32),
    up: Running,
}

impl<'a> Machine<'a> {
    fn start(world: &'a World) -> Self {
        Self::start_as(world, (0, 0), MACHINE)
    }

    fn start_as(world: &'a World, who: (u32, u32), text: &str) -> Self {
        let file = world.folder.path().join("m.toml");
        fs::write(&file, text).unwrap();
        let file = file.display().to_string();
        let mut up = spawn_as(world, who, &["--json", "up", &file]);
        up.line_with("up_ms");
        Self { world, who, up }
    }

    /// What it says, if it says something.
    fn ask(&self, what: &str) -> Option<Value> {
        let args = ["--json", what, "--name", "m"];
        let ran = spawn_as(self.world, self.who, &args).finish();
        serde_json::from_str(&ran.out).ok()
    }

    /// The guests that it has.
    fn guests(&self) -> Vec<String> {
        let status = wait_for("no status", || self.ask("status"));
        let domains = status["domains"].as_array().unwrap().iter();
        let names = domains.map(|domain| domain["name"].as_str().unwrap().to_owned());
        names.filter(|name| name != "driver").collect()
    }

    /// Waits until nothing of a guest is left.
    #[track_caller]
    fn is_alone(&self) {
        wait_until_none(|| self.guests());
        assert_eq!(wait_for("no audit", || self.ask("grants"))["leaked"], 0);
    }
}

/// Starts `grantway ARGS` as somebody.
fn spawn_as(world: &World, (user, group): (u32, u32), args: &[&str]) -> Running {
    let mut command = world.command(&world.program(), args);
    world.spawn(command.uid(user).gid(group))
}

/// `grantway run --machine m ARGS` as somebody else.
fn run_as(world: &World, who: (u32, u32), args: &[&str]) -> Ran {
    spawn_as(world, who, &[&["run", "--machine", "m"], args].concat()).finish()
}

/// Its address is one of the machine's that nobody has, and its way out the machine's.
#[test]
fn a_command_is_attached_and_leaves_nothing() {
    let Some(world) = World::new(&["curl"]) else {
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
    machine.is_alone();
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
    machine.is_alone();
}

/// Two at once, one of them with an address of its own choice.
#[test]
fn commands_of_a_machine_reach_each_other() {
    let Some(world) = World::new(&["ping"]) else {
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
    // The name and the address are taken.
    for (options, part) in [
        (&["--guest", "first"][..], "first"),
        (&["--ip", "10.9.0.77/24"], "10.9.0.77"),
        (&["--network", "wan"], "there is no NIC wan"),
    ] {
        let all = [&["--machine", "m"], options, &["--", "true"]].concat();
        let ran = world.start(&all).finish();
        assert_eq!(ran.code, 125, "{ran:?}");
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
    first.end_of_input();
    assert_eq!(first.finish().code, 0);
    machine.is_alone();
    let ran = world.start(&["--machine", "other", "--", "true"]).finish();
    assert!(ran.code == 125 && ran.err.contains("other"), "{ran:?}");
}

#[test]
fn a_killed_run_is_detached() {
    let Some(world) = World::new(&[]) else { return };
    let machine = Machine::start(&world);
    let long = seconds(7);
    let script = format!("sleep {long} & echo runs; wait");
    let mut run = world.start(&["--machine", "m", "--", "sh", "-c", &script]);
    run.line_with("runs");
    assert_eq!(machine.guests().len(), 1);
    run.signal(Signal::KILL);
    machine.is_alone();
    wait_until_none(|| sleeping(std::slice::from_ref(&long)));
}

#[test]
fn a_machine_that_ends_hangs_up() {
    let Some(world) = World::new(&[]) else { return };
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

/// Its namespaces are below those of root's machine, which can make the interface there.
#[test]
fn who_may_attach_runs_commands_and_nobody_else_does() {
    require!(userns);
    let Some(world) = World::new(&["ping"]) else {
        return;
    };
    let machine = Machine::start(&world);
    let args = ["-q", "--", "sh", "-c", SCRIPT];
    let ran = run_as(&world, (USER, group_id("adm")), &args);
    assert_eq!((ran.code, ran.err.as_str()), (7, ""), "{ran:?}");
    let has = |part: &str| assert!(ran.out.contains(part), "{part}: {ran:?}");
    has("inet 10.9.0.2/24");
    has("\n0\n");
    machine.is_alone();
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
    machine.is_alone();
    let ran = run_as(&world, (USER, USER), &args);
    assert_eq!((ran.code, ran.out.as_str()), (125, ""), "{ran:?}");
    assert!(machine.guests().is_empty());
}

/// The command's namespaces are in the machine's user namespace.
#[test]
fn a_machine_without_privileges_has_commands_of_its_user() {
    require!(userns);
    let Some(world) = World::new(&["ping"]) else {
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
    machine.is_alone();
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
