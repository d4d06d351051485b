//! A wire with unsegmented packets of 64 KB, as behind a bridge or router of this system, and
//! guests that share this system's addresses.

use crate::machine::Machine;
use crate::programs::{FILE_BYTES, FOR_FILES, NAMES, WEB, WIRE, carry_files, config};
use crate::queues::{count, driver, vmq};
use netdev::netns::Namespace;
use std::fs;

const RULE: &str = "[[nic.rule]]\nname = \"no-telnet\"\naction = \"deny\"\nprotocol = \"tcp\"\n\
                    direction = \"from-wire\"\ndestination_ports = 23\n";

/// Starts the usual machine with these keys of the wire.
fn start(keys: &str, rule: &str) -> Option<Machine> {
    let with_keys = |namespaces: &[String]| {
        let wire = format!("kind = \"tap\"\noffloads = \"tso\"\n{keys}");
        let text = config("", namespaces).replacen("kind = \"tap\"", &wire, 1);
        text.replacen("[[guest]]", &format!("{rule}[[guest]]"), 1)
    };
    Machine::start(FOR_FILES, &NAMES, with_keys)
}

/// Number of MTU-sized packets needed for the files on the paths that use the wire, which are half
/// of all paths.
const BY_WIRE: u64 = (FILE_BYTES / 10) as u64 / 1448;

#[test]
fn a_wire_carries_uncut_segments_in_both_directions() {
    let Some(machine) = start("", "") else { return };
    carry_files(&machine, FILE_BYTES / 10);
    let driver = driver(&machine);
    assert_eq!(driver["software"]["segments"], 0, "{driver}");
    let wire = &driver["ports"]["nic.wire"];
    let received = count(&wire["traffic"]["in_packets"]);
    assert!(received < BY_WIRE / 2, "{received} frames: {wire}");
    machine.end();
}

/// Segments are received into as many posted buffers of the guests as they need, even if rules
/// cause headers to be written last.
#[test]
fn segments_are_received_in_the_guests_pages() {
    for rule in ["", RULE] {
        let Some(machine) = start("queues = \"vmq\"", rule) else {
            return;
        };
        if vmq(&machine).is_some() {
            carry_files(&machine, FILE_BYTES / 10);
            let driver = driver(&machine);
            let wire = &driver["ports"]["nic.wire"];
            let vmq = &wire["vmq"];
            assert_eq!(vmq["misdirected"], 0, "{vmq}");
            assert_eq!(vmq["queues"].as_array().map(Vec::len), Some(2), "{vmq}");
            assert!(count(&vmq["direct_packets"]) > 100, "{vmq}");
            let received = count(&wire["traffic"]["in_packets"]);
            assert!(received < BY_WIRE / 2, "{received} frames: {wire}");
            for guest in ["vif.web-0", "vif.db-0"] {
                let drops = &driver["ports"][guest]["counters"]["to_guest_drops"];
                for reason in ["bad_offload", "too_many_slots", "bad_request"] {
                    assert_eq!(drops[reason], 0, "{guest}: {drops}");
                }
            }
        }
        machine.end();
    }
}

#[test]
fn an_uplink_forwards_as_long_as_the_machine_is_up() {
    let forwards = |namespace: &Namespace| {
        let read = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        namespace.enter(read).unwrap().trim().to_owned()
    };
    let config = |paths: &[String]| {
        format!(
            "[[nic]]\nname = \"up\"\nkind = \"tap\"\nifname = \"wire\"\nnetns = \"{}\"\n\
             addresses = [\"10.7.0.1/24\"]\nuplink = {{ nat = true }}\n\
             [[guest]]\nname = \"web\"\n[[guest.vif]]\nendpoint = \"tap\"\nifname = \"web\"\n\
             netns = \"{}\"\naddresses = [\"10.7.0.2/24\"]\ngateway = \"10.7.0.1\"\n",
            paths[WIRE], paths[WEB]
        )
    };
    let Some(machine) = Machine::start(&["ping", "ip"], &["wire", "web"], config) else {
        return;
    };
    assert_eq!(forwards(&machine.places[WIRE].0), "1");
    // This address of the system can be reached only by its routes.
    let add = ["address", "add", "192.0.2.1/32", "dev", "lo"];
    assert!(machine.run(WIRE, "ip", &add).status.success());
    let ping = ["-c", "1", "-w", "60", "192.0.2.1"];
    assert!(machine.run(WEB, "ping", &ping).status.success());
    let as_made = forwards(&Namespace::new().unwrap());
    let places = machine.end();
    assert_eq!(forwards(&places[WIRE].0), as_made);
}
