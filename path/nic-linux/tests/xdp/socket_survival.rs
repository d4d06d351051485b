//! XDP-10: a socket that outlives its domain, honest or hostile.

use super::*;

/// XDP-10: frames that arrive without a domain wait for the next one, and no chunk is lost
/// permanently, whichever chunks the dead domain held.
#[test]
fn frames_between_domains_reach_the_next_one() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    for life in 0..20 {
        // The domain held some when it died, and some were in transit to it.
        let held: Vec<_> = (0..life * 4).map(|n| frame(n, 100)).collect();
        held.iter().for_each(|frame| station.send(frame));
        let mut frames = Vec::new();
        wait_until("they come", || {
            let now_ns = shmem::time::monotonic_ns();
            wire.nic.rx(now_ns, 64, &mut wire.pool, &mut frames);
            let of_ours = |frame: &&mut Frame| frame.to_vec().unwrap()[12..14] == ETHERTYPE;
            frames.iter_mut().filter(of_ours).count() >= held.len()
        });
        let report = wire.send(&[frame(7777, 200)]);
        assert_eq!(report.sent, 1);
        let meanwhile: Vec<_> = (0..40).map(|n| frame(1000 * life + n, 300)).collect();
        meanwhile.iter().for_each(|frame| station.send(frame));
        wire.pass_on();
        let received = wire.receive(meanwhile.len(), PATIENCE);
        assert!(
            received == meanwhile,
            "life {life}: {} arrived",
            received.len()
        );
        assert_eq!(station.receive(1), [frame(7777, 200)]);
        // The kernel reports taken entries once it has taken all that it knows of.
        wait_until("the NIC still searches for chunks", || {
            (0..ENTRIES / 2).for_each(|n| station.send(&frame(n, 64)));
            wire.receive(ENTRIES as usize / 2, Duration::from_millis(15));
            wire.nic.next_due(0).is_none()
        });
    }
    // All chunks are accounted for: more are in transit at once than if any were lost.
    let burst: Vec<_> = (0..BURST).map(|n| frame(n, 64)).collect();
    for round in 0..20 {
        burst.iter().for_each(|frame| station.send(frame));
        let received = wire.receive(burst.len(), PATIENCE);
        assert!(
            received == burst,
            "round {round}: {} arrived",
            received.len()
        );
    }
    assert_eq!(wire.counted("rx_malformed"), 0);
    let report = wire.send(
        &(0..3 * SEND_CHUNKS as u32)
            .map(|n| frame(n, 99))
            .collect::<Vec<_>>(),
    );
    assert_eq!((report.sent as usize, report.full), (3 * SEND_CHUNKS, 0));
}

/// A dying domain may have written anything into its rings.
#[test]
fn forged_entries_cost_packets_not_the_socket() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    let end = (CHUNKS * CHUNK) as u64;
    // The same chunk repeatedly, one for sending, and an invalid one.
    let last = end - CHUNK as u64;
    for lie in [last, 0, end, u64::MAX].repeat(ENTRIES as usize / 4) {
        wire.forge(Ring::Fill, &[lie]);
    }
    // More entries than fit: the next domain detects that, and cannot use the socket.
    assert!(data_path(&wire.device, wire.rings, wire.area).is_none());
    let [producer, consumer] = wire.words(Ring::Fill);
    let most = consumer.load(Relaxed).wrapping_add(ENTRIES);
    producer.store(most, Relaxed);
    wire.pass_on();
    // Once the kernel has consumed the forged entries all is well.
    wait_until("no frames arrive again", || {
        (0..BURST).for_each(|n| station.send(&frame(n, 64)));
        let received = wire.receive(BURST as usize, Duration::from_millis(50));
        received
            .iter()
            .eq(&(0..BURST).map(|n| frame(n, 64)).collect::<Vec<_>>())
    });
}

/// The kernel keeps private counts and publishes them only occasionally, so a forged count may
/// outlive the domain that wrote it.
#[test]
fn socket_with_forged_counts_is_detected() {
    // The counts claim more packets than have arrived, or fewer chunks than the kernel has taken.
    for ring in [Ring::Receive, Ring::Fill] {
        let Some(mut wire) = Wire::new() else { return };
        let station = Station::new(&wire.namespace, "wire");
        let [producer, consumer] = wire.words(ring);
        let truth = producer.load(Relaxed);
        match ring {
            Ring::Receive => producer.store(truth.wrapping_add(ENTRIES), Relaxed),
            _ => {
                // Receive frames until the kernel has used all chunks that it knows, and rereads
                // the ring.
                wait_until("the kernel has not taken all chunks", || {
                    station.send(&frame(1, 64));
                    wire.counter(Counter::FillEmpty) > 0
                });
                let [received, _] = wire.words(Ring::Receive);
                let before = received.load(Relaxed);
                producer.store(consumer.load(Relaxed).wrapping_sub(9), Relaxed);
                station.send(&frame(1, 64));
                wait_until("the kernel has not read the ring", || {
                    received.load(Relaxed) != before
                });
                producer.store(truth, Relaxed);
            }
        }
        assert!(
            wire.nic.failure().is_none(),
            "the domain that forged the count may go on"
        );
        let Some(next) = data_path(&wire.device, wire.rings, wire.area) else {
            // Detected at once.
            continue;
        };
        (wire.nic, wire.pool) = next;
        // Frames that arrived before the kernel corrected the count.
        wire.receive(usize::MAX, Duration::from_millis(10));
        wait_until("nobody notices", || {
            (0..BURST).for_each(|n| station.send(&frame(n, 64)));
            wire.receive(BURST as usize, Duration::from_millis(10));
            wire.nic.failure().is_some()
        });
    }
}
