//! The state file, from which a machine reattaches guests.

use crate::input::Input;
use config::live::state::{AttachedGuest, read, write};

/// The name of the machine that reads the file.
const MACHINE: &str = "m";
/// Parts that a state file is made of, in an order that mostly parses.
const PARTS: [&str; 14] = [
    r#"{"form":1,"machine":"m","guests":["#,
    r#"{"guest":{"name":"a","vif":[{"endpoint":"echo"}]},"origin":{"user":0,"places":{}}}"#,
    r#"{"guest":{"name":"b","vif":[{"endpoint":"tap","netns":"/proc/9/ns/net"}]},"#,
    r#""origin":{"user":null,"places":{"/proc/9/ns/net":[4,1099511627776,77]}}}"#,
    r#"{"guest":{},"origin":{"places":{}}}"#,
    r#"{"guest":[1.5,-1,true,"x",{}],"origin":{"user":4294967295,"places":{}}}"#,
    ",",
    "]}",
    "]",
    "}",
    r#","x":0"#,
    r#"{"form":2,"machine":"m"}"#,
    r#"{"form":1,"machine":"other","guests":[]}"#,
    "\0",
];

/// Reads a state file. An accepted file is unchanged after a round trip, and each of its guests has
/// a name.
pub fn state(bytes: &[u8]) {
    returns(&String::from_utf8_lossy(bytes));
    let mut input = Input::new(bytes);
    let mut text = String::new();
    while !input.is_empty() && text.len() < 1 << 16 {
        match PARTS.get(input.below(PARTS.len() + 2)) {
            Some(part) => text.push_str(part),
            None => text.push_str(&String::from_utf8_lossy(input.bytes(3))),
        }
    }
    returns(&text);
}

fn returns(text: &str) {
    let Ok(guests) = read(MACHINE, text) else {
        return;
    };
    assert!(guests.iter().all(|guest| guest.name().is_some()), "{text}");
    let left: Vec<&AttachedGuest> = guests.iter().collect();
    let written = String::from_utf8(write(MACHINE, &left)).expect("JSON is UTF-8");
    let again: Vec<AttachedGuest> = read(MACHINE, &written).expect("what was written can be read");
    assert_eq!(again, guests);
}
