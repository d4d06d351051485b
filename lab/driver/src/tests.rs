//! Tests of the mechanisms with a mock monitor: a thread that answers calls through the call page.

mod flip;

use crate::copy::CopyGrants;
use crate::mapping::{MappedGrants, MappingPeriod};
use crate::memory::LabGuests;
use crate::window::span;
use abi::classic::{CopyOp, CopyOperand, MapOp, TransferOp};
use abi::hypercall::HypercallKind;
use abi::{ConnId, DomId, GrantRef, GrantStatus, Handle, PAGE, Slot, XenbusState};
use config::domain::{GrantMode, Offloads, RingFormat, VifConfig};
use config::lro::Meta;
use driver::grants::GranterWindow;
use driver::vifs::memory::{GuestAccess, VifSettings};
use runtime::call::Calls;
use runtime::ledger::Ledger;
use runtime::platform::{ConnectRecord, Doorbell, NO_RECORD, PeerEnd, Platform};
use runtime::testing::FakeMonitor;
use shmem::{Area, Span};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use vif::grants::{CopyOut, CopySource, GrantAccess, GrantMechanism};
use vif::netif::{Features, FrontRecord, MAX_SLOTS};

const DOMAIN: DomId = DomId(5);
const FIRST: u32 = 2;
const SLOTS: u32 = 16;
/// First grant reference that is read-only, like all higher references.
const READ_ONLY: u32 = 8;
/// First grant reference that is not granted, like all higher references.
const UNGRANTED: u32 = 12;
/// Number of exchanged pages. Their slots follow the slots for grants.
const EXCHANGED_PAGES: u32 = 3;
const EXCHANGE: Handle = Handle(4);

/// State of the mock monitor.
#[derive(Debug, Default)]
struct MockMonitor {
    /// Mapped slots, and whether each is writable.
    mapped: BTreeMap<u32, bool>,
    /// Received calls, one line per call.
    calls: Vec<String>,
    copied: Vec<CopyOp>,
    window: Option<Area>,
    /// Grant reference and contents of each transferred page.
    transferred: Vec<(u32, Vec<u8>)>,
}

impl MockMonitor {
    fn serve(&mut self, kind: HypercallKind, words: [u64; 3]) -> GrantStatus {
        let allowed = |gref: GrantRef, write| match gref.index() {
            UNGRANTED.. => GrantStatus::BadRef,
            READ_ONLY.. if write => GrantStatus::PermissionDenied,
            _ => GrantStatus::Okay,
        };
        match kind {
            HypercallKind::GrantMap => {
                let op = MapOp::decode(words);
                assert_eq!(op.domain, DOMAIN);
                assert_eq!(op.slot.0, FIRST + op.gref.index());
                if self.mapped.contains_key(&op.slot.0) {
                    return GrantStatus::BadSlot;
                }
                let status = allowed(op.gref, !op.readonly);
                if status == GrantStatus::Okay {
                    self.mapped.insert(op.slot.0, !op.readonly);
                }
                status
            }
            HypercallKind::GrantUnmap => match self.mapped.remove(&(words[0] as u32)) {
                Some(_) => GrantStatus::Okay,
                None => GrantStatus::BadHandle,
            },
            HypercallKind::GrantCopy => {
                let op = CopyOp::decode(words);
                let status = match (op.src, op.dst) {
                    (CopyOperand::Granted { gref, .. }, CopyOperand::Own { .. }) => {
                        allowed(gref, false)
                    }
                    (CopyOperand::Own { .. }, CopyOperand::Granted { gref, .. }) => {
                        allowed(gref, true)
                    }
                    _ => GrantStatus::BadCopyArg,
                };
                self.copied.push(op);
                status
            }
            HypercallKind::GrantTransfer => {
                let op = TransferOp::decode(words);
                assert_eq!(op.exchange, EXCHANGE);
                let exchange_slots = FIRST + SLOTS..FIRST + SLOTS + EXCHANGED_PAGES;
                assert!(exchange_slots.contains(&op.slot.0), "{op:?}");
                let status = allowed(op.gref, true);
                if status == GrantStatus::Okay {
                    let page = self.window.unwrap().page(op.slot.0).unwrap();
                    let mut bytes = vec![0; PAGE];
                    page.read(&mut bytes).unwrap();
                    page.fill(0).unwrap();
                    self.transferred.push((op.gref.0, bytes));
                }
                status
            }
            HypercallKind::TableBind | HypercallKind::TableEnd => GrantStatus::Okay,
            _ => GrantStatus::GeneralError,
        }
    }
}

