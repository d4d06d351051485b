//! A driver domain with several workers, without privileges.

use crate::test_dir::{TestDir, UNPRIVILEGED_UID, wait};
use serde_json::Value;

const WORKERS: usize = 2;
const STREAMS: usize = 16;

/// Returns a configuration of two guests with TCP/IP stacks, and streams between them.
fn config() -> String {
    let mut text = format!(
        "[driver]\nworkers = {WORKERS}\n[[guest]]\nname = \"from\"\n[[guest.vif]]\n\
         endpoint = \"stack\"\naddresses = [\"10.0.0.1/24\"]\n"
    );
    for _ in 0..STREAMS {
        text += "[[guest.vif.app]]\nkind = \"tcp-source\"\nto = \"10.0.0.2:9\"\nseconds = 2\n";
    }
    text + "[[guest]]\nname = \"to\"\n[[guest.vif]]\nendpoint = \"stack\"\n\
            addresses = [\"10.0.0.2/24\"]\n[[guest.vif.app]]\nkind = \"tcp-sink\"\nport = 9\n"
}

#[test]
fn streams_between_guests_spread_over_workers() {
    let place = TestDir::with_machine();
    place.open_to_all();
    let file = place.file("m.toml", &config());
    let user = match rustix::process::geteuid().is_root() {
        true => UNPRIVILEGED_UID,
        false => rustix::process::geteuid().as_raw(),
    };
    let ask = |args: &[&str]| {
        let run = place.run_as(user, args);
        assert!(run.ok(), "{run:?}");
        serde_json::from_str::<Value>(&run.out).unwrap()
    };
    let up = place.run_as(user, &["up", &file, "--detach", "--json"]);
    if up.code == 3 {
        return testing::skip(up.err);
    }
    assert!(up.ok(), "{up:?}");
    let counter = |domain: &str, name: &str| {
        let stat = ask(&["stat", domain, "--json"]);
        // The first queue's counters include the endpoint, which serves all queues.
        let all = &stat[domain]["vifs"]["0.0"]["endpoint"];
        all[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {all}"))
    };
    let name = |n: usize, what: &str| format!("app.{n}.{what}");
    let all_done = || (0..STREAMS).all(|n| counter("from", &name(n, "done")) == 1);
    wait(|| all_done().then_some(()));
    let sent: u64 = (0..STREAMS)
        .map(|n| counter("from", &name(n, "bytes")))
        .sum();
    assert!(sent > 1_000_000, "{sent}");
    // The sender exits when its data is acknowledged. The receiver may read the data later.
    wait(|| {
        let taken = counter("to", &name(0, "bytes"));
        println!("{taken} bytes of {sent}");
        (taken == sent).then_some(())
    });
    assert_eq!(counter("to", "stack_bad_checksum"), 0);
    for worker in ["driver", "driver-1"] {
        let stat = ask(&["stat", worker, "--json"]);
        let packets = &stat[worker]["ports"]["vif.to-0"]["traffic"]["out_packets"];
        assert!(packets.as_u64() > Some(100), "{worker}: {packets}");
    }
    let audit = ask(&["grants", "--json"]);
    assert_eq!(audit["leaked"], 0, "{audit}");
    let down = place.run_as(user, &["down"]);
    assert!(down.ok(), "{down:?}");
}
