//! One netfront and its endpoint.
//!
//! | own state | the backend is | what happens |
//! |---|---|---|
//! | Initialising | InitWait | memory is laid out and granted, the record is written: Initialised |
//! | Initialised | Connected | Connected: frames flow |
//! | Initialised, Connected | Closing, Closed, Unknown, another domain | grants are ended: Closed |
//! | Closed | InitWait, or another domain, or Closed because it has refused | from the start: Initialising |
//!
//! Another domain: the driver domain has died and was started again, perhaps before this end has looked.

mod short;

use crate::devices;
use crate::table::{FlipPages, NewTable};
use abi::layout::info;
use abi::{ConnId, DomId, Slot, XenbusState};
use config::domain::{GuestConfig, GuestVif, Lro, Offloads, RingFormat};
use config::lro::At;
use nic::{Buffers, Caps, Frame, Nic, Piece};
use runtime::call::Calls;
use runtime::ledger::{Hop, Ledger};
use runtime::lro::{Merger, Side, Sums};
use runtime::platform::{Doorbell, NO_RECORD, Peer, Platform, Record};
use runtime::report::Given;
use runtime::start::StartError;
use runtime::trace::{Fate, Trace};
use serde_json::{Value, json};
use shmem::Area;
use shmem::home::Home;
use std::cell::RefCell;
use std::rc::Rc;
use vif::netfront::{GrantTable, Granter, Layout, Netfront, Setup, Sizes, Turnover};
use vif::netif::{BackRecord, Features};
use vif::{Counters, Fatal};

/// How often in a row a driver domain that refuses is asked again.
const REFUSALS: u32 = 3;

/// One interface of the guest, or one queue of several that it has.
pub struct Interface {
    /// Its number; with several queues, those of interface and queue.
    name: String,
    conn: ConnId,
    platform: Rc<dyn Platform>,
    /// For grants.
    calls: Rc<RefCell<Calls>>,
    table: Rc<RefCell<GrantTable>>,
    /// The table of the new mechanism, while there is one.
    new_table: Option<NewTable>,
    /// Pages that change hands, while there are any.
    flips: Option<FlipPages>,
    flip_slot: Slot,
    grant_entries: u32,
    frames: Area,
    first_frame: u32,
    layout: Layout,
    features: Features,
    prefetch: u32,
    release_threshold: Option<u32>,
    mac: [u8; 6],
    endpoint: Box<dyn Nic>,
    state: XenbusState,
    /// The driver domain that it last had to do with.
    backend: Option<DomId>,
    /// How often in a row it has refused the connection.
    refusals: u32,
    doorbell: Option<Box<dyn Doorbell>>,
    netfront: Option<Netfront>,
    /// Whether the netfront is of a connection that has ended and only waits for its grants.
    closing: bool,
    /// What netfronts before this one have counted.
    past: Counters,
    /// What their pools have done.
    past_turnover: Turnover,
    trouble: String,
    given: Given,
    /// Whether frames wait for room: in the ring, or in the pool that the endpoint reads into.
    starved: bool,
    /// Whether anything was done since the rings were last published.
    touched: bool,
    lro: Merger,
    /// Room for what a look finds; empty between two.
    arrived: Vec<Frame>,
    received: Vec<Frame>,
    pick: Vec<u32>,
    to_send: Vec<Frame>,
    /// The same for frames on the short way.
    small_frames: Vec<Piece>,
    small_frames_to_send: Vec<Piece>,
}

/// What came of a look at what the endpoint has.
#[derive(Default)]
struct Yielded {
    /// Frames that it yielded.
    taken: usize,
    /// Whether any left.
    moved: bool,
    /// Whether any wait for room in the ring.
    waits: bool,
    /// What has ended the connection.
    fatal: Option<Fatal>,
}

impl std::fmt::Debug for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interface")
            .field("conn", &self.conn)
            .finish_non_exhaustive()
    }
}

