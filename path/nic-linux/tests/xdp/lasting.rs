//! XDP-10: a socket that outlives its domain, honest or not.

use super::*;

/// XDP-10: what comes while there is no domain is there for the next one, and no chunk is lost for
/// good, whichever the dead domain had.
#[test]
fn what_comes_while_nobody_has_the_socket_is_there_for_the_next_domain() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    for life in 0..20 {
        // It had some itself when it died, and some were on their way to it.
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
        let came = wire.receive(meanwhile.len(), PATIENCE);
        assert!(came == meanwhile, "life {life}: {} came", came.len());
        assert_eq!(station.receive(1), [frame(7777, 200)]);
        // The kernel says what it has taken when it has taken all that it knows of.
        wait_until("it still looks for chunks", || {
            (0..ENTRIES / 2).for_each(|n| station.send(&frame(n, 64)));
            wire.receive(ENTRIES as usize / 2, Duration::from_millis(15));
            wire.nic.next_due(0).is_none()
        });
    }
    // All chunks are in their places: more are under way at once than if any had been lost.
    let burst: Vec<_> = (0..BURST).map(|n| frame(n, 64)).collect();
    for round in 0..20 {
        burst.iter().for_each(|frame| station.send(frame));
        let came = wire.receive(burst.len(), PATIENCE);
        assert!(came == burst, "round {round}: {} came", came.len());
    }
    assert_eq!(wire.counted("rx_malformed"), 0);
    let report = wire.send(
        &(0..3 * SEND_CHUNKS as u32)
            .map(|n| frame(n, 99))
            .collect::<Vec<_>>(),
    );
    assert_eq!((report.sent as usize, report.full), (3 * SEND_CHUNKS, 0));
}

/// A domain that dies may have written anything into its rings before.
#[test]
fn what_a_liar_has_left_costs_the_next_domain_packets_and_not_the_socket() {
    let Some(mut wire) = Wire::new() else { return };
    let station = Station::new(&wire.namespace, "wire");
    let end = (CHUNKS * CHUNK) as u64;
    // The same chunk again and again, one to send from, and none at all.
    let last = end - CHUNK as u64;
    for lie in [last, 0, end, u64::MAX].repeat(ENTRIES as usize / 4) {
        wire.forge(Ring::Fill, &[lie]);
    }
    // More in it than fits: who comes next sees that, and has no use for the socket.
    assert!(data_path(&wire.device, wire.rings, wire.area).is_none());
    let [producer, consumer] = wire.words(Ring::Fill);
    let most = consumer.load(Relaxed).wrapping_add(ENTRIES);
    producer.store(most, Relaxed);
    wire.pass_on();
    // Once the kernel has used up the lies all is well.
    wait_until("frames come again", || {
        (0..BURST).for_each(|n| station.send(&frame(n, 64)));
        let came = wire.receive(BURST as usize, Duration::from_millis(50));
        came.iter()
            .eq(&(0..BURST).map(|n| frame(n, 64)).collect::<Vec<_>>())
    });
}

/// The kernel counts by itself, and writes down what it has counted now and then: so a lie may
/// outlive who has told it.
#[test]
fn a_socket_that_a_liar_has_made_useless_is_known_as_such() {
    // More packets than have come; and fewer chunks than the kernel has taken.
    for ring in [Ring::Receive, Ring::Fill] {
        let Some(mut wire) = Wire::new() else { return };
        let station = Station::new(&wire.namespace, "wire");
        let [producer, consumer] = wire.words(ring);
        let truth = producer.load(Relaxed);
        match ring {
            Ring::Receive => producer.store(truth.wrapping_add(ENTRIES), Relaxed),
            _ => {
                // Until the kernel has none left that it knows of, and looks for more.
                wait_until("all are taken", || {
                    station.send(&frame(1, 64));
                    wire.counter(Counter::FillEmpty) > 0
                });
                let [came, _] = wire.words(Ring::Receive);
                let before = came.load(Relaxed);
                producer.store(consumer.load(Relaxed).wrapping_sub(9), Relaxed);
                station.send(&frame(1, 64));
                wait_until("the kernel looks", || came.load(Relaxed) != before);
                producer.store(truth, Relaxed);
            }
        }
        assert!(wire.nic.failure().is_none(), "it is the liar's own");
        let Some(next) = data_path(&wire.device, wire.rings, wire.area) else {
            // It is seen at once.
            continue;
        };
        (wire.nic, wire.pool) = next;
        // What is there before the kernel has put it right.
        wire.receive(usize::MAX, Duration::from_millis(10));
        wait_until("nobody notices", || {
            (0..BURST).for_each(|n| station.send(&frame(n, 64)));
            wire.receive(BURST as usize, Duration::from_millis(10));
            wire.nic.failure().is_some()
        });
    }
}
