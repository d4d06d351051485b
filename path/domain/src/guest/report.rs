//! The guest's counters.

use super::turn::Guest;
use crate::lro::Sums;
use crate::report::DropTable;
use serde_json::{Value, json};

/// Everything that the guest counts.
pub(super) fn stat(guest: &Guest) -> Value {
    let mut drops = DropTable::default();
    let mut lro = Sums::default();
    let mut vifs = serde_json::Map::new();
    for (n, interface) in guest.interfaces.iter().enumerate() {
        drops.add_vif(&interface.counters());
        drops.add_device(&interface.given());
        interface.add_lro(&mut lro);
        vifs.insert(n.to_string(), interface.stat());
    }
    json!({
        "ledger": guest.ledger.report(),
        "vifs": vifs,
        "drops": Value::from(drops),
        "lro": Value::from(lro),
    })
}
