//! The call page: what a well-behaved domain gets, and that nothing a hostile one writes can
//! make the monitor panic, hang or lose count.

use abi::hypercall::{
    ANSWER_WORD, COUNT, Copy, DONE, KIND, Kind, Map, OP_WORDS, OPS, OPS_MAX, Place, RESULT,
    STATUS_WORD,
};
use abi::layout::info;
use abi::{DomId, GrantEntry, GrantRef, GrantStatus, PAGE, RECORD_BYTES, Slot, XenbusState};
use monitor::event::Port;
use monitor::fake::FakeSpace;
use monitor::hypercall::{CallCounters, CallPage, Server, Shared};
use monitor::memory::Memory;
use monitor::{DeviceControl, DeviceMap, Pin};
use proptest::prelude::*;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const FRAMES: u32 = 4;
const ENTRIES: u32 = 16;
const SLOTS: u32 = 8;

/// Two connected domains; the first one is served.
struct Rig {
    shared: Arc<Shared>,
    memories: [Arc<Memory>; 2],
    server: Server<FakeSpace>,
    ready: Arc<AtomicBool>,
    number: u32,
}

impl Rig {
    fn new() -> Self {
        let shared = Arc::new(Shared::default());
        let memories = [DomId(0), DomId(1)].map(|id| {
            let memory = Arc::new(Memory::create(id, FRAMES, ENTRIES).unwrap());
            shared.grants.lock().insert(id, Arc::clone(&memory), SLOTS);
            memory
        });
        let [a, b] = [0, 1].map(|n: u16| {
            let memory = Arc::clone(&memories[usize::from(n)]);
            (DomId(n), Arc::new(Port::create(memory).unwrap()))
        });
        shared.connections.add(a, b, 0).unwrap();
        let ready = Arc::new(AtomicBool::new(false));
        let server = Server::new(
            DomId(0),
            CallPage::of(&memories[0]).unwrap(),
            Arc::clone(&shared),
            FakeSpace::default(),
            Arc::new(CallCounters::default()),
            Arc::clone(&ready),
        );
        Self {
            shared,
            memories,
            server,
            ready,
            number: 0,
        }
    }

    fn put_u32(&self, offset: usize, value: u32) {
        let span = self.memories[0].info().span();
        span.u32(info::CALL + offset)
            .unwrap()
            .store(value, Ordering::Relaxed);
    }

    fn get_u32(&self, offset: usize) -> u32 {
        let span = self.memories[0].info().span();
        span.u32(info::CALL + offset)
            .unwrap()
            .load(Ordering::Relaxed)
    }

    fn put(&self, op: usize, word: usize, value: u64) {
        let span = self.memories[0].info().span();
        let at = info::CALL + OPS + (op * OP_WORDS + word) * 8;
        span.u64(at).unwrap().store(value, Ordering::Relaxed);
    }

    fn get(&self, op: usize, word: usize) -> u64 {
        let span = self.memories[0].info().span();
        let at = info::CALL + OPS + (op * OP_WORDS + word) * 8;
        span.u64(at).unwrap().load(Ordering::Relaxed)
    }

    fn put_words(&self, op: usize, words: [u64; 3]) {
        for (word, value) in words.into_iter().enumerate() {
            self.put(op, word, value);
        }
    }

    fn call(&mut self, kind: u32, count: u32) -> Result<(), Errno> {
        self.put_u32(KIND, kind);
        self.put_u32(COUNT, count);
        self.number += 1;
        self.server.serve(self.number).unwrap();
        assert_eq!(self.get_u32(DONE), self.number);
        match self.get_u32(RESULT) as i32 {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(-errno)),
        }
    }

    fn status(&self, op: usize) -> GrantStatus {
        GrantStatus::from_wire(self.get(op, STATUS_WORD) as i64 as i16)
    }

    fn grant(&self, index: u32, frame: u32, readonly: bool) {
        let at = info::GRANT_TABLE + index as usize * 8;
        let entry = self.memories[1].info().span().u64(at).unwrap();
        entry.store(
            GrantEntry::access(DomId(0), frame, readonly).0,
            Ordering::Relaxed,
        );
    }
}

#[test]
fn ready() {
    let mut rig = Rig::new();
    assert!(!rig.ready.load(Ordering::Relaxed));
    assert_eq!(rig.call(Kind::Ready as u32, 1), Err(Errno::INVAL));
    assert_eq!(rig.call(Kind::Ready as u32, 0), Ok(()));
    assert!(rig.ready.load(Ordering::Relaxed));
}