/// How large a netfront is to be, from its configuration.
fn sizes(config: &GuestVif) -> Sizes {
    let rx_pages = config.to_guest_buffers.div_ceil(config.buffers.per_page());
    let tx_pages = config.pool_pages.saturating_sub(rx_pages).max(2);
    let tso = config.offloads == Offloads::Tso;
    let tx_large_pages = if tso { tx_pages / 2 } else { 0 };
    Sizes {
        tx_order: config.ring_order,
        rx_order: config.ring_order,
        rx_pages,
        rx_spare_pages: config.spare_buffers.div_ceil(config.buffers.per_page()),
        rx_buffer: config.buffers.bytes() as u16,
        tx_small_pages: tx_pages - tx_large_pages,
        tx_large_pages,
    }
}

/// What a netfront is to take at the most, from its configuration.
fn features(config: &GuestVif) -> Features {
    let features = match config.offloads {
        Offloads::None => Features::PLAIN,
        Offloads::Checksum => Features::CHECKSUM,
        Offloads::Tso => Features::ALL,
    };
    match config.ring_format {
        RingFormat::Xen => features,
        RingFormat::Native => features.with(Features::NATIVE_RINGS),
    }
}

/// Large receive offload before an endpoint: none if it takes single packets only.
fn merging(endpoint: Caps, config: &Lro) -> Lro {
    let takes = endpoint.tso && endpoint.checksum;
    Lro {
        at: if takes { config.at } else { At::None },
        ..*config
    }
}

/// Does something with whatever grants an interface's pages.
fn granted<T>(
    new: &mut Option<NewTable>,
    classic: &RefCell<GrantTable>,
    act: impl FnOnce(&mut dyn Granter) -> T,
) -> T {
    match new {
        Some(table) => act(table),
        None => act(&mut *classic.borrow_mut()),
    }
}

impl Interface {
    /// Every interface of the guest, each queue by itself, none connected yet.
    ///
    /// # Errors
    /// An endpoint's device was refused.
    pub fn build_all(
        home: &Home,
        platform: &Rc<dyn Platform>,
        calls: &Rc<RefCell<Calls>>,
        config: &GuestConfig,
    ) -> Result<Vec<Self>, StartError> {
        let entries = home.grant_entries as usize * 8;
        let table = home
            .info
            .at(info::GRANT_TABLE, entries)
            .ok_or(StartError::Damaged("no grant table"))?;
        let table = Rc::new(RefCell::new(GrantTable::new(table)));
        // Of frames, and of slots for pages that change hands: one queue's behind the other's.
        let (mut first_frame, mut flip_slot) = (0, 0);
        let mut all = Vec::new();
        for (number, vif) in config.vifs.iter().enumerate() {
            let layout = Layout::new(sizes(vif));
            if vif
                .rx_pool
                .is_some_and(|pool| pool != first_frame + layout.rx_pool().start)
            {
                return Err(StartError::Damaged(
                    "a device receives elsewhere than into an interface's pool",
                ));
            }
            let endpoints = devices::endpoints(&**platform, vif)?;
            for (queue, (endpoint, &conn)) in endpoints.into_iter().zip(&vif.conns).enumerate() {
                let lro = merging(endpoint.caps(), &config.lro);
                all.push(Self {
                    name: match vif.conns.len() {
                        1 => number.to_string(),
                        _ => format!("{number}.{queue}"),
                    },
                    conn: ConnId(conn),
                    platform: Rc::clone(platform),
                    calls: Rc::clone(calls),
                    table: Rc::clone(&table),
                    new_table: None,
                    flips: None,
                    flip_slot: Slot(flip_slot),
                    grant_entries: home.grant_entries,
                    frames: home.frames,
                    first_frame,
                    layout,
                    features: features(vif),
                    prefetch: vif.prefetch,
                    release_threshold: vif.release_threshold,
                    mac: vif.mac,
                    endpoint,
                    state: XenbusState::Initialising,
                    backend: None,
                    refusals: 0,
                    doorbell: None,
                    netfront: None,
                    closing: false,
                    past: Counters::default(),
                    past_turnover: Turnover::default(),
                    trouble: String::new(),
                    given: Given::default(),
                    starved: false,
                    touched: false,
                    // The driver domain always finds half of the buffers posted.
                    lro: Merger::new(Side::Virtual, &lro, vif.to_guest_buffers as usize / 2),
                    arrived: Vec::new(),
                    received: Vec::new(),
                    pick: Vec::new(),
                    to_send: Vec::new(),
                    small_frames: Vec::new(),
                    small_frames_to_send: Vec::new(),
                });
                first_frame += layout.frames();
                flip_slot += layout.sizes().rx_pages;
            }
        }
        Ok(all)
    }

