//! Tests of a guest's port with a mock guest and a mock monitor, which counts bound tables.

use super::*;
use crate::testing::{ENTRIES, System, frame, join, mac, vif_port_on};
use abi::PAGE;
use abi::counted::{Translation, translation_bytes};
use abi::hypercall::{BindOp, HypercallKind};
use abi::{GrantStatus, Handle};
use runtime::testing::FakeMonitor;
use shmem::Area;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vif::netif::Features;

/// State of the mock monitor's thread.
#[derive(Default)]
struct Monitor {
    bound: AtomicU32,
    calls: AtomicU32,
}

/// First grant reference that is not granted, like all higher references.
const UNGRANTED: u32 = 40;
/// The guest's table of counted grants.
const TABLE: Handle = Handle(3);

impl Monitor {
    fn serve(&self, kind: HypercallKind, words: [u64; 3]) -> GrantStatus {
        match kind {
            HypercallKind::TableBind if BindOp::decode(words).table != TABLE => {
                GrantStatus::BadHandle
            }
            HypercallKind::TableBind => {
                assert_eq!(self.bound.fetch_add(1, Ordering::Relaxed), 0);
                GrantStatus::Okay
            }
            HypercallKind::TableEnd => {
                assert_eq!(words[0], u64::from(TABLE.0));
                assert_eq!(self.bound.fetch_sub(1, Ordering::Relaxed), 1);
                GrantStatus::Okay
            }
            _ => GrantStatus::GeneralError,
        }
    }
}

struct TestSetup {
    /// Dropped first, because the port releases the table by a call that the mock monitor must
    /// answer.
    port: VifPort,
    system: Rc<System>,
    monitor: Arc<Monitor>,
    _answering: FakeMonitor,
}

impl TestSetup {
    fn new() -> Self {
        let call = Area::anonymous(2 * PAGE).unwrap().span();
        let system = System::new();
        let tables = system.window.page(ENTRIES).unwrap();
        for gref in 1..UNGRANTED {
            let entry = Translation::valid(gref, 0, false).0;
            tables.store_u64(gref as usize * 8, entry).unwrap();
        }
        let monitor = Arc::new(Monitor::default());
        let served = Arc::clone(&monitor);
        let answering = FakeMonitor::start(call, move |kind, ops| {
            served.calls.fetch_add(1, Ordering::Relaxed);
            let all = ops.iter().map(|words| served.serve(kind, *words));
            all.map(|status| (i64::from(status as i16), 0)).collect()
        });
        let mut port = vif_port_on(Rc::clone(&system), call, "g0", mac(0));
        port.advance();
        assert_eq!(port.state(), XenbusState::InitWait);
        Self {
            port,
            system,
            monitor,
            _answering: answering,
        }
    }

    /// Sets the guest's state and record. Returns the resulting state of the port.
    fn set_guest(&mut self, state: XenbusState, record: &ConnectRecord) -> XenbusState {
        self.system.set_peer(state, record);
        self.port.advance();
        self.port.state()
    }

    /// Returns the number of pages in use. Checks that no page is in use without a bound table.
    fn used(&self) -> u32 {
        let at = ENTRIES as usize * PAGE + translation_bytes(ENTRIES);
        let uses = self.system.window.at(at, ENTRIES as usize * 4).unwrap();
        let uses = (0..ENTRIES).map(|gref| uses.load_u32(gref as usize * 4).unwrap());
        let uses = uses.sum();
        let bound = self.monitor.bound.load(Ordering::Relaxed);
        assert_eq!(uses > 0, bound > 0, "{uses} uses, {bound} tables");
        uses
    }

    fn calls(&self) -> u32 {
        self.monitor.calls.load(Ordering::Relaxed)
    }
}

/// Returns a record with rings of these sizes. Their pages have consecutive references, starting at
/// `first`.
fn front(tx_pages: u32, rx_pages: u32, first: u32) -> FrontRecord {
    let grefs = |from: u32, count| (from..from + count).map(GrantRef).collect();
    FrontRecord {
        features: Features::ALL,
        max_slots: vif::netif::MAX_SLOTS,
        tx_ring: grefs(first, tx_pages),
        rx_ring: grefs(first + tx_pages, rx_pages),
        event: GrantRef(first + tx_pages + rx_pages),
        rx_buffer: 2048,
        mac: mac(0),
        table: TABLE,
    }
}

