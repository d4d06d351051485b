//! The bridge between two NIC ports and three guests, all of which may be hostile.

use crate::input::Input;
use net::bridge::{
    Bridge, BridgeSettings, Direction, PortConfig, PortKind, PortPermissions, Rule, Verdict,
};
use net::packet::Mac;

/// Ports 0 and 1 are NICs, 2 … 4 guests.
const NICS: usize = 2;
const PORTS: usize = 5;

/// The guest with rules: it receives only ARP, and may not send one EtherType.
const FIREWALLED: usize = 4;
const DENIED_IN: u16 = 0x86dd;

/// The guest with a source guard, and its address.
const GUARDED: usize = 3;
const ADDRESS: [u8; 4] = [10, 0, 0, 3];

/// Returns the port of a guest that may send only from its address.
fn guarded() -> PortConfig {
    let permissions = PortPermissions {
        sources: Some(Vec::new()),
        ..PortPermissions::default()
    };
    let macs = vec![guest_mac(GUARDED)];
    PortConfig {
        kind: PortKind::Guest { macs, permissions },
        addresses: vec![ADDRESS.into()],
        ..PortConfig::nic()
    }
}

fn rules_of(port: usize) -> Vec<Rule> {
    let ethertype = |number, direction, allow| Rule {
        ethertype: Some(number),
        direction: Some(direction),
        ..Rule::any(allow)
    };
    match port {
        FIREWALLED => vec![
            ethertype(DENIED_IN, Direction::In, false),
            ethertype(0x0806, Direction::Out, true),
            Rule {
                direction: Some(Direction::Out),
                ..Rule::any(false)
            },
        ],
        _ => Vec::new(),
    }
}

/// Returns whether a frame's payload follows a VLAN tag.
fn is_tagged(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x81, 0] | [0x88, 0xa8]))
}

fn guest_mac(port: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, port as u8])
}

/// Forwards frames and checks the bridge's guarantees: no frame returns to its port, no other port
/// takes a guest's MAC, a guarded guest sends only from its address, unknown unicast reaches no
/// guest, groups have a budget, and frames that a port's rules deny do not pass it.
pub fn bridge(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let settings = BridgeSettings {
        learned_max: 8,
        group_pps: 10,
        group_burst: 4,
        ..BridgeSettings::default()
    };
    let mut bridge = Bridge::new(settings);
    for port in 0..PORTS {
        let mut added = match port {
            port if port < NICS => PortConfig::nic(),
            GUARDED => guarded(),
            _ => PortConfig::guest(guest_mac(port)),
        };
        added.rules = rules_of(port);
        bridge.add(port, &added).expect("an unused port");
    }
    // Time does not advance, so each port may send only `group_burst` group frames.
    let mut groups = [0; PORTS];
    while !input.is_empty() {
        let in_port = input.below(PORTS + 1);
        let frame = frame(&mut input);
        let verdict = bridge.forward(&frame, frame.len(), in_port, 0);
        let outs: Vec<usize> = match verdict {
            Verdict::Unicast(port) => vec![port],
            Verdict::Multiple(set) => set.iter().collect(),
            Verdict::Drop(_) => Vec::new(),
        };
        if outs.is_empty() {
            continue;
        }
        assert!(frame.len() >= 14 && in_port < PORTS);
        assert!(!outs.contains(&in_port), "back where it came from");
        let number = [frame[12], frame[13]];
        assert!(in_port != FIREWALLED || number != DENIED_IN.to_be_bytes());
        assert!(!outs.contains(&FIREWALLED) || number == [8, 6] || is_tagged(&frame));
        if in_port == GUARDED && number == [8, 0] {
            let source = frame.get(26..30).unwrap_or_default();
            assert!(source == ADDRESS || source == [0; 4], "a forged address");
        }
        let mac = |at: usize| Mac(std::array::from_fn(|i| frame[at + i]));
        let (destination, source) = (mac(0), mac(6));
        if in_port >= NICS {
            assert_eq!(source, guest_mac(in_port), "a forged source");
        } else {
            assert!(source.is_station() && (NICS..PORTS).all(|port| source != guest_mac(port)));
        }
        if destination.is_group() {
            groups[in_port] += 1;
            assert!(groups[in_port] <= settings.group_burst, "a storm");
        } else if let Some(owner) = (NICS..PORTS).find(|&port| destination == guest_mac(port)) {
            assert_eq!(outs, [owner], "another's traffic");
        } else {
            assert!(
                outs.iter().all(|&port| port < NICS),
                "unknown unicast at a guest"
            );
        }
        assert!(bridge.stations(0).count() <= settings.learned_max + PORTS - NICS);
    }
}

/// Returns a frame between few stations, so that they interact.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    let station = |byte: u8| match byte {
        255 => [0xff; 6],
        254 => [0x33, 0x33, 0, 0, 0, 1],
        253 => [0x01, 0x80, 0xc2, 0, 0, 0],
        252 => [0; 6],
        byte => [2, 0, 0, 0, u8::from(byte > 63), byte % 16],
    };
    let mut frame = Vec::new();
    frame.extend(station(input.u8()));
    frame.extend(station(input.u8()));
    let ethertype: [u8; 2] = match input.below(6) {
        0 => [0x08, 0x06],
        1 => [0x86, 0xdd],
        2 => [0x81, 0x00],
        3 => input.u16().to_be_bytes(),
        _ => [0x08, 0x00],
    };
    frame.extend(ethertype);
    let rest = input.below(100);
    frame.extend_from_slice(input.bytes(rest));
    if input.below(32) == 0 {
        frame.truncate(input.below(15));
    }
    frame
}
