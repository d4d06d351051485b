//! The driver's counters as JSON.

use crate::dedicated::DedicatedReceiver;
use crate::dedicated::queue::DedicatedQueue;
use crate::firewall::DenyRule;
use crate::flow_report;
use crate::nics::NicPort;
use crate::offences;
use crate::ports::BridgePort;
use crate::switch::Switch;
use crate::vifs::VifPort;
use crate::vmq::NicQueues;
use abi::layout::mailbox;
use net::bridge::{DropReason, RuleCount};
use runtime::lro::Sums;
use runtime::platform::HypercallCount;
use runtime::report::{self, DropTable};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io;

/// Number of bytes of port counters after which an answer is full; the mailbox also has room for
/// one more port and all totals.
const PORT_BYTES: usize = mailbox::OUT_MAX - 64 * 1024;

/// The parts of the driver whose counters are reported.
#[derive(Debug)]
pub struct DriverReport<'a> {
    /// The switch, with its ports.
    pub switch: &'a Switch,
    /// The dedicated queues of NICs.
    pub queues: &'a [NicQueues],
    /// The dedicated queues of AF_XDP wires.
    pub dedicated: &'a [DedicatedReceiver],
}

impl DriverReport<'_> {
    /// Returns all counters of the driver: of its ports, bridge and queues, of the dedicated queues
    /// of NICs and of AF_XDP wires, and of its hypercalls, if it counts them. If not all ports fit
    /// into the mailbox, `next` is the number of the first one that [`DriverReport::ports`] is to
    /// return.
    #[must_use]
    pub fn stat(&self, counts: &[HypercallCount]) -> Value {
        let switch = self.switch;
        let mut totals = Totals::default();
        let denied = denied(switch);
        let (ports, next) = self.page(0, &denied, &mut totals);
        let Totals { mut drops, lro } = totals;
        for (reason, count) in switch.bridge.drops_total().iter() {
            drops.add(reason.name(), count);
        }
        let in_kernel = denied.iter().map(|count| count.frames).sum();
        drops.add(DropReason::Firewall.name(), in_kernel);
        for (reason, count) in switch.software_offload.tx_errors.iter() {
            drops.add(reason.name(), count);
        }
        let split: u64 = switch
            .ports
            .iter()
            .map(|(_, port)| port.resegmented_frames())
            .sum();
        let mut stat = json!({
            "ledger": switch.ledger.report(),
            "ports": ports,
            "software": {
                "segments": switch.software_offload.segmented,
                "checksums": switch.software_offload.checksummed,
                "split": split,
            },
            "too_big": switch.errors.stat(&switch.ports),
            "stations": switch.bridge.stations(shmem::time::monotonic_ns()).count(),
            "drops": Value::from(drops),
            "lro": Value::from(lro),
        });
        if !counts.is_empty() {
            stat["hypercalls"] = hypercalls(counts);
        }
        if let Some(next) = next {
            stat["next"] = next.into();
        }
        stat
    }

    /// Returns the counters of further ports, from the number `first` on.
    #[must_use]
    pub fn ports(&self, first: u32) -> Value {
        let denied = denied(self.switch);
        let (ports, next) = self.page(first as usize, &denied, &mut Totals::default());
        json!({ "ports": ports, "next": next })
    }

    /// Returns the counters of the ports that fit into an answer, from the number `first` on, and
    /// the number of the first port that does not. Adds up all ports from `first` on.
    fn page(
        &self,
        first: usize,
        denied: &[RuleCount],
        totals: &mut Totals,
    ) -> (Map<String, Value>, Option<usize>) {
        let mut ports = Map::new();
        let (mut bytes, mut next) = (0, None);
        let all = self.switch.ports.iter();
        for (number, port) in all.skip_while(|(number, _)| *number < first) {
            let mut value = self.port((number, port), denied, totals);
            if bytes >= PORT_BYTES {
                next = next.or(Some(number));
                continue;
            }
            self.add_tables((number, port), denied, &mut value);
            bytes += length(&value) + port.name().len() + 4;
            ports.insert(port.name().to_owned(), value);
        }
        (ports, next)
    }

    /// Returns the counters of a port, and adds them to the totals.
    fn port(
        &self,
        (number, port): (usize, &BridgePort),
        denied: &[RuleCount],
        totals: &mut Totals,
    ) -> Value {
        let Totals { drops, lro } = totals;
        match port {
            BridgePort::Nic(nic) => {
                nic.lro.add_to(lro);
                let mut value = nic_stat(nic, drops);
                if let Some(queues) = self.queues.iter().find(|queues| queues.nic == number) {
                    drops.add("misdirected", queues.misdirected());
                    queues.add_lro(lro);
                    value["vmq"] = queues.stat(&self.switch.ports);
                }
                value
            }
            BridgePort::Vif(vif) => {
                let mut value = vif_stat(vif, drops);
                if let Some(queue) = &vif.queue {
                    value["queue"] = queue.stat();
                    value["queue"]["denied"] = denied_frames(self.switch, denied, number).into();
                }
                let mut receivers = self.dedicated.iter();
                if let Some(receiver) = receivers.find(|receiver| receiver.ports.guest == number) {
                    drops.add("misdirected", receiver.in_place.misdirected());
                    receiver.lro.add_to(lro);
                    if let Some(queue) = value["queue"].as_object_mut() {
                        queue.extend(receiver.in_place.stat());
                        queue.insert("lro".to_owned(), receiver.lro.stat());
                    }
                }
                value
            }
        }
    }

    /// Adds the bridge's counters of a port: forged frames, rules and flows.
    fn add_tables(
        &self,
        (number, port): (usize, &BridgePort),
        denied: &[RuleCount],
        value: &mut Value,
    ) {
        let switch = self.switch;
        if let Some(forged) = offences::stat(number, &switch.bridge, &switch.ports) {
            value["forged"] = forged;
        }
        let rules = switch.firewall.stat((number, port), &switch.bridge, denied);
        if let Some(rules) = rules {
            value["rules"] = rules;
        }
        if let Some(flows) = switch.bridge.flows(number) {
            value["flows"] = flow_report::stat(flows, shmem::time::monotonic_ns());
        }
    }
}

