//! The call page: a well-behaved domain receives correct results, and a hostile domain cannot make
//! the monitor panic, hang or miscount.

mod rig;

use abi::hypercall::{ANSWER_WORD, BindOp, HypercallKind, OP_WORDS, OPS, OPS_MAX, STATUS_WORD};
use abi::layout::info;
use abi::{ConnId, DomId, GrantStatus, PAGE, RECORD_BYTES, Slot, XenbusState};
use monitor::device::slots;
use monitor::fake::FakeSpace;
use monitor::grant::WindowSlot;
use monitor::{DeviceControl, DeviceMap, DomainDevice, Pin};
use proptest::prelude::*;
use rig::{FRAMES, Rig, SLOTS};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[test]
fn ready_call_sets_the_ready_flag() {
    let mut rig = Rig::new(None);
    assert!(!rig.counters.ready.load(Ordering::Relaxed));
    assert_eq!(rig.call(HypercallKind::Ready as u32, 1), Err(Errno::INVAL));
    assert_eq!(rig.call(HypercallKind::Ready as u32, 0), Ok(()));
    assert!(rig.counters.ready.load(Ordering::Relaxed));
}

#[test]
fn an_invalid_call_is_rejected_as_a_whole() {
    let mut rig = Rig::new(None);
    rig.put(0, STATUS_WORD, 77);
    for (kind, count) in [
        (0, 0),
        (14, 1),
        (u32::MAX, 1),
        (HypercallKind::GrantCopy as u32, OPS_MAX as u32 + 1),
        (HypercallKind::GrantMap as u32, u32::MAX),
        (HypercallKind::ConnectGet as u32, 0),
        (HypercallKind::ConnectSet as u32, 2),
        (HypercallKind::ExchangeCreate as u32, 1),
        // Only the monitor for comparisons supports these calls.
        (HypercallKind::GrantCopy as u32, 1),
        (HypercallKind::GrantMap as u32, 0),
        (HypercallKind::GrantTransfer as u32, OPS_MAX as u32),
    ] {
        assert_eq!(rig.call(kind, count), Err(Errno::INVAL), "{kind} {count}");
        assert_eq!(rig.get(0, STATUS_WORD), 77);
    }
}

/// A device that counts the calls of `end`.
#[derive(Debug, Default)]
struct Ending(AtomicU32);

impl DeviceControl for Ending {
    fn control(&self, [word, other]: [u64; 2]) -> Result<u64, Errno> {
        Ok(word + other)
    }

