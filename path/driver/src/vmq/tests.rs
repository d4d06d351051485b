//! Tests of frames that large receive offload holds in a guest's pages, over a simulated NIC with
//! queues.

use super::*;
use crate::ports::BridgePort;
use crate::testing::{Machine, driver_config, join_with, mac, nic_port_with};
use config::domain::DriverConfig;
use config::lro::FlushConfig;
use net::bridge;
use nic::sim::{SimCable, SimNic};
use nic::{Nic as _, Pool};
use runtime::testing::{PAYLOAD, config, packet};
use shmem::Area;
use vif::netif::Features;

/// The only guest.
const GUEST: usize = 0;
const MACHINE: &str = "[[nic]]\nname = \"wire\"\nkind = \"sim\"\nqueues = \"vmq\"\n\
                       vmq_queues = 2\naddresses = [\"10.0.0.1/24\"]\n[[guest]]\nname = \"a\"\n\
                       [[guest.vif]]\nendpoint = \"sink\"\n";
const RULE: &str = "[[guest.vif.rule]]\naction = \"deny\"\nprotocol = \"udp\"\n";

/// A guest with a queue of a NIC, whose cable's other end is the test.
struct Wired {
    machine: Machine,
    queues: NicQueues,
    far: SimNic,
}

fn described(more: &str) -> DriverConfig {
    driver_config(&format!("{MACHINE}{more}"))
}

impl Wired {
    /// Creates a guest with these interface rules, and gives it a queue.
    fn new(rules: &str) -> Self {
        let config_of = described(rules);
        let mut machine = Machine::new(1);
        let port = machine.switch.ports.vif_mut(GUEST).unwrap();
        let any_order = Features::ALL.with(Features::RX_ANY_ORDER);
        machine.guests[GUEST] = join_with(port, GUEST, any_order);
        let (near, far) = SimCable::default().ends();
        let port = nic_port_with("vmq", Box::new(near.with_queues(2, 256)), 256);
        let port = BridgePort::Nic(Box::new(port));
        let nic = machine
            .switch
            .add(port, &bridge::PortConfig::nic())
            .unwrap();
        let lro = config(FlushConfig::After(50));
        let mut queues = NicQueues::new(nic, &config_of.nics[0], &lro).unwrap();
        queues.add_guest(GUEST, &config_of.vifs[0]);
        let mut wired = Self {
            machine,
            queues,
            far,
        };
        wired.turn(0);
        assert!(wired.queues.assignment.is_active(GUEST));
        wired
    }

    /// Puts packets of a stream to the guest on the cable.
    fn arrive(&mut self, flow: u8, from: u32, count: u32) {
        let mut pool = Pool::new(Area::anonymous(2048).unwrap(), 2048);
        for n in from..from + count {
            let mut bytes = packet(flow, n);
            bytes[..6].copy_from_slice(&mac(GUEST));
            let mut frame = Frame::from_bytes(&bytes, &mut pool).unwrap();
            self.far.tx(0, std::slice::from_ref(&frame), &[0]);
            frame.recycle(&mut pool);
        }
    }

    /// Serves the NIC as a turn of the driver does.
    fn turn(&mut self, now_ns: u64) {
        let (switch, nic) = (&mut self.machine.switch, self.queues.nic);
        if !switch.queueing.is_empty() {
            switch.drain_queues(now_ns);
        }
        self.queues.drain(switch, now_ns, 64);
        switch.forward_from(nic, now_ns, 64);
        self.queues.serve(switch, now_ns, 64);
        self.machine.publish();
    }

    /// Returns flow and number of each packet in the frames that the guest has received.
    fn received(&mut self) -> Vec<Vec<(u8, u32)>> {
        let numbers = |bytes: Vec<u8>| {
            let first = u32::from_be_bytes(bytes[38..42].try_into().unwrap()) / PAYLOAD as u32;
            let count = ((bytes.len() - 54) / PAYLOAD) as u32;
            (first..first + count).map(|n| (bytes[35], n)).collect()
        };
        let batches = std::iter::repeat_with(|| self.machine.received(GUEST));
        let frames = batches.take_while(|frames| !frames.is_empty()).flatten();
        frames.map(numbers).collect()
    }

    fn lro(&self) -> Value {
        self.queues.stat(&self.machine.switch.ports)["lro"].clone()
    }
}

fn numbers(flow: u8, from: u32, count: u32) -> Vec<(u8, u32)> {
    (from..from + count).map(|n| (flow, n)).collect()
}

