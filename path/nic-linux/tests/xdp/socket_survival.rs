//! Tests XDP-10: a socket outlives its domain, which may be hostile.

use super::*;

/// XDP-10: frames that arrive while no domain exists wait for the next domain. No chunk is lost
/// permanently, regardless of which chunks the dead domain held.
#[test]
fn frames_between_domains_reach_the_next_one() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    for life in 0..20 {
        // When the domain dies, it holds some frames, and others are in transit to it.
        let held: Vec<_> = (0..life * 4).map(|n| frame(n, 100)).collect();
        held.iter().for_each(|frame| station.send(frame));
        let mut frames = Vec::new();
        wait_until("the frames have not arrived", || {
            let now_ns = shmem::time::monotonic_ns();
            wire.nic.rx(now_ns, 64, &mut wire.pool, &mut frames);
            let of_ours = |frame: &&mut Frame| frame.to_vec().unwrap()[12..14] == ETHERTYPE;
            frames.iter_mut().filter(of_ours).count() >= held.len()
        });
        let report = wire.send(&[frame(7777, 200)]);
        assert_eq!(report.sent, 1);
        let meanwhile: Vec<_> = (0..40).map(|n| frame(1000 * life + n, 300)).collect();
        meanwhile.iter().for_each(|frame| station.send(frame));
        wire.replace_domain();
        let received = wire.receive(meanwhile.len(), TIMEOUT);
        assert!(
            received == meanwhile,
            "life {life}: {} arrived",
            received.len()
        );
        assert_eq!(station.receive(1), [frame(7777, 200)]);
        // The kernel reports the entries that it has taken only when it has taken all entries that
        // its last read of the ring found.
        wait_until("the NIC still searches for chunks", || {
            (0..ENTRIES / 2).for_each(|n| station.send(&frame(n, 64)));
            wire.receive(ENTRIES as usize / 2, Duration::from_millis(15));
            wire.nic.next_due(0).is_none()
        });
    }
    // No chunk is lost: the burst needs nearly all chunks at the same time.
    let burst: Vec<_> = (0..BURST).map(|n| frame(n, 64)).collect();
    for round in 0..20 {
        burst.iter().for_each(|frame| station.send(frame));
        let received = wire.receive(burst.len(), TIMEOUT);
        assert!(
            received == burst,
            "round {round}: {} arrived",
            received.len()
        );
    }
    assert_eq!(wire.nic_counter("rx_malformed"), 0);
    let report = wire.send(
        &(0..3 * SEND_CHUNKS as u32)
            .map(|n| frame(n, 99))
            .collect::<Vec<_>>(),
    );
    assert_eq!((report.sent as usize, report.full), (3 * SEND_CHUNKS, 0));
}

/// A dying domain may have written arbitrary values into its rings.
#[test]
fn forged_entries_lose_only_packets() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    let end = (CHUNKS * CHUNK) as u64;
    // The entries are a repeated chunk, a chunk for sending, and invalid addresses.
    let last = end - CHUNK as u64;
    for forged in [last, 0, end, u64::MAX].repeat(ENTRIES as usize / 4) {
        wire.forge(Ring::Fill, &[forged]);
    }
    // The count exceeds the ring's size. The next domain detects this, and cannot use the socket.
    assert!(data_path(&wire.device, wire.rings, wire.area).is_none());
    let [producer, consumer] = wire.words(Ring::Fill);
    let most = consumer.load(Relaxed).wrapping_add(ENTRIES);
    producer.store(most, Relaxed);
    wire.replace_domain();
    // After the kernel has taken the forged entries, the socket works again.
    wait_until("the burst has not arrived completely", || {
        (0..BURST).for_each(|n| station.send(&frame(n, 64)));
        let received = wire.receive(BURST as usize, Duration::from_millis(50));
        received
            .iter()
            .eq(&(0..BURST).map(|n| frame(n, 64)).collect::<Vec<_>>())
    });
}

/// The kernel keeps private counts and publishes them only occasionally. So a forged count may
/// outlive the domain that wrote it.
#[test]
fn socket_with_forged_counts_is_detected() {
    // The forged counts claim more packets than have arrived, or fewer chunks than the kernel has
    // taken.
    for ring in [Ring::Receive, Ring::Fill] {
        let Some(mut wire) = Wire::new() else { return };
        let station = Station::new(&wire.namespace, "wire");
        let [producer, consumer] = wire.words(ring);
        let truth = producer.load(Relaxed);
        match ring {
            Ring::Receive => producer.store(truth.wrapping_add(ENTRIES), Relaxed),
            _ => {
                // The test sends frames until the kernel has used all chunks that it knows, so that
                // it reads the ring again.
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
            "the domain that forged the count continues to work"
        );
        let Some(next) = data_path(&wire.device, wire.rings, wire.area) else {
            // The next domain detects the forged count immediately.
            continue;
        };
        (wire.nic, wire.pool) = next;
        // These frames arrived before the kernel corrected the count.
        wire.receive(usize::MAX, Duration::from_millis(10));
        wait_until("the domain has not detected the forged count", || {
            (0..BURST).for_each(|n| station.send(&frame(n, 64)));
            wire.receive(BURST as usize, Duration::from_millis(10));
            wire.nic.failure().is_some()
        });
    }
}
