//! Sixty-four guests on TAPs, each of which pings all others.

use crate::machine::Machine;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const GUESTS: u8 = 64;
/// Maximum number of pings of a silent guest.
const ATTEMPTS: usize = 30;
/// Timeout for a ping. A kernel without an ARP reply for three seconds drops packets that wait for
/// the reply.
const ATTEMPT_TIME: Duration = Duration::from_secs(4);
/// Number of guests that are pinged at the same time. With more, a kernel drops packets that wait
/// for ARP replies.
const BATCH: usize = 16;

const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

fn address(guest: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, guest + 1)
}

fn config(namespaces: &[String]) -> String {
    let mut text =
        "[[nic]]\nname = \"wire\"\nkind = \"sim\"\naddresses = [\"10.0.0.1/16\"]\n".to_owned();
    for (guest, netns) in (0..).zip(namespaces) {
        write!(
            text,
            "[[guest]]\nname = \"g{guest}\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
             ifname = \"g{guest}\"\nnetns = \"{netns}\"\naddresses = [\"{}/16\"]\n",
            address(guest)
        )
        .unwrap();
    }
    text
}

/// Raises the kernel's limits on neighbours, which apply to all namespaces together, until this
/// value is dropped.
struct Neighbours(Vec<(String, String)>);

impl Neighbours {
    fn room_for(entries: u32) -> std::io::Result<Self> {
        let mut before = Self(Vec::new());
        // The largest limit is set first, although the kernel does not check their order.
        for n in [3, 2, 1] {
            let path = format!("/proc/sys/net/ipv4/neigh/default/gc_thresh{n}");
            let old = fs::read_to_string(&path)?;
            if old.trim().parse().is_ok_and(|old: u32| old < entries) {
                fs::write(&path, entries.to_string())?;
                before.0.push((path, old));
            }
        }
        Ok(before)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for (path, old) in self.0.iter().rev() {
            if let Err(error) = fs::write(path, old) {
                eprintln!("cannot restore {path} to {old}: {error}");
            }
        }
    }
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Pings every other guest from guest `from`'s namespace. Returns the guests that did not answer.
fn ping_all(from: u8) -> Vec<u8> {
    let socket =
        rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
    let look = Some(Duration::from_millis(100));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, look).unwrap();
    let others: Vec<u8> = (0..GUESTS).filter(|to| *to != from).collect();
    let silent = others
        .chunks(BATCH)
        .flat_map(|targets| ping(&socket, from, targets));
    silent.collect()
}

/// Pings each of `targets` until it answers. Returns the guests that did not answer.
fn ping(socket: &OwnedFd, from: u8, targets: &[u8]) -> Vec<u8> {
    let all = targets.to_vec();
    (0..ATTEMPTS).fold(all, |silent, _| ping_once(socket, from, silent))
}

/// Pings each of `silent` once. Returns the guests that did not answer.
fn ping_once(socket: &OwnedFd, from: u8, mut silent: Vec<u8>) -> Vec<u8> {
    for &to in &silent {
        let mut echo = [ECHO_REQUEST, 0, 0, 0, from, to, 0, 0];
        let sum = checksum(&echo).to_be_bytes();
        echo[2..4].copy_from_slice(&sum);
        let to_it = SocketAddrV4::new(address(to), 0);
        let sent = rustix::net::sendto(socket, &echo, SendFlags::empty(), &to_it);
        assert_eq!(sent, Ok(echo.len()), "g{from} to g{to}");
    }
    let end = Instant::now() + ATTEMPT_TIME;
    let mut packet = [0; 128];
    while !silent.is_empty() && Instant::now() < end {
        let Ok((bytes, _)) = rustix::net::recv(socket, &mut packet, RecvFlags::empty()) else {
            continue;
        };
        let header = 4 * usize::from(packet[0] & 15);
        let source: [u8; 4] = packet[12..16].try_into().unwrap();
        if let Some(&[ECHO_REPLY, 0, _, _, asker, targets, ..]) = packet[..bytes].get(header..)
            && asker == from
            && Ipv4Addr::from(source) == address(targets)
        {
            silent.retain(|to| *to != targets);
        }
    }
    silent
}

#[test]
fn sixty_four_guests_ping_each_other() {
    let entries = 2 * u32::from(GUESTS) * u32::from(GUESTS);
    let _neighbours = match Neighbours::room_for(entries) {
        Ok(neighbours) => neighbours,
        Err(error) => {
            return testing::skip(format!("more neighbours than net.ipv4 allows: {error}"));
        }
    };
    let names: Vec<String> = (0..GUESTS).map(|guest| format!("g{guest}")).collect();
    let Some(machine) = Machine::start_alone(&[], &names, config) else {
        return;
    };
    let start = Instant::now();
    for (from, (namespace, _)) in (0..).zip(&machine.places) {
        let silent = namespace.enter(|| ping_all(from)).unwrap();
        assert!(silent.is_empty(), "g{from} got no answer of {silent:?}");
    }
    println!("every pair after {:?}", start.elapsed());
    let start = Instant::now();
    machine.end();
    println!("down after {:?}", start.elapsed());
}