    /// Goes as far through the hand-shake as the other end allows.
    pub fn advance(&mut self) {
        // Each pass makes one step; there are fewer steps than this.
        for _ in 0..8 {
            let before = self.state;
            let peer = self.platform.peer(self.conn);
            let Ok(Some(peer)) = peer else { return };
            use XenbusState as S;
            let is_new = self.backend != Some(peer.domain);
            match (self.state, peer.state) {
                (S::Initialised | S::Connected, _) if is_new => {
                    self.close("the driver domain was started again");
                }
                (S::Closed, _) if is_new && self.is_free() => {
                    self.set(S::Initialising, &NO_RECORD);
                }
                (S::Initialising, S::InitWait) => self.initialise(&peer),
                (S::Initialised, S::Connected) => {
                    self.refusals = 0;
                    self.set(S::Connected, &NO_RECORD);
                }
                // It may have read what was meant for the one before.
                (S::Initialised, S::Closed) => {
                    self.refusals += 1;
                    self.close("");
                }
                (S::Closed, S::Closed)
                    if (1..=REFUSALS).contains(&self.refusals) && self.is_free() =>
                {
                    self.set(S::Initialising, &NO_RECORD);
                }
                (S::Initialised | S::Connected, S::Closing | S::Closed) => self.close(""),
                (S::Initialised | S::Connected, S::Unknown) => {
                    self.close("the driver domain has died");
                }
                // Also without a way back: what was granted to a backend that has gone is ended.
                (S::Closed, state) if self.is_free() && state == S::InitWait => {
                    self.set(S::Initialising, &NO_RECORD);
                }
                _ => {}
            }
            if self.state == before {
                return;
            }
        }
    }

    fn initialise(&mut self, peer: &Peer) {
        if self.backend.replace(peer.domain) != Some(peer.domain) {
            // The other end's is another one, under the same number: the old one goes first.
            self.doorbell = None;
        }
        match self.lay_out(peer) {
            Ok(record) => self.set(XenbusState::Initialised, &record),
            Err(trouble) => self.close(&trouble),
        }
    }

    fn lay_out(&mut self, peer: &Peer) -> Result<Record, String> {
        let back = BackRecord::decode(&peer.record).map_err(|error| error.to_string())?;
        if self.doorbell.is_none() {
            self.doorbell = Some(self.attach_doorbell()?);
        }
        let mut setup = self.setup(peer.domain);
        // The driver domain says which mechanism it uses.
        self.new_table = if back.features.has(Features::COUNTED_GRANTS) {
            let (entries, first) = (self.grant_entries, self.first_frame);
            let table = NewTable::create(&self.calls, self.conn, entries, first)
                .map_err(|why| format!("no grant table: {}", why.name()))?;
            Some(table)
        } else {
            None
        };
        if back.features.has(Features::RX_FLIP) {
            let pages = self.layout.sizes().rx_pages;
            let place = (self.platform.window(), self.flip_slot, pages);
            // What a connection that came to nothing has left lies in the same place.
            self.flips = None;
            let flips = FlipPages::create(&self.calls, self.conn, place)
                .map_err(|why| format!("no pages that change hands: {}", why.name()))?;
            setup.exchange = Some(flips.exchange(self.table.borrow().span()));
            self.flips = Some(flips);
        }
        let (netfront, record) = self
            .granted(|granter| Netfront::new(&setup, granter, &back))
            .map_err(|error| error.to_string())?;
        self.netfront = Some(netfront);
        self.trouble.clear();
        Ok(record.encode())
    }

    fn attach_doorbell(&self) -> Result<Box<dyn Doorbell>, String> {
        let doorbell = self.platform.doorbell(self.conn);
        doorbell.map_err(|error| error.to_string())
    }

    fn setup(&self, backend: DomId) -> Setup {
        Setup {
            frames: self.frames,
            first_frame: self.first_frame,
            layout: self.layout,
            backend,
            mac: self.mac,
            features: self.features,
            prefetch: self.prefetch,
            release_threshold: self.release_threshold,
            exchange: None,
        }
    }

