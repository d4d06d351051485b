//! Tunnels between the namespaces of a guest and of the wire or another guest. The kernel leaves
//! the inner checksum blank, at an offset that only the frame determines.

use crate::machine::Machine;
use crate::programs::{DB, IPV4, IPV6, NAMES, WEB, WIRE, config};
use crate::queues::{driver, vmq};
use netdev::netns::in_netns;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use testing::{TIMEOUT, accept, require, wait_until, with_timeout};

/// A tunnel's end: a place, and the interface that carries the tunnel.
type End = (usize, &'static str);

const ENDS: [End; 2] = [(WIRE, NAMES[WIRE]), (WEB, NAMES[WEB])];
const BYTES: usize = 1_000_000;
/// A bridge of the wire's namespace.
const BRIDGE: &str = "br0";

fn ip(machine: &Machine, place: usize, words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    let run = machine.run(place, "ip", &words);
    assert!(run.status.success(), "{words:?}: {run:?}");
}

/// Creates a tunnel between two ends over the addresses `outer`. Returns the inner addresses.
fn tunnel(
    machine: &Machine,
    [one, two]: [End; 2],
    outer: [&str; 3],
    checksum: &str,
) -> [[IpAddr; 2]; 2] {
    for ((place, dev), (other, _)) in [(one, two), (two, one)] {
        let (local, remote) = (outer[place], outer[other]);
        // Over IPv6, datagrams without an outer checksum are dropped unless that check is disabled.
        let mut add = format!(
            "link add vx type vxlan id 7 dstport 4789 local {local} remote {remote} dev {dev} "
        );
        add += &match (outer[place].contains(':'), checksum) {
            (false, with) => with.to_owned(),
            (true, "noudpcsum") => "udp6zerocsumtx udp6zerocsumrx".to_owned(),
            (true, _) => "noudp6zerocsumtx noudp6zerocsumrx".to_owned(),
        };
        ip(machine, place, &add);
        ip(
            machine,
            place,
            &format!("addr add 10.66.0.{}/24 dev vx", place + 1),
        );
        ip(
            machine,
            place,
            &format!("addr add fd66::{}/64 dev vx nodad", place + 1),
        );
        ip(machine, place, "link set vx up");
    }
    [one, two].map(|(place, _)| {
        let host = place + 1;
        let [v4, v6] = [format!("10.66.0.{host}"), format!("fd66::{host}")];
        [v4, v6].map(|address| address.parse().unwrap())
    })
}

fn remove_tunnel(machine: &Machine, ends: [End; 2]) {
    ends.iter()
        .for_each(|(place, _)| ip(machine, *place, "link del vx"));
}

/// Sends a stream and datagrams from one end to the other.
fn passes(machine: &Machine, (from, to): (usize, usize), address: IpAddr) {
    let inside = |place: usize| &machine.places[place].0;
    let (port, bytes) = (7000, vec![7; BYTES]);
    let at = SocketAddr::new(address, port);
    let listener = inside(to).enter(|| TcpListener::bind(at).unwrap()).unwrap();
    let connect = || TcpStream::connect_timeout(&at, TIMEOUT).unwrap();
    let mut sender = with_timeout(inside(from).enter(connect).unwrap());
    let mut receiver = accept(&listener);
    thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&bytes).unwrap();
            drop(sender);
        });
        let mut got = Vec::new();
        receiver.read_to_end(&mut got).unwrap();
        assert!(got == bytes, "{} bytes of {BYTES}", got.len());
    });
    let any = SocketAddr::new(
        if address.is_ipv4() { "0.0.0.0" } else { "::" }
            .parse()
            .unwrap(),
        0,
    );
    let socket = inside(from)
        .enter(|| UdpSocket::bind(any).unwrap())
        .unwrap();
    let other = inside(to).enter(|| UdpSocket::bind(at).unwrap()).unwrap();
    other.set_nonblocking(true).unwrap();
    // The length is odd and exceeds the captured part of a frame.
    let datagram = [9; 1001];
    wait_until("no datagram arrives", || {
        socket.send_to(&datagram, at).unwrap();
        other
            .recv(&mut [0; 2000])
            .is_ok_and(|length| length == datagram.len())
    });
}

