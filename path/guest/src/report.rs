//! Counters of the guest.

use crate::interface::Interface;
use runtime::ledger::Ledger;
use runtime::lro::Sums;
use runtime::report::DropTable;
use serde_json::{Value, json};
use vif::netfront::{PageRecycling, Tracking};

/// Returns all counters of the guest.
pub(crate) fn stat(ledger: &Ledger, interfaces: &[Interface]) -> Value {
    let mut drops = DropTable::default();
    let mut lro = Sums::default();
    let mut pool = PageRecycling::default();
    let mut file = Tracking::default();
    let (mut sent, mut limited) = (0, 0);
    let mut vifs = serde_json::Map::new();
    for interface in interfaces {
        drops.add_vif("netfront", &interface.counters());
        drops.add_device(&interface.tx_totals());
        drops.add("too_long", interface.too_long());
        let (made, suppressed) = interface.too_big();
        sent += made;
        limited += suppressed;
        interface.add_lro(&mut lro);
        pool += interface.recycling();
        file += interface.tracking();
        vifs.insert(interface.name().to_owned(), interface.stat());
    }
    json!({
        "ledger": ledger.report(),
        "vifs": vifs,
        "drops": Value::from(drops),
        "too_big": { "sent": sent, "limited": limited },
        "lro": Value::from(lro),
        "file": { "granted_anew": file.granted, "reused": file.reused, "copied": file.copied },
        "pool": { "granted_anew": pool.granted, "revoked": pool.revoked },
    })
}
