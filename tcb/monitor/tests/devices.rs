//! What a domain may tell its devices: its own, and only those that can be told anything.

use abi::DomId;
use abi::hypercall::TapControl;
use monitor::DeviceControl;
use monitor::device::Controls;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Remembers what it was told, and refuses an odd first word.
#[derive(Debug, Default)]
struct Diary(Mutex<Vec<[u64; 2]>>);

impl DeviceControl for Diary {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        self.0.lock().unwrap().push(words);
        if words[0] % 2 == 1 {
            return Err(Errno::PERM);
        }
        Ok(words[0] + words[1])
    }
}

#[test]
fn a_domain_speaks_to_its_own_devices_only() {
    let controls = Controls::default();
    let diary = Arc::new(Diary::default());
    controls.insert(DomId(1), 3, Arc::<Diary>::clone(&diary), &[]);
    assert_eq!(controls.tell(DomId(1), 3, [40, 2]), Ok(42));
    assert_eq!(controls.tell(DomId(1), 3, [1, 0]), Err(Errno::PERM));
    for (domain, device) in [(1, 2), (1, 1 << 32 | 3), (1, u64::MAX), (2, 3), (0, 3)] {
        let told = controls.tell(DomId(domain), device, [0, 0]);
        assert_eq!(told, Err(Errno::NOENT), "{domain} {device}");
    }
    assert_eq!(*diary.0.lock().unwrap(), [[40, 2], [1, 0]]);
    controls.forget(DomId(1));
    assert_eq!(controls.tell(DomId(1), 3, [0, 0]), Err(Errno::NOENT));
}

/// XDP-18: of a device that ends nobody has the descriptor, whichever of the two threads comes
/// first.
#[test]
fn a_device_is_handed_out_or_ended_and_not_both() {
    let controls = Controls::default();
    for round in 0..2000 {
        let domain = DomId(round);
        let control = Arc::new(Diary::default());
        controls.insert(domain, 3, control, &[]);
        let there = AtomicBool::new(false);
        let hand_out = || {
            let hand = controls.hand_out(domain, 3);
            if hand.is_ok() {
                there.store(true, Ordering::Relaxed);
            }
            hand.is_ok()
        };
        let end = || {
            let is_there = || there.load(Ordering::Relaxed);
            controls.begin_end(domain, 3, is_there).map(drop)
        };
        let (given, ended) = std::thread::scope(|scope| {
            let given = scope.spawn(hand_out);
            let ended = end();
            (given.join().unwrap(), ended)
        });
        match ended {
            Ok(()) => assert!(!given, "round {round}"),
            Err(errno) => assert_eq!((errno, given), (Errno::BUSY, true), "round {round}"),
        }
        // Nothing is left of either when the domain is no more.
        controls.forget(domain);
        assert!(controls.hand_out(domain, 3).is_ok());
    }
}

#[test]
fn what_a_tap_is_told_survives_the_wire_and_nonsense_means_nothing() {
    let mac = [2, 0, 0xff, 0, 0x80, 1];
    for told in [
        TapControl::Steer { mac, queue: None },
        TapControl::Steer {
            mac,
            queue: Some(u32::MAX),
        },
        TapControl::Settled,
    ] {
        assert_eq!(TapControl::decode(told.encode()), Some(told));
    }
    let [steer, _] = TapControl::Steer { mac, queue: None }.encode();
    for nonsense in [
        [0, 0],
        [steer, 1 << 32],
        [steer | 1 << 48, 0],
        [3 << 56, 0],
        [u64::MAX; 2],
    ] {
        assert_eq!(TapControl::decode(nonsense), None, "{nonsense:x?}");
    }
}