#[test]
fn handshake_connects_closes_and_restarts() {
    use XenbusState as S;
    let mut setup = TestSetup::new();
    let record = front(1, 1, 1).encode();
    for _ in 0..3 {
        assert_eq!(setup.set_guest(S::Initialised, &record), S::Connected);
        assert_eq!(setup.used(), 3);
        assert_eq!(setup.set_guest(S::Connected, &record), S::Connected);
        assert_eq!(setup.set_guest(S::Closing, &NO_RECORD), S::Closed);
        assert_eq!(setup.used(), 0);
        assert_eq!(setup.set_guest(S::Initialising, &NO_RECORD), S::InitWait);
    }
    assert_eq!(setup.set_guest(S::Initialised, &record), S::Connected);
    assert_eq!(setup.set_guest(S::Unknown, &NO_RECORD), S::Closed);
    assert_eq!(
        (setup.used(), &*setup.port.last_error),
        (0, "the guest has died")
    );
}

/// CVE-2022-50257: if one ring page is not granted, no ring page remains in use.
#[test]
fn attack_14_partly_granted_rings_stay_unused() {
    use XenbusState as S;
    for bad in [UNGRANTED, u32::MAX] {
        for place in 0..4 {
            let mut setup = TestSetup::new();
            let mut record = front(2, 1, 1);
            match place {
                0 | 1 => record.tx_ring[place] = GrantRef(bad),
                2 => record.rx_ring[0] = GrantRef(bad),
                _ => record.event = GrantRef(bad),
            }
            assert_eq!(setup.set_guest(S::Initialised, &record.encode()), S::Closed);
            assert_eq!(setup.used(), 0, "{bad} {place}");
            assert!(
                setup.port.last_error.contains("a ring"),
                "{}",
                setup.port.last_error
            );
            // The guest may connect again.
            assert_eq!(setup.set_guest(S::Initialising, &NO_RECORD), S::InitWait);
            let record = front(2, 1, 1).encode();
            assert_eq!(setup.set_guest(S::Initialised, &record), S::Connected);
        }
    }
}

/// XSA-379, XSA-486, XSA-501; CVE-2026-86565: the negotiated parameters apply until the link
/// closes, even if the guest changes its record. A different size, mechanism or MAC, or an invalid
/// record, causes no mapping or unmapping, and does not resize a table.
#[test]
fn attack_19_27_rewritten_record_changes_nothing() {
    use XenbusState as S;
    let mut setup = TestSetup::new();
    let record = front(1, 2, 1);
    assert_eq!(
        setup.set_guest(S::Initialised, &record.encode()),
        S::Connected
    );
    let negotiated = format!("{:?}", setup.port.netback().unwrap().negotiated());
    let calls = setup.calls();
    for other in [
        front(2, 1, 1).encode(),
        front(1, 1, 20).encode(),
        FrontRecord {
            rx_buffer: 4096,
            ..record.clone()
        }
        .encode(),
        FrontRecord {
            features: Features::PLAIN,
            ..record.clone()
        }
        .encode(),
        FrontRecord {
            table: Handle(4),
            ..record.clone()
        }
        .encode(),
        FrontRecord {
            mac: mac(9),
            ..record.clone()
        }
        .encode(),
        [0xff; abi::RECORD_BYTES],
        NO_RECORD,
    ] {
        for state in [S::Initialised, S::Connected] {
            assert_eq!(setup.set_guest(state, &other), S::Connected);
        }
    }
    assert_eq!(
        format!("{:?}", setup.port.netback().unwrap().negotiated()),
        negotiated
    );
    assert_eq!((setup.calls(), setup.used()), (calls, 4));
}