/// The mock monitor with its thread, and the parameters of a guest.
struct Monitor {
    state: Arc<Mutex<MockMonitor>>,
    _answering: FakeMonitor,
    guest: GranterWindow,
}

impl Monitor {
    fn new() -> Self {
        let page = Area::anonymous(2 * PAGE).unwrap().span();
        let window = Area::anonymous((FIRST + SLOTS + EXCHANGED_PAGES) as usize * PAGE).unwrap();
        let state = Arc::new(Mutex::new(MockMonitor {
            window: Some(window),
            ..MockMonitor::default()
        }));
        let shared = Arc::clone(&state);
        let answering = FakeMonitor::start(page, move |kind, ops| {
            let mut state = shared.lock().unwrap();
            state.calls.push(format!("{kind:?} {}", ops.len()));
            let served = ops.iter().map(|words| state.serve(kind, *words));
            served.map(|status| (i64::from(status as i16), 0)).collect()
        });
        Self {
            state,
            _answering: answering,
            guest: GranterWindow {
                calls: Rc::new(RefCell::new(Calls::with_page(page))),
                domain: DOMAIN,
                window,
                first: Slot(FIRST),
                slots: SLOTS,
                ledger: Rc::new(Ledger::new(false)),
            },
        }
    }

    fn mapped(&self) -> BTreeMap<u32, bool> {
        self.state.lock().unwrap().mapped.clone()
    }

    fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().calls)
    }
}

fn read(grants: &mut impl GrantMechanism, grefs: &[u32]) -> Vec<Result<Span, GrantStatus>> {
    let access = |&gref| GrantAccess {
        gref: GrantRef(gref),
        offset: 8,
        len: 100,
        result: Err(GrantStatus::GeneralError),
    };
    let mut accesses: Vec<GrantAccess> = grefs.iter().map(access).collect();
    grants.read_begin(&mut accesses);
    accesses.iter().map(|access| access.result).collect()
}

fn write(grants: &mut impl GrantMechanism, grefs: &[u32], source: Span) -> Vec<GrantStatus> {
    let copy = |&gref| CopyOut {
        source: CopySource::Span(source),
        gref: GrantRef(gref),
        offset: 16,
        len: source.len() as u16,
        status: GrantStatus::GeneralError,
    };
    let mut copies: Vec<CopyOut> = grefs.iter().map(copy).collect();
    grants.write(&mut copies, &[]);
    copies.iter().map(|copy| copy.status).collect()
}

fn source() -> Span {
    let page = Area::anonymous(PAGE).unwrap().span().take(4);
    page.write(b"abcd").unwrap();
    page
}

#[test]
fn map_maps_each_page_once_per_batch() {
    let monitor = Monitor::new();
    let mut map = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Batch);
    let read = read(&mut map, &[3, 4, 3, UNGRANTED, SLOTS, u32::MAX]);
    let at = |index: u32| span(&monitor.guest, Slot(FIRST + index), 8, 100).unwrap();
    assert_eq!(read[..3], [Ok(at(3)), Ok(at(4)), Ok(at(3))]);
    assert!(read[3..].iter().all(Result::is_err), "{read:?}");
    assert_eq!(monitor.mapped(), [(5, false), (6, false)].into());
    map.read_end();
    assert_eq!(monitor.mapped(), BTreeMap::new());
    assert_eq!(monitor.take_calls(), ["GrantMap 3", "GrantUnmap 2"]);
}

