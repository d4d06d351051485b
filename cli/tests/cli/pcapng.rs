//! Checks that other programs can read captures.

use crate::test_dir::{SIM, TestDir};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use testing::{ProgramOutput, require};

/// Returns the frames of a file: the direction as encoded in the format, and the comment.
fn frames(path: &Path) -> Vec<(u32, Option<String>)> {
    let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let mut found = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else {
            continue;
        };
        let (mut way, mut comment) = (0, None);
        for option in &packet.options {
            match option {
                EnhancedPacketOption::Flags(flags) => way = *flags,
                EnhancedPacketOption::Comment(text) => comment = Some(text.to_string()),
                _ => {}
            }
        }
        found.push((way, comment));
    }
    found
}

/// Starts a machine whose guest pings continuously, and captures `count` frames of that guest.
/// Returns the file and the result.
fn captured(place: &TestDir, machine: &str, count: &str) -> (String, ProgramOutput) {
    let file = place.file("m.toml", machine);
    let up = place.run(&["up", &file, "--detach"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    let path = place.file("web.pcapng", "");
    let args = [
        "capture",
        "web",
        "-w",
        &path,
        "--count",
        count,
        "--seconds",
        "120",
    ];
    let run = place.run(&args);
    (path, run)
}

#[test]
fn tcpdump_reads_a_capture_of_both_directions() {
    let place = TestDir::with_machine();
    let (path, run) = captured(&place, SIM, "20");
    assert!(
        run.ok() && run.err.contains("20 frames captured"),
        "{run:?}"
    );
    let ways = frames(Path::new(&path));
    assert_eq!(ways.len(), 20);
    for way in [1, 2] {
        assert!(ways.contains(&(way, None)), "{ways:?}");
    }
    let none = place.run(&["capture", "db", "-w", &path]);
    assert_eq!(none.code, 2);
    assert!(
        none.err
            .contains("no NIC or guest db; choose from: wire, web-0"),
        "{none:?}"
    );
    let wire = place.file("wire.pcapng", "");
    let args = [
        "capture",
        "wire",
        "-w",
        &wire,
        "--count",
        "6",
        "--snaplen",
        "34",
        "--json",
    ];
    let run = place.run(&args);
    assert_eq!(
        (run.code, run.out.as_str()),
        (0, "{\"frames\":6,\"lost\":0}\n"),
        "{run:?}"
    );
    assert!(place.run(&["down"]).ok());
    require!(tool("tcpdump"));
    let text = |path: &str| {
        let read = Command::new("tcpdump")
            .args(["-nr", path])
            .output()
            .unwrap();
        assert!(
            read.status.success(),
            "{}",
            String::from_utf8_lossy(&read.stderr)
        );
        String::from_utf8(read.stdout).unwrap()
    };
    let web = text(&path);
    assert!(
        web.contains("10.0.0.2 > 10.0.0.1: ICMP echo request"),
        "{web}"
    );
    assert!(
        web.contains("10.0.0.1 > 10.0.0.2: ICMP echo reply"),
        "{web}"
    );
    // Timestamps are times of day, in order.
    assert_eq!(text(&wire).lines().count(), 6);
}

#[test]
fn the_reason_of_a_drop_is_a_comment() {
    // The guest's requests, and replies to it: the rule of the guest denies both.
    for (direction, way, shown) in [
        ("from-guest", 1, "10.0.0.2\t8"),
        ("to-guest", 2, "10.0.0.1\t0"),
    ] {
        let place = TestDir::with_machine();
        let rule = format!(
            "[[guest.vif.rule]]\nname = \"no-pings\"\ndirection = \"{direction}\"\n\
             action = \"deny\"\nprotocol = \"icmp\"\n"
        );
        let machine = SIM.replace("[[guest.vif.app]]", &format!("{rule}[[guest.vif.app]]"));
        let (path, run) = captured(&place, &machine, "10");
        assert!(run.ok(), "{run:?}");
        let mut dropped = frames(Path::new(&path));
        dropped.retain(|(_, comment)| comment.is_some());
        assert!(!dropped.is_empty(), "{direction}");
        for (of, comment) in &dropped {
            let why = comment.as_deref().unwrap();
            assert!(
                why.starts_with("dropped, firewall: ")
                    && why.ends_with(" (rule no-pings of vif.web-0)"),
                "{why}"
            );
            assert_eq!(*of, way, "{why}");
        }
        assert!(place.run(&["down"]).ok());
        require!(tool("tshark"));
        // tshark must show the comments, like Wireshark.
        let args = ["-n", "-r", &path, "-Y", "frame.comment", "-T", "fields"];
        let run = Command::new("tshark")
            .args(args)
            .args(["-e", "ip.src", "-e", "icmp.type", "-e", "frame.comment"])
            .output()
            .unwrap();
        assert!(run.status.success(), "{run:?}");
        let text = String::from_utf8(run.stdout).unwrap();
        let start = format!("{shown}\tdropped, firewall: ");
        let pings = text.lines().filter(|line| line.starts_with(&start));
        assert_eq!(pings.count(), dropped.len(), "{text}");
    }
}
