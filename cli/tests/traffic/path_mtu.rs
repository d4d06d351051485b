//! Senders learn the MTU of the next hop, because longer packets are answered with an ICMP error.

use crate::machine::{Machine, text};
use netdev::netns::in_netns;
use serde_json::Value;
use std::net::UdpSocket;
use std::process::Command;
use testing::wait_until;

const HOST: usize = 0;
const GUEST: usize = 1;
const LAN: usize = 2;
/// The machine's interface in each place.
const NAMES: [&str; 3] = ["mtu0", "guest0", "absent"];

fn run(line: &str) {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let ran = command.args(words).output().unwrap();
    assert!(ran.status.success(), "{line}: {ran:?}");
}

/// Starts a host with address translation between a guest and a LAN, whose links carry packets of
/// 9000 bytes. `nic` and `guest` are the MTUs of NIC and guest.
fn start(nic: u32, guest: u32) -> Option<Machine> {
    Machine::start(&["ping", "ip", "nft"], &NAMES, |paths| {
        let lan = &paths[LAN];
        in_netns(&paths[HOST], || {
            run(&format!(
                "ip link add out0 mtu 9000 type veth peer name station0 mtu 9000 netns {lan}"
            ));
            run("ip address add 192.0.2.254/24 dev out0");
            run("ip address add fd00:2::fe/64 dev out0 nodad");
            run("ip link set out0 up");
        })
        .unwrap();
        in_netns(lan, || {
            run("ip address add 192.0.2.1/24 dev station0");
            run("ip address add fd00:2::1/64 dev station0 nodad");
            run("ip link set station0 up");
        })
        .unwrap();
        format!(
            "[[nic]]\nname = \"up\"\nkind = \"tap\"\nifname = \"mtu0\"\nnetns = \"{}\"\n\
             mtu = {nic}\naddresses = [\"10.7.0.1/24\", \"fd00:7::1/64\"]\n\
             uplink = {{ nat = true, forward = [\"udp:8080=10.7.0.2:80\", \
             \"udp:8080=[fd00:7::2]:80\"] }}\n\
             [[guest]]\nname = \"guest\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
             ifname = \"guest0\"\nnetns = \"{}\"\nmtu = {guest}\n\
             addresses = [\"10.7.0.2/24\", \"fd00:7::2/64\"]\ngateway = \"10.7.0.1\"\n\
             routes = [\"fd00:2::/64 via fd00:7::1\"]\n",
            paths[HOST], paths[GUEST]
        )
    })
}

/// Returns whether `ip route get` shows the learned MTU.
fn has_learned(machine: &Machine, place: usize, to: &str) -> bool {
    let shown = machine.run(place, "ip", &["route", "get", to]);
    text(&shown.stdout).contains("mtu 1500")
}

/// Waits for the answer to an echo request, so that both sides know the other's MAC.
fn short_ping(machine: &Machine, place: usize, to: &str) {
    let ping = machine.run(place, "ping", &["-c", "1", "-w", "60", to]);
    assert!(ping.status.success(), "{ping:?}");
}

/// Sends long echo requests, the first of which is rejected. Returns ping's output.
fn long_ping(machine: &Machine, place: usize, to: &str) -> String {
    // The first of three requests is answered with an error. Before the others, the kernel has
    // learned the MTU.
    let options = ["-n", "-M", "do", "-s", "8000", "-c", "3", "-i", "0.2"];
    let ping = machine.run(place, "ping", &[&options, &["-W", "10", to][..]].concat());
    text(&ping.stdout) + &text(&ping.stderr)
}

/// Returns the numbers of ICMP errors that a domain has sent, and of packets that it has dropped
/// for `reason`.
fn count(machine: &Machine, domain: &str, reason: &str) -> (u64, u64) {
    let stat: Value = machine.ask(&["stat", domain]);
    let number = |value: &Value| value.as_u64().unwrap();
    let stat = &stat[domain];
    (
        number(&stat["too_big"]["sent"]),
        number(&stat["drops"][reason]),
    )
}

#[test]
fn a_guest_learns_the_smaller_mtu_of_the_wire() {
    let Some(machine) = start(1500, 9000) else {
        return;
    };
    for (to, says, from) in [
        (
            "192.0.2.1",
            "Frag needed and DF set (mtu = 1500)",
            "10.7.0.1",
        ),
        ("fd00:2::1", "Packet too big: mtu=1500", "fd00:7::1"),
    ] {
        short_ping(&machine, GUEST, to);
        let said = long_ping(&machine, GUEST, to);
        assert!(said.contains(says), "{said}");
        assert!(said.contains(&format!("From {from} ")), "{said}");
        assert!(has_learned(&machine, GUEST, to), "{to}");
        // The guest fragments a packet that permits fragmentation.
        let long = machine.run(GUEST, "ping", &["-c", "1", "-s", "8000", "-w", "60", to]);
        assert!(long.status.success(), "{long:?}");
    }
    let (sent, too_long) = count(&machine, "driver", "outbox.too_long");
    assert!(sent >= 2 && too_long >= sent, "{sent} {too_long}");
    machine.end();
}

/// ICMP errors pass the host's address translation to the sender.
#[test]
fn senders_outside_learn_the_mtu_of_a_guest() {
    let Some(machine) = start(9000, 1500) else {
        return;
    };
    for to in ["10.7.0.2", "fd00:7::2"] {
        short_ping(&machine, HOST, to);
    }
    let said = long_ping(&machine, HOST, "10.7.0.2");
    assert!(said.contains("From 10.7.0.2 "), "{said}");
    assert!(said.contains("mtu = 1500"), "{said}");
    let said = long_ping(&machine, HOST, "fd00:7::2");
    assert!(said.contains("Packet too big: mtu=1500"), "{said}");
    for to in ["192.0.2.254", "fd00:2::fe"] {
        let bind = || {
            UdpSocket::bind(if to.contains(':') {
                "[::]:0"
            } else {
                "0.0.0.0:0"
            })
        };
        let station = machine.places[LAN].0.enter(bind).unwrap().unwrap();
        station.connect((to, 8080)).unwrap();
        wait_until("the station does not learn the MTU", || {
            // The first datagram is answered with an ICMP error, which the next call returns.
            let _ = station.send(&[0; 8000]);
            has_learned(&machine, LAN, to)
        });
    }
    let (sent, too_long) = count(&machine, "guest", "too_long");
    // The host may have learned the MTU before the station did.
    assert!(sent >= 2 && too_long >= sent, "{sent} {too_long}");
    machine.end();
}
