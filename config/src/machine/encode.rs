//! Encodes configuration that both programs receive in the same form.

use crate::domain::Stack;
use crate::model::Station;

/// Returns the configuration of a TCP/IP station.
pub(super) fn stack(station: &Station) -> Stack {
    Stack {
        addresses: station.addresses.clone(),
        gateway: station.gateway,
        apps: station.apps.clone(),
    }
}

/// Serializes a program's configuration.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    // Plain structs with text keys: serialization cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}