/// Sums over all ports.
#[derive(Debug, Default)]
struct Totals {
    drops: DropTable,
    lro: Sums,
}

/// Returns the length of a value as JSON.
fn length(value: &Value) -> usize {
    /// Counts the bytes that are written to it.
    struct Length(usize);
    impl io::Write for Length {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut length = Length(0);
    match serde_json::to_writer(&mut length, value) {
        Ok(()) => length.0,
        Err(_) => PORT_BYTES,
    }
}

/// Returns the hypercall counters by kind as JSON.
fn hypercalls(counts: &[HypercallCount]) -> Value {
    let count = |of: &HypercallCount| {
        let counts = json!({ "calls": of.calls, "operations": of.operations });
        (of.kind.to_owned(), counts)
    };
    Value::Object(counts.iter().map(count).collect())
}

/// Returns the kernel's counts of denied frames, in the order of
/// [`crate::firewall::KernelFirewall::deny_rules`].
fn denied(switch: &Switch) -> Vec<RuleCount> {
    let mut all = BTreeMap::new();
    for (number, vif) in switch.ports.vifs() {
        let denied = vif.queue.as_ref().map(DedicatedQueue::denied);
        let denied = denied.into_iter().flatten();
        all.extend(denied.map(|(rule, count)| ((number, rule), count)));
    }
    let count = |rule: &DenyRule| all.get(&(rule.queue, rule.number)).copied();
    let rules = switch.firewall.deny_rules().iter();
    rules.map(|rule| count(rule).unwrap_or_default()).collect()
}

/// Returns the number of frames that the kernel has denied for the dedicated queue of a port.
fn denied_frames(switch: &Switch, denied: &[RuleCount], port: usize) -> u64 {
    let counts = switch.firewall.deny_rules().iter().zip(denied);
    let of_port = counts.filter(|(rule, _)| rule.queue == port);
    of_port.map(|(_, count)| count.frames).sum()
}

fn nic_stat(nic: &NicPort, drops: &mut DropTable) -> Value {
    drops.add_device(&nic.sent);
    json!({
        "traffic": nic.traffic,
        "device": report::device(&nic.sent, nic.counters()),
        "buffers_free": nic.buffers_free(),
        "acks": nic.acks.all,
        "sacks": nic.acks.selective,
        "lro": nic.lro_stat(),
    })
}

fn vif_stat(vif: &VifPort, drops: &mut DropTable) -> Value {
    let counters = vif.counters();
    drops.add_vif("netback", &counters);
    drops.add("not_connected", vif.not_connected);
    for (reason, dropped) in vif.egress.drops.iter() {
        drops.add(reason.name(), dropped);
    }
    json!({
        "state": vif.state(),
        "trouble": vif.last_error,
        "traffic": vif.traffic,
        "counters": report::counters(&counters),
        "not_connected": vif.not_connected,
        "egress_queue": vif.egress.stat(shmem::time::monotonic_ns()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::software_offload::TxError;
    use std::collections::BTreeSet;
    use vif::InterfaceCounters;

    #[test]
    fn drop_reasons_are_unique_across_layers() {
        let mut netback = DropTable::default();
        netback.add_vif("netback", &InterfaceCounters::default());
        let netback = Value::from(netback);
        let netback = netback.as_object().unwrap().keys().cloned();
        let bridge = DropReason::NAMES.map(str::to_owned);
        let software_offload = TxError::NAMES.map(str::to_owned);
        let all: Vec<String> = netback.chain(bridge).chain(software_offload).collect();
        let names: BTreeSet<_> = all.iter().collect();
        assert_eq!(names.len(), all.len(), "{all:?}");
        for layer in ["netback", "bridge", "outbox"] {
            assert!(names.contains(&format!("{layer}.fault")), "{names:?}");
        }
    }
}
