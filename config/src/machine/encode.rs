//! Encodes the configuration of a domain's program.

/// Serializes a program's configuration.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    // Serialization of plain structs with text keys cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}
