//! A machine whose wire is a capture file: it replays frames from one file and records sent ones in
//! another.

use crate::test_dir::{TestDir, wait};
use std::fs;
use std::path::Path;

const MACHINE: &str = r#"
[[nic]]
name = "wire"
kind = "pcap"
read = "in.pcap"
write = "out.pcap"

[[guest]]
name = "web"

[[guest.vif]]
mac = "02:00:00:00:00:02"
endpoint = "stack"
addresses = ["10.0.0.2/24"]
"#;

const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 2];
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];
const SENDER_IP: [u8; 4] = [10, 0, 0, 9];
const TARGET_IP: [u8; 4] = [10, 0, 0, 2];

/// "Who has 10.0.0.2? Tell 10.0.0.9" (RFC 826).
fn arp_request() -> Vec<u8> {
    let parts: [&[u8]; 7] = [
        &[0xff; 6],
        &STATION,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &STATION,
        &SENDER_IP,
        &[0; 6],
        &TARGET_IP,
    ];
    let mut frame = parts.concat();
    frame.resize(60, 0);
    frame
}

/// Returns a frame that is addressed to an unknown station.
fn to_unknown_station() -> Vec<u8> {
    let mut frame = [[2, 0, 0, 0, 0, 0x77], STATION].concat();
    frame.extend([0x88, 0xb5]);
    frame.resize(60, 0);
    frame
}

/// Returns a capture file of Ethernet frames, microseconds, little-endian.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
    for frame in frames {
        let len = frame.len() as u32;
        file.extend(words(&[1, 0, len, len]));
        file.extend(frame);
    }
    file
}

/// Returns the complete frames of a capture file.
fn frames(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(path).unwrap_or_default();
    let mut rest = file.get(24..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some(len) = rest.get(8..12) {
        let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
        let Some(frame) = rest.get(16..16 + len) else {
            break;
        };
        frames.push(frame.to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

#[test]
fn a_guest_answers_a_capture_file() {
    let place = TestDir::with_machine();
    let requests = vec![to_unknown_station(), arp_request(), arp_request()];
    let folder = place.file("machine.toml", MACHINE);
    let folder = Path::new(&folder).parent().unwrap();
    fs::write(folder.join("in.pcap"), capture(&requests)).unwrap();
    let up = place.run(&["up", "machine.toml", "--detach"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));

    let is_answer = |frame: &Vec<u8>| {
        frame.starts_with(&[STATION, GUEST].concat())
            && frame[12..14] == [8, 6]
            && frame[21] == 2
            && frame[22..32] == [GUEST.as_slice(), &TARGET_IP].concat()
    };
    let answers = wait(|| {
        let left = frames(&folder.join("out.pcap"));
        (left.iter().filter(|frame| is_answer(frame)).count() == 2).then_some(left)
    });
    // No frame that the wire received is sent back to the wire.
    assert!(
        answers.iter().all(|frame| frame[6..12] == GUEST),
        "{answers:02x?}"
    );

    let stat = place.run(&["stat", "driver"]);
    let has = |line: &str| stat.out.lines().any(|one| one == line);
    assert!(
        has("driver.ports.nic.wire.traffic.in_packets: 3"),
        "{stat:?}"
    );
    assert!(has("driver.drops.no_port: 1"), "{stat:?}");
    assert!(place.run(&["down"]).ok());
}
