//! Ports that are guests: the hand-shake, the netback, the doorbell.
//!
//! | own state | the frontend is | what happens |
//! |---|---|---|
//! | Initialising | anything | the backend's record is written: InitWait |
//! | InitWait | Initialised | the rings are mapped: Connected |
//! | Connected | Closing, Closed, Initialising, Unknown | everything is unmapped: Closed |
//! | Closed | Initialising | the backend's record is written again: InitWait |

pub mod memory;

use crate::dedicated::queue::DedicatedQueue;
use crate::room::Room;
use crate::traffic::Traffic;
use abi::hypercall::Unmap;
use abi::{ConnId, GrantRef, XenbusState};
use memory::{GuestMemory, Opened, Shared, Window};
use nic::{Caps, Frame, SmallBatch, SmallFrame};
use runtime::ledger::{Hop, Ledger};
use runtime::platform::{Doorbell, NO_RECORD, Peer, Record};
use shmem::Span;
use std::rc::Rc;
use vif::Counters;
use vif::grants::Grants;
use vif::netback::{Netback, Taken, ToGuest};
use vif::netif::{BackRecord, FrontRecord, Terms};
use vif::ring::Watch;

/// One guest's port.
#[derive(Debug)]
pub struct VifPort {
    /// Its name, for people.
    pub name: String,
    /// What it has done.
    pub traffic: Traffic,
    /// Frames for it that came while it was not connected.
    pub not_connected: u64,
    /// What ended the connection before, for people; empty: nothing did.
    pub trouble: String,
    conn: ConnId,
    mac: [u8; 6],
    memory: GuestMemory,
    state: XenbusState,
    doorbell: Option<Box<dyn Doorbell>>,
    link: Option<Link>,
    /// What links before this one have counted.
    past: Counters,
    room: Room,
    /// Its dedicated queue of a wire, if it has one.
    pub queue: Option<DedicatedQueue>,
    /// Whether anything was done since the rings were last published.
    touched: bool,
}

/// What exists while the guest is connected.
struct Link {
    netback: Netback<Box<dyn Grants>>,
    rings: Vec<Unmap>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("rings", &self.rings)
            .finish_non_exhaustive()
    }
}

impl VifPort {
    /// A port for connection `conn`, whose guest has the station address `mac`. Its grants appear
    /// in `window`; `staging` is for the copying mechanism.
    #[must_use]
    pub fn new(
        name: String,
        conn: ConnId,
        mac: [u8; 6],
        shared: Shared,
        window: Window,
        staging: Span,
    ) -> Self {
        Self {
            name,
            traffic: Traffic::default(),
            not_connected: 0,
            trouble: String::new(),
            conn,
            mac,
            memory: GuestMemory {
                shared,
                window,
                staging,
            },
            state: XenbusState::Initialising,
            doorbell: None,
            link: None,
            past: Counters::default(),
            room: Room::default(),
            queue: None,
            touched: false,
        }
    }