    /// Connects it to a driver domain that offers `back`, without a hand-shake, its pages granted
    /// by `granter`; the body of its record.
    ///
    /// # Errors
    /// Both ends do not fit.
    pub fn join(&mut self, back: &BackRecord, granter: &mut dyn Granter) -> Result<Record, String> {
        let setup = Setup {
            // Its pages cannot leave.
            release_threshold: None,
            ..self.setup(DomId(0))
        };
        let (netfront, record) =
            Netfront::new(&setup, granter, back).map_err(|error| error.to_string())?;
        self.doorbell = Some(self.attach_doorbell()?);
        self.netfront = Some(netfront);
        self.state = XenbusState::Connected;
        Ok(record.encode())
    }

    /// Does something with whatever grants this interface's pages.
    fn granted<T>(&mut self, act: impl FnOnce(&mut dyn Granter) -> T) -> T {
        granted(&mut self.new_table, &self.table, act)
    }

    /// Lets pages enter or leave the pool of receive buffers, if they can.
    fn turn_over(&mut self, ledger: &Ledger, act: fn(&mut Netfront, &mut dyn Granter)) {
        let Self {
            netfront,
            new_table,
            table,
            ..
        } = self;
        if let Some(netfront) = netfront
            && netfront.is_elastic()
        {
            ledger.at(Hop::Grant, || {
                granted(new_table, table, |granter| act(netfront, granter));
            });
        }
    }

    fn set(&mut self, state: XenbusState, record: &Record) {
        match self.platform.set_state(self.conn, state, record) {
            Ok(()) => self.state = state,
            Err(error) => self.trouble = format!("the monitor refused {state:?}: {error}"),
        }
    }

    /// Takes the connection down. Grants that are still in use are ended when they no longer are.
    fn close(&mut self, trouble: &str) {
        if !trouble.is_empty() {
            trouble.clone_into(&mut self.trouble);
            eprintln!("interface {}: {trouble}", self.name);
        }
        // What was received was received, even if nobody is told so any more.
        let mut held = Vec::new();
        let now_ns = shmem::time::monotonic_ns();
        self.lro.drain(now_ns, &mut held);
        if !held.is_empty() {
            self.hand_over(now_ns, &held);
        }
        if let Some(netfront) = &mut self.netfront {
            // Nothing of this pool may be used once there is another in its place.
            let pool = netfront.buffers();
            self.endpoint.release(pool);
            for mut frame in self.to_send.drain(..) {
                frame.recycle(pool);
            }
            for piece in self.small_frames_to_send.drain(..) {
                pool.put(piece.buffer);
            }
        }
        self.closing = self.netfront.is_some();
        self.is_free();
        self.set(XenbusState::Closed, &NO_RECORD);
    }

    /// Whether nothing is left of a connection that has ended.
    fn is_free(&mut self) -> bool {
        if self.closing
            && let Some(mut netfront) = self.netfront.take()
        {
            if self.granted(|granter| netfront.close(granter)).is_ok() {
                self.past += *netfront.counters();
                self.past_turnover += *netfront.turnover();
                self.closing = false;
                self.new_table = None;
                self.flips = None;
            } else {
                self.netfront = Some(netfront);
            }
        }
        self.netfront.is_none()
    }

    fn link(&mut self) -> Option<&mut Netfront> {
        let open = self.state == XenbusState::Connected && !self.closing;
        self.netfront.as_mut().filter(|_| open)
    }