#[test]
fn map_writes_only_to_writable_grants() {
    let monitor = Monitor::new();
    let mut map = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Batch);
    let status = write(&mut map, &[1, READ_ONLY, 1, SLOTS], source());
    let okay: Vec<bool> = status.iter().map(|s| *s == GrantStatus::Okay).collect();
    assert_eq!(okay, [true, false, true, false]);
    let mut bytes = [0; 4];
    let written = span(&monitor.guest, Slot(FIRST + 1), 16, 4).unwrap();
    written.read(&mut bytes).unwrap();
    assert_eq!(&bytes, b"abcd");
    assert_eq!(monitor.mapped(), BTreeMap::new());
}

#[test]
fn map_keeps_device_pages_during_other_writes() {
    let monitor = Monitor::new();
    let mut map = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Batch);
    let access = |&gref| GrantAccess {
        gref: GrantRef(gref),
        offset: 8,
        len: 100,
        result: Err(GrantStatus::GeneralError),
    };
    for grefs in [&[1, READ_ONLY, 2], &[2, 3, UNGRANTED]] {
        let mut posted: Vec<GrantAccess> = grefs.iter().map(access).collect();
        map.post_begin(&mut posted);
        let okay: Vec<bool> = posted.iter().map(|access| access.result.is_ok()).collect();
        let may: Vec<bool> = grefs.iter().map(|&gref| gref < READ_ONLY).collect();
        assert_eq!(okay, may);
    }
    let posted = BTreeMap::from([1, 2, 3].map(|index| (FIRST + index, true)));
    assert_eq!(monitor.mapped(), posted);
    assert_eq!(write(&mut map, &[2, 4], source()), [GrantStatus::Okay; 2]);
    assert_eq!(monitor.mapped(), posted);
    map.post_end();
    assert_eq!(monitor.mapped(), BTreeMap::new());
    assert_eq!(write(&mut map, &[2], source()), [GrantStatus::Okay]);
    let mut posted = [access(&5)];
    map.post_begin(&mut posted);
    drop(map);
    assert_eq!(monitor.mapped(), BTreeMap::new());
}

#[test]
fn map_dropped_within_a_batch_unmaps_its_pages() {
    let monitor = Monitor::new();
    let mut map = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Batch);
    read(&mut map, &[1, 2]);
    drop(map);
    assert_eq!(monitor.mapped(), BTreeMap::new());
}

#[test]
fn persistent_pages_are_mapped_once_per_connection() {
    let monitor = Monitor::new();
    let mut persistent = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Connection);
    assert!(read(&mut persistent, &[3, 4, 3]).iter().all(Result::is_ok));
    assert!(read(&mut persistent, &[4, 3]).iter().all(Result::is_ok));
    assert_eq!(monitor.take_calls(), ["GrantMap 2"]);
    drop(persistent);
    assert_eq!(monitor.mapped(), BTreeMap::new());
}

#[test]
fn persistent_page_is_remapped_writable() {
    let monitor = Monitor::new();
    let mut persistent = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Connection);
    read(&mut persistent, &[3]);
    assert_eq!(
        write(&mut persistent, &[3, 3], source()),
        [GrantStatus::Okay; 2]
    );
    assert_eq!(monitor.mapped(), [(FIRST + 3, true)].into());
    assert!(read(&mut persistent, &[3])[0].is_ok());
    assert_eq!(
        monitor.take_calls(),
        ["GrantMap 1", "GrantUnmap 1", "GrantMap 1"]
    );
}

#[test]
fn read_only_page_costs_bounded_calls() {
    let monitor = Monitor::new();
    let mut persistent = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Connection);
    for _ in 0..20 {
        assert!(read(&mut persistent, &[READ_ONLY])[0].is_ok());
        assert_ne!(
            write(&mut persistent, &[READ_ONLY], source()),
            [GrantStatus::Okay]
        );
    }
    let calls = monitor.take_calls();
    assert!(calls.len() <= 4, "{calls:?}");
}

