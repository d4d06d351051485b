use super::*;
use crate::testing::{Machine, frame, mac};
use net::bridge::{DropReason, Rule};
use net::packet::checksum::Sum;
use nic::{BufferId, Gso, GsoKind, Piece};
use shmem::Area;

const CLIENT: u64 = 7;

fn request(machine: &mut Machine, of: &str, snaplen: u32, now_ns: u64) -> Result<Value, String> {
    let request_of = CaptureRequest {
        id: CLIENT,
        of,
        snaplen,
    };
    machine.switch.capture.request(request_of, now_ns)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the recorded frames of an answer: port, whether inbound, length, first bytes, drop
/// reason.
fn captured(answer: &Value) -> Vec<(String, bool, u64, String, Option<String>)> {
    let frames = answer["frames"].as_array().unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let one = |frame: &Value| {
        (
            text(&frame["port"]).unwrap(),
            frame["in"].as_bool().unwrap(),
            frame["bytes"].as_u64().unwrap(),
            text(&frame["data"]).unwrap(),
            text(&frame["dropped"]),
        )
    };
    frames.iter().map(one).collect()
}

/// Returns the name of guest `n`'s port.
fn name(machine: &Machine, n: usize) -> String {
    let port = machine.switch.ports.name(n).unwrap();
    port.to_owned()
}

#[test]
fn only_frames_of_the_guest_are_captured() {
    let mut machine = Machine::new(3);
    let (of, port) = (
        name(&machine, 1),
        machine.switch.ports.name(1).unwrap().to_owned(),
    );
    let none = request(&mut machine, &of, 40, 0).unwrap();
    assert!(captured(&none).is_empty());
    let (to, from) = (frame(mac(1), mac(0), 600, 1), frame(mac(2), mac(1), 60, 2));
    machine.send(0, &to);
    machine.send(0, &frame(mac(2), mac(0), 300, 3));
    machine.forward_from(0);
    machine.send(1, &from);
    machine.forward_from(1);
    let got = request(&mut machine, &of, 40, 1).unwrap();
    assert_eq!(
        captured(&got),
        [
            (port.clone(), false, 600, hex(&to[..40]), None),
            (port, true, 60, hex(&from[..40]), None),
        ]
    );
    // The guests have still received all frames.
    assert_eq!(machine.received(1), [to]);
    assert_eq!(machine.received(2).len(), 2);
    assert!(captured(&request(&mut machine, &of, 0, 2).unwrap()).is_empty());
    assert!(!machine.switch.capture.is_on());
}

#[test]
fn captured_drops_have_their_reason() {
    let mut machine = Machine::new(2);
    let of = name(&machine, 0);
    request(&mut machine, &of, 2000, 0).unwrap();
    let forged = frame(mac(1), mac(1), 100, 0);
    machine.send(0, &forged);
    machine.forward_from(0);
    let got = captured(&request(&mut machine, &of, 0, 0).unwrap());
    let [(_, true, 100, data, Some(why))] = &got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(*data, hex(&forged));
    assert!(why.contains(DropReason::ForgedSource.name()), "{why}");
    // The reason names the rule that denied a frame.
    request(&mut machine, &of, 2000, 0).unwrap();
    machine.switch.bridge.set_rules(1, &[Rule::any(false)]);
    let port = machine.switch.ports.get_mut(1).unwrap();
    port.common_and_gateways().0.rule_names = vec!["closed".into()];
    machine.send(0, &frame(mac(1), mac(0), 100, 0));
    machine.forward_from(0);
    let got = captured(&request(&mut machine, &of, 0, 0).unwrap());
    let [(.., Some(why))] = &got[..] else {
        panic!("{got:?}")
    };
    let of = name(&machine, 1);
    assert!(why.ends_with(&format!("(rule closed of {of})")), "{why}");
    // A capture of the guest that has the rule shows the frame as a frame to this guest.
    request(&mut machine, &of, 2000, 0).unwrap();
    let denied = frame(mac(1), mac(0), 100, 0);
    machine.send(0, &denied);
    machine.forward_from(0);
    let got = captured(&request(&mut machine, &of, 0, 0).unwrap());
    let expected = (of.clone(), false, 100, hex(&denied), Some(why.clone()));
    assert_eq!(got, [expected]);
    machine.switch.bridge.set_rules(1, &[]);
    // Outbound frames are dropped when the guest has no buffers and its queue is full.
    request(&mut machine, &of, 60, 0).unwrap();
    for number in 0..2000 {
        machine.send(0, &frame(mac(1), mac(0), 900, number));
        machine.forward_from(0);
        machine.guests[0].front.reap().unwrap();
        let got = captured(&request(&mut machine, &of, 60, 0).unwrap());
        for (_, is_in, len, _, why) in &got {
            assert!(!is_in && *len == 900);
            if why
                .as_ref()
                .is_some_and(|why| why.starts_with("dropped, queue_full"))
            {
                return;
            }
        }
    }
    panic!("the queue drops no frame");
}

#[test]
fn blank_checksum_is_computed_in_the_capture() {
    let mut capture = CaptureSet::default();
    let request_of = |snaplen| CaptureRequest {
        id: CLIENT,
        of: "wire",
        snaplen,
    };
    capture.request(request_of(2000), 0).unwrap();
    let (start, offset) = (34, 16);
    let mut bytes = frame(mac(1), mac(0), 701, 1);
    let area = Area::anonymous(4096).unwrap();
    let span = area.at(0, bytes.len()).unwrap();
    span.write(&bytes).unwrap();
    let buffer = BufferId::NONE;
    let mut blank = Frame::new(Piece { span, buffer }, bytes.len()).unwrap();
    blank.offload.checksum = Checksum::Blank { start, offset };
    // A frame with pending segmentation gets the checksum of the whole frame.
    for gso in [None, Some(1448)] {
        let kind = GsoKind::Tcp4;
        blank.offload.gso = gso.map(|size| Gso { kind, size });
        capture.sent_by("nic.wire", &blank, None, 0);
    }
    let mut sum = Sum::default();
    sum.add_bytes(&bytes[34..]);
    bytes[50..52].copy_from_slice(&sum.finish().to_be_bytes());
    let captured = captured(&capture.request(request_of(0), 0).unwrap());
    assert_eq!(captured.len(), 2);
    for (_, _, length, data, _) in captured {
        assert_eq!((length, data), (701, hex(&bytes)));
    }
}

#[test]
fn excess_frames_are_counted_instead_of_recorded() {
    let mut machine = Machine::new(2);
    let of = name(&machine, 0);
    request(&mut machine, &of, u32::MAX, 0).unwrap();
    for number in 0..1000 {
        machine.send(0, &frame(mac(1), mac(0), 1500, number));
        machine.forward_from(0);
        machine.guests[0].front.reap().unwrap();
        machine.received(1);
    }
    let got = request(&mut machine, &of, 100, 0).unwrap();
    let kept = captured(&got).len();
    assert!(kept <= BYTES_MAX / 1500 && kept > 50, "{kept}");
    assert_eq!(got["lost"], 1000 - kept);
    assert!(got.to_string().len() < abi::layout::mailbox::OUT_MAX);
    // For small frames, their number is the bound.
    for number in 0..1000 {
        machine.send(0, &frame(mac(1), mac(0), 60, number));
        machine.forward_from(0);
        machine.guests[0].front.reap().unwrap();
        machine.received(1);
    }
    let got = request(&mut machine, &of, 100, 0).unwrap();
    assert_eq!(
        (captured(&got).len(), &got["lost"]),
        (FRAMES_MAX, &(1000 - FRAMES_MAX).into())
    );
    assert!(got.to_string().len() < abi::layout::mailbox::OUT_MAX);
}

#[test]
fn capture_has_one_client_and_times_out() {
    let mut machine = Machine::new(2);
    let of = name(&machine, 0);
    request(&mut machine, &of, 60, 0).unwrap();
    let other = CaptureRequest {
        id: CLIENT + 1,
        of: &of,
        snaplen: 60,
    };
    let why = machine
        .switch
        .capture
        .request(other, TIMEOUT_NS)
        .unwrap_err();
    assert_eq!(why, format!("another client is capturing {of}"));
    machine
        .switch
        .capture
        .request(other, TIMEOUT_NS + 1)
        .unwrap();
    assert!(request(&mut machine, &of, 60, TIMEOUT_NS + 1).is_err());
    // Without further requests, the next frame ends the capture.
    let mut capture = CaptureSet::default();
    capture.request(other, 0).unwrap();
    let passes = None::<fn() -> String>;
    capture.received_at("nic.wire", &Frame::empty(), passes, TIMEOUT_NS + 1);
    assert!(!capture.is_on());
}

#[test]
fn capture_selects_a_nic_guest_or_interface() {
    let captures = |of: &str, port| {
        let mut capture = CaptureSet::default();
        let request_of = CaptureRequest {
            id: CLIENT,
            of,
            snaplen: 1,
        };
        capture.request(request_of, 0).unwrap();
        capture.captures(port)
    };
    assert!(captures("wire", "nic.wire") && !captures("wire", "nic.wire-1"));
    assert!(
        captures("web", "vif.web-0")
            && captures("web", "vif.web-12")
            && captures("web-0", "vif.web-0")
    );
    assert!(!captures("web", "vif.web-2-0") && captures("web-2", "vif.web-2-0"));
    assert!(!captures("web-1", "vif.web-0") && !captures("w", "nic.w-0"));
}
