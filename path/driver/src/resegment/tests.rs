use super::*;
use nic::{Checksum, Gso, GsoKind};
use vif::netfront::Sizes;
use vif::netif::{BackRecord, Features, MAX_SLOTS_STOCK};
use vif::testing::{Rig, TestMemory, back_record, frame_at, ipv4_tcp, sizes};

const SIZE: usize = 1460;
const ACK: u8 = 0x10;

/// Returns an aggregate of `segments` packets.
fn aggregate(memory: &TestMemory, segments: usize) -> Frame {
    let mut bytes = ipv4_tcp(segments * SIZE, segments as u64);
    bytes[47] = ACK;
    let mut frame = frame_at(memory, 0, &bytes, usize::MAX);
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    frame.offload.gso = Some(Gso {
        kind: GsoKind::Tcp4,
        size: SIZE as u16,
    });
    frame
}

fn sizes_with(rx_pages: u32) -> Sizes {
    Sizes {
        rx_pages,
        ..sizes()
    }
}

/// Delivers frames to a guest with posted buffers. Returns the lengths of the received frames and
/// the number of lost packets.
fn deliver(resegmenter: &mut Resegmenter, rig: &mut Rig, frames: &[Frame]) -> (Vec<usize>, u64) {
    let before = rig.back.counters().to_guest_drops.total();
    let pick: Vec<u32> = (0..frames.len() as u32).collect();
    resegmenter.to_guest(&mut rig.back, frames, &pick);
    rig.back.publish();
    let lengths = rig.receive(64).iter().map(Vec::len).collect();
    (lengths, rig.back.counters().to_guest_drops.total() - before)
}

#[test]
fn fitting_frames_are_delivered_whole() {
    let memory = TestMemory::new(32);
    let mut rig = Rig::new(sizes());
    let mut resegmenter = Resegmenter::default();
    let frames = [aggregate(&memory, 40), aggregate(&memory, 2)];
    let lengths = vec![54 + 40 * SIZE, 54 + 2 * SIZE];
    assert_eq!(deliver(&mut resegmenter, &mut rig, &frames), (lengths, 0));
    assert_eq!(resegmenter.resegmented_frames, 0);
}

#[test]
fn aggregate_is_split_to_the_posted_buffers() {
    let memory = TestMemory::new(32);
    // 16 buffers of 2048 bytes, one of which is for the extra info, so 30 720 bytes are for data.
    let mut rig = Rig::new(sizes_with(8));
    let mut resegmenter = Resegmenter::default();
    let (lengths, lost) = deliver(&mut resegmenter, &mut rig, &[aggregate(&memory, 40)]);
    assert_eq!(lengths, [54 + 21 * SIZE]);
    assert_eq!(
        (lost, resegmenter.resegmented_frames),
        (19, 2),
        "losses are counted in packets"
    );
    // The guest has posted the buffers again.
    let (lengths, lost) = deliver(&mut resegmenter, &mut rig, &[aggregate(&memory, 20)]);
    assert_eq!((lengths, lost), (vec![54 + 20 * SIZE], 0));
}

#[test]
fn aggregate_is_split_at_the_slot_limit() {
    let memory = TestMemory::new(32);
    let stock = BackRecord {
        max_slots: MAX_SLOTS_STOCK,
        ..back_record(Features::ALL)
    };
    let mut rig = Rig::with_record(sizes(), Features::ALL, stock);
    let mut resegmenter = Resegmenter::default();
    let (lengths, lost) = deliver(&mut resegmenter, &mut rig, &[aggregate(&memory, 40)]);
    assert_eq!(lengths, [54 + 25 * SIZE, 54 + 15 * SIZE]);
    assert_eq!((lost, resegmenter.resegmented_frames), (0, 2));
}

#[test]
fn split_aggregates_keep_their_order() {
    let memory = TestMemory::new(64);
    let mut rig = Rig::new(sizes_with(8));
    let mut resegmenter = Resegmenter::default();
    let small = frame_at(&memory, 40 * 4096, &ipv4_tcp(100, 7), usize::MAX);
    let frames = [small.clone(), aggregate(&memory, 21), small];
    let (lengths, lost) = deliver(&mut resegmenter, &mut rig, &frames);
    // The small frame uses one slot; the aggregate uses 14 slots for data and one for the extra
    // info. No slot is left.
    assert_eq!(lengths, [154, 54 + 19 * SIZE]);
    assert_eq!(lost, 2 + 1);
}

#[test]
fn each_of_two_buffers_takes_one_packet() {
    let memory = TestMemory::new(32);
    let mut rig = Rig::new(sizes_with(1));
    let mut resegmenter = Resegmenter::default();
    let (lengths, lost) = deliver(&mut resegmenter, &mut rig, &[aggregate(&memory, 40)]);
    assert_eq!((lengths, lost), (vec![54 + SIZE; 2], 38));
}
