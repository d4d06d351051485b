//! What a netfront is made of, and how its two rings and its event channel are driven.

use super::offers::Offers;
use super::pool::{Stack, TxPool};
use super::rx_pages::RxPages;
use super::setup::{Laid, Setup, SetupError};
use super::table::{GrantError, Granter};
use super::tracked::Tracked;
use crate::counters::Counters;
use crate::events::{EventPage, Events};
use crate::fatal::Fatal;
use crate::netif::rings::{RxFront, TxFront, rings};
use crate::netif::{Abilities, BackRecord, FrontRecord, Terms};
use crate::ring::BadPages;
use abi::GrantRef;
use shmem::sync::fence;
use std::sync::atomic::Ordering;

/// The frontend of one virtual interface.
#[derive(Debug)]
pub struct Netfront {
    pub(super) tx: TxFront,
    pub(super) rx: RxFront,
    events: Events<EventPage>,
    pub(super) terms: Terms,
    pub(super) counters: Counters,
    pub(super) fatal: Option<Fatal>,
    /// Grants of all pages but those of receive buffers.
    grants: Vec<GrantRef>,

    pub(super) tx_pool: TxPool,
    /// Extra infos that were sent and not yet answered.
    pub(super) tx_extras: u32,
    /// Pages outside the pool that frames may lie in.
    pub(super) tracked: Option<Tracked>,
    pub(super) rx_pool: Stack,
    pub(super) rx_pages: RxPages,
    /// What receive buffers accept, if their pages change hands.
    pub(super) offers: Option<Offers>,
    /// For each slot of the rx ring the buffer that was posted there last.
    pub(super) posted: Vec<u16>,
    /// Responses of a packet at the head of the ring whose rest is not there yet.
    pub(super) partial: u32,
    pub(super) prefetch: u32,
    /// Responses at the head of the ring whose headers were fetched.
    pub(super) fetched: u32,
}

impl Netfront {
    /// Lays out, zeroes and grants the memory, posts receive buffers, and says what to write into
    /// the front's record. Rings smaller than asked for are taken if the backend takes no larger
    /// ones; the frames stay reserved.
    ///
    /// # Errors
    /// [`SetupError`]; grants that were made by then are ended.
    pub fn new(
        setup: &Setup,
        table: &mut dyn Granter,
        back: &BackRecord,
    ) -> Result<(Self, FrontRecord), SetupError> {
        let mut grants = Vec::new();
        let made = Self::build(setup, table, back, &mut grants);
        if made.is_err() {
            // The driver domain does not know these grants yet, so none is in use.
            table.end(&mut grants);
        }
        made
    }

    fn build(
        setup: &Setup,
        table: &mut dyn Granter,
        back: &BackRecord,
        grants: &mut Vec<GrantRef>,
    ) -> Result<(Self, FrontRecord), SetupError> {
        let laid = Laid::out(setup, table, grants)?;
        let record = laid.record(setup, table.table(), back)?;
        let terms = Terms::of(back, &record)?;
        let event = laid.event()?.0;
        let [tx, rx] = laid
            .rings(back)?
            .map(|ring| ring.iter().map(|page| page.0).collect::<Vec<_>>());
        let (tx, rx) = rings(&terms, &tx, &rx, event)?;
        let rx = RxFront::new(rx);
        let mut front = Self {
            tx: TxFront::new(tx),
            posted: vec![0; rx.slots() as usize],
            rx,
            events: Events::front(EventPage::new(event).ok_or(BadPages)?),
            terms,
            counters: Counters::default(),
            fatal: None,
            grants: laid.fixed_grants(),
            tx_pool: laid.tx_pool()?,
            tx_extras: 0,
            tracked: None,
            rx_pool: laid.rx_pool(&terms)?,
            rx_pages: laid.rx_pages(setup, &terms),
            offers: setup.exchange.map(|own| Offers::new(own, setup.backend)),
            partial: 0,
            prefetch: setup.prefetch,
            fetched: 0,
        };
        front.tracked = setup.outside.map(|outside| {
            let (base, most) = (front.tx_pool.len(), front.tx.slots());
            Tracked::new(outside, setup.backend, base, most)
        });
        front.post();
        front.rx.publish();
        Ok((front, record))
    }

