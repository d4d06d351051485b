//! Several queue pairs: steering over the pairs in use, and the control queue.

use nic::Notified;
use vhost_edge::features::virtio::{CTRL_VQ, EVENT_IDX, MQ, MRG_RXBUF, VERSION_1};
use vhost_edge::testing::driver::{Descriptor, NEXT};
use vhost_edge::testing::rig::offer;
use vhost_edge::testing::{Rig, Session};

const FEATURES: u64 = VERSION_1 | MRG_RXBUF | EVENT_IDX | MQ;
const SET_PAIRS: [u8; 2] = [4, 0];

/// Returns a UDP frame from a port.
fn frame(port: u16, number: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 9, 8, 0]);
    frame[14] = 0x45;
    frame[17] = 46;
    frame[22] = 64;
    frame[23] = 17;
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame[36..38].copy_from_slice(&[0, 9]);
    frame[39] = 26;
    frame[59] = number;
    frame
}

fn post_everywhere(rig: &mut Rig, pairs: usize) {
    for pair in 0..pairs {
        for _ in 0..16 {
            rig.front.post(2 * pair, &[256], false, &[]).unwrap();
        }
    }
}

/// Returns the frames that each pair has received.
fn received(rig: &mut Rig, pairs: usize) -> Vec<Vec<Vec<u8>>> {
    let pair = |pair: usize| {
        std::iter::from_fn(|| rig.front.received(2 * pair, 12))
            .map(|frame| frame[12..].to_vec())
            .collect()
    };
    (0..pairs).map(pair).collect()
}

#[test]
fn each_flow_is_received_by_one_pair_in_order() {
    let mut rig = Rig::with_queues(offer(4), 64, 1);
    rig.start(FEATURES);
    post_everywhere(&mut rig, 4);
    let sent: Vec<Vec<u8>> = (0..24).map(|n| frame(1000 + n % 12, n as u8)).collect();
    for frame in &sent {
        assert_eq!(rig.tx_bytes(0, frame).sent, 1);
    }
    let received = received(&mut rig, 4);
    let used = received.iter().filter(|frames| !frames.is_empty());
    assert!(used.count() >= 2, "flows use several pairs");
    for port in 1000..1012_u16 {
        let is_of = |frame: &&Vec<u8>| frame[34..36] == port.to_be_bytes();
        let of_flow = sent.iter().filter(is_of).collect::<Vec<_>>();
        let has = |frames: &&Vec<Vec<u8>>| frames.iter().any(|frame| is_of(&frame));
        let pairs: Vec<_> = received.iter().filter(has).collect();
        assert_eq!(pairs.len(), 1, "one pair for port {port}");
        let got = pairs[0].iter().filter(is_of).collect::<Vec<_>>();
        assert_eq!(got, of_flow, "in order");
    }
}

#[test]
fn all_pairs_send_to_the_queues_of_the_interface() {
    for (queues, by_queue) in [(1, &[4][..]), (3, &[2, 1, 1]), (5, &[1, 1, 1, 1, 0])] {
        let mut rig = Rig::with_queues(offer(4), 64, queues);
        rig.start(FEATURES);
        assert_eq!(rig.rx_bytes(0).len(), 1, "the announcement");
        for pair in 0..4 {
            let sent = [&[0; 12][..], &frame(1, pair)].concat();
            rig.front
                .post(2 * usize::from(pair) + 1, &[sent.len()], false, &sent);
        }
        for (queue, count) in by_queue.iter().enumerate() {
            assert_eq!(rig.ports[queue].has_work(), *count > 0);
            assert_eq!(
                rig.rx_bytes(queue).len(),
                *count,
                "queue {queue} of {queues}"
            );
        }
    }
}

