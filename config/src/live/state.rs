//! What a machine leaves for the one that takes its place: the guests that were attached to it. The
//! core has it written; nobody who reads it relies on what it says.

use abi::machine::{NetnsPlace, Setting};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Of this form. Another one is not read.
const FORM: u32 = 1;
/// Guests that are taken up: more than there is room for.
const GUESTS_MAX: usize = 1024;

/// A guest that was attached, and is to be attached again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Returning {
    /// Its description, with the MACs and addresses that it has been given.
    pub guest: Setting,
    /// What is known of it beside that.
    pub origin: Origin,
}

/// Where a guest has come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The user who has attached it; none: files that were read later than the machine's own.
    pub user: Option<u32>,
    /// What the names of its network namespaces stood for.
    pub places: BTreeMap<String, NetnsPlace>,
}

impl Origin {
    /// Where nothing is known of it.
    pub const UNKNOWN: Self = Self {
        user: None,
        places: BTreeMap::new(),
    };
}

/// The same as [`Returning`], to be written.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Left<'a> {
    /// Its description.
    pub guest: &'a Setting,
    /// What is known of it beside that.
    pub origin: &'a Origin,
}

impl<'a> From<&'a Returning> for Left<'a> {
    fn from(Returning { guest, origin }: &'a Returning) -> Self {
        Self { guest, origin }
    }
}

impl Returning {
    /// Its name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        name_of(&self.guest)
    }
}

/// Returns the name in a guest's description, if it has one.
#[must_use]
pub fn name_of(guest: &Setting) -> Option<&str> {
    match guest {
        Setting::Section(keys) => match keys.get("name") {
            Some(Setting::Text(name)) => Some(name),
            _ => None,
        },
        _ => None,
    }
}

/// The form and the machine's name: what is looked at first.
#[derive(Deserialize)]
struct Head {
    form: u32,
    machine: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    #[serde(rename = "form")]
    _form: u32,
    #[serde(rename = "machine")]
    _machine: String,
    guests: Vec<Returning>,
}

#[derive(Serialize)]
struct Written<'a> {
    form: u32,
    machine: &'a str,
    guests: &'a [Left<'a>],
}

/// What the machine of this name leaves; empty: nothing.
#[must_use]
pub fn write(machine: &str, guests: &[Left<'_>]) -> Vec<u8> {
    if guests.is_empty() {
        return Vec::new();
    }
    let whole = Written {
        form: FORM,
        machine,
        guests,
    };
    // Text, numbers, and maps by text: nothing of it cannot be written.
    serde_json::to_vec(&whole).unwrap_or_default()
}

/// The guests that the machine of this name has left.
///
/// # Errors
/// The text, which may be anything, is none of this form, or another machine's.
pub fn read(machine: &str, text: &str) -> Result<Vec<Returning>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let wrong = |error: serde_json::Error| format!("it cannot be read: {error}");
    let head: Head = serde_json::from_str(text).map_err(wrong)?;
    if head.form != FORM {
        return Err(format!("it has form {} instead of {FORM}", head.form));
    }
    if head.machine != machine {
        return Err(format!("it is of a machine {:?}", head.machine));
    }
    let Whole { guests, .. } = serde_json::from_str::<Whole>(text).map_err(wrong)?;
    if guests.len() > GUESTS_MAX {
        let count = guests.len();
        return Err(format!(
            "it has {count} guests, and {GUESTS_MAX} is the most"
        ));
    }
    match guests.iter().position(|guest| guest.name().is_none()) {
        Some(at) => Err(format!("guest {} has no name", at + 1)),
        None => Ok(guests),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returning(name: &str) -> Returning {
        let guest = format!(r#"{{"name":"{name}","vif":[{{"endpoint":"echo","mtu":1400}}]}}"#);
        Returning {
            guest: serde_json::from_str(&guest).unwrap(),
            origin: Origin {
                user: Some(7),
                places: [("/proc/9/ns/net".to_owned(), [4, 1 << 40, 77])].into(),
            },
        }
    }

    #[test]
    fn what_is_left_is_read_again() {
        let guests: Vec<_> = ["a", "b"].map(returning).into();
        let text = write("m", &guests.iter().map(Left::from).collect::<Vec<_>>());
        let text = String::from_utf8(text).unwrap();
        assert_eq!(read("m", &text).unwrap(), guests);
        assert!(write("m", &[]).is_empty());
        assert_eq!(read("m", ""), Ok(Vec::new()));
        // It may have been cut anywhere.
        for end in 1..text.len() {
            assert!(read("m", &text[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn what_is_none_is_said() {
        let one = returning("a");
        let many = vec![Left::from(&one); 10_000];
        let many = String::from_utf8(write("m", &many)).unwrap();
        for (text, why) in [
            ("\0\u{1}nonsense", "cannot be read"),
            ("[]", "cannot be read"),
            (
                r#"{"form":2,"machine":"m","more":[]}"#,
                "form 2 instead of 1",
            ),
            (
                r#"{"form":1,"machine":"x","guests":[]}"#,
                "of a machine \"x\"",
            ),
            (
                r#"{"form":1,"machine":"m","guests":[],"x":0}"#,
                "cannot be read",
            ),
            (
                r#"{"form":1,"machine":"m","guests":[{"guest":{},"origin":{"user":0,
                    "places":{}}}]}"#,
                "guest 1 has no name",
            ),
            (&many, "10000 guests, and 1024 is the most"),
        ] {
            let said = read("m", text).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