#[test]
fn occupied_slot_is_rejected_and_unchanged() {
    let monitor = Monitor::new();
    // A ring page occupies the slot.
    let ring = (FIRST + 1, true);
    monitor.state.lock().unwrap().mapped.extend([ring]);
    let mut persistent = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Connection);
    let mut map = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Batch);
    assert!(read(&mut persistent, &[1])[0].is_err());
    assert!(read(&mut map, &[1])[0].is_err());
    map.read_end();
    assert_ne!(write(&mut persistent, &[1], source()), [GrantStatus::Okay]);
    assert_ne!(write(&mut map, &[1], source()), [GrantStatus::Okay]);
    drop((map, persistent));
    assert_eq!(monitor.mapped(), [ring].into());
}

#[test]
fn copy_splits_at_pages_and_rejects_foreign_memory() {
    let monitor = Monitor::new();
    let frames = Area::anonymous(32 * PAGE).unwrap();
    let staging = frames.at(0, 16 * PAGE).unwrap();
    let mut copy = CopyGrants::new(monitor.guest.clone(), frames, staging);
    let across = frames.at(20 * PAGE - 10, 30).unwrap();
    assert_eq!(write(&mut copy, &[1], across), [GrantStatus::Okay]);
    let lens: Vec<(u16, u16)> = {
        let state = monitor.state.lock().unwrap();
        let ops = state.copied.iter();
        ops.map(|op| (op.dst_offset, op.len)).collect()
    };
    assert_eq!(lens, [(16, 10), (26, 20)]);
    assert_eq!(
        write(&mut copy, &[1, READ_ONLY], source()),
        [GrantStatus::BadCopyArg; 2]
    );
    let own = frames.at(20 * PAGE, 4).unwrap();
    assert_eq!(
        write(&mut copy, &[READ_ONLY, 1], own),
        [GrantStatus::PermissionDenied, GrantStatus::Okay]
    );
}

#[test]
fn copy_reads_each_access_into_a_separate_page() {
    let monitor = Monitor::new();
    let frames = Area::anonymous(32 * PAGE).unwrap();
    let staging = frames.at(0, 16 * PAGE).unwrap();
    let mut copy = CopyGrants::new(monitor.guest.clone(), frames, staging);
    let got = read(&mut copy, &[1, 1, UNGRANTED]);
    let at = |n: usize| staging.sub((2 + n) * PAGE, 100).unwrap();
    assert_eq!(got, [Ok(at(0)), Ok(at(1)), Err(GrantStatus::BadRef)]);
    // These accesses need more pages than the staging memory has.
    let got = read(&mut copy, &[1; 20]);
    assert!(got[13].is_ok() && got[14..].iter().all(Result::is_err));
}

#[test]
fn small_frames_are_written_only_to_granted_pages() {
    let monitor = Monitor::new();
    let source = Area::anonymous(PAGE).unwrap().at(0, 90).unwrap();
    source.fill(7).unwrap();
    let mut small = nic::SmallBatch::default();
    small.push(source).unwrap();
    small.push(source.take(14)).unwrap();
    let access = |(gref, len)| GrantAccess {
        gref: GrantRef(gref),
        offset: 100,
        len,
        result: Err(GrantStatus::GeneralError),
    };
    let mut grants = MappedGrants::new(monitor.guest.clone(), MappingPeriod::Connection);
    assert!(grants.in_reach());
    let page = monitor.guest.window.page(FIRST + 1).unwrap();
    let mut accesses = [
        (1, 14),
        (READ_ONLY, 90),
        (UNGRANTED, 90),
        (1, 0),
        (SLOTS, 90),
    ]
    .map(access);
    grants.write_small_frames(&mut accesses, &small, &[1, 0, 0, 0, 0], true);
    let done = accesses.map(|access| access.result.is_ok());
    assert_eq!(done, [true, false, false, false, false]);
    let mut bytes = [0xee; 16];
    page.skip(99).read(&mut bytes).unwrap();
    let mut expected = [7; 16];
    (expected[0], expected[15]) = (0, 0);
    assert_eq!(bytes, expected);
    // No part of a frame that does not fit is written.
    let mut short = [access((1, 89))];
    grants.write_small_frames(&mut short, &small, &[0], false);
    assert_eq!(short[0].result, Err(GrantStatus::BadPage));
}

