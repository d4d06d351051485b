//! The command line with a real machine: monitor, driver domain and a guest. The machine has no
//! TAPs, so the tests need no privileges.

use crate::test_dir::{SIM, TestDir, is_alive, wait, wait_for_end};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn a_machine_can_be_queried_changed_and_ended() {
    let place = TestDir::with_machine();
    let file = place.file("good.toml", SIM);
    let up = place.run(&["up", &file, "--detach", "--json"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    let up = json(&up.out);
    assert_documented(&up);
    assert_eq!(up["name"], "grantway");
    assert!(up["up_ms"].as_f64().unwrap() > 0.0);

    let again = place.run(&["up", &file, "--detach"]);
    assert_eq!(again.code, 1);
    assert!(
        again
            .err
            .contains("an instance named `grantway` is already running"),
        "{again:?}"
    );
    let other = place.run(&["status", "--name", "other"]);
    assert_eq!(other.code, 1);
    assert!(other.err.contains("running: grantway"), "{other:?}");

    let status = place.run(&["status"]);
    assert!(
        status.ok() && status.out.contains("driver Connected"),
        "{status:?}"
    );
    let status = json(&place.run(&["status", "--json"]).out);
    assert_documented(&status);
    assert_eq!(status["pid"], up["pid"]);
    assert_eq!(status["domains"].as_array().unwrap().len(), 2);

    // The guest pings the far end of the cable continuously.
    let parts = [
        "ICMP 10.0.0.",
        "received at",
        "bridge",
        "forwarded to",
        "accepted it",
    ];
    // A trace ends before a guest without a CPU has accepted the packet.
    wait(|| {
        let trace = place.run(&["trace", "--wait", "60"]);
        assert!(trace.ok(), "{trace:?}");
        println!("{}", trace.out);
        let has_all = parts.iter().all(|part| trace.out.contains(part));
        has_all.then_some(())
    });
    let trace = json(&place.run(&["trace", "web", "--json", "--wait", "60"]).out);
    assert_documented(&trace);
    let hops = trace["hops"].as_array().unwrap();
    assert!(
        hops.len() >= 2 && hops.iter().all(|hop| hop["domain"] == "web"),
        "{trace}"
    );
    // At ten pings per second, both domains sometimes trace the same packet.
    let both = |trace: &Value| {
        let hops = trace["hops"].as_array().unwrap();
        ["driver", "web"].map(|domain| hops.iter().any(|hop| hop["domain"] == domain)) == [true; 2]
    };
    let trace = || json(&place.run(&["trace", "--json", "--wait", "60"]).out);
    wait(|| both(&trace()).then_some(()));

    let all = place.run(&["stat"]);
    assert!(
        all.ok() && all.out.lines().all(|line| line.contains(": ")),
        "{all:?}"
    );
    let has = |domain: &str| all.out.lines().any(|line| line.starts_with(domain));
    assert!(has("driver.") && has("web."), "{all:?}");
    let one = place.run(&["stat", "web", "--nonzero", "--table"]);
    assert!(
        one.ok() && one.out.contains("web.") && !one.out.contains("driver."),
        "{one:?}"
    );
    let stat = json(&place.run(&["stat", "--json"]).out);
    assert!(stat["driver"].is_object() && stat["web"].is_object());
    let absent = place.run(&["stat", "absent"]);
    assert!(
        absent.code == 1 && absent.err.contains("absent"),
        "{absent:?}"
    );

    assert!(place.run(&["grants", "--all"]).out.contains("leaked: 0"));
    let audit = json(&place.run(&["grants", "--json"]).out);
    assert_documented(&audit);
    assert_eq!(audit["leaked"], 0);
    let granted = |audit: &Value| audit["domains"][1]["granted"].as_u64().unwrap();
    assert!(granted(&audit) > 0, "{audit}");

    assert!(place.run(&["set", "driver", "lro.flush", "t50"]).ok());
    let wrong = place.run(&["set", "driver", "no-such-switch", "1"]);
    assert!(
        wrong.code == 2 && wrong.err.contains("lro.flush"),
        "{wrong:?}"
    );

    let down = place.run(&["down"]);
    assert!(down.ok() && down.out == "grantway is down.\n", "{down:?}");
    assert!(!place.has("run/grantway.sock"));
    assert!(!is_alive(&up["pid"].to_string()));
    assert_eq!(place.run(&["status"]).code, 1);
}

/// Asserts that the documentation names every key of `value`, except for keys that a domain's
/// program reports.
fn assert_documented(value: &Value) {
    const DOCS: &str = include_str!("../../../docs/command-line.md");
    let below: Vec<&Value> = match value {
        Value::Object(object) => {
            for key in object.keys() {
                let named =
                    DOCS.contains(&format!("`{key}`")) || DOCS.contains(&format!("`{key}[]`"));
                assert!(named, "{key} is not documented");
            }
            object.values().collect()
        }
        Value::Array(list) => list.iter().collect(),
        _ => return,
    };
    below.into_iter().for_each(assert_documented);
}

#[test]
fn a_signal_ends_everything_in_order() {
    let place = TestDir::with_machine();
    let file = place.file("good.toml", SIM);
    let running = place.start(&["up", &file, "--json"]);
    place.wait_for_output(&running, "up_ms");
    let pid = json(&place.run(&["status", "--json"]).out)["domains"][0]["pid"].to_string();
    let run = running.terminate();
    assert!(run.ok() && run.err.is_empty(), "{run:?}");
    assert!(!is_alive(&pid) && !place.has("run/grantway.sock"));
}

#[test]
fn down_ends_the_machine_of_a_waiting_up() {
    let place = TestDir::with_machine();
    let file = place.file("good.toml", SIM);
    let running = place.start(&["up", &file, "--json"]);
    place.wait_for_output(&running, "up_ms");
    assert!(place.run(&["down"]).ok());
    let run = running.finish();
    assert_eq!(run.code, 0, "{run:?}");
}

/// The first `up` detects the exit of its machine only when the next machine runs.
#[test]
fn an_ended_up_spares_the_next_machine() {
    let place = TestDir::with_machine();
    let file = place.file("good.toml", SIM);
    let first = place.start(&["up", &file, "--json"]);
    place.wait_for_output(&first, "up_ms");
    assert!(place.run(&["down"]).ok());
    let next = place.run(&["up", &file, "--detach"]);
    assert!(next.ok(), "{next:?}");
    let first = first.finish();
    assert_eq!(first.code, 0, "{first:?}");
    let status = place.run(&["status"]);
    assert!(status.ok(), "{status:?}");
    assert!(place.run(&["down"]).ok());
}

#[test]
fn the_machine_does_not_outlive_a_killed_up() {
    let place = TestDir::with_machine();
    let file = place.file("good.toml", SIM);
    let running = place.start(&["up", &file, "--json"]);
    place.wait_for_output(&running, "up_ms");
    let status = json(&place.run(&["status", "--json"]).out);
    let pids = [
        &status["pid"],
        &status["domains"][0]["pid"],
        &status["domains"][1]["pid"],
    ];
    let pids = pids.map(ToString::to_string);
    running.kill();
    for pid in &pids {
        wait_for_end(pid);
    }
    // The name can be reused immediately.
    let again = place.run(&["up", &file, "--detach"]);
    assert!(again.ok(), "{again:?}");
    assert!(place.run(&["down"]).ok());
}

#[test]
fn leftovers_of_a_killed_monitor_are_removed() {
    let place = TestDir::with_machine();
    let file = place.file("good.toml", SIM);
    let up = json(&place.run(&["up", &file, "--detach", "--json"]).out);
    let of = |up: &Value| {
        let pid = up["pid"].as_i64().unwrap();
        rustix::process::Pid::from_raw(pid as i32).unwrap()
    };
    rustix::process::kill_process(of(&up), rustix::process::Signal::KILL).unwrap();
    wait_for_end(&up["pid"].to_string());
    // Connections fail from now on, although the manager, which holds the same socket, may exit a
    // moment later.
    let again = place.run(&["up", &file, "--detach", "--json"]);
    assert!(again.ok(), "{again:?}");
    let again = json(&again.out);
    rustix::process::kill_process(of(&again), rustix::process::Signal::KILL).unwrap();
    wait(|| {
        let status = place.run(&["status"]);
        let is_reported = status.code == 1 && status.err.contains("no instance");
        is_reported.then_some(())
    });
    assert!(place.run(&["up", &file, "--detach"]).ok());
    assert!(place.run(&["down"]).ok());
}

/// `specs/grants.md`, N-16: the rings, the event page and the buffers of a guest may disappear at
/// any moment without harm to the driver domain.
#[test]
fn a_guest_killed_under_traffic_is_survived() {
    let place = TestDir::with_machine();
    let (wire, guest) = SIM.split_at(SIM.find("[[guest]]").unwrap());
    let mut text = format!("driver.grants = \"counted\"\n{wire}");
    for n in 2..6 {
        text += &guest
            .replace("\"web\"", &format!("\"g{n}\"\nrestart = false"))
            .replace("10.0.0.2", &format!("10.0.0.{n}"));
    }
    let file = place.file("many.toml", &text);
    let up = place.run(&["up", &file, "--detach"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    for n in 2..6 {
        let name = format!("g{n}");
        let domain = |name: &str| {
            let status = json(&place.run(&["status", "--json"]).out);
            let domains = status["domains"].as_array().unwrap().clone();
            domains.into_iter().find(|d| d["name"] == name).unwrap()
        };
        let sent = |name: &str| {
            let stat = json(&place.run(&["stat", name, "--json"]).out);
            let text = stat.to_string();
            assert!(text.contains("from_guest"), "{text}");
            text
        };
        // The guest sends pings, so its counter grows.
        let before = sent(&name);
        wait(|| (before != sent(&name)).then_some(()));
        let pid = domain(&name)["pid"].as_i64().unwrap() as i32;
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        wait(|| {
            let grants = json(&place.run(&["grants", "--json"]).out);
            assert_eq!(grants["leaked"], 0);
            let domains = grants["domains"].as_array().unwrap();
            let dead = domains.iter().find(|d| d["name"] == name.as_str())?;
            (dead["owned"] == 0).then_some(())
        });
        assert_eq!(domain("driver")["alive"], true);
    }
    let grants = json(&place.run(&["grants", "--json"]).out);
    let driver = &grants["domains"][0];
    assert_eq!(
        (&driver["mapped"], &driver["alive"]),
        (&0.into(), &true.into())
    );
    assert!(place.run(&["down"]).ok());
}
