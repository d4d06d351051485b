//! A guest sends frames that no kernel would send. The guest must not attract other guests'
//! traffic.

use crate::machine::{Machine, text};
use crate::programs::{DB, IPV4, NAMES, WEB, WIRE, start_with};
use testing::wait_until;

/// A program that sends each given frame, in hexadecimal, a hundred times and bypasses the kernel's
/// stack.
const SENDER: &str = "
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind((sys.argv[1], 0))
for frame in sys.argv[2:]:
    for _ in range(100):
        wire.send(bytes.fromhex(frame))
";
pub(crate) const TIMES: u64 = 100;

pub(crate) const BROADCAST_MAC: &str = "ffffffffffff";

/// Returns the MAC of a place's interface, in hexadecimal.
pub(crate) fn mac(machine: &Machine, place: usize) -> String {
    let run = machine.run(place, "ip", &["-br", "link", "show", NAMES[place]]);
    let line = text(&run.stdout);
    let mac = line.split_whitespace().nth(2);
    mac.unwrap_or_else(|| panic!("{run:?}")).replace(':', "")
}

pub(crate) fn hex(address: &str) -> String {
    let parts = address.split('.');
    parts
        .map(|part| format!("{:02x}", part.parse::<u8>().unwrap()))
        .collect()
}

/// Sends each of these frames [`TIMES`] times from a place's interface.
pub(crate) fn send(machine: &Machine, place: usize, frames: &[String]) {
    let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
    let args = [&["-c", SENDER, NAMES[place]], &frames[..]].concat();
    let run = machine.run(place, "python3", &args);
    assert!(run.status.success(), "{run:?}");
}

/// BR-3, BR-13, end to end.
#[test]
fn forged_macs_and_arp_attract_no_traffic() {
    let Some(machine) = start_with("", &["python3", "ip", "ping"]) else {
        return;
    };
    let [own, victim] = [WEB, DB].map(|place| mac(&machine, place));
    let driver = || machine.ask(&["stat", "driver"])["driver"].clone();
    let delivered = || {
        let value = &driver()["ports"][format!("vif.{}-0", NAMES[WEB])]["traffic"]["out_packets"];
        value.as_u64().unwrap_or_else(|| panic!("{}", driver()))
    };
    // The frames claim "the victim's MAC is here" and "the victim's address has my MAC", the latter
    // as a request and as a reply.
    let source = format!("{BROADCAST_MAC}{victim}88b5{}", "00".repeat(46));
    let arp = |operation: &str| {
        let head = format!("{BROADCAST_MAC}{own}0806000108000604{operation}");
        let address = hex(IPV4[DB]);
        format!("{head}{own}{address}{}{address}", "00".repeat(6))
    };
    let frames = [source, arp("0001"), arp("0002")];
    send(&machine, WEB, &frames);

    let before = delivered();
    let args = ["-c", "100", "-i", "0.005", "-w", "120", IPV4[DB]];
    let run = machine.run(WIRE, "ping", &args);
    assert!(run.status.success(), "{run:?}");
    // Broadcast frames arrive, too.
    let seen = delivered() - before;
    assert!(seen < 50, "{seen} frames reached the forger");
    let neighbour = machine.run(WIRE, "ip", &["neigh", "show", IPV4[DB]]);
    let neighbour = text(&neighbour.stdout).replace(':', "");
    assert!(neighbour.contains(&victim), "{neighbour} is not {victim}");
    // Frames may wait in the forger's queues if its CPU is busy.
    wait_until("not every forged frame is dropped", || {
        let drops = &driver()["drops"];
        println!("{drops}");
        drops["forged_source"] == TIMES && drops["forged_arp"] == 2 * TIMES
    });
    machine.end();
}