/// Returns the counters of bad offloads in every layer, including `outbox.bad_offload`.
fn bad_offloads(stat: &Value) -> Vec<&Value> {
    match stat {
        Value::Object(all) => {
            let own = all.iter().filter(|(name, _)| name.ends_with("bad_offload"));
            let own = own.map(|(_, count)| count);
            own.chain(all.values().flat_map(bad_offloads)).collect()
        }
        _ => Vec::new(),
    }
}

/// Sends data on every path through every kind of tunnel.
fn carries_tunnels(machine: &Machine, ends: [End; 2]) {
    let [(one, _), (two, _)] = ends;
    for outer in [IPV4, IPV6] {
        for checksum in ["udpcsum", "noudpcsum"] {
            let inner = tunnel(machine, ends, outer, checksum);
            for (way, to) in [((one, two), 1), ((two, one), 0)] {
                for address in inner[to] {
                    passes(machine, way, address);
                }
            }
            remove_tunnel(machine, ends);
        }
    }
    let stat = machine.ask(&["stat"]);
    assert!(bad_offloads(&stat).len() > 1, "{stat}");
    assert!(
        bad_offloads(&stat).iter().all(|count| **count == 0),
        "{stat}"
    );
}

/// Starts the usual machine with this kind and these keys of the wire.
fn start(wire: &str) -> Option<Machine> {
    require!(vxlan);
    let with_keys =
        |namespaces: &[String]| config("", namespaces).replacen("kind = \"tap\"", wire, 1);
    Machine::start(&["ip"], &NAMES, with_keys)
}

#[test]
fn tunnels_pass_between_a_guest_and_the_wire() {
    let Some(machine) = start("kind = \"tap\"\noffloads = \"tso\"") else {
        return;
    };
    carries_tunnels(&machine, ENDS);
    machine.end();
}

#[test]
fn tunnels_pass_between_guests() {
    let Some(machine) = start("kind = \"tap\"") else {
        return;
    };
    carries_tunnels(&machine, [(WEB, NAMES[WEB]), (DB, NAMES[DB])]);
    machine.end();
}

/// The kernel's end of the wire is a port of a bridge, and the bridge has the addresses.
#[test]
fn tunnels_pass_a_bridge_on_the_wire() {
    require!(vxlan);
    let machine = Machine::start(&["ip"], &NAMES, |namespaces| {
        let [v4, v6] = [IPV4[WIRE], IPV6[WIRE]];
        let create = || {
            for line in [
                format!("link add {BRIDGE} type bridge"),
                format!("addr add {v4}/24 dev {BRIDGE}"),
                format!("addr add {v6}/64 dev {BRIDGE} nodad"),
                format!("link set {BRIDGE} up"),
            ] {
                let ran = Command::new("ip").args(line.split(' ')).status().unwrap();
                assert!(ran.success(), "{line}");
            }
        };
        in_netns(&namespaces[WIRE], create).unwrap();
        let text = config("", namespaces);
        let own = format!("addresses = [\"{v4}/24\", \"{v6}/64\"]\n");
        assert!(text.contains(&own), "{text}");
        text.replacen(&own, &format!("uplink = \"{BRIDGE}\"\n"), 1)
    });
    let Some(machine) = machine else { return };
    carries_tunnels(&machine, [(WIRE, BRIDGE), (WEB, NAMES[WEB])]);
    machine.end();
}

#[test]
fn tunnels_pass_a_dedicated_queue() {
    let Some(machine) = start("kind = \"tap\"\noffloads = \"tso\"\nqueues = \"vmq\"") else {
        return;
    };
    if vmq(&machine).is_some() {
        carries_tunnels(&machine, ENDS);
        let vmq = &driver(&machine)["ports"]["nic.wire"]["vmq"];
        assert!(vmq["direct_packets"].as_u64() > Some(100), "{vmq}");
    }
    machine.end();
}

#[test]
fn tunnels_pass_wires_without_offloads() {
    for wire in ["kind = \"tap\"", "kind = \"xdp\""] {
        if wire.contains("xdp") {
            require!(af_xdp);
        }
        let Some(machine) = start(wire) else { return };
        carries_tunnels(&machine, ENDS);
        machine.end();
    }
}
