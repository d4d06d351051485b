//! Test fixtures: unconnected ports, and a switch whose guests are connected only by rings, without
//! a monitor.

use crate::linearizer::Linearizer;
use crate::nics::NicPort;
use crate::notify::GuestNotifier;
use crate::ports::BridgePort;
use crate::queueing::Queueing;
use crate::switch::{BatchStats, Switch};
use crate::vifs::VifPort;
use crate::vifs::memory::{GuestMemory, VifSettings};
use abi::classic::GrantEntry;
use abi::{ConnId, DomId, GrantRef, PAGE, XenbusState};
use config::domain::{DriverConfig, GrantMode, LroConfig, Offloads, RingFormat, VifConfig};
use config::lro::{AggregateDelivery, Meta};
use net::bridge::{self, Bridge, BridgeSettings};
use net::packet::Mac;
use nic::moderation::ModerationPolicy;
use nic::sim::SimCable;
use nic::{Nic, Pool};
use runtime::call::Calls;
use runtime::ledger::Ledger;
use runtime::lro::{LroSide, LroStage};
use runtime::platform::{ConnectRecord, Doorbell, NO_RECORD, PeerEnd, Platform};
use shmem::{Area, Span};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use vif::netif::{Features, FrontRecord};
use vif::testing::{BACKEND, FakeGrants, Rig, sizes};

/// A platform with one other domain, which the test controls.
#[derive(Debug)]
pub(crate) struct System {
    peer: RefCell<PeerEnd>,
    /// States that the driver has set.
    pub(crate) states: RefCell<Vec<XenbusState>>,
    /// Connections whose other end the driver has read.
    pub(crate) polled: RefCell<Vec<ConnId>>,
    /// Number of doorbells created.
    pub(crate) doorbells: Cell<u32>,
    /// Number of times that the driver has rung any of them.
    pub(crate) rings: Rc<Cell<u32>>,
    pub(crate) window: Area,
}

/// Number of entries of a guest's grant table, and of their slots in the window. The slots of the
/// sub-tables follow.
pub(crate) const ENTRIES: u32 = 64;

impl System {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            peer: RefCell::new(PeerEnd {
                domain: DomId(1),
                state: XenbusState::Initialising,
                record: NO_RECORD,
            }),
            states: RefCell::default(),
            polled: RefCell::default(),
            doorbells: Cell::default(),
            rings: Rc::default(),
            window: Area::anonymous((ENTRIES + abi::counted::table_slots(ENTRIES)) as usize * PAGE)
                .unwrap(),
        })
    }

    /// Sets the other end's state and record.
    pub(crate) fn set_peer(&self, state: XenbusState, record: &ConnectRecord) {
        let mut peer = self.peer.borrow_mut();
        (peer.state, peer.record) = (state, *record);
    }
}

#[derive(Debug)]
struct CountingDoorbell(Rc<Cell<u32>>);

impl Doorbell for CountingDoorbell {
    fn ring(&self) {
        self.0.set(self.0.get() + 1);
    }
}

impl Platform for System {
    fn peer(&self, conn: ConnId) -> io::Result<Option<PeerEnd>> {
        self.polled.borrow_mut().push(conn);
        Ok(Some(self.peer.borrow().clone()))
    }

    fn set_state(&self, _: ConnId, state: XenbusState, _: &ConnectRecord) -> io::Result<()> {
        self.states.borrow_mut().push(state);
        Ok(())
    }

    fn doorbell(&self, _: ConnId) -> io::Result<Box<dyn Doorbell>> {
        self.doorbells.set(self.doorbells.get() + 1);
        Ok(Box::new(CountingDoorbell(Rc::clone(&self.rings))))
    }

    fn window(&self) -> Area {
        self.window
    }
}

/// Returns the port of an unconnected guest.
pub(crate) fn vif_port(name: &str) -> VifPort {
    let page = Area::anonymous(PAGE).unwrap().span();
    vif_port_on(System::new(), page, name, [2; 6])
}

/// Like [`vif_port`], on this platform, with this call page and MAC.
pub(crate) fn vif_port_on(system: Rc<System>, call: Span, name: &str, mac: [u8; 6]) -> VifPort {
    let shared = VifSettings {
        platform: system,
        calls: Rc::new(RefCell::new(Calls::with_page(call))),
        frames: Area::anonymous(4 * PAGE).unwrap(),
        grants: GrantMode::Counted,
        offloads: Offloads::Tso,
        ring_order: 1,
        ring_format: RingFormat::Native,
        meta: Meta::Request,
        any_order: true,
    };
    let vif = VifConfig {
        slots: ENTRIES,
        tables_slot: ENTRIES,
        ..VifConfig::new(0, name.to_owned(), mac)
    };
    let memory = Box::new(GuestMemory::new(&vif, &shared));
    let (platform, ledger) = (shared.platform, Rc::new(Ledger::new(false)));
    let mut port = VifPort::new(&vif, platform, ledger, memory);
    port.name = vif.name;
    port
}

/// Returns the port of a NIC at the near end of a cable.
pub(crate) fn nic_port(name: &str) -> NicPort {
    let (near, _) = SimCable::default().ends();
    nic_port_of(name, Box::new(near))
}

