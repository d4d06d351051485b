//! Address translation: the reachability of guests behind it, and the settings that remain after a
//! crash.

use crate::attach::loses_interface;
use crate::machine::{Machine, text};
use crate::processes::kill;
use netdev::netns::in_netns;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;
use testing::{accept, wait_until, with_timeout};

const HOST: usize = 0;
const WEB: usize = 1;
const LAN: usize = 2;
/// The machines' interface in each place.
const NAMES: [&str; 3] = ["nat0", "web0", "absent"];
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

fn run(line: &str) {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let ran = command.args(words).output().unwrap();
    assert!(ran.status.success(), "{line}: {ran:?}");
}

/// Prepares a host with a LAN, and a station in the LAN that has a route to the guests.
fn prepare(paths: &[String]) {
    let lan = &paths[LAN];
    in_netns(&paths[HOST], || {
        fs::write(FORWARD, "0").unwrap();
        run(&format!(
            "ip link add out0 type veth peer name station0 netns {lan}"
        ));
        run("ip address add 192.0.2.254/24 dev out0");
        run("ip link set out0 up");
        for who in ["all", "default", "out0"] {
            fs::write(format!("/proc/sys/net/ipv4/conf/{who}/rp_filter"), "0").unwrap();
        }
    })
    .unwrap();
    in_netns(lan, || {
        run("ip address add 192.0.2.1/24 dev station0");
        run("ip link set station0 up");
        run("ip route add 10.7.0.0/24 via 192.0.2.254");
    })
    .unwrap();
}

fn config(paths: &[String]) -> String {
    format!(
        "[[nic]]\nname = \"up\"\nkind = \"tap\"\nifname = \"nat0\"\nnetns = \"{}\"\n\
         addresses = [\"10.7.0.1/24\"]\n\
         uplink = {{ nat = true, forward = [\"udp:8080=10.7.0.2:80\", \
         \"tcp:8080=10.7.0.2:80\"] }}\n\
         [[guest]]\nname = \"web\"\n[[guest.vif]]\nendpoint = \"tap\"\nifname = \"web0\"\n\
         netns = \"{}\"\naddresses = [\"10.7.0.2/24\", \"10.99.0.9/32\"]\n\
         gateway = \"10.7.0.1\"\n",
        paths[HOST], paths[WEB]
    )
}

/// Prepares IPv6 as well, and returns a configuration with addresses of both families.
fn dual_stack(paths: &[String]) -> String {
    prepare(paths);
    in_netns(&paths[HOST], || {
        run("ip address add fd00:2::fe/64 dev out0 nodad");
    })
    .unwrap();
    in_netns(&paths[LAN], || {
        run("ip address add fd00:2::1/64 dev station0 nodad");
        run("ip route add fd00:7::/64 via fd00:2::fe");
    })
    .unwrap();
    let mut config = config(paths);
    for (last, more) in [
        ("\"10.7.0.1/24\"", "\"fd00:7::1/64\""),
        ("\"udp:8080=10.7.0.2:80\"", "\"udp:8080=[fd00:7::2]:80\""),
        ("\"10.99.0.9/32\"", "\"fd00:7::2/64\", \"fd00:99::9/128\""),
    ] {
        assert!(config.contains(last), "{config}");
        config = config.replacen(last, &format!("{last}, {more}"), 1);
    }
    config + "routes = [\"fd00:2::/64 via fd00:7::1\"]\n"
}

fn start() -> Option<Machine> {
    let machine = Machine::start(&["ping", "ip", "nft"], &NAMES, |paths| {
        prepare(paths);
        config(paths)
    })?;
    reaches_station(&machine);
    Some(machine)
}

/// Waits until the guest reaches the station. Earlier datagrams would be lost, and the tests do not
/// repeat them.
fn reaches_station(machine: &Machine) {
    let ping = machine.run(WEB, "ping", &["-c", "1", "-w", "60", "192.0.2.1"]);
    assert!(ping.status.success(), "{ping:?}");
}

fn socket(machine: &Machine, place: usize, own: &str) -> UdpSocket {
    let bind = || UdpSocket::bind(own).unwrap();
    let socket = machine.places[place].0.enter(bind).unwrap();
    let limit = Some(Duration::from_secs(60));
    socket.set_read_timeout(limit).unwrap();
    socket
}

