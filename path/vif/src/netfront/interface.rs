//! The netfront's state, and how it drives its two rings and its event channel.

use super::offers::Offers;
use super::pool::{RxBuffers, TxOrder, TxPool};
use super::rx_pages::RxPages;
use super::setup::{PageLayout, Setup, SetupError};
use super::table::{GrantError, Granter};
use super::tracked::TrackedPages;
use crate::counters::InterfaceCounters;
use crate::events::{EventPage, Events};
use crate::fatal::Fatal;
use crate::netif::rings::{RxFront, TxFront, rings};
use crate::netif::{BackRecord, Features, FrontRecord, Negotiated, PeerCaps};
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
    pub(super) negotiated: Negotiated,
    pub(super) counters: InterfaceCounters,
    pub(super) fatal: Option<Fatal>,
    /// Grants of all pages. If the pools do not swap memory, the grants of receive buffers are not
    /// in the list.
    grants: Vec<GrantRef>,

    pub(super) tx_pool: TxPool,
    /// Extra infos sent and not yet answered.
    pub(super) tx_extras: u32,
    /// Pages outside the pool that may hold payload of frames.
    pub(super) tracked: Option<TrackedPages>,
    pub(super) rx_pool: RxBuffers,
    pub(super) rx_pages: RxPages,
    /// Transfer offers of the receive buffers, if pages are exchanged.
    pub(super) offers: Option<Offers>,
    /// For each slot of the rx ring, the buffer that was last posted there.
    pub(super) posted: Vec<u16>,
    /// Published responses of an incomplete packet at the head of the ring.
    pub(super) partial: u32,
    pub(super) prefetch: u32,
    /// Responses at the head of the ring whose headers were prefetched.
    pub(super) fetched: u32,
}

impl Netfront {
    /// Lays out, zeroes and grants the memory, posts receive buffers, and returns the netfront with
    /// its front record. Rings are smaller than configured if the backend's limit requires it;
    /// their frames stay reserved.
    ///
    /// # Errors
    /// Returns [`SetupError`] after ending the grants made before the error.
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
        let laid = PageLayout::grant_pages(setup, table, back, grants)?;
        let swaps = setup.swaps(back);
        let order = match (swaps, setup.features.has(Features::CPU_PAYLOAD)) {
            (true, _) => TxOrder::Swapped,
            (false, true) => TxOrder::OldestFirst,
            (false, false) => TxOrder::NewestFirst,
        };
        let record = laid.record(setup, table.table(), back)?;
        let negotiated = Negotiated::of(back, &record)?;
        let event = laid.event()?.0;
        let [tx, rx] = laid
            .rings(back)?
            .map(|ring| ring.iter().map(|page| page.0).collect::<Vec<_>>());
        let (tx, rx) = rings(&negotiated, &tx, &rx, event)?;
        let rx = RxFront::new(rx);
        let mut front = Self {
            tx: TxFront::new(tx),
            posted: vec![0; rx.slots() as usize],
            rx,
            events: Events::for_frontend(EventPage::new(event).ok_or(BadPages)?),
            negotiated,
            counters: InterfaceCounters::default(),
            fatal: None,
            grants: laid.fixed_grants(swaps),
            tx_pool: laid.tx_pool(order)?,
            tx_extras: 0,
            tracked: None,
            rx_pool: laid.rx_pool(setup, &negotiated)?,
            rx_pages: laid.rx_pages(setup, &negotiated),
            offers: setup.exchange.map(|own| Offers::new(own, setup.backend)),
            partial: 0,
            prefetch: setup.prefetch,
            fetched: 0,
        };
        front.tracked = setup.external_pages.map(|outside| {
            let (base, most) = (front.tx_pool.len(), front.tx.slots());
            TrackedPages::new(outside, setup.backend, base, most)
        });
        front.post_first();
        front.rx.publish();
        Ok((front, record))
    }

    /// Closes the interface and ends its grants. Grants that the driver domain still uses stay
    /// until a later call.
    ///
    /// # Errors
    /// Returns [`GrantError::InUse`] if some grants are still in use; the caller then calls again.
    pub fn close(&mut self, table: &mut dyn Granter) -> Result<(), GrantError> {
        self.fatal.get_or_insert(Fatal::Closed);
        if !self.tx_pool.swaps() {
            let in_pool = self.take_rx_grants();
            self.grants.extend(in_pool);
        }
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

    /// Returns the negotiated features.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Returns the offloads that the driver domain accepts. The caller performs the others on a
    /// frame in software first.
    #[must_use]
    pub fn peer(&self) -> &PeerCaps {
        &self.negotiated.from_guest
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &InterfaceCounters {
        &self.counters
    }

    /// Returns why the interface is disabled, or `None` if it is not.
    #[must_use]
    pub fn fatal(&self) -> Option<Fatal> {
        self.fatal
    }

    /// Returns the transmit buffers. The netfront sends frames in them without a copy.
    pub fn buffers(&mut self) -> &mut TxPool {
        &mut self.tx_pool
    }

    /// Returns whether [`Netfront::publish`] or [`Netfront::notify`] has anything to do.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.tx.is_dirty() || self.rx.is_dirty()
    }

    /// Publishes every written request to the driver domain: one store per ring.
    pub fn publish(&mut self) {
        self.tx.publish();
        self.rx.publish();
    }

    /// Returns whether the driver domain's doorbell must be rung for the requests published since
    /// the last call. A `fence(SeqCst)` must lie between [`Netfront::publish`] and this.
    #[must_use]
    pub fn notify(&mut self) -> bool {
        // Both are called: each one updates its notification state.
        let is_needed = self.rx.should_notify() | self.tx.should_notify();
        self.counters.notifications += u64::from(is_needed);
        is_needed && self.events.notify()
    }

    /// Requests notifications of received packets and, if `wants_room` because a frame is waiting
    /// to be sent, of answered requests. A `fence(SeqCst)` must lie between this and the last
    /// [`Netfront::has_work`] before sleeping.
    pub fn arm(&mut self, wants_room: bool) {
        self.rx.arm(self.partial);
        if wants_room {
            self.tx.arm(0);
        } else {
            self.tx.disarm();
        }
        self.events.arm();
    }

    /// Disables doorbells while the frontend is awake.
    pub fn disarm(&mut self) {
        self.events.disarm();
        self.events.take_pending();
    }

    /// Returns whether [`Netfront::receive`] would find packets.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.fatal.is_none() && self.rx.pending() > self.partial
    }

    /// Returns whether responses have arrived that [`Netfront::transmit`] has not reaped yet.
    #[must_use]
    pub fn has_unreaped_responses(&self) -> bool {
        self.fatal.is_none() && self.tx.pending() > 0
    }

    /// Calls [`Netfront::arm`], a fence, and checks for work. Returns whether the frontend must not
    /// sleep; if so, disarms it again.
    #[must_use]
    pub fn prepare_sleep(&mut self, wants_room: bool) -> bool {
        self.arm(wants_room);
        fence(Ordering::SeqCst);
        let work = self.has_work() || (wants_room && self.has_unreaped_responses());
        if work {
            self.disarm();
        }
        work
    }

    pub(super) fn check_fatal(&self) -> Result<(), Fatal> {
        self.fatal.map_or(Ok(()), Err)
    }

    pub(super) fn fail<T>(&mut self, fatal: impl Into<Fatal>) -> Result<T, Fatal> {
        let fatal = fatal.into();
        self.fatal = Some(fatal);
        Err(fatal)
    }
}
