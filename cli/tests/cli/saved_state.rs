//! The state that a machine leaves for the next machine with its name: its attached guests.

use crate::test_dir::{SIM, TestDir, wait};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use testing::{Running, require};

const STATE: &str = "run/grantway.state";

/// Starts a machine in the foreground.
fn up(place: &TestDir) -> Running {
    let file = place.file("m.toml", SIM);
    let running = place.start(&["up", &file]);
    place.wait_for_output(&running, "is up");
    running
}

/// Attaches a guest that needs no interface of the system.
fn attach(place: &TestDir, name: &str) -> Value {
    let guest = "[[vif]]\nendpoint = \"stack\"\nnetwork = true\n";
    let file = place.file("guest.toml", guest);
    let run = place.run(&["attach", name, "--file", &file, "--json"]);
    assert!(run.ok(), "{run:?}\n{}", place.read("run/grantway.log"));
    serde_json::from_str(&run.out).unwrap()
}

fn status(place: &TestDir) -> Value {
    let run = place.run(&["status", "--json"]);
    assert!(run.ok(), "{run:?}");
    serde_json::from_str(&run.out).unwrap()
}

/// Returns the names of all running domains.
fn running(place: &TestDir) -> Vec<String> {
    let status = status(place);
    let domains = status["domains"].as_array().unwrap().iter();
    let runs = domains.filter(|domain| domain["state"] == "running");
    let mut names: Vec<String> = runs
        .map(|domain| domain["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn wait_for_guests(place: &TestDir, names: &[&str]) {
    wait(|| (running(place) == names).then_some(()));
}

fn log_says(place: &TestDir, part: &str) {
    wait(|| place.read("run/grantway.log").contains(part).then_some(()));
}

fn kill(pid: u64) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn kill_core(place: &TestDir, up: Running) {
    kill(status(place)["pid"].as_u64().unwrap());
    assert_eq!(up.finish().code, 1);
}

#[test]
fn guests_return_after_a_crash_or_a_stop() {
    let place = TestDir::with_machine();
    let running = up(&place);
    let before = ["a", "b", "c"].map(|name| attach(&place, name)["macs"].clone());
    let detached = place.run(&["detach", "b"]);
    assert!(detached.ok(), "{detached:?}");
    let left: Value = serde_json::from_str(&place.read(STATE)).unwrap();
    assert_eq!(left["guests"].as_array().unwrap().len(), 2, "{left}");
    let user = left["guests"][0]["origin"]["user"].as_u64().unwrap();
    assert_eq!(user, u64::from(rustix::process::geteuid().as_raw()));
    let mode = fs::metadata(place.folder().join(STATE))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    kill_core(&place, running);

    let running = up(&place);
    wait_for_guests(&place, &["a", "c", "driver", "web"]);
    let described = |state: &Value| {
        let guests = state["guests"].as_array().unwrap().iter();
        guests
            .map(|guest| guest["guest"].clone())
            .collect::<Vec<_>>()
    };
    // The same MACs and addresses; the file is written a moment after the last guest has begun.
    let again = wait(|| {
        let again: Value = serde_json::from_str(&place.read(STATE)).unwrap();
        println!("{again}");
        (described(&again) == described(&left)).then_some(again)
    });
    assert!(
        described(&again)[0]
            .to_string()
            .contains(before[0][0].as_str().unwrap())
    );
    // A stopped service may be started again.
    assert_eq!(running.terminate().code, 0);
    assert!(place.has(STATE));
    let running = up(&place);
    wait_for_guests(&place, &["a", "c", "driver", "web"]);
    let down = place.run(&["down"]);
    assert!(down.ok() && running.finish().code == 0, "{down:?}");
    assert!(!place.has(STATE));
    let running = up(&place);
    assert_eq!(self::running(&place), ["driver", "web"]);
    assert!(!place.has(STATE));
    // Unlike SIGTERM, Ctrl-C removes the record of attached guests.
    attach(&place, "d");
    assert!(place.has(STATE));
    assert_eq!(running.interrupt().code, 0);
    assert!(!place.has(STATE));
}

/// If `down` removes the record while another start waits, the guests must not be attached again.
#[test]
fn a_waiting_start_reads_the_latest_state() {
    let place = TestDir::with_machine();
    let running = up(&place);
    attach(&place, "a");
    assert_eq!(running.terminate().code, 0);
    let folder = place.folder().join("run").canonicalize().unwrap();
    let lock = fs::File::open(&folder).unwrap();
    lock.lock().unwrap();
    let file = place.file("m.toml", SIM);
    let running = place.start(&["up", &file]);
    let waits = |open: fs::DirEntry| fs::read_link(open.path()).is_ok_and(|it| it == folder);
    wait(|| {
        let open = fs::read_dir(format!("/proc/{}/fd", running.pid())).ok()?;
        open.flatten().any(waits).then_some(())
    });
    fs::remove_file(place.folder().join(STATE)).unwrap();
    drop(lock);
    place.wait_for_output(&running, "is up");
    assert_eq!(self::running(&place), ["driver", "web"]);
    assert!(!place.read("run/grantway.log").contains("a: attached"));
    assert_eq!(running.terminate().code, 0);
    assert!(!place.has(STATE));
}

#[test]
fn a_machine_starts_with_an_invalid_state_file() {
    let place = TestDir::with_machine();
    let running = up(&place);
    attach(&place, "a");
    let good = place.read(STATE);
    assert_eq!(running.terminate().code, 0);
    let entry = |text: &str| text.replace("\"name\":\"a\"", "\"name\":\"web\"");
    let many = vec![r#"{"guest":{"name":"x"},"origin":{"user":0,"places":{}}}"#; 10_000].join(",");
    let many = format!(r#"{{"form":1,"machine":"grantway","guests":[{many}]}}"#);
    for (text, why) in [
        (&good[..good.len() / 2], "is ignored: cannot read it"),
        ("\u{1}junk", "is ignored: cannot read it"),
        (
            &good.replace("\"form\":1", "\"form\":9"),
            "it has format 9 instead of 1",
        ),
        (
            &good.replace(":\"grantway\"", ":\"other\""),
            "it belongs to a machine \"other\"",
        ),
        (&many, "it has 10000 guests; the limit is 1024"),
        (
            &entry(&good),
            "web: was attached before, and is not reattached: ",
        ),
    ] {
        place.file(STATE, text);
        let running = up(&place);
        log_says(&place, why);
        wait_for_guests(&place, &["driver", "web"]);
        wait(|| (!place.has(STATE)).then_some(()));
        let down = place.run(&["down"]);
        assert!(down.ok() && running.finish().code == 0, "{down:?}");
    }
    // A file that other users could have written is not read.
    let path = place.file(STATE, &good);
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let running = up(&place);
    assert_eq!(self::running(&place), ["driver", "web"]);
    let said = running.terminate();
    assert!(said.err.contains("other users may change it"), "{said:?}");
}

#[test]
fn a_guest_is_attached_without_a_state_file() {
    let place = TestDir::with_machine();
    let running = up(&place);
    let obstacle = place.folder().join("run/grantway.state-new");
    fs::create_dir(&obstacle).unwrap();
    attach(&place, "a");
    log_says(
        &place,
        "the state file with the attached guests cannot be written: Is a directory",
    );
    let lacks = || {
        status(&place)["missing"]
            .to_string()
            .contains("the reattachment of guests")
    };
    assert!(lacks());
    assert!(!place.has(STATE));
    // The manager retries.
    fs::remove_dir(&obstacle).unwrap();
    wait(|| place.has(STATE).then_some(()));
    wait(|| (!lacks()).then_some(()));
    kill_core(&place, running);
    let running = up(&place);
    wait_for_guests(&place, &["a", "driver", "web"]);
    let down = place.run(&["down"]);
    assert!(down.ok() && running.finish().code == 0, "{down:?}");
}

/// A small file system at the runtime directory. It is unmounted when this value is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(place: &TestDir) -> Self {
        let path = place.path("run");
        fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs"]);
        assert!(mount.arg(&path).status().unwrap().success());
        Self(path)
    }

    /// Remounts the file system read-only or read-write.
    fn remount(&self, how: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{how}")]);
        assert!(mount.arg(&self.0).status().unwrap().success());
    }

    /// Fills the file system to the last byte. Returns the file that occupies the space.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        let error = io::copy(&mut io::repeat(1), &mut file).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_keeps_the_state_until_a_retry() {
    require!(root, tool("mount"));
    let place = TestDir::with_machine();
    let disk = SmallDisk::at(&place);
    let running = up(&place);
    attach(&place, "a");
    let before = wait(|| Some(place.read(STATE)).filter(|text| text.contains("\"a\"")));
    let filler = disk.fill();
    let warned = attach(&place, "b")["warnings"].to_string();
    for part in [
        "No space left on device",
        "guest b is not reattached if the core exits",
    ] {
        assert!(warned.contains(part), "{warned}");
    }
    let missing = || status(&place)["missing"].to_string();
    let missed = missing();
    assert!(missed.contains("the reattachment of guests"), "{missed}");
    assert!(missed.contains("No space left on device"), "{missed}");
    assert_eq!(place.read(STATE), before);
    assert!(!place.has("run/grantway.state-new"));
    attach(&place, "c");
    let detached = place.run(&["detach", "c"]);
    assert!(detached.ok(), "{detached:?}");
    assert!(
        detached
            .err
            .contains("guest c is reattached if the core exits"),
        "{detached:?}"
    );
    fs::remove_file(filler).unwrap();
    wait(|| place.read(STATE).contains("\"b\"").then_some(()));
    wait(|| (missing() == "[]").then_some(()));
    log_says(&place, "the state file is written again");
    assert_eq!(attach(&place, "d").get("warnings"), None);
    let detached = place.run(&["detach", "d"]);
    assert!(detached.ok() && detached.err.is_empty(), "{detached:?}");
    kill_core(&place, running);
    let running = up(&place);
    wait_for_guests(&place, &["a", "b", "driver", "web"]);
    let down = place.run(&["down"]);
    assert!(down.ok() && running.finish().code == 0, "{down:?}");
}

#[test]
fn a_failed_removal_of_the_state_is_reported() {
    require!(root, tool("mount"));
    let place = TestDir::with_machine();
    let disk = SmallDisk::at(&place);
    let log = place.path("log").display().to_string();
    let file = place.file("m.toml", SIM);
    let up = place.run(&["up", &file, "--detach", "--log", &log]);
    assert!(up.ok(), "{up:?}");
    attach(&place, "a");
    disk.remount("ro");
    let attached = attach(&place, "b");
    let warned = attached["warnings"].to_string();
    assert!(warned.contains("Read-only file system"), "{attached}");
    let down = place.run(&["down"]);
    assert_eq!(down.code, 1, "{down:?}");
    assert!(
        down.err.contains(
            "the machine has ended, but the next start will attach the attached guests again"
        ),
        "{down:?}"
    );
    assert!(down.err.contains("Read-only file system"), "{down:?}");
    disk.remount("rw");
    assert!(place.has(STATE));
    let again = place.run(&["down"]);
    assert!(
        again.ok() && again.out.contains("its attached guests are forgotten"),
        "{again:?}"
    );
    assert!(!place.has(STATE));
}

#[test]
fn a_guest_returns_once() {
    let place = TestDir::with_machine();
    let running = up(&place);
    attach(&place, "a");
    let good = place.read(STATE);
    assert_eq!(running.terminate().code, 0);
    let at = good.find('[').unwrap() + 1;
    let end = good.rfind(']').unwrap();
    let twice = format!("{},{}", &good[..end], &good[at..]);
    place.file(STATE, &twice);
    let running = up(&place);
    wait_for_guests(&place, &["a", "driver", "web"]);
    wait(|| (place.read(STATE) == good).then_some(()));
    // The next manager must have the whole state.
    let core = status(&place)["pid"].as_u64().unwrap();
    let manager = wait(|| testing::child_of(core, "grantway-manager"));
    kill(manager);
    log_says(&place, "the manager was started again");
    attach(&place, "b");
    let both: Value = serde_json::from_str(&place.read(STATE)).unwrap();
    let alone: Value = serde_json::from_str(&good).unwrap();
    assert_eq!(both["guests"][0], alone["guests"][0]);
    assert_eq!(both["guests"].as_array().unwrap().len(), 2);
    // Although the machine has stopped, `down` removes its state.
    kill_core(&place, running);
    assert!(place.has(STATE));
    let down = place.run(&["down"]);
    assert!(down.ok() && down.out.contains("are forgotten"), "{down:?}");
    assert!(!place.has(STATE));
    assert_eq!(place.run(&["down"]).code, 1);
}
