//! `grantway run` without privileges.

use crate::removed::wait_until_idle;
use crate::testbed::{OUTSIDE, SYSTEM, Testbed, grantway, parents, wait_until_none};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use testing::{ProgramOutput, Running, require, wait_for};

const UNPRIVILEGED_UID: u32 = 65_534;

/// A script for checks that hold with and without an uplink.
const SCRIPT: &str = "ip -o address show dev eth0; id -u; exit 7";

/// Runs `grantway` as a user without rights, in a folder of this user.
pub(crate) fn as_nobody(world: &Testbed, args: &[&str], path: Option<&str>) -> ProgramOutput {
    start_as_nobody(world, args, path).finish()
}

fn start_as_nobody(world: &Testbed, args: &[&str], path: Option<&str>) -> Running {
    let runtime = world.runtime();
    fs::create_dir_all(&runtime).unwrap();
    std::os::unix::fs::chown(&runtime, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = world.command(&world.program(), &[&["run"], args].concat());
    if let Some(path) = path {
        command.env("PATH", path);
    }
    world.spawn(command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID))
}

/// The command runs in a user namespace that owns no network namespace.
#[test]
fn root_of_a_user_namespace_has_no_extra_rights() {
    require!(userns);
    let Some(world) = Testbed::new(&["unshare"]) else {
        return;
    };
    let program = grantway();
    let path = without_pasta(&world);
    let args = ["-Ur", &program, "run", "--", "sh", "-c", SCRIPT];
    let mut command = world.command("unshare", &args);
    let ran = world.spawn(command.env("PATH", path)).finish();
    check_alone(&ran);
    world.wait_until_clean();
}

#[test]
fn every_user_can_run_a_command() {
    require!(userns);
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let ran = as_nobody(
        &world,
        &["--", "sh", "-c", SCRIPT],
        Some(&without_pasta(&world)),
    );
    check_alone(&ran);
    world.wait_until_clean();
    let quiet = ["-q", "--report", "--", "sh", "-c", "kill -9 $$"];
    let ran = as_nobody(&world, &quiet, Some(&without_pasta(&world)));
    assert_eq!(ran.code, 137, "{ran:?}");
    assert!(
        !ran.err.contains("pasta") && ran.err.contains("of the guest's"),
        "{ran:?}"
    );
    world.wait_until_clean();
}

/// Checks the output without an uplink.
fn check_alone(ran: &ProgramOutput) {
    assert_eq!(ran.code, 7, "{ran:?}");
    assert!(
        ran.out.contains("inet 10.") && ran.out.ends_with("\n0\n"),
        "{ran:?}"
    );
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    assert!(
        ran.err.contains("no connection to the outside") && ran.err.contains("pasta"),
        "{ran:?}"
    );
}

#[test]
fn pasta_connects_to_the_outside() {
    require!(userns);
    let Some(world) = Testbed::new(&["pasta", "curl"]) else {
        return;
    };
    let route = ["route", "add", "default", "via", OUTSIDE];
    assert_eq!(
        world.spawn(&mut world.command("ip", &route)).finish().code,
        0
    );
    let url = format!("http://{}/", world.serve_web());
    let ran = as_nobody(
        &world,
        &["--", "curl", "-sS", "--max-time", "120", &url],
        None,
    );
    assert_eq!(
        (ran.code, ran.out),
        (0, format!("you are {SYSTEM}\n")),
        "{}",
        ran.err
    );
    world.wait_until_clean();
    wait_until_none(|| pastas().iter().map(u32::to_string).collect());
}

/// The command reaches a server on the system at the system's address, as in README. The system's
/// loopback stays unreachable.
#[test]
fn pasta_connects_to_the_system_itself() {
    require!(userns);
    let Some(world) = Testbed::new(&["pasta", "curl"]) else {
        return;
    };
    let route = ["route", "add", "default", "via", OUTSIDE];
    assert_eq!(
        world.spawn(&mut world.command("ip", &route)).finish().code,
        0
    );
    netdev::netns::Namespace::enter(&world.system, || netdev::netns::loopback_up().unwrap())
        .unwrap();
    let get = |url: &str| {
        as_nobody(
            &world,
            &["--", "curl", "-sS", "--max-time", "60", url],
            None,
        )
    };
    let ran = get(&format!("http://{}/", world.serve_web_here(SYSTEM)));
    assert_eq!(
        (ran.code, ran.out),
        (0, format!("you are {SYSTEM}\n")),
        "{}",
        ran.err
    );
    let ran = get(&format!("http://{}/", world.serve_web_here("127.0.0.1")));
    assert_ne!(ran.code, 0, "{ran:?}");
    world.wait_until_clean();
    wait_until_none(|| pastas().iter().map(u32::to_string).collect());
}

/// The command continues without an uplink, and no process spins on descriptors that pasta has
/// closed.
#[test]
fn no_process_spins_when_pasta_ends() {
    require!(userns);
    let Some(world) = Testbed::new(&["pasta"]) else {
        return;
    };
    let route = ["route", "add", "default", "via", OUTSIDE];
    let routed = world.spawn(&mut world.command("ip", &route)).finish();
    assert_eq!(routed.code, 0);
    let script = ["--", "sh", "-c", "echo up; exec sleep 1000"];
    let mut run = start_as_nobody(&world, &script, None);
    assert_eq!(run.line(), "up");
    let pasta = wait_for("pasta does not run", || pastas().pop());
    let pasta = Pid::from_raw(pasta.cast_signed()).unwrap();
    kill_process(pasta, Signal::KILL).unwrap();
    wait_until_idle(&world, 5);
    run.signal(Signal::TERM);
    assert_eq!(run.finish().code, 143);
    world.wait_until_clean();
}

/// Returns the processes below this one that run pasta. Other programs of the system may run it,
/// too.
fn pastas() -> Vec<u32> {
    let parents = parents();
    let is_ours = |pid: &u32| {
        let mut above = std::iter::successors(Some(*pid), |pid| parents.get(pid).copied());
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        is_pasta(&name) && above.any(|pid| pid == std::process::id())
    };
    parents.keys().copied().filter(is_ours).collect()
}

/// Returns whether this is the name of a pasta process. The program is a link to passt, and
/// executes the variant for the CPU.
fn is_pasta(name: &str) -> bool {
    name.starts_with("pasta") || name.starts_with("passt")
}

/// Returns a search path with all programs of this process's path except pasta.
fn without_pasta(world: &Testbed) -> String {
    let folder = world.folder.path().join("programs");
    if !folder.exists() {
        fs::create_dir(&folder).unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).filter_map(|folder| fs::read_dir(folder).ok());
        for program in folders.flatten().flatten() {
            let name = program.file_name();
            if name != "pasta" {
                // If several programs have the same name, the first one is used.
                let _later = std::os::unix::fs::symlink(program.path(), folder.join(name));
            }
        }
    }
    folder.display().to_string()
}
