//! The driver's counters.

use crate::dedicated::DedicatedReceiver;
use crate::dedicated::queue::DedicatedQueue;
use crate::firewall::Denying;
use crate::nics::NicPort;
use crate::offences;
use crate::ports::Port;
use crate::switch::Switch;
use crate::traffic::Traffic;
use crate::vifs::VifPort;
use crate::vmq::Queues;
use net::bridge::{Count, DropReason};
use runtime::lro::Sums;
use runtime::platform::Asked;
use runtime::report::{self, DropTable};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What counts.
#[derive(Debug)]
pub struct Sources<'a> {
    /// Ports, bridge and what lies between them.
    pub switch: &'a Switch,
    /// Queues of NICs for single guests.
    pub queues: &'a [Queues],
    /// Dedicated queues.
    pub dedicated: &'a [DedicatedReceiver],
    /// Hypercalls, where this domain counts them.
    pub asked: &'a [Asked],
}

/// Everything that the driver counts.
#[must_use]
pub fn stat(sources: &Sources<'_>) -> Value {
    let switch = sources.switch;
    let mut drops = DropTable::default();
    let mut lro = Sums::default();
    let mut ports = serde_json::Map::new();
    let denied = denied(switch);
    for (number, port) in switch.ports.iter() {
        let mut value = match port {
            Port::Nic(nic) => {
                nic.lro.add_to(&mut lro);
                let mut value = nic_stat(nic, &mut drops);
                if let Some(queues) = sources.queues.iter().find(|queues| queues.nic == number) {
                    drops.add("misdirected", queues.misdirected());
                    queues.add_lro(&mut lro);
                    value["vmq"] = queues.stat(&switch.ports);
                }
                value
            }
            Port::Vif(vif) => {
                let mut value = vif_stat(vif, &mut drops);
                if let Some(queue) = &vif.queue {
                    value["queue"] = queue.stat();
                    value["queue"]["denied"] = denied_before(switch, &denied, number).into();
                }
                let mut dedicated = sources.dedicated.iter();
                if let Some(receiver) = dedicated.find(|receiver| receiver.way.guest == number) {
                    drops.add("misdirected", receiver.misdirected());
                    receiver.add_lro(&mut lro);
                    if let Some(queue) = value["queue"].as_object_mut() {
                        queue.extend(receiver.stat());
                    }
                }
                value
            }
        };
        if let Some(forged) = offences::stat(number, &switch.bridge, &switch.ports) {
            value["forged"] = forged;
        }
        if let Some(rules) = switch.firewall.stat(number, &switch.bridge, &denied) {
            value["rules"] = rules;
        }
        ports.insert(port.name().to_owned(), value);
    }
    for (reason, count) in switch.bridge.drops_total().iter() {
        drops.add(reason.name(), count);
    }
    let in_kernel = denied.iter().map(|count| count.frames).sum();
    drops.add(DropReason::Firewall.name(), in_kernel);
    let unfit = switch.outbox.unfit;
    drops.add("too_long", unfit.too_long);
    drops.add("bad_offload", unfit.bad_offload);
    drops.add("fault", unfit.fault);
    let split: u64 = switch.ports.iter().map(|(_, port)| port.split()).sum();
    let mut stat = json!({
        "ledger": switch.ledger.report(),
        "ports": ports,
        "software": {
            "segments": switch.outbox.segmented,
            "checksums": switch.outbox.checksummed,
            "split": split,
        },
        "stations": switch.bridge.stations(shmem::time::monotonic_ns()).count(),
        "drops": Value::from(drops),
        "lro": Value::from(lro),
    });
    if !sources.asked.is_empty() {
        stat["hypercalls"] = hypercalls(sources.asked);
    }
    stat
}

/// Hypercalls by kind.
fn hypercalls(asked: &[Asked]) -> Value {
    let count = |of: &Asked| {
        let counts = json!({ "calls": of.calls, "operations": of.operations });
        (of.kind.to_owned(), counts)
    };
    Value::Object(asked.iter().map(count).collect())
}

/// What the kernel has denied by each of the rules that it asks.
fn denied(switch: &Switch) -> Vec<Count> {
    let mut all = BTreeMap::new();
    for (number, vif) in switch.ports.vifs() {
        let denied = vif.queue.as_ref().map(DedicatedQueue::denied);
        let denied = denied.into_iter().flatten();
        all.extend(denied.map(|(rule, count)| ((number, rule), count)));
    }
    let count = |rule: &Denying| all.get(&(rule.queue, rule.number)).copied();
    let rules = switch.firewall.denying().iter();
    rules.map(|rule| count(rule).unwrap_or_default()).collect()
}

/// Frames that the kernel has denied before the queue of a port.
fn denied_before(switch: &Switch, denied: &[Count], port: usize) -> u64 {
    let counts = switch.firewall.denying().iter().zip(denied);
    let of_port = counts.filter(|(rule, _)| rule.queue == port);
    of_port.map(|(_, count)| count.frames).sum()
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
    for (reason, _, dropped) in vif.egress.drops.reasons() {
        drops.add(reason, dropped);
    }
    json!({
        "state": vif.state(),
        "trouble": vif.trouble,
        "traffic": traffic(&vif.traffic),
        "counters": report::counters(&counters),
        "not_connected": vif.not_connected,
        "egress_queue": vif.egress.stat(),
    })
}
