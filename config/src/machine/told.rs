//! What both programs are told in the same form.

use crate::domain::Stack;
use crate::model::Station;

/// A TCP/IP station, as the program is told that runs it.
pub(super) fn stack(station: &Station) -> Stack {
    Stack {
        addresses: station.addresses.clone(),
        gateway: station.gateway,
        apps: station.apps.clone(),
    }
}

/// The text of a program's configuration.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    // Plain structs with text keys: serde_json has nothing to refuse.
    serde_json::to_string(value).unwrap_or_default()
}
