//! The saved state of a machine: its attached guests, which the next machine of the same name
//! attaches again. The core stores it. Readers do not trust its contents.

pub use super::sections::name_of;

use abi::machine::{ConfigValue, NetnsId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the format. State of another version is rejected.
const FORMAT_VERSION: u32 = 1;
/// The maximum number of guests in a file, above the maximum of a machine.
const GUESTS_MAX: usize = 1024;

/// A guest that was attached to a running machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachedGuest {
    /// Its description, with its assigned MACs and addresses.
    pub guest: ConfigValue,
    /// Its origin.
    pub origin: Origin,
}

impl AttachedGuest {
    /// Returns its name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        name_of(&self.guest)
    }
}

/// The origin of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The user who attached it; `None` if the files of a reload name it. It is then treated like
    /// the other guests of a file.
    pub user: Option<u32>,
    /// The identities of its network namespaces, by name.
    pub places: BTreeMap<String, NetnsId>,
}

/// The format version and the machine's name, which the reader checks first.
#[derive(Deserialize)]
struct Head {
    form: u32,
    machine: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WholeState<G> {
    form: u32,
    machine: String,
    guests: G,
}

/// Returns the state of the machine of this name; empty if it has no attached guests.
#[must_use]
pub fn write(machine: &str, guests: &[&AttachedGuest]) -> Vec<u8> {
    if guests.is_empty() {
        return Vec::new();
    }
    let whole = WholeState {
        form: FORMAT_VERSION,
        machine: machine.to_owned(),
        guests,
    };
    // Serialization cannot fail: the value has only texts, numbers, and maps with text keys.
    serde_json::to_vec(&whole).unwrap_or_default()
}

/// Returns the guests in the saved state of the machine of this name.
///
/// # Errors
///
/// Returns an error if the text is invalid, has another format version, or belongs to another
/// machine. It may have any contents.
pub fn read(machine: &str, text: &str) -> Result<Vec<AttachedGuest>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let wrong = |error: serde_json::Error| format!("cannot read it: {error}");
    let head: Head = serde_json::from_str(text).map_err(wrong)?;
    if head.form != FORMAT_VERSION {
        return Err(format!(
            "it has format {} instead of {FORMAT_VERSION}",
            head.form
        ));
    }
    if head.machine != machine {
        return Err(format!("it belongs to a machine {:?}", head.machine));
    }
    let WholeState::<Vec<AttachedGuest>> { guests, .. } =
        serde_json::from_str(text).map_err(wrong)?;
    if guests.len() > GUESTS_MAX {
        let count = guests.len();
        return Err(format!("it has {count} guests; the limit is {GUESTS_MAX}"));
    }
    match guests.iter().position(|guest| guest.name().is_none()) {
        Some(at) => Err(format!("guest {} has no name", at + 1)),
        None => Ok(guests),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved_guest(name: &str) -> AttachedGuest {
        let guest = format!(r#"{{"name":"{name}","vif":[{{"endpoint":"echo","mtu":1400}}]}}"#);
        AttachedGuest {
            guest: serde_json::from_str(&guest).unwrap(),
            origin: Origin {
                user: Some(7),
                places: [("/proc/9/ns/net".to_owned(), [4, 1 << 40, 77])].into(),
            },
        }
    }

    #[test]
    fn written_state_is_read_back() {
        let guests: Vec<_> = ["a", "b"].map(saved_guest).into();
        let text = write("m", &guests.iter().collect::<Vec<_>>());
        let text = String::from_utf8(text).unwrap();
        assert_eq!(read("m", &text).unwrap(), guests);
        assert!(write("m", &[]).is_empty());
        assert_eq!(read("m", ""), Ok(Vec::new()));
        // The text may have been truncated anywhere.
        for end in 1..text.len() {
            assert!(read("m", &text[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn invalid_state_is_rejected_with_the_reason() {
        let one = saved_guest("a");
        let many = vec![&one; 10_000];
        let many = String::from_utf8(write("m", &many)).unwrap();
        for (text, why) in [
            ("\0\u{1}nonsense", "cannot read"),
            ("[]", "cannot read"),
            (
                r#"{"form":2,"machine":"m","more":[]}"#,
                "format 2 instead of 1",
            ),
            (
                r#"{"form":1,"machine":"x","guests":[]}"#,
                "to a machine \"x\"",
            ),
            (
                r#"{"form":1,"machine":"m","guests":[],"x":0}"#,
                "cannot read",
            ),
            (
                r#"{"form":1,"machine":"m","guests":[{"guest":{},"origin":{"user":0,
                    "places":{}}}]}"#,
                "guest 1 has no name",
            ),
            (&many, "10000 guests; the limit is 1024"),
        ] {
            let message = read("m", text).unwrap_err();
            assert!(message.contains(why), "{message}");
        }
    }
}