#[test]
fn pairs_that_do_not_run_receive_nothing() {
    let mut rig = Rig::with_queues(offer(4), 64, 4);
    rig.start(FEATURES);
    for ring in 2..8 {
        rig.words(18, [ring, 0]);
    }
    post_everywhere(&mut rig, 4);
    for queue in 0..4 {
        assert_eq!(rig.tx_bytes(queue, &frame(1, queue as u8)).sent, 1);
    }
    let of_first: Vec<usize> = received(&mut rig, 4).iter().map(Vec::len).collect();
    assert_eq!(of_first, [4, 0, 0, 0]);
    rig.words(18, [2, 1]);
    assert_eq!(rig.tx_bytes(1, &frame(1, 1)).sent, 1);
    assert_eq!(received(&mut rig, 4)[1].len(), 1, "the second pair runs");
}

#[test]
fn buffers_wake_the_waiting_queue_of_a_pair() {
    let mut rig = Rig::with_queues(offer(2), 64, 3);
    rig.start(FEATURES);
    for (queue, pair) in [(0, 0), (1, 1), (2, 0)] {
        assert_eq!(rig.tx_bytes(queue, &frame(1, 1)).waiting, 1);
        assert!(!rig.ports[queue].has_work());
        rig.front.post(2 * pair, &[256], false, &[]).unwrap();
        assert!(rig.ports[queue].has_work());
        assert_eq!(rig.tx_bytes(queue, &frame(1, 1)).sent, 1);
    }
}

#[test]
fn the_driver_sets_its_pairs_by_the_control_queue() {
    let mut rig = Rig::with_queues(offer(2), 64, 2);
    rig.start(FEATURES | CTRL_VQ);
    post_everywhere(&mut rig, 2);
    let lengths = |rig: &mut Rig| -> Vec<usize> {
        for queue in 0..2 {
            assert_eq!(rig.tx_bytes(queue, &frame(1, 1)).sent, 1);
        }
        received(rig, 2).iter().map(Vec::len).collect()
    };
    assert_eq!(
        lengths(&mut rig),
        [2, 0],
        "only one pair until the driver sets more"
    );
    let set = |rig: &mut Rig, command: &[u8]| {
        let place = rig.front.command(4, command);
        assert!(rig.ports[0].has_work(), "a command is work");
        rig.serve();
        assert!(!rig.ports[0].has_work());
        let mut answer = [0];
        place.read(&mut answer).unwrap();
        answer[0]
    };
    let pairs = |count: u8| [&SET_PAIRS[..], &[count, 0]].concat();
    assert_eq!(set(&mut rig, &pairs(2)), 0);
    assert_eq!(lengths(&mut rig), [1, 1]);
    for wrong in [&pairs(0)[..], &pairs(3), &[4, 1, 1, 0], &[0, 0, 1], &[4]] {
        assert_eq!(set(&mut rig, wrong), 1, "{wrong:?}");
    }
    assert_eq!(lengths(&mut rig), [1, 1], "a wrong command changes nothing");
    assert_eq!(set(&mut rig, &pairs(1)), 0);
    assert_eq!(lengths(&mut rig), [2, 0]);
    assert!(rig.front.was_called(4), "the driver is notified");
}

#[test]
fn a_broken_control_queue_stops_only_itself() {
    let mut rig = Rig::with_queues(offer(2), 64, 2);
    rig.start(FEATURES | CTRL_VQ);
    // The errors are a chain without space for an answer, a chain that loops, and an index that
    // jumps.
    for (flags, next) in [(0, 0), (NEXT, 0)] {
        let ring = &mut rig.front.rings[4].ring;
        let gpa = vhost_edge::testing::front::GPA;
        let descriptor = Descriptor {
            gpa,
            bytes: 4,
            flags,
            next,
        };
        ring.describe(0, descriptor);
        ring.offer(0);
        ring.publish();
        rig.serve();
        let ring = &mut rig.front.rings[4].ring;
        assert_eq!(ring.returned(), Some((0, 0)));
    }
    let ring = &mut rig.front.rings[4].ring;
    ring.avail = ring.avail.wrapping_add(1000);
    ring.publish();
    rig.serve();
    assert_eq!(rig.counter("vm_broken_rings"), 1);
    post_everywhere(&mut rig, 1);
    assert_eq!(rig.tx_bytes(0, &frame(1, 1)).sent, 1);
    assert!(!rig.front.is_closed());
}
