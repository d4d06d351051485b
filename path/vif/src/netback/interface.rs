//! The netback's state, and how it drives its two rings and its event channel.

use super::chains::Chains;
use super::completions::DeliveryReport;
use super::copies::Copies;
use super::multicast_filter::MulticastFilter;
use super::outstanding::Outstanding;
use super::zero_copy_batch::ZeroCopyBatch;
use crate::counters::InterfaceCounters;
use crate::events::{EventPage, Events, NotifiedRings};
use crate::fatal::Fatal;
use crate::grants::GrantMechanism;
use crate::netif::rings::{RX_RESPONSE, RxBack, TxBack, rings};
use crate::netif::{Negotiated, PeerCaps};
use crate::ring::{BadPages, Journal, RingWatch};
use shmem::Span;
use shmem::sync::fence;
use std::sync::atomic::Ordering;

/// The backend of one virtual interface.
#[derive(Debug)]
pub struct Netback<G> {
    pub(super) tx: TxBack,
    pub(super) rx: RxBack,
    events: Events<EventPage>,
    pub(super) grants: G,
    pub(super) negotiated: Negotiated,
    pub(super) counters: InterfaceCounters,
    pub(super) fatal: Option<Fatal>,
    /// Packets that `from_guest` has taken and `from_guest_done` has not answered yet.
    pub(super) chains: Chains,
    /// Scratch lists of `to_guest`; empty between calls.
    pub(super) copies: Copies,
    /// Responses not yet written to the ring to the guest; empty between calls.
    pub(super) responses: Vec<[u32; RX_RESPONSE]>,
    /// The batch of `post`; empty between batches.
    pub(super) zero_copy: ZeroCopyBatch,
    /// Requests outstanding at a device across turns.
    pub(super) outstanding: Outstanding,
    /// Number of requests in the ring that only segment sizes may use.
    pub(super) reserved: u32,
    /// The guest's multicast filter, if the guest was offered one.
    pub(super) groups: Option<MulticastFilter>,
}

impl<G: GrantMechanism> Netback<G> {
    /// Creates a backend over the mapped pages of both rings (in the order of the front's record)
    /// and of the event channel, which must stay mapped while the backend exists.
    ///
    /// # Errors
    /// Returns [`BadPages`] if the pages do not match `negotiated`.
    pub fn new(
        negotiated: Negotiated,
        tx_pages: &[Span],
        rx_pages: &[Span],
        event_page: Span,
        grants: G,
    ) -> Result<Self, BadPages> {
        let (tx, rx) = rings(&negotiated, tx_pages, rx_pages, event_page)?;
        Ok(Self {
            tx: TxBack::new(tx),
            rx: RxBack::new(rx),
            events: Events::for_backend(EventPage::new(event_page).ok_or(BadPages)?),
            grants,
            negotiated,
            counters: InterfaceCounters::default(),
            fatal: None,
            chains: Chains::default(),
            copies: Copies::default(),
            responses: Vec::new(),
            zero_copy: ZeroCopyBatch::default(),
            outstanding: Outstanding::default(),
            reserved: 0,
            groups: None,
        })
    }

    /// Takes over the rings of a backend that may have died (RING-16), and records taken requests
    /// in the journals: `tx` for the ring from the guest, `rx` for the ring to it. Must precede any
    /// other call.
    pub fn resume(&mut self, [tx, rx]: [Journal; 2]) {
        self.tx.resume(tx);
        self.rx.resume(rx);
    }

    /// Offers the guest multicast control (NETIF-28); its queues share the filter.
    pub fn offer_multicast_filter(&mut self, groups: MulticastFilter) {
        self.groups = Some(groups);
    }

    /// Returns the negotiated features.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Returns the offloads that the guest accepts. The caller performs the others on a frame in
    /// software first.
    #[must_use]
    pub fn peer(&self) -> &PeerCaps {
        &self.negotiated.to_guest
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

    /// Returns the grant mechanism.
    pub fn grants_mut(&mut self) -> &mut G {
        &mut self.grants
    }

    /// Ends the interface without further responses and returns the grant mechanism, so that the
    /// caller can close it.
    #[must_use]
    pub fn into_grants(mut self) -> G {
        if self.chains.reading {
            self.grants.read_end();
        }
        if self.zero_copy.running {
            self.grants.post_end();
        }
        for gref in self.outstanding.drain() {
            self.grants.hold_end(gref);
        }
        self.grants
    }

    /// Returns whether [`Netback::publish`] or [`Netback::notify`] has anything to do.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.tx.is_dirty() || self.rx.is_dirty()
    }