    fn end(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Gives the first domain a device with this number.
fn give(rig: &Rig, number: u64, control: Arc<Ending>, pages: Vec<DeviceMap>) {
    let control: Arc<dyn DeviceControl> = control;
    let device = DomainDevice {
        control: Some(control),
        pages,
        ..DomainDevice::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap())
    };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let devices = &rig.shared.devices;
    devices.insert(DomId(0), number, device, &Arc::new(epoll));
}

/// One call controls several devices; each operation has its own status.
#[test]
fn one_call_controls_several_devices() {
    let mut rig = Rig::new(None);
    let device: Arc<Ending> = Arc::default();
    give(&rig, 2, device, Vec::new());
    let devices = [2, 9, 2];
    for (op, device) in devices.into_iter().enumerate() {
        rig.put_words(op, [device, op as u64 + 40, 1]);
    }
    assert_eq!(rig.call(HypercallKind::DeviceControl as u32, 3), Ok(()));
    let answers = [0, 1, 2].map(|op| (rig.get(op, STATUS_WORD) as i64, rig.get(op, ANSWER_WORD)));
    let noent = -i64::from(Errno::NOENT.raw_os_error());
    assert_eq!(answers, [(0, 41), (noent, 0), (0, 43)]);
}

/// A domain can end a device once, after closing its descriptor. Afterwards no page of the device
/// is mapped, and the device has nothing pinned.
#[test]
fn a_device_ends_when_its_descriptor_is_closed() {
    const NUMBER: u64 = 5;
    let mut rig = Rig::new(None);
    let device = Arc::new(Ending::default());
    let slot = Slot(2);
    let page = DeviceMap {
        slot,
        page: 0,
        pages: 1,
    };
    give(&rig, NUMBER, Arc::clone(&device), vec![page]);
    let pin = Pin {
        owner: DomId(1),
        first: 0,
        frames: FRAMES,
    };
    rig.shared.counted.pins.insert(DomId(0), NUMBER, pin);
    let at = abi::layout::fd::DEVICE + NUMBER as i32;
    rig.space.lock().unwrap().descriptors.insert(at);
    let shown = monitor::space::PageMap {
        slot,
        memory: 0,
        frame: 0,
        writable: true,
    };
    rig.space.lock().unwrap().mapped.insert(slot, shown);
    let end = |rig: &mut Rig, number: u64| {
        rig.put(0, 0, number);
        assert_eq!(rig.call(HypercallKind::DeviceEnd as u32, 1), Ok(()));
        rig.get(0, STATUS_WORD) as i64 as i32
    };
    for unknown in [0, 4, 6, u64::MAX, 1 << 32 | NUMBER] {
        assert_eq!(end(&mut rig, unknown), -Errno::NOENT.raw_os_error());
    }
    assert_eq!(end(&mut rig, NUMBER), -Errno::BUSY.raw_os_error());
    assert!(rig.shared.counted.pins.refers_to(DomId(1)));
    assert_eq!(device.0.load(Ordering::Relaxed), 0);
    rig.space.lock().unwrap().descriptors.clear();
    // The device cannot end while its descriptor is being handed out.
    let shared = Arc::clone(&rig.shared);
    let while_handed_out = |_: BorrowedFd<'_>| {
        assert_eq!(end(&mut rig, NUMBER), -Errno::BUSY.raw_os_error());
        Ok(())
    };
    let given = shared
        .devices
        .pass_descriptor(DomId(0), NUMBER, while_handed_out);
    assert_eq!(given, Ok(()));
    assert_eq!(device.0.load(Ordering::Relaxed), 0);
    assert_eq!(end(&mut rig, NUMBER), 0);
    let again = shared.devices.pass_descriptor(DomId(0), NUMBER, |_| Ok(()));
    assert_eq!(again, Err(Errno::NOENT));
    assert_eq!(device.0.load(Ordering::Relaxed), 1);
    assert!(rig.space.lock().unwrap().mapped.is_empty());
    assert!(!rig.shared.counted.pins.refers_to(DomId(1)));
    assert!(rig.server.take_notice() && !rig.server.take_notice());
    assert_eq!(end(&mut rig, NUMBER), -Errno::NOENT.raw_os_error());
    assert_eq!(
        rig.call(HypercallKind::DeviceEnd as u32, 2),
        Err(Errno::INVAL)
    );
}

#[test]
fn connect_calls_exchange_records() {
    let mut rig = Rig::new(None);
    rig.put(0, 0, 0);
    rig.put(0, 1, XenbusState::InitWait as u64);
    rig.put(1, 0, 0x1122);
    assert_eq!(rig.call(HypercallKind::ConnectSet as u32, 1), Ok(()));
    assert_eq!(rig.get(0, STATUS_WORD), 0);
    let view = rig
        .shared
        .connections
        .get(DomId(1), abi::ConnId(0))
        .unwrap();
    assert_eq!(
        (view.state, &view.body[..2]),
        (XenbusState::InitWait, &[0x22, 0x11][..])
    );
    for (state, errno) in [
        (1, Errno::INVAL),
        (7, Errno::INVAL),
        (u64::MAX, Errno::INVAL),
    ] {
        rig.put(0, 1, state);
        assert_eq!(rig.call(HypercallKind::ConnectSet as u32, 1), Ok(()));
        let status = rig.get(0, STATUS_WORD) as i64;
        assert_eq!(status, -i64::from(errno.raw_os_error()));
    }
    let body = [9; RECORD_BYTES];
    rig.shared
        .connections
        .set(DomId(1), abi::ConnId(0), XenbusState::Initialised, &body, 0)
        .unwrap();
    rig.put(0, 0, 0);
    assert_eq!(rig.call(HypercallKind::ConnectGet as u32, 1), Ok(()));
    let answer = [1, 2, 3, 4, STATUS_WORD].map(|word| rig.get(0, word));
    assert_eq!(answer, [1, 0, 2, 3, 0]);
    assert_eq!(rig.get(1, 0), u64::from_ne_bytes([9; 8]));
    for conn in [1, u64::MAX, 1 << 32] {
        rig.put(0, 0, conn);
        assert_eq!(rig.call(HypercallKind::ConnectGet as u32, 1), Ok(()));
        let status = rig.get(0, STATUS_WORD) as i64;
        assert_eq!(status, -i64::from(Errno::NOENT.raw_os_error()));
    }
}

