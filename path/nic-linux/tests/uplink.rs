//! Tests which packets pass between a TAP and its namespace's network. Without root or a TAP
//! driver, every test is skipped and logs why.
#![allow(clippy::unwrap_used)]

use abi::machine::{Forward, Nat, PortProtocol, Uplink};
use netdev::netns::{Namespace, identity};
use netdev::{NatUplink, NetError, OpenedTap, TapSpec, open_queues, remove};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testing::{TIMEOUT, wait_for, wait_until};

/// MACs of the kernel's interfaces, and of the stations that the test simulates.
const INSIDE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OUTSIDE: [u8; 6] = [2, 0, 0, 0, 0, 2];
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];

const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
const KEY: &str = "net.ipv4.ip_forward";

fn namespace() -> Option<Namespace> {
    match Namespace::new() {
        Ok(namespace) => Some(namespace),
        Err(error) => {
            eprintln!("skipped: no network namespace: {error}");
            None
        }
    }
}

fn spec(namespace: &Namespace, ifname: &str, mac: [u8; 6], address: &str) -> TapSpec {
    TapSpec {
        ifname: ifname.to_owned(),
        netns: Some(namespace.path().display().to_string()),
        mac: Some(mac),
        addresses: vec![address.to_owned()],
        mtu: 1500,
        ..TapSpec::default()
    }
}

fn forwarding(namespace: &Namespace) -> String {
    let text = namespace.enter(|| fs::read_to_string(FORWARD).unwrap());
    text.unwrap().trim().to_owned()
}

fn inside(namespace: &Namespace) -> TapSpec {
    let forward = |transport, to: &str| Forward {
        transport,
        port: 8080,
        to: to.parse().unwrap(),
    };
    TapSpec {
        uplink: Some(Uplink::Nat(Nat {
            forward: vec![
                forward(PortProtocol::Udp, "10.7.0.2:80"),
                forward(PortProtocol::Tcp, "10.7.0.3:80"),
            ],
            connections: 4000,
        })),
        ..spec(namespace, "up0", INSIDE, "10.7.0.1/24")
    }
}

