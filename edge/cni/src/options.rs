//! Options of `network create -o`, for runtimes whose networks have no configuration file.

use crate::error::{CniError, ErrorCode};
use serde_json::{Map, Value, json};

/// The values of an option.
enum Values {
    Text,
    Number,
    OneOf(&'static [&'static str]),
}

/// Known options, their values, and whether they are keys of the interface.
const OPTIONS: [(&str, Values, bool); 10] = [
    ("machine", Values::Text, false),
    ("socket", Values::Text, false),
    ("mtu", Values::Number, false),
    ("rate_mbps", Values::Number, true),
    ("burst_bytes", Values::Number, true),
    ("rate_to_guest_mbps", Values::Number, true),
    ("burst_to_guest_bytes", Values::Number, true),
    ("weight", Values::Number, true),
    (
        "firewall",
        Values::OneOf(&["stateful", "split", "shared"]),
        true,
    ),
    ("inbound", Values::OneOf(&["deny", "allow"]), true),
];

/// Returns the configuration of a network in CNI's form.
///
/// # Errors
///
/// Returns an error if an option is unknown, or its value is invalid.
pub fn conf<'a>(
    network: &str,
    options: impl Iterator<Item = (&'a String, &'a String)>,
) -> Result<Value, CniError> {
    let mut conf = Map::new();
    let mut vif = Map::new();
    for (key, text) in options {
        let known = OPTIONS.iter().find(|(known, ..)| known == key);
        let Some((_, values, is_its)) = known else {
            let known = OPTIONS.map(|(known, ..)| known).join(", ");
            let msg = format!("unknown option `{}`", key.escape_debug());
            return Err(CniError::new(ErrorCode::Config, msg)
                .with_details(format!("known options: {known}")));
        };
        let value = values.read(text).map_err(|right| {
            let msg = format!("the option `{key}` is \"{}\"", text.escape_debug());
            CniError::new(ErrorCode::Config, msg).with_details(right)
        })?;
        let part = if *is_its { &mut vif } else { &mut conf };
        part.insert(key.clone(), value);
    }
    conf.insert("cniVersion".into(), json!("1.0.0"));
    conf.insert("name".into(), json!(network));
    conf.insert("vif".into(), vif.into());
    Ok(conf.into())
}

impl Values {
    /// Parses a value; the error lists the valid ones.
    fn read(&self, text: &str) -> Result<Value, String> {
        match self {
            Self::Text => Ok(json!(text)),
            Self::Number => match text.parse::<u32>() {
                Ok(number) => Ok(json!(number)),
                Err(_) => Err("write a number".to_owned()),
            },
            Self::OneOf(words) if words.contains(&text) => Ok(json!(text)),
            Self::OneOf(words) => Err(format!("write one of: {}", words.join(", "))),
        }
    }
}