    /// Takes the interface down: ends its grants. Those that the driver domain still uses are
    /// left to a later call.
    ///
    /// # Errors
    /// [`GrantError::InUse`]: some are still in use; call again.
    pub fn close(&mut self, table: &mut dyn Granter) -> Result<(), GrantError> {
        self.fatal.get_or_insert(Fatal::Closed);
        let in_pool = self.take_rx_grants();
        self.grants.extend(in_pool);
        if let Some(tracked) = &mut self.tracked {
            self.grants.extend(tracked.take_grants());
        }
        table.end(&mut self.grants);
        if self.grants.is_empty() {
            Ok(())
        } else {
            Err(GrantError::InUse)
        }
    }

    /// What was agreed on.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What the driver domain takes; frames that need more have to be segmented or checksummed
    /// first.
    #[must_use]
    pub fn peer(&self) -> &Abilities {
        &self.terms.from_guest
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Why the interface is disabled, if it is.
    #[must_use]
    pub fn fatal(&self) -> Option<Fatal> {
        self.fatal
    }

    /// The buffers to send from: a frame that lies in them is not copied.
    pub fn buffers(&mut self) -> &mut TxPool {
        &mut self.tx_pool
    }

    /// Whether there is anything to [`Netfront::publish`], or to ask [`Netfront::notify`] about.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.tx.is_dirty() || self.rx.is_dirty()
    }

    /// Lets the driver domain see every request that was written: one store per ring.
    pub fn publish(&mut self) {
        self.tx.publish();
        self.rx.publish();
    }

    /// Tells the driver domain, if it asked for that, about what was published since the last call;
    /// whether its doorbell has to be rung. A `fence(SeqCst)` must lie between
    /// [`Netfront::publish`] and this.
    #[must_use]
    pub fn notify(&mut self) -> bool {
        // Both are asked: each remembers what it was asked about.
        let asked = self.rx.should_notify() | self.tx.should_notify();
        self.counters.notifications += u64::from(asked);
        asked && self.events.notify()
    }

    /// Asks the driver domain to tell about packets, and if `wants_room` about requests that it
    /// has answered (a frame waits to be sent). A `fence(SeqCst)` must lie between this and the
    /// last [`Netfront::has_work`] before sleeping.
    pub fn arm(&mut self, wants_room: bool) {
        self.rx.arm(self.partial);
        if wants_room {
            self.tx.arm(0);
        } else {
            self.tx.disarm();
        }
        self.events.arm();
    }

    /// Awake: no doorbells.
    pub fn disarm(&mut self) {
        self.events.disarm();
        self.events.take_pending();
    }

    /// Whether [`Netfront::receive`] would find something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.fatal.is_none() && self.rx.pending() > self.partial
    }

    /// Whether requests were answered that [`Netfront::transmit`] has not taken note of yet.
    #[must_use]
    pub fn has_room_to_reap(&self) -> bool {
        self.fatal.is_none() && self.tx.pending() > 0
    }

    /// [`Netfront::arm`], fence, look again: whether sleeping is wrong after all; if so disarmed
    /// again.
    #[must_use]
    pub fn prepare_sleep(&mut self, wants_room: bool) -> bool {
        self.arm(wants_room);
        fence(Ordering::SeqCst);
        let work = self.has_work() || (wants_room && self.has_room_to_reap());
        if work {
            self.disarm();
        }
        work
    }

    pub(super) fn alive(&self) -> Result<(), Fatal> {
        self.fatal.map_or(Ok(()), Err)
    }

    pub(super) fn fail<T>(&mut self, fatal: impl Into<Fatal>) -> Result<T, Fatal> {
        let fatal = fatal.into();
        self.fatal = Some(fatal);
        Err(fatal)
    }
}
