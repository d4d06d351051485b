//! What goes, and machines that do not answer.

use super::bench::{Bench, Fake};
use crate::failure::Code;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testing::require;

const GIVEN: &str = "10.99.0.9/24 10.99.0.1";
/// Ten times what is promised to three who ask for a machine that does not answer.
const SOON: Duration = Duration::from_secs(150);
/// The same where none runs, and a shell or two is slow.
const AT_ONCE: Duration = Duration::from_secs(60);

fn added(bench: &Bench, containers: &[&str]) {
    bench.gives(&[GIVEN], json!([]));
    for container in containers {
        bench.of("ADD", container, &bench.conf(json!({}))).done();
    }
    bench.ipam_calls();
}

#[test]
fn without_a_machine_add_is_for_later_and_del_is_made_good() {
    let bench = Bench::new();
    let conf = bench.conf(json!({}));
    let machine = Fake::up(&bench.socket());
    added(&bench, &["c1"]);
    let guest = machine.guests().remove(0);
    drop(machine);
    let began = Instant::now();
    let (code, why) = bench.of("STATUS", "", &conf).failed();
    assert_eq!(code, Code::NotReady as u64, "{why}");
    let (code, why) = bench.of("ADD", "c2", &conf).failed();
    assert_eq!(code, Code::Later as u64, "{why}");
    assert!(why.contains("grantway up"), "{why}");
    assert!(bench.ipam_calls().is_empty());
    for _ in 0..2 {
        bench.of("DEL", "c1", &conf).done();
        assert_eq!(bench.ipam_calls(), ["DEL 1.0.0"]);
    }
    assert!(began.elapsed() < AT_ONCE);
    // It is there again, and the guest still is: the next call detaches it first.
    let machine = Fake::up(&bench.socket()).with(&guest).with("other");
    bench.of("ADD", "c1", &conf).done();
    assert_eq!(machine.guests(), ["other", guest.as_str()]);
    assert!(notes(&bench).is_empty());
}

#[test]
fn a_detach_that_takes_long_holds_up_no_other_container() {
    let bench = Bench::new();
    let conf = bench.conf(json!({}));
    added_and_deleted_without_a_machine(&bench, &conf);
    let guest = notes(&bench).remove(0);
    // Another call detaches it, and its machine takes its time.
    let detaches = fs::File::open(bench.file("state").join(&guest)).unwrap();
    detaches.lock().unwrap();
    let machine = Fake::up(&bench.socket()).with(&guest);
    let began = Instant::now();
    bench.of("ADD", "c2", &conf).done();
    let (code, why) = bench.of("ADD", "c1", &conf).failed();
    assert_eq!(code, Code::Later as u64, "{why}");
    assert!(began.elapsed() < AT_ONCE);
    assert!(machine.guests().contains(&guest));
    drop(detaches);
    bench.of("ADD", "c1", &conf).done();
    assert!(notes(&bench).is_empty());
}

#[test]
fn a_note_that_cannot_be_written_fails_the_call() {
    require!(root, tool("mount"));
    let bench = Bench::new();
    let conf = bench.conf(json!({}));
    let state = bench.file("state");
    let _disk = SmallDisk::at(&state);
    let filler = state.join(".filler");
    // The last byte of it.
    let mut file = fs::File::create(&filler).unwrap();
    std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
    drop(file);
    let machine = Fake::up(&bench.socket());
    added(&bench, &["c1"]);
    drop(machine);
    let (code, why) = bench.of("DEL", "c1", &conf).failed();
    assert_eq!(code, Code::Io as u64, "{why}");
    assert!(why.contains("No space left on device"), "{why}");
    assert_eq!(notes(&bench), [".filler"], "nothing is half noted");
    assert!(
        bench.ipam_calls().is_empty(),
        "its addresses are not given back yet"
    );
    fs::remove_file(filler).unwrap();
    bench.of("DEL", "c1", &conf).done();
    assert_eq!(notes(&bench).len(), 1);
}

/// A small file system of its own, which goes with this value.
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

/// Leaves a note of the guest of the container `c1`.
fn added_and_deleted_without_a_machine(bench: &Bench, conf: &Value) {
    let machine = Fake::up(&bench.socket());
    added(bench, &["c1"]);
    drop(machine);
    bench.of("DEL", "c1", conf).done();
    assert_eq!(notes(bench).len(), 1);
}

/// Names of what lies in the folder of notes.
fn notes(bench: &Bench) -> Vec<String> {
    let entries = fs::read_dir(bench.file("state")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn a_machine_that_hangs_is_one_that_does_not_answer() {
    let bench = Bench::new();
    let conf = bench.conf(json!({}));
    let _silent = UnixListener::bind(bench.socket()).unwrap();
    let began = Instant::now();
    let (code, _) = bench.of("ADD", "c1", &conf).failed();
    assert_eq!(code, Code::Later as u64);
    bench.of("DEL", "c1", &conf).done();
    let valid = bench.conf(json!({ "cni.dev/valid-attachments": [] }));
    let (code, _) = bench.of("GC", "", &valid).failed();
    assert_eq!(code, Code::Later as u64);
    assert!(began.elapsed() < SOON);
}

#[test]
fn gc_takes_away_what_is_not_in_the_list_and_nothing_without_one() {
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
fn newer_commands_are_for_an_ipam_that_knows_them() {
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
    // What it is not ready for nobody is.
    let conf = bench.conf(json!({ "cniVersion": "1.1.0" }));
    let failure = json!({ "cniVersion": "1.1.0", "code": 51, "msg": "no lease is free" });
    fs::write(bench.file("STATUS.answer"), failure.to_string()).unwrap();
    fs::write(bench.file("STATUS.fails"), "").unwrap();
    let (code, why) = bench.of("STATUS", "", &conf).failed();
    assert_eq!(code, 51);
    assert!(why.contains("answers: no lease is free"), "{why}");
    let conf = bench.conf(json!({ "ipam": { "type": "no-such-plugin" } }));
    let (code, why) = bench.of("STATUS", "", &conf).failed();
    assert_eq!(code, Code::NotReady as u64);
    assert!(why.contains("no plugin no-such-plugin"), "{why}");
}
