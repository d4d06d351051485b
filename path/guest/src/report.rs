//! The guest's counters.

use crate::interface::Interface;
use runtime::ledger::Ledger;
use runtime::lro::Sums;
use runtime::report::DropTable;
use serde_json::{Value, json};
use vif::netfront::{Tracking, Turnover};

/// Everything that the guest counts.
pub(crate) fn stat(ledger: &Ledger, interfaces: &[Interface]) -> Value {
    let mut drops = DropTable::default();
    let mut lro = Sums::default();
    let mut pool = Turnover::default();
    let mut file = Tracking::default();
    let mut vifs = serde_json::Map::new();
    for interface in interfaces {
        drops.add_vif(&interface.counters());
        drops.add_device(&interface.given());
        interface.add_lro(&mut lro);
        pool += interface.turnover();
        file += interface.tracking();
        vifs.insert(interface.name().to_owned(), interface.stat());
    }
    json!({
        "ledger": ledger.report(),
        "vifs": vifs,
        "drops": Value::from(drops),
        "lro": Value::from(lro),
        "file": { "granted_anew": file.entered, "reused": file.reused, "copied": file.copied },
        "pool": { "granted_anew": pool.entered, "revoked": pool.left },
    })
}
