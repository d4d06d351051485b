//! Tunnels between a guest's namespace and the wire's. The kernel leaves the inner checksum blank,
//! at an offset that only the frame determines.

use crate::machine::Machine;
use crate::programs::{IPV4, IPV6, NAMES, WEB, WIRE, config};
use crate::queues::{driver, vmq};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use testing::{TIMEOUT, accept, require, wait_until, with_timeout};

const ENDS: [usize; 2] = [WIRE, WEB];
const BYTES: usize = 1_000_000;

fn ip(machine: &Machine, place: usize, words: &str) {
    let words: Vec<&str> = words.split(' ').collect();
    let run = machine.run(place, "ip", &words);
    assert!(run.status.success(), "{words:?}: {run:?}");
}

/// Creates a tunnel between the wire and a guest over the addresses `outer`. Returns the inner
/// addresses.
fn tunnel(machine: &Machine, outer: [&str; 3], checksum: &str) -> [[IpAddr; 2]; 2] {
    for (place, other) in [(WIRE, WEB), (WEB, WIRE)] {
        let (local, remote, dev) = (outer[place], outer[other], NAMES[place]);
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
    ENDS.map(|end| {
        let [v4, v6] = [format!("10.66.0.{}", end + 1), format!("fd66::{}", end + 1)];
        [v4, v6].map(|address| address.parse().unwrap())
    })
}

fn remove_tunnel(machine: &Machine) {
    ENDS.iter().for_each(|end| ip(machine, *end, "link del vx"));
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
fn carries_tunnels(machine: &Machine) {
    for outer in [IPV4, IPV6] {
        for checksum in ["udpcsum", "noudpcsum"] {
            let inner = tunnel(machine, outer, checksum);
            for (way, to) in [((WIRE, WEB), 1), ((WEB, WIRE), 0)] {
                for address in inner[to] {
                    passes(machine, way, address);
                }
            }
            remove_tunnel(machine);
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
    carries_tunnels(&machine);
    machine.end();
}

#[test]
fn tunnels_pass_a_dedicated_queue() {
    let Some(machine) = start("kind = \"tap\"\noffloads = \"tso\"\nqueues = \"vmq\"") else {
        return;
    };
    if vmq(&machine).is_some() {
        carries_tunnels(&machine);
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
        carries_tunnels(&machine);
        machine.end();
    }
}
