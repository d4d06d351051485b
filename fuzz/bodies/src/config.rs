//! Configuration files of hostile authors.

use crate::input::Input;
use abi::machine::{Machine, Program};
use config::domain::{DeviceConfig, DriverConfig, GuestConfig};

/// Every key, most of them commented out.
const EXAMPLE: &str = include_str!("../../../examples/every-key.toml");
/// Values that are invalid at most places, and valid at some.
const VALUES: [&str; 16] = [
    "0",
    "1",
    "-1",
    "4294967296",
    "99999999999999999999",
    "0.5",
    "1e308",
    "nan",
    "\"\"",
    "\"02:00:00:00:00:ff\"",
    "\"10.0.0.1/33\"",
    "\"fd00::1/64\"",
    "true",
    "[]",
    "[0, 63, 64]",
    "{}",
];

/// Reads a configuration. A rejection names lines of the file. An accepted file yields a machine
/// that is rejected, or that is unchanged after a round trip to the monitor and the domains.
pub fn config(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let text = match input.below(4) {
        0 => String::from_utf8_lossy(input.bytes(4096)).into_owned(),
        _ => edited(&mut input),
    };
    let config = match config::parse("fuzz", &text) {
        Ok(config) => config,
        Err(problems) => {
            let lines = text.lines().count().max(1);
            let message = problems.to_string();
            assert!(!message.is_empty(), "refused without a reason");
            let line = |text: &str| text.strip_prefix("fuzz:")?.split(':').next()?.parse().ok();
            let mut numbers = message.lines().filter_map(line);
            assert!(numbers.all(|line: usize| line <= lines), "{text}");
            return;
        }
    };
    let Ok(machine) = config.machine() else {
        return;
    };
    let json = serde_json::to_string(&machine).expect("a machine is JSON");
    let again: Machine = serde_json::from_str(&json).expect("what is written can be read");
    assert!(again == machine, "{text}");
    for domain in &machine.domains {
        let text = domain.config.as_str();
        match domain.program {
            Program::Driver => drop(serde_json::from_str::<DriverConfig>(text).expect("is JSON")),
            Program::Device => drop(serde_json::from_str::<DeviceConfig>(text).expect("is JSON")),
            Program::Guest => drop(serde_json::from_str::<GuestConfig>(text).expect("is JSON")),
        }
    }
}

/// Returns the example with some changed lines.
fn edited(input: &mut Input<'_>) -> String {
    let mut lines: Vec<String> = EXAMPLE.lines().map(str::to_owned).collect();
    for _ in 0..input.below(24) {
        let at = usize::from(input.u16()) % lines.len();
        let from = usize::from(input.u16()) % lines.len();
        let line = lines.get(at).cloned().unwrap_or_default();
        match input.below(6) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(from, line),
            2 => lines.swap(at, from),
            3 => edit(&mut lines, at, line.trim_start_matches("# ").to_owned()),
            4 => {
                let value = VALUES.get(input.below(VALUES.len())).unwrap_or(&"");
                let key = line.trim_start_matches("# ").split(" =").next();
                edit(&mut lines, at, format!("{} = {value}", key.unwrap_or("x")));
            }
            _ => {
                let word = String::from_utf8_lossy(input.bytes(12)).into_owned();
                edit(&mut lines, at, line + &word);
            }
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
    lines.join("\n")
}

fn edit(lines: &mut [String], at: usize, line: String) {
    if let Some(place) = lines.get_mut(at) {
        *place = line;
    }
}
