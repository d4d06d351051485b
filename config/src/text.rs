//! Types that files and JSON represent by the same text.

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny};
use std::fmt::Display;
use std::str::FromStr;

/// A value that may be the text form of a type.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    /// A number without quotes.
    Number(u64),
    Other(IgnoredAny),
}

/// Reads the text form of a type. `remedy` returns what to write instead of an invalid text, which
/// is empty if the value has no text form.
pub(crate) fn read<'de, T: FromStr, D: Deserializer<'de>, R: Display>(
    from: D,
    remedy: impl FnOnce(&str) -> R,
) -> Result<T, D::Error> {
    let form = Form::deserialize(from)?;
    let parsed = match &form {
        Form::Text(text) => text.parse(),
        Form::Number(number) => number.to_string().parse(),
        Form::Other(_) => "".parse(),
    };
    parsed.map_err(|_| match &form {
        Form::Text(text) => D::Error::custom(remedy(text)),
        Form::Number(_) | Form::Other(_) => D::Error::custom(remedy("")),
    })
}

/// Implements `Deserialize` for a type with a text form, with the remedy for an invalid text.
macro_rules! read_as_text {
    ($kind:ty, $remedy:expr) => {
        impl<'de> serde::Deserialize<'de> for $kind {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::text::read(from, $remedy)
            }
        }
    };
}

/// Implements `Serialize` and `Deserialize` for a type with a text form, with `Display`.
macro_rules! as_text {
    ($kind:ty, $remedy:expr) => {
        $crate::text::read_as_text!($kind, $remedy);
        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    };
}

pub(crate) use {as_text, read_as_text};
