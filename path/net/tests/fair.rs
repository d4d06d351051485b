//! Turns.

use net::fair::{DeficitRoundRobin, QUANTUM_MIN, Turn};
use nic::rate::TokenBucket;
use proptest::prelude::*;

const US_NS: u64 = 1000;

fn serve(vif: usize, bytes: u32) -> Turn {
    Turn::Serve { vif, bytes }
}

#[test]
fn without_vifs_there_is_no_turn() {
    let mut fair = DeficitRoundRobin::new();
    assert_eq!(fair.next(0), Turn::Idle);
    fair.set(0, 2000, None);
    assert_eq!(fair.next(0), Turn::Idle);
    fair.activate(7);
    assert_eq!(fair.next(0), Turn::Idle);
    fair.served(7, 1, true);
}

#[test]
fn they_take_turns_with_their_quanta() {
    let mut fair = DeficitRoundRobin::new();
    fair.set(0, 2000, None);
    fair.set(2, 4000, None);
    for vif in [2, 0, 2, 0] {
        fair.activate(vif);
    }
    assert_eq!(fair.next(0), serve(2, 4000));
    fair.served(2, 4000, true);
    assert_eq!(fair.next(0), serve(0, 2000));
    fair.served(0, 1500, true);
    assert_eq!(fair.next(0), serve(2, 4000));
    fair.served(2, 4000, false);
    // The unused rest is saved, up to one quantum.
    assert_eq!(fair.next(0), serve(0, 2500));
    fair.served(0, 100, true);
    assert_eq!(fair.next(0), serve(0, 4000));
    fair.served(0, 0, false);
    assert_eq!(fair.next(0), Turn::Idle);
    // A vif that has left the queue loses its unused bytes.
    fair.activate(0);
    assert_eq!(fair.next(0), serve(0, 2000));
}

#[test]
fn an_overdraft_is_repaid() {
    let mut fair = DeficitRoundRobin::new();
    fair.set(0, 2000, None);
    fair.set(1, 2000, None);
    fair.activate(0);
    fair.activate(1);
    assert_eq!(fair.next(0), serve(0, 2000));
    fair.served(0, 66_000, false);
    fair.activate(0);
    // With a debt of 64000 bytes the vif is skipped for 32 rounds.
    for _ in 0..33 {
        assert_eq!(fair.next(0), serve(1, 2000));
        fair.served(1, 2000, true);
    }
    assert_eq!(fair.next(0), serve(0, 2000));
}

#[test]
fn a_single_vif_pays_its_debt_immediately() {
    let mut fair = DeficitRoundRobin::new();
    fair.set(0, 1, None);
    fair.activate(0);
    assert_eq!(fair.next(0), serve(0, QUANTUM_MIN));
    fair.served(0, u32::MAX, true);
    assert!(matches!(
        fair.next(0),
        Turn::Serve {
            vif: 0,
            bytes: 1..=QUANTUM_MIN
        }
    ));
}

#[test]
fn a_rate_limit_delays_only_its_vif() {
    let mut fair = DeficitRoundRobin::new();
    // 1 byte per µs.
    fair.set(0, 2000, Some(TokenBucket::new(1_000_000, 3000)));
    fair.set(1, 2000, Some(TokenBucket::new(1_000_000, 500)));
    fair.activate(0);
    assert_eq!(fair.next(0), serve(0, 2000));
    fair.served(0, 2000, true);
    assert_eq!(fair.next(0), serve(0, 1000));
    fair.served(0, 1200, true);
    assert_eq!(fair.next(0), Turn::Wait(Some(201 * US_NS)));
    fair.activate(1);
    assert_eq!(fair.next(0), serve(1, 500));
    fair.served(1, 600, true);
    // The result is the earlier of the two times.
    assert_eq!(fair.next(0), Turn::Wait(Some(101 * US_NS)));
    assert_eq!(fair.next(300 * US_NS), serve(0, 100));
    fair.served(0, 100, true);
    assert_eq!(fair.next(300 * US_NS), serve(1, 200));
}

#[test]
fn without_any_rate_the_wait_is_for_ever() {
    let mut fair = DeficitRoundRobin::new();
    fair.set(0, 2000, Some(TokenBucket::new(0, 100)));
    fair.activate(0);
    assert_eq!(fair.next(0), serve(0, 100));
    fair.served(0, 100, true);
    assert_eq!(fair.next(0), Turn::Wait(None));
    // A new rate ends the wait.
    fair.set(0, 3000, None);
    assert!(matches!(fair.next(0), Turn::Serve { vif: 0, .. }));
}

#[test]
fn removed_vif_gets_no_turn() {
    let mut fair = DeficitRoundRobin::new();
    fair.set(0, 2000, None);
    fair.set(1, 2000, None);
    fair.activate(0);
    fair.activate(1);
    fair.remove(0);
    fair.remove(9);
    for _ in 0..3 {
        assert_eq!(fair.next(0), serve(1, 2000));
        fair.served(1, 2000, true);
    }
    fair.served(0, 10, true);
    fair.set(0, 2000, None);
    assert_eq!(fair.next(0), serve(1, 2000));
    fair.served(1, 2000, false);
    assert_eq!(fair.next(0), Turn::Idle);
}

proptest! {
    /// Over many turns each vif gets its share, for packets of any size, and deviates from it by at
    /// most a packet and a quantum.
    #[test]
    fn shares_are_the_quanta(
        vifs in prop::collection::vec((1514u32..6000, 60u32..66_000), 2..6),
    ) {
        let mut fair = DeficitRoundRobin::new();
        for (vif, (quantum, _)) in vifs.iter().enumerate() {
            fair.set(vif, *quantum, None);
            fair.activate(vif);
        }
        let mut taken = vec![0u64; vifs.len()];
        for _ in 0..2000 {
            let Turn::Serve { vif, bytes } = fair.next(0) else { panic!() };
            let packet = vifs[vif].1;
            let packets = bytes.div_ceil(packet);
            taken[vif] += u64::from(packet * packets);
            fair.served(vif, packet * packets, true);
        }
        let rounds = |vif: usize| taken[vif] as f64 / f64::from(vifs[vif].0);
        let slack = |vif: usize| f64::from(vifs[vif].1) / f64::from(vifs[vif].0) + 2.0;
        for a in 0..vifs.len() {
            for b in 0..vifs.len() {
                prop_assert!((rounds(a) - rounds(b)).abs() <= slack(a) + slack(b));
            }
        }
    }
}