    /// Frames from the driver domain to the endpoint; whether there were any.
    pub fn to_guest(
        &mut self,
        now_ns: u64,
        budget: usize,
        ledger: &Ledger,
        trace: &mut Trace,
    ) -> bool {
        let Some(netfront) = self.link() else {
            return false;
        };
        // Most looks find nothing: they are not worth a stamp.
        if !netfront.has_work() && !self.lro.is_active() {
            return false;
        }
        let small_frames = match self.small_frames_to_guest(now_ns, budget, ledger, trace) {
            Ok(small_frames) => small_frames,
            Err(fatal) => {
                self.close(&fatal.to_string());
                return false;
            }
        };
        let mut moved = small_frames > 0;
        let budget = budget - small_frames;
        let mut frames = std::mem::take(&mut self.received);
        let Self {
            netfront,
            lro,
            arrived,
            ..
        } = self;
        let Some(netfront) = netfront
            .as_mut()
            .filter(|netfront| lro.is_active() || netfront.has_work())
        else {
            self.received = frames;
            return moved;
        };
        let taken = if lro.is_active() {
            let taken = ledger.at(Hop::Netfront, || netfront.receive(budget, arrived));
            moved |= !arrived.is_empty();
            // A look that finds nothing is no poll: turns of this domain have many reasons.
            ledger.at(Hop::Lro, || lro.pass(now_ns, false, arrived, &mut frames));
            taken
        } else {
            ledger.at(Hop::Netfront, || netfront.receive(budget, &mut frames))
        };
        if taken.is_ok_and(|frames| frames > 0) {
            // The driver domain goes on while the endpoint has these.
            self.turn_over(ledger, |netfront, granter| {
                netfront.refill(granter);
                netfront.publish();
            });
        }
        if !frames.is_empty() {
            moved = true;
            trace.begin(Hop::Netfront, "the ring", &frames);
            let before = ledger.enter(Hop::Endpoint);
            let mut rest = frames.as_slice();
            // A frame that is followed goes by itself, so that what is counted is what became of it.
            if trace.is_running()
                && let Some((first, others)) = rest.split_at_checked(1)
            {
                rest = others;
                let before = Fate::of_device(&self.given);
                self.hand_over(now_ns, first);
                trace.step(Hop::Endpoint, || {
                    Fate::of_device(&self.given).since(&before, "the endpoint")
                });
                trace.end();
            }
            self.hand_over(now_ns, rest);
            self.touched = true;
            ledger.enter(Hop::Netfront);
            if let Some(netfront) = &mut self.netfront {
                netfront.receive_done(&mut frames);
            }
            ledger.enter(before);
            self.turn_over(ledger, Netfront::release);
        }
        self.received = frames;
        if let Err(fatal) = taken {
            self.close(&fatal.to_string());
        }
        moved
    }

    /// Gives frames to the endpoint, which never keeps any.
    fn hand_over(&mut self, now_ns: u64, frames: &[Frame]) {
        if frames.is_empty() {
            return;
        }
        self.pick.clear();
        self.pick.extend(0..frames.len() as u32);
        self.given
            .add(&self.endpoint.tx(now_ns, frames, &self.pick));
    }

    /// Frames from the endpoint to the driver domain; whether any left.
    pub fn from_guest(
        &mut self,
        now_ns: u64,
        budget: usize,
        ledger: &Ledger,
        trace: &mut Trace,
    ) -> bool {
        let Some(netfront) = self.link() else {
            return false;
        };
        // Buffers that the driver domain has given back are what the endpoint reads into. Most looks find
        // none: they are not worth a stamp.
        let reaped = match netfront.has_room_to_reap() {
            true => ledger.at(Hop::Netfront, || netfront.reap().err()),
            false => None,
        };
        let hop = ledger.enter(Hop::Endpoint);
        let yielded = match self.yields_small_frames(trace) {
            true => self.send_small_frames(now_ns, budget, ledger),
            false => self.send_frames(now_ns, budget, ledger, trace),
        };
        ledger.enter(hop);
        let pool = self.netfront.as_mut().map(Netfront::buffers);
        let empty = pool.is_none_or(|pool| pool.available() == 0) || self.endpoint.starved();
        self.starved = yielded.waits || yielded.taken == 0 && empty;
        self.touched |= yielded.moved;
        if let Some(fatal) = reaped.or(yielded.fatal) {
            self.close(&fatal.to_string());
        }
        yielded.moved
    }

    /// Frames from the endpoint to the ring.
    fn send_frames(
        &mut self,
        now_ns: u64,
        budget: usize,
        ledger: &Ledger,
        trace: &mut Trace,
    ) -> Yielded {
        let mut yielded = Yielded::default();
        let Self {
            netfront: Some(netfront),
            to_send: frames,
            endpoint,
            ..
        } = self
        else {
            return yielded;
        };
        if frames.is_empty() {
            yielded.taken = endpoint.rx(now_ns, budget, netfront.buffers(), frames);
        }
        let before = frames.len();
        if before == 0 {
            return yielded;
        }
        ledger.enter(Hop::Netfront);
        if yielded.taken > 0 {
            trace.begin(Hop::Endpoint, "the endpoint", frames);
        }
        if trace.is_running() {
            let rest = frames.split_off(frames.len().min(1));
            let before = Fate::of_driver(netfront.counters());
            yielded.fatal = netfront.transmit(frames).err();
            trace.step(Hop::Netfront, || {
                Fate::of_driver(netfront.counters()).since(&before, "the ring")
            });
            trace.end();
            frames.extend(rest);
        }
        if yielded.fatal.is_none() && !frames.is_empty() {
            yielded.fatal = netfront.transmit(frames).err();
        }
        yielded.moved = frames.len() < before;
        yielded.waits = !frames.is_empty();
        yielded
    }

