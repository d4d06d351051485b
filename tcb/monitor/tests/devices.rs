//! Control calls: a domain can control only its own devices, and only those with a control
//! interface.

use abi::DomId;
use abi::hypercall::TapControl;
use monitor::device::Devices;
use monitor::{DeviceControl, DomainDevice};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A control interface that records calls, and rejects those with an odd first word.
#[derive(Debug, Default)]
struct CallRecorder(Mutex<Vec<[u64; 2]>>);

impl DeviceControl for CallRecorder {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        self.0.lock().unwrap().push(words);
        if words[0] % 2 == 1 {
            return Err(Errno::PERM);
        }
        Ok(words[0] + words[1])
    }
}

/// Returns a device without pages, and an epoll set.
fn device(control: Arc<CallRecorder>) -> (DomainDevice, Arc<OwnedFd>) {
    let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let control: Option<Arc<dyn DeviceControl>> = Some(control);
    let device = DomainDevice {
        control,
        ..DomainDevice::from(event())
    };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    (device, Arc::new(epoll))
}

#[test]
fn a_domain_controls_its_own_devices_only() {
    let devices = Devices::default();
    let recorder = Arc::new(CallRecorder::default());
    let (tap, epoll) = device(Arc::clone(&recorder));
    devices.insert(DomId(1), 3, tap, &epoll);
    assert_eq!(devices.control(DomId(1), 3, [40, 2]), Ok(42));
    assert_eq!(devices.control(DomId(1), 3, [1, 0]), Err(Errno::PERM));
    for (domain, number) in [(1, 2), (1, 1 << 32 | 3), (1, u64::MAX), (2, 3), (0, 3)] {
        let tap = devices.control(DomId(domain), number, [0, 0]);
        assert_eq!(tap, Err(Errno::NOENT), "{domain} {number}");
    }
    assert_eq!(*recorder.0.lock().unwrap(), [[40, 2], [1, 0]]);
    devices.forget(DomId(1));
    assert_eq!(devices.control(DomId(1), 3, [0, 0]), Err(Errno::NOENT));
}

/// A device without a control interface rejects control calls.
#[test]
fn a_device_without_control_is_only_handed_out() {
    let devices = Devices::default();
    let (tap, epoll) = device(Arc::default());
    let mute = DomainDevice {
        control: None,
        ..tap
    };
    devices.insert(DomId(1), 0, mute, &epoll);
    assert_eq!(devices.control(DomId(1), 0, [0, 0]), Err(Errno::NOENT));
    let give = |number, given| devices.pass_descriptor(DomId(1), number, |_| given);
    assert_eq!(give(1, Ok(())), Err(Errno::NOENT));
    assert_eq!(give(0, Err(Errno::BADF)), Err(Errno::BADF));
    assert_eq!(give(0, Ok(())), Ok(()));
    assert_eq!(give(0, Ok(())), Err(Errno::EXIST), "once");
    let end = |number, has_descriptor| {
        devices
            .begin_end(DomId(1), number, || has_descriptor)
            .map(drop)
    };
    assert_eq!(end(1, false), Err(Errno::NOENT));
    assert_eq!(end(0, true), Err(Errno::BUSY));
    assert_eq!(end(0, false), Ok(()));
}

/// The epoll set reports no events of an ended device, even while another descriptor of its file is
/// open.
#[test]
fn an_ended_device_leaves_the_epoll_set() {
    let devices = Devices::default();
    let (tap, epoll) = device(Arc::default());
    let kept = tap.fd.try_clone().unwrap();
    rustix::io::write(&kept, &1u64.to_ne_bytes()).unwrap();
    devices.insert(DomId(1), 3, tap, &epoll);
    let has_event = || {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 2];
        let now = Some(&Timespec::default());
        let (ready, _) = epoll::wait(&epoll, &mut events, now).unwrap();
        ready.len() == 1
    };
    assert!(!has_event());
    devices.pass_descriptor(DomId(1), 3, |_| Ok(())).unwrap();
    assert!(has_event());
    devices.begin_end(DomId(1), 3, || false).unwrap();
    devices.remove(DomId(1), 3);
    assert!(!has_event());
}

/// XDP-18: no domain has the descriptor of an ended device, whether the device is handed out or
/// ended first.
#[test]
fn a_device_is_handed_out_or_ended_never_both() {
    let devices = Devices::default();
    for round in 0..2000 {
        let domain = DomId(round);
        let (tap, epoll) = device(Arc::default());
        devices.insert(domain, 3, tap, &epoll);
        let handed_out = AtomicBool::new(false);
        let hand_out = || {
            let give = |_: BorrowedFd<'_>| {
                handed_out.store(true, Ordering::Relaxed);
                Ok(())
            };
            devices.pass_descriptor(domain, 3, give).is_ok()
        };
        let end = || {
            let has_descriptor = || handed_out.load(Ordering::Relaxed);
            devices.begin_end(domain, 3, has_descriptor).map(drop)
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
        // Nothing of the device remains once its domain is torn down.
        devices.forget(domain);
        assert!(!devices.refers_to(domain));
    }
}

#[test]
fn tap_control_calls_survive_the_wire() {
    let mac = [2, 0, 0xff, 0, 0x80, 1];
    for tap in [
        TapControl::Steer { mac, queue: None },
        TapControl::Steer {
            mac,
            queue: Some(u32::MAX),
        },
        TapControl::Settled,
    ] {
        assert_eq!(TapControl::decode(tap.encode()), Some(tap));
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