#[test]
fn nonsense_is_refused_as_a_whole() {
    let mut rig = Rig::new();
    rig.put(0, STATUS_WORD, 77);
    for (kind, count) in [
        (0, 0),
        (14, 1),
        (u32::MAX, 1),
        (Kind::GrantCopy as u32, OPS_MAX as u32 + 1),
        (Kind::GrantMap as u32, u32::MAX),
        (Kind::ConnectGet as u32, 0),
        (Kind::ConnectSet as u32, 2),
        (Kind::ExchangeCreate as u32, 2),
    ] {
        assert_eq!(rig.call(kind, count), Err(Errno::INVAL), "{kind} {count}");
        assert_eq!(rig.get(0, STATUS_WORD), 77);
    }
}

/// A device that counts its ends.
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

/// What one call asks of devices is answered operation by operation.
#[test]
fn devices_are_told_several_things_by_one_call() {
    let mut rig = Rig::new();
    let device: Arc<Ending> = Arc::default();
    rig.shared.controls.insert(DomId(0), 2, device, &[]);
    let devices = [2, 9, 2];
    for (op, device) in devices.into_iter().enumerate() {
        rig.put_words(op, [device, op as u64 + 40, 1]);
    }
    assert_eq!(rig.call(Kind::DeviceControl as u32, 3), Ok(()));
    let told = [0, 1, 2].map(|op| (rig.get(op, STATUS_WORD) as i64, rig.get(op, ANSWER_WORD)));
    let noent = -i64::from(Errno::NOENT.raw_os_error());
    assert_eq!(told, [(0, 41), (noent, 0), (0, 43)]);
}

/// A device ends when its domain has closed it, once: then nothing of it is seen and nothing it has
/// pinned counts.
#[test]
fn a_device_ends_when_its_descriptor_is_closed() {
    const NUMBER: u64 = 5;
    let mut rig = Rig::new();
    let device = Arc::new(Ending::default());
    let slot = Slot(2);
    let pages = [DeviceMap {
        slot,
        page: 0,
        pages: 1,
    }];
    let control: Arc<Ending> = Arc::clone(&device);
    rig.shared
        .controls
        .insert(DomId(0), NUMBER, control, &pages);
    let pin = Pin {
        of: DomId(1),
        first: 0,
        frames: FRAMES,
    };
    rig.shared.counted.pins.insert(DomId(0), NUMBER, pin);
    let at = abi::layout::fd::DEVICE + NUMBER as i32;
    let space = rig.server.mapper_mut().space_mut();
    space.descriptors.insert(at);
    let shown = monitor::space::PageMap {
        slot,
        memory: 0,
        frame: 0,
        writable: true,
    };
    space.mapped.insert(slot, shown);
    let end = |rig: &mut Rig, number: u64| {
        rig.put(0, 0, number);
        assert_eq!(rig.call(Kind::DeviceEnd as u32, 1), Ok(()));
        rig.get(0, STATUS_WORD) as i64 as i32
    };
    for nobody in [0, 4, 6, u64::MAX, 1 << 32 | NUMBER] {
        assert_eq!(end(&mut rig, nobody), -Errno::NOENT.raw_os_error());
    }
    assert_eq!(end(&mut rig, NUMBER), -Errno::BUSY.raw_os_error());
    assert_eq!(rig.shared.counted.pins.count(DomId(1)), FRAMES as usize);
    assert_eq!(device.0.load(Ordering::Relaxed), 0);
    let space = rig.server.mapper_mut().space_mut();
    space.descriptors.clear();
    // Between the call that hands it out and the moment when it is there.
    let shared = Arc::clone(&rig.shared);
    let hand = shared.controls.hand_out(DomId(0), NUMBER).unwrap();
    assert_eq!(end(&mut rig, NUMBER), -Errno::BUSY.raw_os_error());
    assert_eq!(device.0.load(Ordering::Relaxed), 0);
    drop(hand);
    assert_eq!(end(&mut rig, NUMBER), 0);
    // The thread that would hand it out has not heard of it yet.
    let again = shared.controls.hand_out(DomId(0), NUMBER);
    assert_eq!(again.unwrap_err(), Errno::NOENT);
    assert_eq!(device.0.load(Ordering::Relaxed), 1);
    assert!(rig.server.mapper().space().mapped.is_empty());
    assert_eq!(rig.shared.counted.pins.count(DomId(1)), 0);
    assert_eq!(rig.server.take_ended(), [NUMBER]);
    assert_eq!(end(&mut rig, NUMBER), -Errno::NOENT.raw_os_error());
    assert_eq!(rig.call(Kind::DeviceEnd as u32, 2), Err(Errno::INVAL));
}

