//! Keys whose value is one of several words. The words are serde's names of the variants, so that
//! files, the domains' configurations and `grantway stat` agree.

use serde::Serialize;
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, Expected, Unexpected};
use std::fmt;
use strsim::levenshtein;

/// Returns the variant of this name.
///
/// # Errors
///
/// Returns an error with the valid names if no variant has this name.
pub(crate) fn read<T: DeserializeOwned>(word: &str) -> Result<T, String> {
    T::deserialize(StrDeserializer::new(word)).map_err(|Remedy(remedy)| remedy)
}

/// Returns the name of a variant.
pub(crate) fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        // Callers pass only variants without fields.
        _ => String::new(),
    }
}

/// The remedy for a number that does not fit its key.
const NUMBER: &str = "write a whole number that is not negative and not too large";

/// Error: a value cannot be read. Its text is the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remedy(String);

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Remedy {}

impl de::Error for Remedy {
    fn custom<T: fmt::Display>(remedy: T) -> Self {
        Self(remedy.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self(match expected.to_string().as_str() {
            "a boolean" => "write true or false".to_owned(),
            "a string" => "write a text in quotes".to_owned(),
            "f64" => "write a number".to_owned(),
            "i32" | "u16" | "u32" | "u64" | "usize" => NUMBER.to_owned(),
            // Types with a text form describe themselves by a remedy.
            remedy => remedy.to_owned(),
        })
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(unexpected, expected)
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        Self(choices(known.iter().copied()))
    }
}

impl Remedy {
    /// Returns the remedy for an item as that for its list.
    pub(crate) fn of_list(self) -> Self {
        match self.0.strip_prefix("write it like \"") {
            Some(example) => Self(format!("write it like [\"{example}]")),
            None if self.0 == NUMBER => Self("write a list of numbers, like [0, 1]".to_owned()),
            None => self,
        }
    }
}

/// Returns `write "a", "b" or "c"`.
pub(crate) fn choices<'w>(words: impl Iterator<Item = &'w str>) -> String {
    let words: Vec<String> = words.map(|word| format!("\"{word}\"")).collect();
    format!("write {}", alternatives(&words))
}

/// Returns `a, b or c`.
pub(crate) fn alternatives(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// Returns the known key that is most similar to an unknown one, if one is similar enough.
pub(crate) fn nearest(keys: &[&'static str], key: &str) -> Option<&'static str> {
    const EDITS_MAX: usize = 2;
    // The distance is at least the difference of the lengths. Comparing only keys of a similar
    // length also bounds the time that an extremely long key takes.
    let length = key.chars().count();
    let similar = keys
        .iter()
        .filter(|known| known.len().abs_diff(length) <= EDITS_MAX);
    let distances = similar.map(|known| (levenshtein(known, key), *known));
    let (edits, known) = distances.min_by_key(|(edits, _)| *edits)?;
    (edits <= EDITS_MAX).then_some(known)
}

/// Returns what to write instead of an unknown key.
pub(crate) fn suggestion(keys: &[&'static str], meant: Option<&'static str>) -> String {
    match meant {
        Some(known) => format!("did you mean `{known}`?"),
        None => {
            let mut known: Vec<String> = keys.iter().map(|k| format!("`{k}`")).collect();
            known.dedup();
            format!("known here: {}", known.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_up_to_two_edits_are_similar() {
        let long = "x".repeat(1 << 20);
        for (key, similar) in [
            ("mac", Some("mac")),
            ("ma", Some("mac")),
            ("mäc", Some("mac")),
            ("nets", Some("netns")),
            ("adress", Some("address")),
            ("adres", Some("address")),
            ("addre", Some("address")),
            ("addr", None),
            ("", None),
            (long.as_str(), None),
        ] {
            let found = nearest(&["address", "netns", "mac"], key);
            assert_eq!(found, similar, "{} bytes", key.len());
        }
    }

    #[test]
    fn alternatives_read_like_a_sentence() {
        let words = ["a", "b", "c"].map(String::from);
        assert_eq!(alternatives(&words), "a, b or c");
        assert_eq!(alternatives(&words[..1]), "a");
    }

    #[test]
    fn keywords_are_the_names_of_serde() {
        use crate::domain::RingFormat;
        assert_eq!(read("xen"), Ok(RingFormat::Xen));
        assert_eq!(name(&RingFormat::Xen), "xen");
        let unknown = read::<RingFormat>("Xen").unwrap_err();
        assert_eq!(unknown.to_string(), "write \"native\" or \"xen\"");
    }
}