fn received(socket: &UdpSocket) -> (String, String) {
    let mut bytes = [0; 64];
    let (len, from) = socket.recv_from(&mut bytes).unwrap();
    (text(&bytes[..len]), from.ip().to_string())
}

/// Returns the connections that the host's kernel tracks.
fn tracked(machine: &Machine) -> usize {
    const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
    let read = || fs::read_to_string(COUNT).unwrap();
    let text = machine.places[HOST].0.enter(read).unwrap();
    text.trim().parse().unwrap()
}

/// A guest that continuously opens connections does not prevent the host or other guests from
/// opening connections, because the shared table has free entries.
#[test]
fn a_guests_connections_are_limited() {
    const FLOOD: u16 = 600;
    for (connections, bounds) in [(64, 60..=70), (0, 600..=620)] {
        let names = [&NAMES[..], &["db0"]].concat();
        let machine = Machine::start(&["ping", "ip", "nft"], &names, |paths| {
            prepare(paths);
            let bound = format!("nat = true, connections = {connections}, ");
            let config = config(paths).replacen("nat = true, ", &bound, 1);
            let db = &paths[names.len() - 1];
            format!(
                "{config}[[guest]]\nname = \"db\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
                 ifname = \"db0\"\nnetns = \"{db}\"\naddresses = [\"10.7.0.3/24\"]\n\
                 gateway = \"10.7.0.1\"\n"
            )
        });
        let Some(machine) = machine else { return };
        reaches_station(&machine);
        let station = socket(&machine, LAN, "192.0.2.1:7");
        let first = socket(&machine, WEB, "10.7.0.2:80");
        first.send_to(b"first", "192.0.2.1:7").unwrap();
        assert_eq!(received(&station).0, "first");
        // A busy system may lose datagrams, so that the flood is sent until enough have arrived.
        wait_until("an earlier connection is interrupted", || {
            // The flood is sent to the outside and to the host.
            for n in 0..FLOOD {
                let to = ["192.0.2.1:9", "10.7.0.1:9"][usize::from(n % 2)];
                let own = format!("10.7.0.2:{}", 1024 + n);
                let own = socket(&machine, WEB, &own);
                // Errors are ignored, because the target's port may be closed.
                let _ = own.send_to(b"flood", to);
            }
            // When this datagram arrives, everything before it in the guest's queue has, too.
            first.send_to(b"goes on", "192.0.2.1:7").unwrap();
            received(&station).0 == "goes on" && tracked(&machine) >= *bounds.start()
        });
        let tracked = tracked(&machine);
        assert!(bounds.contains(&tracked), "{connections}: {tracked}");
        let other = socket(&machine, 3, "10.7.0.3:80");
        wait_until("another guest's datagram is lost", || {
            other.send_to(b"another", "192.0.2.1:7").unwrap();
            received(&station).0 == "another"
        });
        machine.end();
    }
}

fn forwards(machine: &Machine) -> String {
    let read = || fs::read_to_string(FORWARD).unwrap();
    let text = machine.places[HOST].0.enter(read).unwrap();
    text.trim().to_owned()
}

/// Addresses of one family: the guest's, one that it forges, the station's, and the host's in the
/// LAN.
struct Addresses {
    guest: &'static str,
    forged: &'static str,
    station: &'static str,
    host: &'static str,
}

const IPV4: Addresses = Addresses {
    guest: "10.7.0.2",
    forged: "10.99.0.9",
    station: "192.0.2.1",
    host: "192.0.2.254",
};
const IPV6: Addresses = Addresses {
    guest: "fd00:7::2",
    forged: "fd00:99::9",
    station: "fd00:2::1",
    host: "fd00:2::fe",
};