/// Opens a TAP. Returns `None` if TAPs are not available.
fn open(spec: &TapSpec) -> Option<OpenedTap> {
    match open_queues(spec) {
        Err(error @ NetError::NoTun { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        opened => Some(opened.unwrap()),
    }
}

/// Opens a TAP that may have been open before, and retries while it is busy. A process that another
/// test starts concurrently inherits the descriptors of this process until it executes its program.
fn open_again(spec: &TapSpec) -> OpenedTap {
    wait_for("the TAP is still busy", || open_queues(spec).ok())
}

/// Waits until the kernel has removed an interface whose descriptor is closed.
fn wait_until_removed(namespace: &Namespace, ifname: &str) {
    let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    wait_until("the interface still exists", || {
        !namespace.enter(devices).unwrap().contains(ifname)
    });
}

/// The station at the far end of a TAP. It answers ARP requests for any address.
struct Wire(File);

impl Wire {
    fn of(opened: OpenedTap) -> (Self, Option<NatUplink>) {
        (Self(opened.shared.into()), opened.uplink)
    }

    fn send(&mut self, frame: &[u8]) {
        assert_eq!(self.0.write(frame).unwrap(), frame.len());
    }

    /// Receives the next UDP packet, and returns its source address, destination address and ports.
    /// Returns `None` if no packet arrives within `wait`.
    fn receive(&mut self, wait: Duration) -> Option<([u8; 4], [u8; 4], [u16; 2])> {
        let until = Instant::now() + wait;
        let mut frame = [0; 2048];
        while Instant::now() < until {
            let Ok(len) = self.0.read(&mut frame) else {
                std::thread::yield_now();
                continue;
            };
            let frame = &frame[..len];
            if frame[12..14] == [8, 6] && frame[20..22] == [0, 1] {
                self.send(&arp_answer(frame));
            } else if frame[12..14] == [8, 0] && frame[23] == 17 {
                let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
                let address = |at: usize| frame[at..at + 4].try_into().unwrap();
                return Some((address(26), address(30), [port(34), port(36)]));
            }
        }
        None
    }
}

fn arp_answer(query: &[u8]) -> Vec<u8> {
    let mut answer = [&query[6..12], &STATION, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    answer.extend(STATION);
    answer.extend(&query[38..42]);
    answer.extend(&query[22..32]);
    answer.resize(60, 0);
    answer
}

fn udp(to_mac: [u8; 6], from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet.extend(from.0);
    packet.extend(to.0);
    let words = packet
        .chunks_exact(2)
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    for half in [from.1, to.1, 12, 0] {
        packet.extend(half.to_be_bytes());
    }
    packet.extend([0; 4]);
    let mut frame = [&to_mac[..], &STATION, &[8, 0]].concat();
    frame.extend(packet);
    frame.resize(60, 0);
    frame
}

const GUEST: [u8; 4] = [10, 7, 0, 2];
const GATEWAY: [u8; 4] = [192, 0, 2, 1];
const FAR: [u8; 4] = [192, 0, 2, 9];

#[test]
fn uplink_masquerades_and_leaves_no_state() {
    let Some(namespace) = namespace() else { return };
    let forwarding = || forwarding(&namespace);
    let Some(outside) = open(&spec(&namespace, "out0", OUTSIDE, "192.0.2.1/24")) else {
        return;
    };
    let (mut outside, _) = Wire::of(outside);
    let before = forwarding();
    for round in 0..2 {
        let (mut guests, uplink) = Wire::of(open_again(&inside(&namespace)));
        assert_eq!(forwarding(), "1");
        let other = spec(&namespace, "up0", INSIDE, "10.7.0.1/24");
        assert!(open_queues(&other).is_err(), "the name is taken");

        guests.send(&udp(INSIDE, (GUEST, 1000), (FAR, 53)));
        let (from, to, [port, to_port]) = outside
            .receive(TIMEOUT)
            .expect("the packet leaves the host");
        assert_eq!((from, to, to_port), (GATEWAY, FAR, 53), "round {round}");
        outside.send(&udp(OUTSIDE, (FAR, 53), (GATEWAY, port)));
        let answer = guests
            .receive(TIMEOUT)
            .expect("the answer reaches the guest");
        assert_eq!(answer, (FAR, GUEST, [53, 1000]));

        outside.send(&udp(OUTSIDE, (FAR, 2000), (GATEWAY, 8080)));
        let forwarded = guests.receive(TIMEOUT).expect("a port is forwarded");
        assert_eq!(forwarded, (FAR, GUEST, [2000, 80]));
        outside.send(&udp(OUTSIDE, (FAR, 2000), (GATEWAY, 8081)));
        assert_eq!(guests.receive(Duration::from_millis(50)), None);

        // Dropping the uplink removes its rules, although the core keeps a copy of the uplink's
        // descriptor.
        let uplink = uplink.expect("the uplink translates addresses");
        let copy = uplink.adoption_fd().try_clone_to_owned().unwrap();
        drop(uplink);
        drop(guests);
        assert_eq!(forwarding(), before);
        wait_until_removed(&namespace, "up0");
        drop(open_queues(&inside(&namespace)).unwrap());
        wait_until_removed(&namespace, "up0");
        drop(copy);
    }
}

/// The system forwards after either of two uplinks is removed, and also if the process that set up
/// the remaining uplink has exited.
#[test]
fn system_forwards_while_any_uplink_exists() {
    let Some(namespace) = namespace() else { return };
    let before = forwarding(&namespace);
    let other = TapSpec {
        uplink: Some(Uplink::Nat(Nat::default())),
        ..spec(&namespace, "up1", OUTSIDE, "10.8.0.1/24")
    };
    let both = [inside(&namespace), other];
    let of = identity(namespace.path());
    let Some(probe) = open(&both[0]) else { return };
    drop(probe);
    for (first, second) in [(0, 1), (1, 0)] {
        let mut opened = both.each_ref().map(|spec| Some(open_again(spec)));
        drop(opened[first].take());
        assert_eq!(forwarding(&namespace), "1");
        // Another process adopts the remaining uplink, and does not know the first one.
        let left = opened[second].take().unwrap();
        let uplink = left.uplink.as_ref().unwrap();
        let switched_on = uplink.switched_on().to_vec();
        assert_eq!(switched_on, [KEY]);
        let kept = uplink.adoption_fd().try_clone_to_owned().unwrap();
        let adopted = NatUplink::adopt(&both[second], of, kept, &switched_on);
        // The process that set up the uplink is killed.
        std::mem::forget(left.uplink);
        drop(left.shared);
        assert_eq!(forwarding(&namespace), "1");
        // This removes an uplink that was closed while no process handled it.
        remove(&both[first], of, &switched_on).unwrap();
        assert_eq!(forwarding(&namespace), "1");
        drop(adopted);
        assert_eq!(forwarding(&namespace), before);
    }
    if before == "0" {
        namespace
            .enter(|| fs::write(FORWARD, "1").unwrap())
            .unwrap();
        remove(&both[0], of, &[KEY.to_owned()]).unwrap();
        assert_eq!(forwarding(&namespace), "0");
    }
}

/// Returns the description of an uplink in the namespace to which a symbolic link points.
fn by_link(link: &Path, to: &Namespace, ifname: &str) -> TapSpec {
    let _ = fs::remove_file(link);
    symlink(to.path(), link).unwrap();
    TapSpec {
        netns: Some(link.display().to_string()),
        uplink: Some(Uplink::Nat(Nat::default())),
        ..spec(to, ifname, OUTSIDE, "10.8.0.1/24")
    }
}

#[test]
fn uplinks_of_an_aliased_namespace_forward() {
    let Some(namespace) = namespace() else { return };
    let before = forwarding(&namespace);
    let folder = tempfile::tempdir().unwrap();
    let other = by_link(&folder.path().join("other"), &namespace, "up1");
    let both = [inside(&namespace), other];
    let Some(probe) = open(&both[0]) else { return };
    drop(probe);
    for (first, second) in [(0, 1), (1, 0)] {
        let mut opened = both.each_ref().map(|spec| Some(open_again(spec)));
        drop(opened[first].take());
        assert_eq!(forwarding(&namespace), "1");
        drop(opened[second].take());
        assert_eq!(forwarding(&namespace), before);
    }
}

/// This happens after `ip netns del` and `ip netns add` while an uplink exists.
#[test]
fn renamed_namespace_keeps_its_settings() {
    let (Some(first), Some(second)) = (namespace(), namespace()) else {
        return;
    };
    let set = |to: &'static str| second.enter(move || fs::write(FORWARD, to).unwrap());
    set("1").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("name");
    let Some(of_first) = open(&by_link(&link, &first, "up0")) else {
        return;
    };
    // The second namespace has the same name and an interface of the same name. Forwarding was
    // already enabled there.
    let of_second = open_queues(&by_link(&link, &second, "up0")).unwrap();
    let switched_on = of_second.uplink.as_ref().unwrap().switched_on();
    assert_eq!(switched_on, [""; 0]);
    drop(of_first);
    assert_eq!(forwarding(&second), "1");
    drop(of_second);
    assert_eq!(forwarding(&second), "1");
}

#[test]
fn forwarding_system_continues_to_forward() {
    let Some(namespace) = namespace() else { return };
    let read = || fs::read_to_string(FORWARD).unwrap();
    namespace
        .enter(|| fs::write(FORWARD, "1").unwrap())
        .unwrap();
    let Some(opened) = open(&inside(&namespace)) else {
        return;
    };
    drop(opened);
    assert_eq!(namespace.enter(read).unwrap().trim(), "1");
}

#[test]
fn bridge_port_stays_until_removed() {
    let Some(namespace) = namespace() else { return };
    let ip = |arguments: &[&str]| {
        let run = || Command::new("ip").args(arguments).output();
        let output = namespace.enter(run).unwrap();
        output
            .ok()
            .map(|output| String::from_utf8(output.stdout).unwrap())
    };
    let port = |bridge: &str| TapSpec {
        addresses: Vec::new(),
        uplink: Some(Uplink::Bridge(bridge.to_owned())),
        ..spec(&namespace, "up0", INSIDE, "")
    };
    match open_queues(&port("nobridge")) {
        Err(error @ NetError::NoTun { .. }) => return eprintln!("skipped: {error}"),
        Err(error) => assert!(error.to_string().contains("nobridge"), "{error}"),
        Ok(_) => panic!("a TAP joined a bridge that does not exist"),
    }
    if ip(&["link", "add", "br0", "type", "bridge"]).is_none() {
        return eprintln!("skipped: no program `ip`");
    }
    let is_port = || {
        ip(&["-o", "link", "show", "master", "br0"])
            .unwrap()
            .contains("up0")
    };
    let opened = open_again(&port("br0"));
    assert!(is_port());
    drop(opened);
    wait_until_removed(&namespace, "up0");
    assert!(!is_port());
    let loopback = open_queues(&port("lo")).unwrap_err();
    assert!(
        loopback.to_string().contains("port of the bridge"),
        "{loopback}"
    );
}
