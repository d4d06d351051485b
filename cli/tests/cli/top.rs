//! `grantway top`, once and on a terminal.

use crate::place::{Place, SIM, wait};
use serde_json::Value;
use std::time::Duration;
use testing::require;

#[test]
fn who_sends_is_seen_once_and_live() {
    let place = Place::with_machine();
    let file = place.file("m.toml", SIM);
    let up = place.run(&["up", &file, "--detach"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    // The guest pings all the time. Nobody can press a key here: one table.
    let once = place.run(&["top"]);
    assert!(once.ok() && once.err.is_empty(), "{once:?}");
    for part in ["sends/s", "wire", "driver", "web", "monitor"] {
        assert!(once.out.contains(part), "{part}: {once:?}");
    }
    assert!(!once.out.contains('\x1b'), "{once:?}");
    // Unless it gets no CPU for as long as is counted.
    wait(|| {
        let json: Value = serde_json::from_str(&place.run(&["top", "--json"]).out).unwrap();
        let rows = json["rows"].as_array().unwrap();
        let web = rows.iter().find(|row| row["name"] == "web").unwrap();
        println!("{web}");
        let sends = web["sends"]["frames_per_s"].as_f64().unwrap();
        (sends > 0.0 && web["cpus"].as_f64().unwrap() > 0.0).then_some(())
    });
    live(&place);
    assert!(place.run(&["down"]).ok());
}

/// On a terminal, which is given back: by `q`, and by a signal.
fn live(place: &Place) {
    require!(tool("script"));
    let run = place.on_a_terminal(&["top"], Duration::ZERO, "ndjpq");
    assert!(run.ok(), "{run:?}");
    let (taken, given) = ("\x1b[?1049h", "\x1b[?1049l");
    assert!(
        run.out.contains(taken) && run.out.contains("q quit"),
        "{run:?}"
    );
    let last = run.out.rfind(given).unwrap();
    assert!(!run.out[last..].contains("grantway"), "{run:?}");
    // As long as nothing happens nothing is drawn.
    let args = ["top", "--interval", "3600"];
    let run = place.on_a_terminal(&args, Duration::from_secs(1), "q");
    assert!(run.ok(), "{run:?}");
    assert_eq!(run.out.matches("grantway: counting").count(), 1, "{run:?}");
}