    /// The guest's station address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> XenbusState {
        self.state
    }

    /// What was counted on all its links.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = self.past;
        if let Some(link) = &self.link {
            all += *link.netback.counters();
        }
        all
    }

    /// Frames that were made of larger ones because the guest had too little room for these.
    #[must_use]
    pub fn split(&self) -> u64 {
        self.room.split
    }

    /// What the guest takes; none while it is not connected.
    #[must_use]
    pub fn caps(&self) -> Option<Caps> {
        let peer = self.link.as_ref()?.netback.peer();
        Some(Caps {
            checksum: peer.csum && peer.ipv6_csum,
            tso: peer.gso_tcpv4 && peer.gso_tcpv6,
            max_frame: vif::netif::MAX_PACKET,
        })
    }

    /// Goes as far through the hand-shake as the other end allows.
    pub fn advance(&mut self) {
        // Each pass makes one step; there are fewer steps than this.
        for _ in 0..8 {
            let before = self.state;
            let peer = self.memory.shared.platform.peer(self.conn);
            let Ok(Some(peer)) = peer else { return };
            // Nobody comes back who is dead: what is over its memory ends, used or not.
            if peer.state == XenbusState::Unknown
                && let Some(queue) = &mut self.queue
            {
                queue.end();
            }
            use XenbusState as S;
            match (self.state, peer.state) {
                (S::Initialising, _) | (S::Closed, S::Initialising) => {
                    let body = self.record().encode();
                    self.set(S::InitWait, &body);
                }
                (S::InitWait, S::Initialised) => match self.connect(&peer) {
                    Ok(()) => {
                        let body = self.record().encode();
                        self.set(S::Connected, &body);
                    }
                    Err(trouble) => self.close(&trouble),
                },
                // Initialising: it has closed and come back before we looked.
                (S::Connected, S::Closing | S::Closed | S::Initialising)
                | (S::InitWait, S::Closing | S::Closed) => self.close(""),
                (S::Connected, S::Unknown) => self.close("the guest has died"),
                _ => {}
            }
            if self.state == before {
                return;
            }
        }
    }

    /// What it offers the guest.
    #[must_use]
    pub fn record(&self) -> BackRecord {
        self.memory.shared.record(self.queue.is_some())
    }

    fn set(&mut self, state: XenbusState, record: &Record) {
        let platform = &self.memory.shared.platform;
        match platform.set_state(self.conn, state, record) {
            Ok(()) => self.state = state,
            Err(error) => self.trouble = format!("the monitor refused {state:?}: {error}"),
        }
    }

    /// Connects it to a guest without a hand-shake: the guest has `record`, `mechanism` gets
    /// at its pages, `page` finds those of the rings.
    ///
    /// # Errors
    /// What is wrong with the record.
    pub fn join(
        &mut self,
        record: &Record,
        mechanism: Box<dyn Grants>,
        page: impl FnMut(GrantRef) -> Option<Span>,
    ) -> Result<(), String> {
        let (front, terms) = self.agree(record)?;
        let pages: Option<Vec<_>> = front.references().map(page).collect();
        let pages = pages.ok_or("a ring's page is not there")?;
        self.link(terms, &front, (mechanism, Vec::new(), pages))?;
        self.doorbell = Some(self.attach_doorbell()?);
        self.state = XenbusState::Connected;
        Ok(())
    }

    fn attach_doorbell(&self) -> Result<Box<dyn Doorbell>, String> {
        let doorbell = self.memory.shared.platform.doorbell(self.conn);
        doorbell.map_err(|error| error.to_string())
    }

    /// The ledger of this port's domain.
    #[must_use]
    pub fn ledger(&self) -> Rc<Ledger> {
        Rc::clone(&self.memory.shared.ledger)
    }

    /// The guest's record, and what it comes to with this end's.
    fn agree(&self, record: &Record) -> Result<(FrontRecord, Terms), String> {
        let front = FrontRecord::decode(record).map_err(|error| error.to_string())?;
        if front.mac != self.mac {
            return Err("the guest claims another MAC address than it was given".into());
        }
        let terms = Terms::of(&self.record(), &front).map_err(|error| error.to_string())?;
        Ok((front, terms))
    }

    fn connect(&mut self, peer: &Peer) -> Result<(), String> {
        let (front, terms) = self.agree(&peer.record)?;
        if self.doorbell.is_none() {
            self.doorbell = Some(self.attach_doorbell()?);
        }
        let opened = self.memory.open(peer, &front)?;
        self.link(terms, &front, opened)
    }

    fn link(
        &mut self,
        terms: Terms,
        front: &FrontRecord,
        (mechanism, rings, pages): Opened,
    ) -> Result<(), String> {
        let (tx, rest) = pages.split_at(front.tx_ring.len());
        let (rx, event) = rest.split_at(front.rx_ring.len());
        let event = event.first().copied().unwrap_or(Span::EMPTY);
        let netback = match Netback::new(terms, tx, rx, event, mechanism) {
            Ok(netback) => netback,
            Err(error) => {
                self.memory.unmap(&rings);
                return Err(error.to_string());
            }
        };
        self.link = Some(Link { netback, rings });
        self.trouble.clear();
        Ok(())
    }

    /// Takes the link down, whatever state it is in.
    fn close(&mut self, trouble: &str) {
        if let Some(link) = self.link.take() {
            // First of all: its pages are to be the guest's.
            if let Some(queue) = &mut self.queue {
                queue.end();
            }
            self.past += *link.netback.counters();
            drop(link.netback.into_grants());
            self.memory.unmap(&link.rings);
        }
        if !trouble.is_empty() {
            trouble.clone_into(&mut self.trouble);
            eprintln!("{}: {trouble}", self.name);
        }
        self.set(XenbusState::Closed, &NO_RECORD);
    }

    /// Frames that the guest sent. They belong to the port until [`VifPort::done`].
    pub fn take(&mut self, budget: usize, out: &mut Vec<Frame>, ledger: &Ledger) -> usize {
        let Some(link) = &mut self.link else { return 0 };
        let taken = ledger.at(Hop::Netback, || link.netback.from_guest(budget, out));
        match taken {
            Ok(taken) => {
                self.traffic.in_packets += taken as u64;
                self.traffic.in_bytes += out.iter().map(|frame| frame.len() as u64).sum::<u64>();
                taken
            }
            Err(fatal) => {
                self.close(&fatal.to_string());
                0
            }
        }
    }

    /// The small frames at the head of the guest's ring, as [`VifPort::take`] takes others.
    pub fn take_small_frames(&mut self, budget: usize, out: &mut SmallBatch) -> Taken {
        out.clear();
        let Some(link) = &mut self.link else {
            return Taken::default();
        };
        match link.netback.small_frames_from_guest(budget, out) {
            Ok(taken) => {
                self.traffic.in_packets += out.len() as u64;
                self.traffic.in_bytes += taken.bytes;
                taken
            }
            Err(fatal) => {
                self.close(&fatal.to_string());
                Taken::default()
            }
        }
    }

    /// Bytes of the longest small frame that can be sent to the guest; 0: none can.
    #[must_use]
    pub fn longest_small_frame(&self) -> usize {
        self.link
            .as_ref()
            .map_or(0, |link| link.netback.longest_small_frame())
    }

    /// [`VifPort::send`] for small frames none of which is longer than that.
    pub fn send_small_frames(&mut self, small: &[SmallFrame], pick: &[u32]) {
        let Some(link) = &mut self.link else { return };
        let report = link.netback.small_frames_to_guest(small, pick);
        self.delivered(&report);
    }

    /// Answers what was taken.
    pub fn done(&mut self, ledger: &Ledger) {
        if let Some(link) = &mut self.link {
            ledger.at(Hop::Netback, || link.netback.from_guest_done());
            self.touched = true;
        }
    }

    /// Sends frames to the guest. While it is not connected they are counted.
    pub fn send(&mut self, frames: &[Frame], pick: &[u32], ledger: &Ledger) {
        let Some(link) = &mut self.link else {
            self.not_connected += pick.len() as u64;
            return;
        };
        let report = ledger.at(Hop::Netback, || {
            self.room.to_guest(&mut link.netback, frames, pick)
        });
        self.delivered(&report);
    }

    /// The netback, for a NIC that writes to the guest's pages itself, while it is connected.
    /// [`VifPort::delivered`] takes what comes of it.
    pub fn netback(&mut self) -> Option<&mut Netback<Box<dyn Grants>>> {
        self.link.as_mut().map(|link| &mut link.netback)
    }

    /// Its dedicated queue and the netback, while it is connected.
    pub fn dedicated(&mut self) -> Option<(&mut DedicatedQueue, &mut Netback<Box<dyn Grants>>)> {
        Some((self.queue.as_mut()?, &mut self.link.as_mut()?.netback))
    }

    /// Counts what was given to the guest.
    pub fn delivered(&mut self, report: &ToGuest) {
        let Some(link) = &self.link else { return };
        let fatal = link.netback.fatal();
        self.traffic.out_packets += u64::from(report.delivered);
        self.traffic.out_bytes += report.bytes;
        self.touched = true;
        if let Some(fatal) = fatal {
            self.close(&fatal.to_string());
        }
    }

    /// Whether a device can write frames of `bytes` bytes, with what `caps` leave undone, to the
    /// guest's pages.
    #[must_use]
    pub fn can_post(&self, bytes: usize, caps: Caps) -> bool {
        let fits = |link: &Link| link.netback.can_post(bytes);
        self.link.as_ref().is_some_and(fits)
            && self
                .caps()
                .is_some_and(|own| own.checksum || !caps.checksum)
    }

    /// Whether the guest takes packets of several buffers that are to be segmented.
    #[must_use]
    pub fn takes_merged(&self) -> bool {
        self.caps().is_some_and(|caps| caps.tso && caps.checksum)
    }

    /// Shows the guest what was done; whether there was anything.
    pub fn publish(&mut self) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        if !std::mem::take(&mut self.touched) && !link.netback.is_dirty() {
            return false;
        }
        link.netback.publish();
        true
    }

    /// Whether the guest has to be told before it is out of receive buffers.
    pub fn is_short(&mut self) -> bool {
        self.link
            .as_mut()
            .is_some_and(|link| link.netback.is_short())
    }

    /// Wakes the guest if it sleeps and something was published.
    pub fn notify(&mut self) {
        if let Some(link) = &mut self.link
            && link.netback.notify()
            && let Some(doorbell) = &self.doorbell
        {
            doorbell.ring();
        }
    }

    /// The driver is about to sleep.
    pub fn arm(&mut self) {
        if let Some(link) = &mut self.link {
            link.netback.arm(false);
        }
    }

    /// The driver is awake.
    pub fn disarm(&mut self) {
        if let Some(link) = &mut self.link {
            link.netback.disarm();
        }
    }

    /// A look at whether the guest may have sent something since it had nothing; good until
    /// [`VifPort::take`] or [`VifPort::advance`].
    #[must_use]
    pub fn watch(&self) -> Watch {
        let link = self.link.as_ref();
        link.map_or(Watch::NONE, |link| link.netback.watch())
    }

    /// Whether the guest has sent something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| link.netback.has_work())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::vif_port;
    use abi::PAGE;
    use shmem::Area;

    #[test]
    fn who_has_gone_sends_nothing_of_anybody_s() {
        let of_another = Area::anonymous(PAGE).unwrap().at(0, 60).unwrap();
        let mut batch = SmallBatch::default();
        batch.push(of_another).unwrap();
        let mut port = vif_port("");
        assert_eq!(port.take_small_frames(64, &mut batch), Taken::default());
        assert!(batch.is_empty());
        assert_eq!(
            (port.longest_small_frame(), port.traffic.in_packets),
            (0, 0)
        );
    }
}