/// XDP-4: no table or other device can use a slot of a device until the device has ended, and no
/// device can use slots outside of its domain's window.
#[test]
fn a_device_slot_holds_no_table() {
    const NUMBER: u64 = 5;
    let mut rig = Rig::new(None);
    let space = Arc::new(Mutex::new(FakeSpace::default()));
    rig.shared.grants.lock().set_space(DomId(0), Some(space));
    let part = |slot, pages| DeviceMap {
        slot: Slot(slot),
        page: 0,
        pages,
    };
    let reserve = |rig: &Rig, number, pages: &[DeviceMap]| {
        let (contents, slots) = (WindowSlot::Device(number), slots(pages));
        let mut grants = rig.shared.grants.lock();
        slots.is_some_and(|slots| grants.reserve(DomId(0), contents, &slots))
    };
    for wrong in [
        &[part(SLOTS, 1)][..],
        &[part(0, SLOTS + 1)],
        &[part(u32::MAX, 2)],
        &[part(0, 2), part(1, 1)],
    ] {
        assert!(!reserve(&rig, NUMBER, wrong), "{wrong:?}");
    }
    let pages = [part(1, 2), part(6, 1)];
    assert!(reserve(&rig, NUMBER, &pages));
    assert!(!reserve(&rig, NUMBER + 1, &[part(0, 2)]));
    let own = (DomId(1), ConnId(0));
    let counted = &rig.shared.counted;
    let table = counted.create_table(own, DomId(0), 1);
    let bind = |rig: &mut Rig, first, tables| {
        let bind = BindOp {
            granter: DomId(1),
            table: table.unwrap(),
            first: Slot(first),
            tables: Slot(tables),
            entries: 1,
        };
        rig.put_words(0, bind.encode());
        assert_eq!(rig.call(HypercallKind::TableBind as u32, 1), Ok(()));
        rig.status(0)
    };
    for (first, tables) in [(1, 3), (0, 2), (0, 5), (0, 6), (6, 3), (0, SLOTS - 1)] {
        let status = bind(&mut rig, first, tables);
        assert_eq!(status, GrantStatus::BadSlot, "{first} {tables}");
    }
    let shown = slots(&pages).unwrap();
    rig.shared.grants.lock().unreserve(DomId(0), &shown);
    assert_eq!(bind(&mut rig, 6, 1), GrantStatus::Okay);
    assert!(
        !reserve(&rig, NUMBER, &pages),
        "a slot of a table was reserved for a device"
    );
}

/// Words that a hostile domain might choose.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..20u64,
        (0..20u64).prop_map(|low| 1 << 32 | low)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_words_in_the_page_cause_a_panic_or_leak(
        calls in prop::collection::vec((
            prop_oneof![0..18u32, any::<u32>()],
            prop_oneof![0..9u32, 0..OPS_MAX as u32 + 2, any::<u32>()],
            prop::collection::vec(word(), 0..60),
        ), 1..20),
    ) {
        Rig::new(None).survives(calls);
    }
}

/// The operations fit into the page, and so does a record after the first one.
const _: () = {
    assert!(OPS + OPS_MAX * OP_WORDS * 8 <= info::CALL_PAGES * PAGE);
    assert!(OPS + OP_WORDS * 8 + RECORD_BYTES <= PAGE);
};