/// Returns the port of this NIC.
pub(crate) fn nic_port_of(name: &str, nic: Box<dyn Nic>) -> NicPort {
    nic_port_with(name, nic, 2)
}

/// Like [`nic_port_of`], with a pool of `buffers` buffers.
pub(crate) fn nic_port_with(name: &str, nic: Box<dyn Nic>, buffers: usize) -> NicPort {
    let area = Area::anonymous(buffers * 2048).unwrap();
    NicPort::new(
        name.to_owned(),
        nic,
        Pool::new(area, 2048),
        ModerationPolicy::Spin,
        LroStage::new(LroSide::Physical, &LroConfig::default(), 1),
        Linearizer::new(
            Area::anonymous(PAGE).unwrap(),
            PAGE,
            AggregateDelivery::Scatter,
        ),
    )
}

/// Returns the driver domain's configuration for the machine that `text` describes.
pub(crate) fn driver_config(text: &str) -> DriverConfig {
    let machine = config::parse("f", text).unwrap().machine().unwrap();
    serde_json::from_str(&machine.domains[0].config).unwrap()
}

/// Returns the MAC of guest `n`.
pub(crate) fn mac(n: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, n as u8 + 1]
}

/// Returns a frame of `len` bytes whose contents depend on `number`.
pub(crate) fn frame(to: [u8; 6], from: [u8; 6], len: usize, number: u64) -> Vec<u8> {
    let mut bytes = vif::testing::packet(len, number);
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes
}

/// A switch whose first ports are guests. An unconnected wire follows.
pub(crate) struct Machine {
    pub(crate) switch: Switch,
    /// The guest's end of each guest port.
    pub(crate) guests: Vec<Rig>,
    pub(crate) systems: Vec<Rc<System>>,
    /// The wire's port.
    pub(crate) wire: usize,
    notifier: GuestNotifier,
}

impl Machine {
    pub(crate) fn new(count: usize) -> Self {
        let queueing = Queueing::new(Area::anonymous(128 * PAGE).unwrap());
        let bridge = Bridge::new(BridgeSettings::default());
        let mut switch = Switch::new(bridge, queueing, Rc::new(Ledger::new(false)));
        let (mut guests, mut systems) = (Vec::new(), Vec::new());
        for n in 0..count {
            let system = System::new();
            let call = Area::anonymous(PAGE).unwrap().span();
            let mut port = vif_port_on(Rc::clone(&system), call, &format!("g{n}"), mac(n));
            guests.push(join(&mut port, n));
            systems.push(system);
            let guarded = bridge::PortConfig::guest(Mac(mac(n)));
            switch
                .add(BridgePort::Vif(Box::new(port)), &guarded)
                .unwrap();
        }
        let wire = BridgePort::Nic(Box::new(nic_port("wire")));
        let wire = switch.add(wire, &bridge::PortConfig::nic()).unwrap();
        Self {
            switch,
            guests,
            systems,
            wire,
            notifier: GuestNotifier::new(0),
        }
    }

    /// Sends a frame with these bytes from guest `n`.
    pub(crate) fn send(&mut self, n: usize, bytes: &[u8]) {
        assert!(self.guests[n].send(bytes, nic::Offload::default()));
    }

    /// Runs a turn for guest `n` on the slow path, at time 0.
    pub(crate) fn forward_from(&mut self, n: usize) -> BatchStats {
        self.forward_from_at(n, 0)
    }

    /// Like [`Machine::forward_from`], at `now_ns`.
    pub(crate) fn forward_from_at(&mut self, n: usize, now_ns: u64) -> BatchStats {
        let stats = self.switch.forward_from(n, now_ns, 64);
        self.publish();
        stats
    }

    /// Drains the egress queues as a turn does.
    pub(crate) fn drain(&mut self, now_ns: u64) {
        self.switch.drain_queues(now_ns);
        self.publish();
    }

    /// Ends a turn: publishes the rings and notifies the guests.
    pub(crate) fn publish(&mut self) {
        self.notifier.publish(&mut self.switch, 0);
    }

    /// Returns up to 64 frames that guest `n` has received.
    pub(crate) fn received(&mut self, n: usize) -> Vec<Vec<u8>> {
        self.guests[n].receive(64)
    }

    pub(crate) fn port(&self, n: usize) -> &VifPort {
        self.switch.ports.vif(n).unwrap()
    }
}

/// Connects a guest that uses all features of the port.
pub(crate) fn join(port: &mut VifPort, n: usize) -> Rig {
    join_with(port, n, Features::ALL)
}

/// Connects a guest with these features.
pub(crate) fn join_with(port: &mut VifPort, n: usize, features: Features) -> Rig {
    let rig = Rig::with_record(sizes(), features, port.record());
    let record = FrontRecord {
        mac: mac(n),
        ..rig.record.clone()
    };
    let (table, frames) = (rig.table_span(), rig.memory().area());
    let page = |gref: GrantRef| {
        let entry = table.load_u64(gref.index() as usize * 8).ok()?;
        frames.page(GrantEntry(entry).frame())
    };
    let grants = Box::new(FakeGrants::new(table, frames, BACKEND));
    port.join(&record.encode(), grants, page).unwrap();
    rig
}
