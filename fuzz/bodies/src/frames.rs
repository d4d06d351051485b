//! Frames from anybody: headers, checksums, segmentation, the bridge.

use crate::input::Input;
use abi::PAGE;
use net::packet::{Packet, checksum, segment};
use nic::{BufferId, Caps, Checksum, Frame, Gso, GsoKind, Offload, Piece};
use shmem::Area;

/// Parses, completes and cuts a frame whose headers, lengths and offloads are the peer's.
pub fn frames(bytes: &[u8]) {
    thread_local!(static PAYLOAD: Area = Area::anonymous(17 * PAGE).expect("memory"));
    let payload = PAYLOAD.with(|area| area.span());
    let mut input = Input::new(bytes);
    let offload = offload(&mut input);
    let caps = Caps {
        checksum: input.bool(),
        tso: false,
        max_frame: if input.bool() {
            1514
        } else {
            usize::from(input.u16())
        },
    };
    let parts = input.u16();
    let long = input.bool();
    let header = input.bytes(256);
    let _ = Packet::parse(header).map(|packet| packet.transport(header));
    payload.write(header).expect("own memory");

    // The same bytes as one piece or as many, up to 64 KB.
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

/// Segments are within what the port takes, and their payload is the frame's.
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