/// Checks the reachability of the guest, and the source of its packets.
fn reaches_forwarded_ports_only(machine: &Machine, family: &Addresses) {
    let at = |address: &str, port| SocketAddr::new(address.parse().unwrap(), port).to_string();
    let ping = machine.run(WEB, "ping", &["-c", "1", "-w", "60", family.station]);
    assert!(ping.status.success(), "{ping:?}");
    let guest = socket(machine, WEB, &at(family.guest, 80));
    let station = socket(machine, LAN, &at(family.station, 7));
    // If the forged packet passed, it would arrive before the next one.
    let forged = socket(machine, WEB, &at(family.forged, 81));
    forged.send_to(b"forged", at(family.station, 7)).unwrap();
    guest.send_to(b"out", at(family.station, 7)).unwrap();
    let (what, from) = received(&station);
    assert_eq!((&*what, &*from), ("out", family.host));
    // Another port of the station belongs to no connection of the guest.
    let other = socket(machine, LAN, &at(family.station, 8));
    other.send_to(b"by a route", at(family.guest, 80)).unwrap();
    other
        .send_to(b"by a forwarded port", at(family.host, 8080))
        .unwrap();
    let (what, from) = received(&guest);
    assert_eq!((&*what, &*from), ("by a forwarded port", family.station));
    guest.send_to(b"back", at(family.station, 8)).unwrap();
    assert_eq!(received(&other).0, "back");
    let ping = machine.run(
        LAN,
        "ping",
        &["-c", "2", "-i", "0.2", "-W", "1", family.guest],
    );
    assert!(!ping.status.success(), "{ping:?}");
}

#[test]
fn only_forwarded_ports_of_guests_are_reached() {
    let Some(machine) = Machine::start(&["ping", "ip", "nft"], &NAMES, dual_stack) else {
        return;
    };
    for family in [IPV4, IPV6] {
        reaches_forwarded_ports_only(&machine, &family);
    }
    reaches_station(&machine);
    machine.end();
}

/// Returns the TCP segments that a place has retransmitted.
fn retransmissions(machine: &Machine, place: usize) -> u64 {
    let read = || fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let all = machine.places[place].0.enter(read).unwrap();
    let mut lines = all.lines().filter(|line| line.starts_with("Tcp: "));
    let (names, counts) = (lines.next().unwrap(), lines.next().unwrap());
    let mut counters = names.split(' ').zip(counts.split(' '));
    let (_, count) = counters.find(|(name, _)| *name == "RetransSegs").unwrap();
    count.parse().unwrap()
}

/// Frames for which the guest has no buffers wait, so that a sender in the LAN loses few segments.
#[test]
fn a_stream_to_a_forwarded_port_loses_little() {
    /// 64 MB, some 46 000 segments.
    const BLOCKS: usize = 1024;
    const BLOCK: usize = 64 << 10;
    const RETRANSMISSIONS_MAX: u64 = 500;
    let machine = Machine::start_alone(&["ping", "ip", "nft"], &NAMES, |paths| {
        prepare(paths);
        config(paths)
    });
    let Some(machine) = machine else { return };
    reaches_station(&machine);
    let inside = |place: usize| &machine.places[place].0;
    let bind = || TcpListener::bind("10.7.0.2:80").unwrap();
    let listener = inside(WEB).enter(bind).unwrap();
    let connect = || TcpStream::connect("192.0.2.254:8080").unwrap();
    let mut sender = with_timeout(inside(LAN).enter(connect).unwrap());
    let mut receiver = accept(&listener);
    let before = retransmissions(&machine, LAN);
    let received = thread::scope(|scope| {
        scope.spawn(|| {
            let block = vec![7; BLOCK];
            for _ in 0..BLOCKS {
                sender.write_all(&block).unwrap();
            }
            drop(sender);
        });
        let (mut received, mut part) = (0, vec![0; 64 << 10]);
        while let count @ 1.. = receiver.read(&mut part).unwrap() {
            received += count;
        }
        received
    });
    let again = retransmissions(&machine, LAN) - before;
    println!("{received} bytes, {again} segments retransmitted");
    assert_eq!(received, BLOCKS * BLOCK);
    assert!(again <= RETRANSMISSIONS_MAX, "{again} of {received} bytes");
    machine.end();
}

fn kill_core(machine: &Machine) {
    assert!(kill(machine.ask(&["status"])["pid"].as_u64().unwrap()));
    loses_interface(machine, HOST);
    loses_interface(machine, WEB);
    // The manager may run a moment longer than the core.
    let socket = machine.folder.path().join("run/grantway.sock");
    wait_until("the manager still runs", || {
        UnixStream::connect(&socket).is_err()
    });
}

