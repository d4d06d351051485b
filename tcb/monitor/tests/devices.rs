//! What a domain may tell its devices: its own, and only those that can be told anything.

use abi::DomId;
use abi::hypercall::TapControl;
use monitor::DeviceControl;
use monitor::device::Controls;
use rustix::io::Errno;
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