    /// Shows the driver domain what was done; whether there was anything.
    pub fn publish(&mut self) -> bool {
        let touched = std::mem::take(&mut self.touched);
        let Some(netfront) = &mut self.netfront else {
            return touched;
        };
        // Also without a frame: buffers of refused packets are posted again.
        if !touched && !netfront.is_dirty() {
            return false;
        }
        netfront.publish();
        true
    }

    /// Wakes the driver domain if it sleeps and something was published.
    pub fn notify(&mut self) {
        if let Some(netfront) = &mut self.netfront
            && netfront.notify()
            && let Some(doorbell) = &self.doorbell
        {
            doorbell.ring();
        }
    }

    /// The guest is about to sleep.
    pub fn arm(&mut self) {
        let starved = self.starved;
        if let Some(netfront) = self.link() {
            netfront.arm(starved);
        }
    }

    /// The guest is awake.
    pub fn disarm(&mut self) {
        if let Some(netfront) = self.link() {
            netfront.disarm();
        }
    }

    /// Whether the driver domain has sent something, or has made the room that was waited for.
    pub fn has_work(&mut self) -> bool {
        let starved = self.starved;
        self.link()
            .is_some_and(|netfront| netfront.has_work() || starved && netfront.has_room_to_reap())
    }

    /// Whether the endpoint's descriptor is to be ignored: it has frames, and there is no room
    /// for them, or nowhere to send them.
    #[must_use]
    pub fn ignores_endpoint(&self) -> bool {
        self.starved || self.state != XenbusState::Connected
    }

    /// When the interface wants to be looked at although nobody will ring.
    #[must_use]
    pub fn next_due(&self, now_ns: u64) -> Option<u64> {
        let endpoint = match self.ignores_endpoint() {
            true => None,
            false => self.endpoint.next_due(now_ns),
        };
        // Packets are held that might become part of a larger one.
        endpoint.into_iter().chain(self.lro.next_due()).min()
    }

    /// Changes large receive offload.
    pub fn set_lro(&mut self, config: &Lro) {
        self.lro.set(&merging(self.endpoint.caps(), config));
    }

    /// Adds what large receive offload has counted.
    pub fn add_lro(&self, sums: &mut Sums) {
        self.lro.add_to(sums);
    }

    /// What became of the frames given to the endpoint.
    #[must_use]
    pub fn given(&self) -> Given {
        self.given
    }

    /// Its number; with several queues, those of interface and queue with a dot between.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        json!({
            "state": self.state,
            "trouble": self.trouble,
            "counters": runtime::report::counters(&self.counters()),
            "endpoint": runtime::report::device(&self.given, self.endpoint.counters()),
            "lro": self.lro.stat(),
            "pool": self.pool_stat(),
        })
    }

    /// The pages of receive buffers: how many are granted now, and what came and went on all
    /// connections.
    fn pool_stat(&self) -> Value {
        let (granted, pages) = self.netfront.as_ref().map_or((0, 0), Netfront::rx_pages);
        let turnover = self.turnover();
        json!({
            "pages": pages,
            "granted": granted,
            "granted_anew": turnover.entered,
            "revoked": turnover.left,
            "held_back": turnover.held_back,
            "refused": turnover.refused,
            "buffers_posted": turnover.posted,
        })
    }

    /// What came into the pool of receive buffers and left it, on all connections.
    #[must_use]
    pub fn turnover(&self) -> Turnover {
        let mut turnover = self.past_turnover;
        if let Some(netfront) = &self.netfront {
            turnover += *netfront.turnover();
        }
        turnover
    }

    /// What was counted on all its connections.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.past;
        if let Some(netfront) = &self.netfront {
            counters += *netfront.counters();
        }
        counters
    }
}
