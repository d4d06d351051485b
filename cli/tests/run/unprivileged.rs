//! Without privileges.

use crate::world::{OUTSIDE, Ran, SYSTEM, World, grantway, wait_until_none};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use testing::require;

const NOBODY: u32 = 65_534;

/// What is the same with and without a way outside.
const SCRIPT: &str = "ip -o address show dev eth0; id -u; exit 7";

/// As somebody who has a folder and nothing else.
fn as_nobody(world: &World, args: &[&str], path: Option<&str>) -> Ran {
    let runtime = world.runtime();
    fs::create_dir_all(&runtime).unwrap();
    std::os::unix::fs::chown(&runtime, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = world.command(&world.program(), &[&["run"], args].concat());
    if let Some(path) = path {
        command.env("PATH", path);
    }
    world.spawn(command.uid(NOBODY).gid(NOBODY)).finish()
}

/// In a user namespace that owns no network.
#[test]
fn root_of_a_user_namespace_is_nobody_special() {
    require!(userns);
    let Some(world) = World::new(&["unshare"]) else {
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
fn anybody_can_run_a_command() {
    require!(userns);
    let Some(world) = World::new(&[]) else { return };
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

/// What is seen without a way outside.
fn check_alone(ran: &Ran) {
    assert_eq!(ran.code, 7, "{ran:?}");
    assert!(
        ran.out.contains("inet 10.") && ran.out.ends_with("\n0\n"),
        "{ran:?}"
    );
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    assert!(
        ran.err.contains("no way outside") && ran.err.contains("pasta"),
        "{ran:?}"
    );
}

#[test]
fn pasta_leads_outside() {
    require!(userns);
    let Some(world) = World::new(&["pasta", "curl"]) else {
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
    // Another test's machine may have one, and its end is as sure.
    wait_until_none(pastas);
}

/// What README shows: a server of the system itself, at the system's own address. Its loopback
/// stays out of reach.
#[test]
fn pasta_leads_to_the_system_itself() {
    require!(userns);
    let Some(world) = World::new(&["pasta", "curl"]) else {
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
    wait_until_none(pastas);
}

/// Processes of pasta.
fn pastas() -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).ok();
    let names = processes.filter_map(name);
    names.filter(|name| name.starts_with("pasta")).collect()
}

/// A search path with all programs of this one's but pasta.
fn without_pasta(world: &World) -> String {
    let folder = world.folder.path().join("programs");
    if !folder.exists() {
        fs::create_dir(&folder).unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).filter_map(|folder| fs::read_dir(folder).ok());
        for program in folders.flatten().flatten() {
            let name = program.file_name();
            if name != "pasta" {
                // Of several with one name the first is found.
                let _later = std::os::unix::fs::symlink(program.path(), folder.join(name));
            }
        }
    }
    folder.display().to_string()
}