#[test]
fn forwarding_of_a_killed_machine_is_disabled() {
    let Some(mut machine) = start() else { return };
    kill_core(&machine);
    assert!(!testing::wait_for_exit(&mut machine.up).success());
    let grantway = |words: &[&str]| {
        let ran = machine.grantway(words);
        assert!(ran.status.success(), "{words:?}: {ran:?}");
        text(&ran.stdout) + &text(&ran.stderr)
    };
    let up = || grantway(&["up", "machine.toml", "--detach"]);
    // The `up` that started the machine has disabled forwarding.
    assert_eq!(forwards(&machine), "0");
    // The next machine enables forwarding again, and disables it at its end.
    up();
    kill_core(&machine);
    assert_eq!(forwards(&machine), "1");
    up();
    assert_eq!(forwards(&machine), "1");
    grantway(&["down"]);
    assert_eq!(forwards(&machine), "0");
    // `down` disables forwarding and reports that.
    up();
    kill_core(&machine);
    assert_eq!(forwards(&machine), "1");
    let said = grantway(&["down"]);
    assert!(said.contains("net.ipv4.ip_forward"), "{said}");
    assert_eq!(forwards(&machine), "0");
    let again = machine.grantway(&["down"]);
    assert!(
        !again.status.success(),
        "no machine has left settings: {again:?}"
    );
    let note = machine.folder.path().join("run/grantway.host");
    assert!(!note.exists(), "{}", note.display());
}

#[test]
fn the_last_of_two_machines_ends_forwarding() {
    let Some(mut machine) = start() else { return };
    let second = machine.folder.path().join("second.toml");
    let path = machine.places[HOST].0.path();
    let text = format!(
        "[machine]\nname = \"second\"\n[[nic]]\nname = \"up\"\nkind = \"tap\"\n\
         ifname = \"nat1\"\nnetns = \"{}\"\naddresses = [\"10.8.0.1/24\"]\n\
         uplink = {{ nat = true }}\n",
        path.display()
    );
    fs::write(&second, text).unwrap();
    let second = second.display().to_string();
    let up = || {
        let up = machine.grantway(&["up", &second, "--detach"]);
        assert!(up.status.success(), "{up:?}");
    };
    let down = |name: &str| {
        let down = machine.grantway(&["down", "--name", name]);
        assert!(down.status.success(), "{down:?}");
        forwards(&machine)
    };
    up();
    assert_eq!(down("second"), "1", "the first machine needs forwarding");
    up();
    assert_eq!(down("grantway"), "1", "the second machine needs forwarding");
    assert_eq!(down("second"), "0");
    assert!(testing::wait_for_exit(&mut machine.up).success());
}

#[test]
fn obstacles_to_translation_are_reported() {
    let Some(machine) = start() else { return };
    let place = &machine.places[HOST].0;
    let status = || text(&machine.grantway(&["status"]).stderr);
    assert_eq!(status(), "");
    let chain = "{ type filter hook forward priority 0 ; policy drop ; }";
    place
        .enter(|| {
            fs::write(FORWARD, "0").unwrap();
            run("ip address flush dev nat0");
            run("nft add table ip filter");
            run(&format!("nft add chain ip filter FORWARD {chain}"));
        })
        .unwrap();
    let said = status();
    for part in [
        "sysctl -w net.ipv4.ip_forward=1",
        "ip address add 10.7.0.1/24 dev nat0",
        "iptables -I FORWARD -i nat0 -j ACCEPT",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let up = machine.grantway(&["up", "--check", "machine.toml"]);
    let said = text(&up.stderr);
    assert!(
        up.status.success() && said.contains("table ip filter drops"),
        "{said}"
    );
    place
        .enter(|| {
            fs::write(FORWARD, "1").unwrap();
            run("ip address add 10.7.0.1/24 dev nat0");
            run("nft insert rule ip filter FORWARD iifname nat0 accept");
            run("nft insert rule ip filter FORWARD oifname nat0 accept");
        })
        .unwrap();
    assert_eq!(status(), "");
    reaches_station(&machine);
    let guest = socket(&machine, WEB, "10.7.0.2:80");
    let station = socket(&machine, LAN, "192.0.2.1:7");
    guest.send_to(b"out", "192.0.2.1:7").unwrap();
    assert_eq!(received(&station).0, "out");
    machine.end();
}
