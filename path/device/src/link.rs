//! The device's end of the connection to the driver domain.
//!
//! | state of this end | state of the driver domain | action and new state |
//! |---|---|---|
//! | Initialising | any | InitWait |
//! | InitWait | Initialised | bind the granted pages: Connected |
//! | Connected | Closing, Closed, Initialising, Unknown | unbind the pages: Closed |
//! | Closed | Initialising | InitWait |

use abi::counted::{status_bytes, table_slots, translation_bytes};
use abi::hypercall::BindOp;
use abi::{ConnId, DomId, PAGE, Slot, XenbusState};
use nic::dma::{GrantedMemory, IoAddr, QueueRecord};
use runtime::call::{Calls, OwnTable};
use runtime::platform::{Doorbell, NO_RECORD, PeerEnd, Platform};
use runtime::start::print_line;
use shmem::grant_use::TableWords;
use std::cell::RefCell;
use std::rc::Rc;

/// The device has only one connection.
const CONNECTION: ConnId = ConnId(0);

/// Limits of the device, which a driver domain must observe.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Number of entries of each queue.
    pub descriptors: u32,
    /// Maximum number of granted pages.
    pub pages: u32,
    /// Slots of the window at which the monitor maps guests' pages: the first slot and the number
    /// of slots.
    pub guests: (u32, u32),
    /// Maximum number of dedicated queues.
    pub queues: u32,
}

/// Memory that a connected driver domain has granted.
#[derive(Debug)]
pub struct DriverGrants {
    /// The granted pages.
    pub memory: GrantedMemory,
    /// The places of the queues in this memory.
    pub queues: QueueRecord,
    _table: OwnTable,
}

/// The device's end of the connection.
#[derive(Debug)]
pub struct DriverLink {
    platform: Rc<dyn Platform>,
    calls: Rc<RefCell<Calls>>,
    limits: QueueLimits,
    state: XenbusState,
    /// The last driver domain; the doorbell belongs to it.
    driver: Option<DomId>,
    doorbell: Option<Box<dyn Doorbell>>,
    /// Set while the driver domain is connected.
    granted: Option<DriverGrants>,
}

impl DriverLink {
    /// Creates the device's end of the connection.
    #[must_use]
    pub fn new(platform: Rc<dyn Platform>, calls: Rc<RefCell<Calls>>, limits: QueueLimits) -> Self {
        Self {
            platform,
            calls,
            limits,
            state: XenbusState::Initialising,
            driver: None,
            doorbell: None,
            granted: None,
        }
    }

    /// Returns the memory that the driver domain has granted, while it is connected.
    #[must_use]
    pub fn granted(&self) -> Option<&DriverGrants> {
        self.granted.as_ref()
    }

    /// Raises an interrupt in the driver domain.
    pub fn interrupt(&self) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.ring();
        }
    }

    /// Advances the handshake as far as the state of the driver domain allows. When the driver
    /// domain connects, calls `connected` with its queues.
    pub fn advance(&mut self, mut connected: impl FnMut(&QueueRecord)) {
        // Each pass performs one step; a handshake has fewer steps than this loop has passes.
        for _ in 0..8 {
            let before = self.state;
            let Ok(Some(peer)) = self.platform.peer(CONNECTION) else {
                return;
            };
            use XenbusState as S;
            match (self.state, peer.state) {
                (S::Initialising, _) | (S::Closed, S::Initialising) => self.set(S::InitWait),
                (S::InitWait, S::Initialised) => match self.connect(&peer) {
                    Ok(granted) => {
                        connected(&granted.queues);
                        self.granted = Some(granted);
                        self.set(S::Connected);
                    }
                    Err(why) => {
                        print_line(format_args!("{why}"));
                        self.close();
                    }
                },
                // The state Initialising means that the driver domain has restarted since the last
                // check.
                (S::Connected, S::Closing | S::Closed | S::Initialising | S::Unknown)
                | (S::InitWait, S::Closing | S::Closed) => self.close(),
                _ => {}
            }
            if self.state == before {
                return;
            }
        }
    }

    fn set(&mut self, state: XenbusState) {
        match self.platform.set_state(CONNECTION, state, &NO_RECORD) {
            Ok(()) => self.state = state,
            Err(error) => print_line(format_args!("the monitor rejects state {state:?}: {error}")),
        }
    }

    fn close(&mut self) {
        self.granted = None;
        self.set(XenbusState::Closed);
    }

    fn connect(&mut self, peer: &PeerEnd) -> Result<DriverGrants, String> {
        let queues = QueueRecord::decode(&peer.record);
        let queues = queues.ok_or("the driver domain's record has another version")?;
        let QueueRecord {
            table,
            pages,
            descriptors,
            queues: dedicated,
            ..
        } = queues;
        if dedicated > self.limits.queues {
            return Err(format!("{dedicated} dedicated queues are too many"));
        }
        if descriptors != self.limits.descriptors {
            return Err(format!("{descriptors} descriptors do not match"));
        }
        if !(1..=self.limits.pages).contains(&pages) {
            return Err(format!("{pages} pages are none or too many"));
        }
        if self.driver.replace(peer.domain) != Some(peer.domain) {
            // The old doorbell must be dropped before the new one is attached, because both have
            // the same number.
            self.doorbell = None;
        }
        if self.doorbell.is_none() {
            let doorbell = self.platform.doorbell(CONNECTION);
            self.doorbell = Some(doorbell.map_err(|error| error.to_string())?);
        }
        let window = self.platform.window();
        let (translation, status) = (translation_bytes(pages), status_bytes(pages));
        let at = pages as usize * PAGE;
        let entries = window.at(at, translation).and_then(|translation_span| {
            let status_span = window.at(at + translation, status)?;
            TableWords::of(translation_span, status_span, pages)
        });
        let span = window.at(0, at);
        let (first, slots) = self.limits.guests;
        let guests = window.at(first as usize * PAGE, slots as usize * PAGE);
        let (Some(entries), Some(span), Some(guests)) = (entries, span, guests) else {
            let slots = pages.saturating_add(table_slots(pages));
            return Err(format!("the window has fewer than {slots} slots"));
        };
        let bind = BindOp {
            granter: peer.domain,
            table,
            first: Slot(0),
            tables: Slot(pages),
            entries: pages,
        };
        let bound = self.calls.borrow_mut().bind_table(&bind);
        bound.map_err(|why| format!("the grant table cannot be bound: {}", why.name()))?;
        Ok(DriverGrants {
            memory: GrantedMemory::new(entries, span, (IoAddr::of_page(first), guests)),
            queues,
            _table: OwnTable::new(&self.calls, table),
        })
    }
}
