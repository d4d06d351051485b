//! Removals, and machines that do not answer.

use super::bench::{Bench, Fake};
use crate::error::ErrorCode;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testing::require;

const ASSIGNED: &str = "10.99.0.9/24 10.99.0.1";
/// Ten times the specified duration of three calls to a machine that does not answer.
const DEADLINE: Duration = Duration::from_secs(150);
/// Limit for three calls without a running machine, with a margin for slow shells.
const NO_MACHINE_DEADLINE: Duration = Duration::from_secs(60);

fn added(bench: &Bench, containers: &[&str]) {
    bench.set_ipam_addresses(&[ASSIGNED], json!([]));
    for container in containers {
        bench.of("ADD", container, &bench.conf(json!({}))).done();
    }
    bench.ipam_calls();
}

#[test]
fn without_a_machine_add_fails_and_del_is_retried() {
    let bench = Bench::new();
    let conf = bench.conf(json!({}));
    let machine = Fake::up(&bench.socket());
    added(&bench, &["c1"]);
    let guest = machine.guests().remove(0);
    drop(machine);
    let began = Instant::now();
    let (code, why) = bench.of("STATUS", "", &conf).failed();
    assert_eq!(code, ErrorCode::NotReady as u64, "{why}");
    let (code, why) = bench.of("ADD", "c2", &conf).failed();
    assert_eq!(code, ErrorCode::Later as u64, "{why}");
    assert!(why.contains("grantway up"), "{why}");
    assert!(bench.ipam_calls().is_empty());
    for _ in 0..2 {
        bench.of("DEL", "c1", &conf).done();
        assert_eq!(bench.ipam_calls(), ["DEL 1.0.0"]);
    }
    assert!(began.elapsed() < NO_MACHINE_DEADLINE);
    // The machine runs again and has the guest. The next call first detaches it.
    let machine = Fake::up(&bench.socket()).with(&guest).with("other");
    bench.of("ADD", "c1", &conf).done();
    assert_eq!(machine.guests(), ["other", guest.as_str()]);
    assert!(notes(&bench).is_empty());
}

#[test]
fn a_slow_detach_delays_no_other_container() {
    let bench = Bench::new();
    let conf = bench.conf(json!({}));
    added_and_deleted_without_a_machine(&bench, &conf);
    let guest = notes(&bench).remove(0);
    // Another call is detaching the guest, and its machine is slow.
    let detaches = fs::File::open(bench.file("state").join(&guest)).unwrap();
    detaches.lock().unwrap();
    let machine = Fake::up(&bench.socket()).with(&guest);
    let began = Instant::now();
    bench.of("ADD", "c2", &conf).done();
    let (code, why) = bench.of("ADD", "c1", &conf).failed();
    assert_eq!(code, ErrorCode::Later as u64, "{why}");
    assert!(began.elapsed() < NO_MACHINE_DEADLINE);
    assert!(machine.guests().contains(&guest));
    drop(detaches);
    bench.of("ADD", "c1", &conf).done();
    assert!(notes(&bench).is_empty());
}

#[test]
fn an_unrecorded_cleanup_fails_the_call() {
    require!(root, tool("mount"));
    let bench = Bench::new();
    let conf = bench.conf(json!({}));
    let state = bench.file("state");
    let _disk = SmallDisk::at(&state);
    let filler = state.join(".filler");
    // Fill the disk up to its last byte.
    let mut file = fs::File::create(&filler).unwrap();
    std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
    drop(file);
    let machine = Fake::up(&bench.socket());
    added(&bench, &["c1"]);
    drop(machine);
    let (code, why) = bench.of("DEL", "c1", &conf).failed();
    assert_eq!(code, ErrorCode::Io as u64, "{why}");
    assert!(why.contains("No space left on device"), "{why}");
    assert_eq!(notes(&bench), [".filler"], "no partial cleanup is recorded");
    assert!(
        bench.ipam_calls().is_empty(),
        "its addresses are not released yet"
    );
    fs::remove_file(filler).unwrap();
    bench.of("DEL", "c1", &conf).done();
    assert_eq!(notes(&bench).len(), 1);
}