    /// Publishes every written response to the guest: one store per ring.
    pub fn publish(&mut self) {
        self.rx.publish();
        self.tx.publish();
    }

    /// Returns the rings whose doorbells must be rung for the responses published since the last
    /// call. A `fence(SeqCst)` must lie between [`Netback::publish`] and this.
    #[must_use]
    pub fn notify(&mut self) -> Option<NotifiedRings> {
        // Both are called: each one updates its notification state.
        let rings = NotifiedRings {
            tx: self.tx.should_notify(),
            rx: self.rx.should_notify(),
        };
        let is_needed = rings.tx | rings.rx;
        self.counters.notifications += u64::from(is_needed);
        (is_needed && self.events.notify()).then_some(rings)
    }

    /// Returns whether the guest's posted receive buffers, in the ring and lent to a device, are
    /// fewer than the buffers that were used since the last notification.
    #[must_use]
    pub fn is_short_of_buffers(&mut self) -> bool {
        let lent = self.outstanding.count as u32;
        let needed = self.rx.unnotified().saturating_sub(lent);
        self.posted(needed) < needed
    }

    /// Requests notifications of new packets and, if `wants_requests`, of new receive buffers. A
    /// `fence(SeqCst)` must lie between this and the last [`Netback::has_work`] before sleeping;
    /// one fence serves any number of interfaces.
    pub fn arm(&mut self, wants_requests: bool) {
        self.tx.arm(self.chains.partial);
        if wants_requests {
            self.rx.arm(self.rx.ready());
        }
        self.events.arm();
    }

    /// Disables doorbells while the backend is awake.
    pub fn disarm(&mut self) {
        self.events.disarm();
        self.events.take_pending();
    }

    /// Returns whether [`Netback::from_guest`] would find packets.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.fatal.is_none() && self.tx.pending() > self.chains.partial
    }

    /// Returns a cheap check of whether [`Netback::has_work`] may have become true; valid until the
    /// next [`Netback::from_guest`].
    #[must_use]
    pub fn watch(&self) -> RingWatch {
        self.tx.watch(self.chains.partial)
    }

    /// Calls [`Netback::arm`], a fence and [`Netback::has_work`]. Returns whether the backend must
    /// not sleep; if so, disarms it again.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.arm(false);
        fence(Ordering::SeqCst);
        let work = self.has_work();
        if work {
            self.disarm();
        }
        work
    }

    /// Returns the number of posted receive buffers, except [reserved](Netback::reserve) ones, up
    /// to `want`. Reads the shared index only if fewer than `want` are known.
    pub fn posted(&mut self, want: u32) -> u32 {
        let reserved = self.reserved;
        let ready = self.ready(want.saturating_add(reserved));
        ready.saturating_sub(reserved)
    }

    /// Returns the number of requests in the ring, up to `want`.
    pub(super) fn ready(&mut self, want: u32) -> u32 {
        match self.rx.ready_for(want) {
            Ok(ready) => ready.min(want),
            Err(overrun) => {
                self.fatal = Some(overrun.into());
                0
            }
        }
    }

    /// Writes the responses of a batch that ended with `report`.
    #[inline]
    pub(super) fn respond(&mut self, report: &DeliveryReport) {
        self.rx.respond_all(&self.responses);
        self.responses.clear();
        self.count(report);
    }

    /// Counts the results of frames for the guest.
    #[inline]
    pub(super) fn count(&mut self, report: &DeliveryReport) {
        self.counters.to_guest += u64::from(report.delivered);
        self.counters.to_guest_bytes += report.bytes;
        self.counters.to_guest_drops += report.drops;
    }

    pub(super) fn check_fatal(&self) -> Result<(), Fatal> {
        self.fatal.map_or(Ok(()), Err)
    }

    pub(super) fn fail<T>(&mut self, fatal: impl Into<Fatal>) -> Result<T, Fatal> {
        let fatal = fatal.into();
        self.fatal = Some(fatal);
        // Drops pending responses. No access of this batch has begun.
        self.chains.clear();
        Err(fatal)
    }
}