/// A platform of which only the window is used.
#[derive(Debug)]
struct WindowOnlyPlatform(Area);

impl Platform for WindowOnlyPlatform {
    fn peer(&self, _: ConnId) -> io::Result<Option<PeerEnd>> {
        Ok(None)
    }

    fn set_state(&self, _: ConnId, _: XenbusState, _: &ConnectRecord) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn doorbell(&self, _: ConnId) -> io::Result<Box<dyn Doorbell>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn window(&self) -> Area {
        self.0
    }
}

/// Returns the access to the guest's memory, and the ledger.
fn opened(monitor: &Monitor, grants: GrantMode) -> (Box<dyn GuestAccess>, Rc<Ledger>) {
    let GranterWindow {
        calls,
        window,
        ledger,
        ..
    } = monitor.guest.clone();
    let guests = LabGuests::boxed(VifSettings {
        platform: Rc::new(WindowOnlyPlatform(window)),
        calls,
        frames: Area::anonymous(PAGE).unwrap(),
        grants,
        offloads: Offloads::Tso,
        ring_order: 1,
        ring_format: RingFormat::Native,
        meta: Meta::Request,
        any_order: false,
    });
    let vif = VifConfig {
        first_slot: FIRST,
        slots: SLOTS,
        ..VifConfig::new(1, "g0".to_owned(), [2; 6])
    };
    let staged = VifConfig {
        staging_pages: 1,
        ..vif.clone()
    };
    let refused = guests.access(&staged, Span::EMPTY).unwrap_err();
    assert!(refused.contains("assigned at the start"), "{refused}");
    (guests.access(&vif, Span::EMPTY).unwrap(), ledger)
}

/// CVE-2022-50257: if one ring page cannot be mapped, no ring page remains mapped.
#[test]
fn attack_14_partly_mappable_rings_stay_unmapped() {
    let monitor = Monitor::new();
    let (mut access, ledger) = opened(&monitor, GrantMode::Map);
    let peer = PeerEnd {
        domain: DOMAIN,
        state: XenbusState::Initialised,
        record: NO_RECORD,
    };
    let front = |grefs: [u32; 4]| FrontRecord {
        features: Features::ALL,
        max_slots: MAX_SLOTS,
        tx_ring: grefs[..2].iter().map(|&gref| GrantRef(gref)).collect(),
        rx_ring: [GrantRef(grefs[2])].into_iter().collect(),
        event: GrantRef(grefs[3]),
        rx_buffer: 2048,
        mac: [2; 6],
        table: Handle(0),
    };
    for place in 0..4 {
        for bad in [UNGRANTED, u32::MAX] {
            let mut grefs = [1, 2, 3, 4];
            grefs[place] = bad;
            let refused = access.open(&peer, &front(grefs), &ledger).unwrap_err();
            assert!(refused.contains("a ring"), "{refused}");
            assert_eq!(monitor.mapped(), BTreeMap::new(), "{bad} {place}");
        }
    }
    let opened = access.open(&peer, &front([1, 2, 3, 4]), &ledger).unwrap();
    assert_eq!((opened.first.pages.len(), monitor.mapped().len()), (4, 4));
    drop(opened);
    assert_eq!(monitor.mapped(), BTreeMap::new());
    let other = FrontRecord {
        table: Handle(7),
        ..front([1, 2, 3, 4])
    };
    let refused = access.open(&peer, &other, &ledger).unwrap_err();
    assert!(refused.contains("was not offered"), "{refused}");
}
