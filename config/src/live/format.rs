//! Formats settings as in a file.

use abi::machine::ConfigValue;

/// Formats a guest's description as in a file.
pub(super) fn format_guest(guest: &ConfigValue) -> String {
    format!("guest = [{}]\n", value(guest))
}

/// Formats a value as in a file.
pub(super) fn value(value: &ConfigValue) -> String {
    // A setting has only values that TOML has.
    toml::Value::try_from(value).map_or_else(|_| String::new(), |value| value.to_string())
}