/// XDP-4: a slot that shows a device is no grant's and no other device's until that has ended,
/// however many grants there are; and no device has slots that its domain's window has not.
#[test]
fn what_shows_a_device_is_no_grant_s() {
    const NUMBER: u64 = 5;
    let mut rig = Rig::new();
    rig.grant(3, 1, true);
    let part = |slot, pages| DeviceMap {
        slot: Slot(slot),
        page: 0,
        pages,
    };
    let reserve = |rig: &Rig, number, pages: &[DeviceMap]| {
        let mut grants = rig.shared.grants.lock();
        grants.reserve_device(DomId(0), number, pages)
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
    let fill = |rig: &mut Rig| {
        for slot in 0..SLOTS {
            let map = Map {
                domain: DomId(1),
                gref: GrantRef(3),
                slot: Slot(slot),
                readonly: true,
            };
            rig.put_words(slot as usize, map.encode());
        }
        assert_eq!(rig.call(Kind::GrantMap as u32, SLOTS), Ok(()));
        let mapped = (0..SLOTS).filter(|&slot| match rig.status(slot as usize) {
            GrantStatus::Okay => true,
            GrantStatus::BadSlot => false,
            other => panic!("{other:?}"),
        });
        mapped.collect::<Vec<_>>()
    };
    assert_eq!(fill(&mut rig), [0, 3, 4, 5, 7]);
    let control: Arc<Ending> = Arc::default();
    let controls = &rig.shared.controls;
    controls.insert(DomId(0), NUMBER, control, &pages);
    rig.put(0, 0, NUMBER);
    let seen = [1, 2, 6].map(Slot);
    for slot in seen {
        let shown = monitor::space::PageMap {
            slot,
            memory: 0,
            frame: 0,
            writable: true,
        };
        let space = rig.server.mapper_mut().space_mut();
        space.mapped.insert(slot, shown);
    }
    assert_eq!(rig.call(Kind::DeviceEnd as u32, 1), Ok(()));
    assert_eq!(rig.get(0, STATUS_WORD), 0);
    assert_eq!(fill(&mut rig), [1, 2, 6]);
    assert!(!reserve(&rig, NUMBER + 1, &pages), "the window is full");
}

#[test]
fn a_full_batch_of_copies() {
    let mut rig = Rig::new();
    rig.grant(3, 1, true);
    let text = b"granted bytes";
    let page = rig.memories[1].frame(1).unwrap();
    page.skip(100).write(text).unwrap();
    let src = Place::Granted {
        domain: DomId(1),
        gref: GrantRef(3),
    };
    for op in 0..OPS_MAX {
        let copy = Copy {
            src,
            dst: Place::Own { frame: 2 },
            src_offset: 100,
            dst_offset: op as u16 * 16,
            len: text.len() as u16,
        };
        rig.put_words(op, copy.encode());
    }
    assert_eq!(rig.call(Kind::GrantCopy as u32, OPS_MAX as u32), Ok(()));
    for op in 0..OPS_MAX {
        assert_eq!(rig.status(op), GrantStatus::Okay);
        let mut got = [0; 13];
        let page = rig.memories[0].frame(2).unwrap();
        page.skip(op * 16).read(&mut got).unwrap();
        assert_eq!(&got, text);
    }
}

#[test]
fn map_and_unmap() {
    let mut rig = Rig::new();
    rig.grant(3, 1, true);
    let map = |slot, readonly| {
        let map = Map {
            domain: DomId(1),
            gref: GrantRef(3),
            slot: Slot(slot),
            readonly,
        };
        map.encode()
    };
    rig.put_words(0, map(0, false));
    rig.put_words(1, map(1, true));
    rig.put_words(2, map(SLOTS, true));
    rig.put_words(3, map(u32::MAX, true));
    assert_eq!(rig.call(Kind::GrantMap as u32, 4), Ok(()));
    let statuses = [0, 1, 2, 3].map(|op| rig.status(op));
    use GrantStatus as S;
    assert_eq!(
        statuses,
        [S::PermissionDenied, S::Okay, S::BadSlot, S::BadSlot]
    );
    for (op, slot) in [1, 1, 0, u64::from(u32::MAX)].into_iter().enumerate() {
        rig.put(op, 0, slot);
    }
    assert_eq!(rig.call(Kind::GrantUnmap as u32, 4), Ok(()));
    let statuses = [0, 1, 2, 3].map(|op| rig.status(op));
    assert_eq!(
        statuses,
        [S::Okay, S::BadHandle, S::BadHandle, S::BadHandle]
    );
}

#[test]
fn connections() {
    let mut rig = Rig::new();
    rig.put(0, 0, 0);
    rig.put(0, 1, XenbusState::InitWait as u64);
    rig.put(1, 0, 0x1122);
    assert_eq!(rig.call(Kind::ConnectSet as u32, 1), Ok(()));
    assert_eq!(rig.get(0, STATUS_WORD), 0);
    let seen = rig
        .shared
        .connections
        .get(DomId(1), abi::ConnId(0))
        .unwrap();
    assert_eq!(
        (seen.state, &seen.body[..2]),
        (XenbusState::InitWait, &[0x22, 0x11][..])
    );
    for (state, errno) in [
        (1, Errno::INVAL),
        (7, Errno::INVAL),
        (u64::MAX, Errno::INVAL),
    ] {
        rig.put(0, 1, state);
        assert_eq!(rig.call(Kind::ConnectSet as u32, 1), Ok(()));
        let status = rig.get(0, STATUS_WORD) as i64;
        assert_eq!(status, -i64::from(errno.raw_os_error()));
    }
    let body = [9; RECORD_BYTES];
    rig.shared
        .connections
        .set(DomId(1), abi::ConnId(0), XenbusState::Initialised, &body, 0)
        .unwrap();
    rig.put(0, 0, 0);
    assert_eq!(rig.call(Kind::ConnectGet as u32, 1), Ok(()));
    let answer = [1, 2, 3, 4, STATUS_WORD].map(|word| rig.get(0, word));
    assert_eq!(answer, [1, 0, 2, 3, 0]);
    assert_eq!(rig.get(1, 0), u64::from_ne_bytes([9; 8]));
    for conn in [1, u64::MAX, 1 << 32] {
        rig.put(0, 0, conn);
        assert_eq!(rig.call(Kind::ConnectGet as u32, 1), Ok(()));
        let status = rig.get(0, STATUS_WORD) as i64;
        assert_eq!(status, -i64::from(Errno::NOENT.raw_os_error()));
    }
}

/// A word as a hostile domain would choose it.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..20u64,
        // A grant of the other domain.
        (0..20u64).prop_map(|gref| 1 << 63 | 1 << 32 | gref),
        (0..20u64).prop_map(|gref| 1 << 32 | gref),
        // Offsets and a length.
        (0..5000u64, 0..5000u64, 0..5000u64).prop_map(|(a, b, c)| a | b << 16 | c << 32),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_words_in_the_page_do_harm(
        entries in prop::collection::vec(prop_oneof![
            any::<u64>(),
            (0..6u32, any::<bool>()).prop_map(|(f, ro)| GrantEntry::access(DomId(0), f, ro).0),
        ], ENTRIES as usize),
        calls in prop::collection::vec((
            prop_oneof![0..15u32, any::<u32>()],
            prop_oneof![0..9u32, 0..OPS_MAX as u32 + 2, any::<u32>()],
            prop::collection::vec(word(), 0..60),
        ), 1..20),
    ) {
        let mut rig = Rig::new();
        let table = rig.memories[1].info().span();
        for (index, &entry) in entries.iter().enumerate() {
            table.u64(info::GRANT_TABLE + index * 8).unwrap().store(entry, Ordering::Relaxed);
        }
        for (kind, count, words) in calls {
            for (at, &word) in words.iter().enumerate() {
                rig.put(at / OP_WORDS, at % OP_WORDS, word);
            }
            let _ = rig.call(kind, count);
            prop_assert_eq!(rig.shared.audit().1, 0);
        }
        let Rig { shared, server, .. } = rig;
        shared.grants.lock().fence(DomId(0));
        server.tear_down();
        let (accounts, leaked) = shared.audit();
        prop_assert_eq!(leaked, 0);
        prop_assert!(!accounts.contains_key(&DomId(0)));
        prop_assert!(accounts[&DomId(1)].in_use.is_empty());
    }
}

/// The operations fit into the page, and so does a record behind the first one.
const _: () = {
    assert!(OPS + OPS_MAX * OP_WORDS * 8 <= info::CALL_PAGES * PAGE);
    assert!(OPS + OP_WORDS * 8 + RECORD_BYTES <= PAGE);
};
