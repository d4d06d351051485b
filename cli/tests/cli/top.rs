//! `grantway top`, once and on a terminal.

use crate::terminal::Terminal;
use crate::test_dir::{SIM, TestDir, is_alive, wait};
use serde_json::Value;
use std::time::{Duration, Instant};
use testing::{TIMEOUT, require};

/// The control sequence that enters the alternate screen.
const ENTER_SCREEN: &str = "\x1b[?1049h";
/// The control sequence that leaves the alternate screen.
const LEAVE_SCREEN: &str = "\x1b[?1049l";

#[test]
fn senders_are_shown_once_and_live() {
    let place = TestDir::with_machine();
    let file = place.file("m.toml", SIM);
    let up = place.run(&["up", &file, "--detach"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    // The guest pings continuously. Without a terminal, `top` prints one table.
    let once = place.run(&["top"]);
    assert!(once.ok() && once.err.is_empty(), "{once:?}");
    for part in ["sends/s", "wire", "driver", "web", "monitor"] {
        assert!(once.out.contains(part), "{part}: {once:?}");
    }
    assert!(!once.out.contains('\x1b'), "{once:?}");
    // The test repeats this, because the guest may get no CPU time during one interval.
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

/// Checks `top` on a terminal, which must be restored after `q` and after a signal.
fn live(place: &TestDir) {
    require!(tool("script"));
    let run = place.on_a_terminal(&["top"], Duration::ZERO, "ndjpq");
    assert!(run.ok(), "{run:?}");
    assert!(
        run.out.contains(ENTER_SCREEN) && run.out.contains("q, Esc quit"),
        "{run:?}"
    );
    let last = run.out.rfind(LEAVE_SCREEN).unwrap();
    assert!(!run.out[last..].contains("grantway"), "{run:?}");
    // The screen is not redrawn while nothing changes.
    let args = ["top", "--interval", "3600"];
    let run = place.on_a_terminal(&args, Duration::from_secs(1), "q");
    assert!(run.ok(), "{run:?}");
    assert_eq!(run.out.matches("grantway: counting").count(), 1, "{run:?}");
}

/// Returns the output since `top` last left its screen, or an empty text if it has not.
fn output_between_screens(terminal: &Terminal) -> String {
    let shown = terminal.shown();
    let since = shown.rsplit(LEAVE_SCREEN).next().unwrap_or_default();
    match since.contains(ENTER_SCREEN) {
        true => String::new(),
        false => since.to_owned(),
    }
}

/// Waits until `top` shows its keys. On a busy machine this takes long, because `top` reads the
/// names of functions of all programs.
fn shows_its_keys(terminal: &Terminal) {
    let until = Instant::now() + 10 * TIMEOUT;
    while !output_between_screens(terminal).contains("q, Esc, Return back") {
        assert!(
            Instant::now() < until,
            "{}",
            output_between_screens(terminal)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the screen has a property.
fn wait_for_screen(terminal: &Terminal, is_so: impl Fn(&str) -> bool) {
    wait(|| {
        let screen = terminal.screen()?;
        let shown = terminal.shown();
        let is_taken = shown.rfind(ENTER_SCREEN) > shown.rfind(LEAVE_SCREEN);
        (is_taken && is_so(&screen)).then_some(())
    });
}

/// Returns whether the marked row belongs to `name`.
fn is_marked(screen: &str, name: &str) -> bool {
    let marked = screen.split("\x1b[7m").nth(1);
    // The second word of a row is its name, after the kind.
    marked.is_some_and(|row| row.split_whitespace().nth(1) == Some(name))
}

#[test]
fn a_selected_row_is_traced_and_profiled() {
    require!(tool("script"), tool("stty"));
    let place = TestDir::with_machine();
    let file = place.file("m.toml", SIM);
    let up = place.run(&["up", &file, "--detach"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    let mut terminal = Terminal::new(&place, &["top"]);
    wait_for_screen(&terminal, |screen| screen.contains(" rows"));
    terminal.press("n");
    for _ in 0..4 {
        terminal.press("j");
    }
    wait_for_screen(&terminal, |screen| is_marked(screen, "monitor"));
    terminal.press("k");
    wait_for_screen(&terminal, |screen| is_marked(screen, "web"));
    terminal.press("t");
    // On a busy machine the trace may find no packet. It then still shows the keys.
    shows_its_keys(&terminal);
    let traced = output_between_screens(&terminal);
    assert!(
        traced.contains("web") && (traced.contains("endpoint") || traced.contains("no packet")),
        "{traced}"
    );
    terminal.press("q");
    wait_for_screen(&terminal, |screen| is_marked(screen, "web"));
    terminal.press("p");
    shows_its_keys(&terminal);
    let profiled = output_between_screens(&terminal);
    assert!(profiled.contains("Sampling web for 3 s"), "{profiled}");
    for key in ["\x1b", "\r"] {
        terminal.press(key);
        wait_for_screen(&terminal, |screen| screen.contains("n name"));
        terminal.press("t");
        shows_its_keys(&terminal);
    }
    terminal.press("q");
    wait_for_screen(&terminal, |screen| screen.contains("n name"));
    // Lines that do not fit are omitted.
    terminal.resize(40, 6);
    wait_for_screen(&terminal, |screen| {
        screen.contains("q, Esc quit") && !screen.contains("n name")
    });
    // Ctrl-C quits like the key `q` …
    terminal.press("\x03");
    assert_eq!(terminal.end(), 0);
    // … and also quits the program while it shows a trace.
    let mut terminal = Terminal::new(&place, &["top"]);
    wait_for_screen(&terminal, |screen| screen.contains(" rows"));
    terminal.press("t");
    shows_its_keys(&terminal);
    terminal.press("\x03");
    assert_eq!(terminal.end(), 130);
    // When the terminal is closed, the program exits instead of reading keys forever.
    let terminal = Terminal::new(&place, &["top"]);
    wait_for_screen(&terminal, |screen| screen.contains(" rows"));
    let top = terminal.hang_up().to_string();
    wait(|| (!is_alive(&top)).then_some(()));
    assert!(place.run(&["down"]).ok());
}
