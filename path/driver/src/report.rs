//! The driver's counters.

use crate::firewall::Denying;
use crate::nics::NicPort;
use crate::own::OwnQueue;
use crate::port::{Port, Traffic};
use crate::turn::Driver;
use crate::vifs::VifPort;
use net::bridge::{Count, DropReason};
use runtime::lro::Sums;
use runtime::report::{self, DropTable};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Everything that the driver counts.
pub(crate) fn stat(driver: &Driver) -> Value {
    let mut drops = DropTable::default();
    let mut lro = Sums::default();
    let mut ports = serde_json::Map::new();
    let denied = denied(driver);
    for (number, port) in driver.ports.iter().enumerate() {
        let mut value = match port {
            Port::Nic(nic) => {
                nic.lro.add_to(&mut lro);
                let mut value = nic_stat(nic, &mut drops);
                if let Some(queues) = driver.queues.iter().find(|queues| queues.nic == number) {
                    drops.add("misdirected", queues.misdirected);
                    queues.add_lro(&mut lro);
                    value["vmq"] = queues.stat(&driver.ports);
                }
                value
            }
            Port::Vif(vif) => {
                let mut value = vif_stat(vif, &mut drops);
                if let Some(queue) = &vif.queue {
                    drops.add("misdirected", queue.misdirected());
                    queue.add_lro(&mut lro);
                    value["queue"] = queue.stat();
                    value["queue"]["denied"] = denied_before(driver, &denied, number).into();
                }
                value
            }
        };
        if let Some(rules) = driver.firewall.stat(number, &driver.bridge, &denied) {
            value["rules"] = rules;
        }
        ports.insert(port.name().to_owned(), value);
    }
    for (reason, count) in driver.bridge.drops_total().iter() {
        drops.add(reason.name(), count);
    }
    let in_kernel = denied.iter().map(|count| count.frames).sum();
    drops.add(DropReason::Firewall.name(), in_kernel);
    let unfit = driver.outbox.unfit;
    drops.add("too_long", unfit.too_long);
    drops.add("bad_offload", unfit.bad_offload);
    drops.add("fault", unfit.fault);
    json!({
        "ledger": driver.ledger.report(),
        "ports": ports,
        "software": {
            "segments": driver.outbox.segmented,
            "checksums": driver.outbox.checksummed,
            "split": driver.ports.iter().map(Port::split).sum::<u64>(),
        },
        "stations": driver.bridge.stations(shmem::time::monotonic_ns()).count(),
        "drops": Value::from(drops),
        "lro": Value::from(lro),
    })
}

/// What the kernel has denied by each of the rules that it asks.
fn denied(driver: &Driver) -> Vec<Count> {
    let mut all = BTreeMap::new();
    for (number, port) in driver.ports.iter().enumerate() {
        let Port::Vif(vif) = port else { continue };
        let denied = vif.queue.as_ref().map(OwnQueue::denied);
        let denied = denied.into_iter().flatten();
        all.extend(denied.map(|(rule, count)| ((number, rule), count)));
    }
    let count = |rule: &Denying| all.get(&(rule.queue, rule.number)).copied();
    let rules = driver.firewall.denying().iter();
    rules.map(|rule| count(rule).unwrap_or_default()).collect()
}

/// Frames that the kernel has denied before the queue of a port.
fn denied_before(driver: &Driver, denied: &[Count], port: usize) -> u64 {
    let counts = driver.firewall.denying().iter().zip(denied);
    let own = counts.filter(|(rule, _)| rule.queue == port);
    own.map(|(_, count)| count.frames).sum()
}

fn traffic(traffic: &Traffic) -> Value {
    json!({
        "in_packets": traffic.in_packets,
        "in_bytes": traffic.in_bytes,
        "out_packets": traffic.out_packets,
        "out_bytes": traffic.out_bytes,
    })
}

fn nic_stat(nic: &NicPort, drops: &mut DropTable) -> Value {
    drops.add_device(&nic.sent);
    json!({
        "traffic": traffic(&nic.traffic),
        "device": report::device(&nic.sent, nic.counters()),
        "buffers_free": nic.buffers_free(),
        "acks": nic.acks.all,
        "sacks": nic.acks.selective,
        "lro": nic.lro_stat(),
    })
}

fn vif_stat(vif: &VifPort, drops: &mut DropTable) -> Value {
    let counters = vif.counters();
    drops.add_vif(&counters);
    drops.add("not_connected", vif.not_connected);
    json!({
        "state": vif.state(),
        "trouble": vif.trouble,
        "traffic": traffic(&vif.traffic),
        "counters": report::counters(&counters),
        "not_connected": vif.not_connected,
    })
}