/// Frames of several turns merge, whether the NIC writes whole frames or headers follow last.
#[test]
fn held_frames_arrive_when_due() {
    for rules in ["", RULE] {
        let mut wired = Wired::new(rules);
        assert_eq!(
            wired.queues.assignment.assigned(0).unwrap().split,
            !rules.is_empty()
        );
        assert_eq!(wired.lro()["flush"], "t50");
        for from in [0, 4] {
            wired.arrive(1, from, 4);
            wired.arrive(2, from, 4);
            wired.turn(1);
            assert!(wired.received().is_empty(), "{rules}");
        }
        assert_eq!(wired.lro()["held"], 16);
        let due = wired.queues.due_ns(1).unwrap();
        assert!((49_000..=50_001).contains(&due), "{due}");
        wired.turn(due - 1);
        assert!(wired.received().is_empty());
        wired.turn(due);
        assert_eq!(wired.received(), [numbers(1, 0, 8), numbers(2, 0, 8)]);
        assert_eq!(
            (wired.queues.due_ns(due), wired.queues.misdirected()),
            (None, 0)
        );
        let counters = wired.machine.port(GUEST).counters();
        assert_eq!((counters.to_guest, counters.meta_requests), (2, 2));
        let stat = wired.queues.stat(&wired.machine.switch.ports);
        assert_eq!(
            (&stat["direct_packets"], &stat["lro"]["held"]),
            (&16.into(), &0.into())
        );
    }
}

/// After the guest's rules change, it loses its queue; the rest of the queue follows the held
/// frames.
#[test]
fn reassignment_keeps_the_order_of_held_frames() {
    let mut wired = Wired::new("");
    wired.arrive(1, 0, 4);
    wired.turn(1);
    wired.arrive(1, 4, 3);
    let ruled = described(RULE);
    let ports = &mut wired.machine.switch.ports;
    wired.queues.change(ports, GUEST, &ruled.vifs[0]);
    for turn in 2..6 {
        wired.turn(turn);
    }
    assert_eq!(wired.received().concat(), numbers(1, 0, 7));
    assert_eq!(wired.lro()["flushed"]["drain"], 1);
}

#[test]
fn change_of_rules_flushes_held_frames() {
    let mut wired = Wired::new(RULE);
    wired.arrive(1, 0, 4);
    wired.turn(1);
    wired.queues.flush(&mut wired.machine.switch, GUEST, 2);
    wired.machine.publish();
    assert_eq!(wired.received(), [numbers(1, 0, 4)]);
}

#[test]
fn removal_discards_held_frames() {
    let mut wired = Wired::new("");
    wired.arrive(1, 0, 4);
    wired.turn(1);
    let ports = &mut wired.machine.switch.ports;
    wired.queues.remove_guest(ports, GUEST, 2);
    assert_eq!(wired.lro()["held"], 0);
    wired.turn(100_000);
    assert!(wired.received().is_empty());
}

#[test]
fn disabling_flushes_held_frames() {
    let mut wired = Wired::new("");
    wired.arrive(1, 0, 4);
    wired.turn(1);
    let off = LroConfig {
        at: config::lro::Placement::None,
        ..config(FlushConfig::After(50))
    };
    wired.queues.set_lro(&off);
    assert_eq!(wired.queues.due_ns(1), Some(0));
    wired.arrive(1, 4, 2);
    wired.turn(2);
    let expected = [numbers(1, 0, 4), numbers(1, 4, 1), numbers(1, 5, 1)];
    assert_eq!(wired.received(), expected);
    assert_eq!(wired.lro()["on"], false);
}

/// A guest that is slow to post buffers receives some frames by copies. They do not overtake those
/// that are held in its pages.
#[test]
fn frames_of_a_slow_guest_stay_in_order() {
    let mut wired = Wired::new("");
    let mut got = Vec::new();
    let mut now_ns = 1;
    for round in 0..40 {
        wired.arrive(1, round * 6, 6);
        wired.arrive(2, round * 6, 6);
        wired.turn(now_ns);
        now_ns += 100;
        if round % 12 == 11 {
            got.extend(wired.received().concat());
        }
    }
    let vmq = wired.queues.stat(&wired.machine.switch.ports);
    assert!(vmq["copied_packets"].as_u64() > Some(0), "{vmq}");
    assert!(
        vmq["lro"]["flushed"]["no_descriptor"].as_u64() > Some(0),
        "{vmq}"
    );
    for _ in 0..20 {
        now_ns += 5000;
        wired.turn(now_ns);
        got.extend(wired.received().concat());
    }
    let port = wired.machine.port(GUEST);
    assert_eq!(port.counters().to_guest_drops.total(), 0);
    // Only the egress queue may drop frames of a slow guest.
    assert_eq!(got.len() as u64 + port.egress.drops.total(), 480);
    for flow in [1, 2] {
        let own: Vec<_> = got.iter().filter(|of| of.0 == flow).collect();
        assert!(own.is_sorted_by(|a, b| a < b), "{own:?}");
    }
}