/// A separate small file system, which is unmounted when this value is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(path: &Path) -> Self {
        fs::create_dir(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs"]);
        assert!(mount.arg(path).status().unwrap().success());
        Self(path.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Leaves a pending cleanup of the guest of the container `c1`.
fn added_and_deleted_without_a_machine(bench: &Bench, conf: &Value) {
    let machine = Fake::up(&bench.socket());
    added(bench, &["c1"]);
    drop(machine);
    bench.of("DEL", "c1", conf).done();
    assert_eq!(notes(bench).len(), 1);
}

/// Returns the names of pending cleanups.
fn notes(bench: &Bench) -> Vec<String> {
    let entries = fs::read_dir(bench.file("state")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn a_hanging_machine_counts_as_absent() {
    let bench = Bench::new();
    let conf = bench.conf(json!({}));
    let _silent = UnixListener::bind(bench.socket()).unwrap();
    let began = Instant::now();
    let (code, _) = bench.of("ADD", "c1", &conf).failed();
    assert_eq!(code, ErrorCode::Later as u64);
    bench.of("DEL", "c1", &conf).done();
    let valid = bench.conf(json!({ "cni.dev/valid-attachments": [] }));
    let (code, _) = bench.of("GC", "", &valid).failed();
    assert_eq!(code, ErrorCode::Later as u64);
    assert!(began.elapsed() < DEADLINE);
}

#[test]
fn gc_removes_only_attachments_not_in_its_list() {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket()).with("web").with("cni-0-0");
    added(&bench, &["c1", "c2"]);
    let other = bench.conf(json!({ "name": "other" }));
    bench.of("ADD", "c1", &other).done();
    bench.ipam_calls();
    let all = machine.guests();
    let gc = |list: Option<Value>, key: &str| {
        let mut conf = bench.conf(json!({ "cniVersion": "1.1.0" }));
        if let Some(list) = list {
            conf[key] = list;
        }
        bench.of("GC", "", &conf)
    };
    let valid = "cni.dev/valid-attachments";
    gc(None, valid).done();
    gc(Some(Value::Null), valid).done();
    assert_eq!(machine.guests(), all);
    assert!(bench.ipam_calls().is_empty());
    let c1 = json!([{ "containerID": "c1", "ifname": "eth0" }]);
    gc(Some(c1), valid).done();
    let left: Vec<_> = all
        .iter()
        .filter(|name| **name != all[3])
        .cloned()
        .collect();
    assert_eq!(machine.guests(), left);
    assert_eq!(bench.ipam_calls(), ["GC 1.1.0"]);
    gc(Some(json!([])), "cni.dev/attachments").done();
    assert_eq!(machine.guests(), [&*all[0], &*all[1], &*all[4]]);
    drop(machine);
    gc(Some(json!([])), valid).done();
}

#[test]
fn newer_commands_need_an_ipam_that_supports_them() {
    let bench = Bench::new();
    let _machine = Fake::up(&bench.socket());
    for (version, ipam, calls) in [
        ("1.1.0", "answers", vec!["STATUS 1.1.0"]),
        ("1.1.0", "old", vec![]),
        ("1.0.0", "answers", vec![]),
    ] {
        let conf = bench.conf(json!({ "cniVersion": version, "ipam": { "type": ipam } }));
        bench.of("STATUS", "", &conf).done();
        assert_eq!(bench.ipam_calls(), calls, "{version} {ipam}");
    }
    // If the `ipam` is not ready, neither is the plugin.
    let conf = bench.conf(json!({ "cniVersion": "1.1.0" }));
    let failure = json!({ "cniVersion": "1.1.0", "code": 51, "msg": "no lease is free" });
    fs::write(bench.file("STATUS.answer"), failure.to_string()).unwrap();
    fs::write(bench.file("STATUS.fails"), "").unwrap();
    let (code, why) = bench.of("STATUS", "", &conf).failed();
    assert_eq!(code, 51);
    assert!(why.contains("answers: no lease is free"), "{why}");
    let conf = bench.conf(json!({ "ipam": { "type": "no-such-plugin" } }));
    let (code, why) = bench.of("STATUS", "", &conf).failed();
    assert_eq!(code, ErrorCode::NotReady as u64);
    assert!(why.contains("no plugin no-such-plugin"), "{why}");
}
