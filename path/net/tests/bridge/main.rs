//! The bridge, clause by clause (`specs/bridge.md`).

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod forwarding;
mod learning;
mod membership;
mod neighbours;
mod offences;
mod ports;
mod sources;

use common::{Build, arp, small_frames};
use net::bridge::{
    Bridge, BridgeSettings, DropReason, PortConfig, PortKind, PortPermissions, Verdict,
};
use net::packet::{ETHERNET_BYTES, Mac};
use nic::frame::SNAPSHOT_MAX;

const WIRE: usize = 0;
const WIRE2: usize = 1;
const A: usize = 2;
const B: usize = 3;
const ROUTER: usize = 4;

const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const MAC_A2: Mac = Mac([2, 0, 0, 0, 0xff, 0xa]);
const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const MAC_R: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const STATION: Mac = Mac([0x52, 0x54, 0, 1, 2, 3]);
const OTHER: Mac = Mac([0x52, 0x54, 0, 1, 2, 4]);
const ALL: Mac = Mac::BROADCAST;

const S: u64 = 1_000_000_000;

fn guest(macs: &[Mac], addresses: &[&str]) -> PortConfig {
    PortConfig {
        kind: PortKind::Guest {
            macs: macs.to_vec(),
            permissions: PortPermissions {
                confined: !addresses.is_empty(),
                ..PortPermissions::default()
            },
        },
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        ..PortConfig::nic()
    }
}

fn settings() -> BridgeSettings {
    BridgeSettings {
        ageing_ns: 300 * S,
        group_pps: 10,
        group_burst: 5,
        hash_seed: 7,
        learned_max: 64,
        reports_to_all: false,
    }
}

/// Two NIC ports; guest A with two MACs and addresses; guest B with addresses; a router.
fn bridge() -> Bridge {
    let mut bridge = Bridge::new(settings());
    bridge.add(WIRE, &PortConfig::nic()).unwrap();
    bridge.add(WIRE2, &PortConfig::nic()).unwrap();
    bridge
        .add(A, &guest(&[MAC_A, MAC_A2], &["10.0.0.10", "fd00::a"]))
        .unwrap();
    bridge
        .add(B, &guest(&[MAC_B], &["10.0.0.11", "fd00::b"]))
        .unwrap();
    let router = PortKind::Guest {
        macs: vec![MAC_R],
        permissions: PortPermissions {
            router: true,
            ..PortPermissions::default()
        },
    };
    bridge
        .add(
            ROUTER,
            &PortConfig {
                kind: router,
                ..PortConfig::guest(MAC_R)
            },
        )
        .unwrap();
    bridge
}

fn plain(to: Mac, from: Mac) -> Vec<u8> {
    Build {
        source: from,
        destination: to,
        ..Build::tcp4(b"data")
    }
    .bytes()
}

/// Forwards a frame. If the fast path accepts it, checks that it selects the same port (BR-21).
fn go(bridge: &mut Bridge, bytes: &[u8], port: usize, now_ns: u64) -> Verdict {
    let header = &bytes[..bytes.len().min(SNAPSHOT_MAX)];
    let mut route = Vec::new();
    let is_open = bytes.len() >= ETHERNET_BYTES
        && bridge.routes(&mut small_frames(&[bytes]), port, now_ns, &mut route);
    let verdict = bridge.forward(header, bytes.len(), port, now_ns);
    if is_open {
        assert_eq!(verdict, Verdict::Unicast(route[0].into()));
    }
    verdict
}

fn set(ports: &[usize]) -> Verdict {
    Verdict::Multiple(ports.iter().copied().collect())
}

fn dropped(reason: DropReason) -> Verdict {
    Verdict::Drop(reason)
}

fn arp_from(mac: Mac, sender: Mac, ip: [u8; 4]) -> Vec<u8> {
    let mut bytes = arp(2, sender.0, ip, [9; 6], [10, 0, 0, 1]);
    bytes[6..12].copy_from_slice(&mac.0);
    bytes
}