/// CVE-2026-86565: the guest reconnects while a device still writes into buffers of the previous
/// rings.
#[test]
fn attack_27_resized_queue_has_no_old_buffers() {
    let mut port = vif_port_on(
        System::new(),
        Area::anonymous(PAGE).unwrap().span(),
        "g0",
        mac(0),
    );
    let _first = join(&mut port, 0);
    let netback = port.netback().unwrap();
    let old_buffers: Vec<_> = std::iter::from_fn(|| netback.post(1519)).take(40).collect();
    assert_eq!(old_buffers.len(), 40);
    port.close("another size");
    assert!(port.netback().is_none());

    let mut second = join(&mut port, 0);
    let netback = port.netback().unwrap();
    let own = [netback.post(1519).unwrap(), netback.post(1519).unwrap()];
    assert_eq!(
        own.map(|buffer| buffer.id),
        [old_buffers[0].id, old_buffers[1].id]
    );
    // Buffers of the previous link return. Their ids are equal to ids of the new link, which has a
    // separate table.
    let bytes = frame(mac(0), mac(1), 200, 1);
    for buffer in &old_buffers {
        buffer.span.take(bytes.len()).write(&bytes).unwrap();
        let piece = nic::Piece {
            span: buffer.span,
            buffer: buffer.id,
        };
        netback.accept(&nic::Frame::new(piece, bytes.len()).unwrap());
    }
    let report = netback.post_end();
    assert_eq!(report.delivered, 0);
    netback.publish();
    assert!(
        second.receive(64).is_empty(),
        "a frame of the previous link was delivered"
    );
}

/// CVE-2019-14818: a guest that connects and disconnects repeatedly leaks nothing.
#[test]
fn attack_26_reconnecting_guest_leaks_nothing() {
    use XenbusState as S;
    let mut setup = TestSetup::new();
    let records = [
        front(1, 1, 1).encode(),
        front(2, 2, 1).encode(),
        front(1, 1, UNGRANTED - 1).encode(),
        [0xff; abi::RECORD_BYTES],
        FrontRecord {
            mac: mac(5),
            ..front(1, 1, 1)
        }
        .encode(),
    ];
    let ends = [S::Closing, S::Closed, S::Initialising];
    for round in 0..600 {
        let now = setup.set_guest(S::Initialised, &records[round % records.len()]);
        assert!([S::Connected, S::Closed].contains(&now));
        setup.set_guest(ends[round % ends.len()], &NO_RECORD);
        assert_eq!(setup.used(), 0, "round {round}");
        assert_eq!(setup.set_guest(S::Initialising, &NO_RECORD), S::InitWait);
    }
    assert_eq!(
        setup.system.doorbells.get(),
        1,
        "one doorbell for all connections"
    );
    // Each step of the handshake sets the state only once.
    assert!(setup.system.states.borrow().len() <= 1 + 600 * 3);
}

/// CVE-2026-45890: the driver rejects an invalid record before it maps any page.
#[test]
fn attack_24_invalid_record_is_rejected_unmapped() {
    use XenbusState as S;
    let good = front(1, 1, 1);
    for (record, why) in [
        ([0; abi::RECORD_BYTES], "not a network interface's record"),
        (
            FrontRecord {
                mac: mac(1),
                ..good.clone()
            }
            .encode(),
            "another MAC address",
        ),
        (front(4, 1, 1).encode(), ""),
        (front(1, 16, 1).encode(), ""),
        (
            FrontRecord {
                rx_buffer: 0,
                ..good.clone()
            }
            .encode(),
            "",
        ),
        (
            FrontRecord {
                max_slots: 0,
                ..good
            }
            .encode(),
            "",
        ),
    ] {
        let mut setup = TestSetup::new();
        assert_eq!(setup.set_guest(S::Initialised, &record), S::Closed);
        let error = &setup.port.last_error;
        assert!(
            !error.is_empty() && error.contains(why),
            "{error}, not {why}"
        );
        assert_eq!((setup.used(), setup.calls()), (0, 0), "{error}");
    }
}

#[test]
fn unbound_table_is_rejected() {
    let mut setup = TestSetup::new();
    let record = FrontRecord {
        table: Handle(7),
        ..front(1, 1, 1)
    };
    let state = setup.set_guest(XenbusState::Initialised, &record.encode());
    assert_eq!((state, setup.used()), (XenbusState::Closed, 0));
    let error = &setup.port.last_error;
    assert!(error.contains("cannot be bound"), "{error}");
}
