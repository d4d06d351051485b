//! Frames from hostile senders: headers, checksums, segmentation, the bridge.

use crate::input::Input;
use abi::PAGE;
use net::packet::too_big::too_big;
use net::packet::{ETHERNET_BYTES, Packet, checksum, segment};
use nic::{BufferId, Caps, Checksum, Frame, Gso, GsoKind, Offload, Piece};
use shmem::Area;

/// The longest ICMP error: an IPv6 packet of the smallest MTU, in a frame with two VLAN tags.
const ERROR_MAX: usize = 14 + 8 + 1280;

/// Parses, completes and segments a frame with the peer's headers, lengths and offloads.
pub fn frames(bytes: &[u8]) {
    thread_local!(static PAYLOAD: Area = Area::anonymous(17 * PAGE).expect("memory"));
    let payload = PAYLOAD.with(|area| area.span());
    let mut input = Input::new(bytes);
    let offload = offload(&mut input);
    let caps = Caps {
        checksum: input.bool(),
        tso: input.bool(),
        max_frame: if input.bool() {
            1514
        } else {
            usize::from(input.u16())
        },
    };
    let parts = input.u16();
    let long = input.bool();
    let built = input.bool().then(|| header(&mut input));
    let header = built.as_deref().unwrap_or(input.bytes(256));
    let _ = Packet::parse(header).map(|packet| packet.transport(header));
    payload.write(header).expect("own memory");

    // The payload of up to 64 KB is passed as one piece or many pieces.
    let len = if long {
        usize::from(parts).max(header.len())
    } else {
        header.len()
    };
    let mut frame = Frame::empty();
    let mut rest = payload.take(len);
    while !rest.is_empty() {
        let part = rest.take(usize::from(parts % 4096).max(1500));
        frame.push(Piece {
            span: part,
            buffer: BufferId::NONE,
        });
        rest = rest.skip(part.len());
    }
    frame.snapshot().expect("own memory");
    frame.offload = offload;
    assert_eq!(frame.len(), len);

    if let Some(error) = too_big(&frame, caps.max_frame.saturating_sub(ETHERNET_BYTES), &[]) {
        Packet::parse(&error).expect("the headers of an error");
        assert!(
            error.len() <= ERROR_MAX,
            "an error of {} bytes",
            error.len()
        );
    }

    let mut segments = Vec::new();
    if segment::segment(&frame, caps, &mut segments).is_err() {
        assert!(segments.is_empty(), "half of a frame was cut");
    }
    cut(&frame, caps, &segments);
    let mut finished = frame.clone();
    if checksum::finish(&mut finished).is_ok() {
        assert!(!matches!(finished.offload.checksum, Checksum::Blank { .. }));
        assert_eq!(finished.len(), frame.len());
    }
}

/// Checks that segments fit the port, and that their payload is the frame's.
fn cut(frame: &Frame, caps: Caps, segments: &[Frame]) {
    if segments.is_empty() {
        return;
    }
    assert!(segments.len() <= segment::MAX_SEGMENTS);
    let whole = frame.to_vec().expect("own memory");
    let mut payload = Vec::new();
    let mut headers = 0;
    for segment in segments {
        assert!(caps.takes(segment), "a segment that the port does not take");
        assert!(segment.offload.gso.is_none());
        let bytes = segment.to_vec().expect("own memory");
        let packet = Packet::parse(&bytes).expect("the headers of a segment");
        let transport = packet
            .transport(&bytes)
            .expect("the transport of a segment");
        let net::packet::Transport::Tcp(tcp) = transport else {
            panic!("not TCP")
        };
        headers = tcp.payload_at;
        payload.extend_from_slice(bytes.get(headers..).expect("a payload"));
    }
    assert!(
        whole.get(headers..) == Some(&payload[..]),
        "segments lose or invent bytes"
    );
}

/// Builds headers that are mostly consistent, so that inputs reach the code behind the parsers:
/// up to two VLAN tags, IPv4 with options or IPv6, and TCP with options, UDP or ICMP. At the end
/// the input overwrites up to four bytes.
fn header(input: &mut Input<'_>) -> Vec<u8> {
    let payload = usize::from(input.u16() % 9000);
    let transport = transport(input);
    let mut bytes = input.array::<12>().to_vec();
    for _ in 0..input.below(3) {
        bytes.extend([0x81, 0, input.u8(), input.u8()]);
    }
    if input.bool() {
        let options = input.below(11) * 4;
        let total = 20 + options + transport.len() + payload;
        bytes.extend([8, 0, 0x45 + (options / 4) as u8, input.u8()]);
        bytes.extend((total as u16).to_be_bytes());
        // Identification, flags and offset of the fragment.
        bytes.extend([input.u8(), input.u8(), input.u8() & 0xe0, 0]);
        bytes.extend([64, protocol(&transport, false), 0, 0]);
        bytes.extend(input.array::<8>());
        bytes.resize(bytes.len() + options, 1);
    } else {
        let length = (transport.len() + payload) as u16;
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([protocol(&transport, true), 64]);
        bytes.extend(input.array::<32>());
    }
    bytes.extend(transport);
    bytes.extend(input.bytes(payload.min(64)));
    for _ in 0..input.below(5) {
        let at = usize::from(input.u8());
        let value = input.u8();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
    }
    bytes
}

/// Builds a TCP header with up to 40 bytes of options, a UDP header or an ICMP one.
fn transport(input: &mut Input<'_>) -> Vec<u8> {
    match input.below(4) {
        0 | 1 => {
            let options = input.below(11) * 4;
            let mut bytes = input.array::<20>().to_vec();
            bytes[12] = ((20 + options) / 4 * 16) as u8;
            bytes.extend_from_slice(input.bytes(options));
            bytes.resize(20 + options, 1);
            bytes
        }
        2 => input.array::<8>().to_vec(),
        _ => [input.u8(), input.u8(), 0, 0, 0, 0].to_vec(),
    }
}

/// Returns the protocol number of a header that [`transport`] built, which its length determines.
fn protocol(transport: &[u8], v6: bool) -> u8 {
    match (transport.len(), v6) {
        (8, _) => 17,
        (6, false) => 1,
        (6, true) => 58,
        _ => 6,
    }
}

fn offload(input: &mut Input<'_>) -> Offload {
    let checksum = match input.below(3) {
        0 => Checksum::Unknown,
        1 => Checksum::Valid,
        _ => Checksum::Blank {
            start: input.u16() % 200,
            offset: input.u16() % 20,
        },
    };
    let kind = if input.bool() {
        GsoKind::Tcp4
    } else {
        GsoKind::Tcp6
    };
    let size = if input.bool() { 1448 } else { input.u16() };
    Offload {
        checksum,
        gso: input.bool().then_some(Gso { kind, size }),
    }
}
