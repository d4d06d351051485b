//! What a netback is made of, and how its two rings and its event channel are driven.

use super::answers::ToGuest;
use super::chains::Chains;
use super::copies::Copies;
use super::groups::Groups;
use super::loans::Loans;
use super::posts::Posts;
use crate::counters::Counters;
use crate::events::{EventPage, Events, Rings};
use crate::fatal::Fatal;
use crate::grants::Grants;
use crate::netif::rings::{RX_RESPONSE, RxBack, TxBack, rings};
use crate::netif::{Abilities, Terms};
use crate::ring::{BadPages, Journal, Watch};
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
    pub(super) terms: Terms,
    pub(super) counters: Counters,
    pub(super) fatal: Option<Fatal>,
    /// What `from_guest` has taken and `from_guest_done` has not yet answered.
    pub(super) chains: Chains,
    /// Room for the work of `to_guest`; empty between calls.
    pub(super) copies: Copies,
    /// Responses to the guest that are still to be written; empty between calls.
    pub(super) responses: Vec<[u32; RX_RESPONSE]>,
    /// The batch of `post`; empty between batches.
    pub(super) posts: Posts,
    /// Requests that a device has from turn to turn.
    pub(super) loans: Loans,
    /// What the guest wants to hear, if it may choose.
    pub(super) groups: Option<Groups>,
}

impl<G: Grants> Netback<G> {
    /// A backend over the mapped pages of both rings (in order, as the front's record lists them)
    /// and of the event channel, which stay mapped while it exists.
    ///
    /// # Errors
    /// [`BadPages`]: not the pages that `terms` speak of.
    pub fn new(
        terms: Terms,
        tx_pages: &[Span],
        rx_pages: &[Span],
        event_page: Span,
        grants: G,
    ) -> Result<Self, BadPages> {
        let (tx, rx) = rings(&terms, tx_pages, rx_pages, event_page)?;
        Ok(Self {
            tx: TxBack::new(tx),
            rx: RxBack::new(rx),
            events: Events::back(EventPage::new(event_page).ok_or(BadPages)?),
            grants,
            terms,
            counters: Counters::default(),
            fatal: None,
            chains: Chains::default(),
            copies: Copies::default(),
            responses: Vec::new(),
            posts: Posts::default(),
            loans: Loans::default(),
            groups: None,
        })
    }

    /// Takes over rings whose backend may be no more (RING-16), and keeps journals of them: of the
    /// one from the guest, and of the one to it. Before anything else.
    pub fn resume(&mut self, [tx, rx]: [Journal; 2]) {
        self.tx.resume(tx);
        self.rx.resume(rx);
    }

    /// The guest may choose the groups that it hears (NETIF-28); its queues have them in common.
    pub fn offer_groups(&mut self, groups: Groups) {
        self.groups = Some(groups);
    }

    /// What was agreed on.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What the guest takes; frames that need more have to be segmented or checksummed first.
    #[must_use]
    pub fn peer(&self) -> &Abilities {
        &self.terms.to_guest
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

    /// The grant mechanism.
    pub fn grants_mut(&mut self) -> &mut G {
        &mut self.grants
    }

    /// Ends the interface: answers nothing any more, and gives back the grant mechanism, so that
    /// it can be closed.
    #[must_use]
    pub fn into_grants(mut self) -> G {
        if self.chains.reading {
            self.grants.read_end();
        }
        if self.posts.running {
            self.grants.post_end();
        }
        for gref in self.loans.drain() {
            self.grants.hold_end(gref);
        }
        self.grants
    }

    /// Whether there is anything to [`Netback::publish`], or to ask [`Netback::notify`] about.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.tx.is_dirty() || self.rx.is_dirty()
    }

    /// Lets the guest see every response that was written: one store per ring.
    pub fn publish(&mut self) {
        self.rx.publish();
        self.tx.publish();
    }

    /// Tells the guest, if it asked for that, about what was published since the last call; which
    /// rings its doorbell has to be rung for, if it has to be. A `fence(SeqCst)` must lie between
    /// [`Netback::publish`] and this.
    #[must_use]
    pub fn notify(&mut self) -> Option<Rings> {
        // Both are asked: each remembers what it was asked about.
        let rings = Rings {
            tx: self.tx.should_notify(),
            rx: self.rx.should_notify(),
        };
        let asked = rings.tx | rings.rx;
        self.counters.notifications += u64::from(asked);
        (asked && self.events.notify()).then_some(rings)
    }

    /// Whether more receive buffers are used, without a word to the guest, than are left.
    #[must_use]
    pub fn is_short(&mut self) -> bool {
        let unnotified = self.rx.unnotified();
        self.posted(unnotified) < unnotified
    }

    /// Asks the guest to tell about new packets, and if `wants_requests` about new receive
    /// buffers. A `fence(SeqCst)` must lie between this and the last [`Netback::has_work`]
    /// before sleeping; one fence serves any number of interfaces.
    pub fn arm(&mut self, wants_requests: bool) {
        self.tx.arm(self.chains.partial);
        if wants_requests {
            self.rx.arm(self.rx.ready());
        }
        self.events.arm();
    }

    /// Awake: no doorbells.
    pub fn disarm(&mut self) {
        self.events.disarm();
        self.events.take_pending();
    }

    /// Whether [`Netback::from_guest`] would find something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.fatal.is_none() && self.tx.pending() > self.chains.partial
    }

    /// A look at whether [`Netback::has_work`] may have changed since it was false; it is good
    /// until the next [`Netback::from_guest`].
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.tx.watch(self.chains.partial)
    }

    /// [`Netback::arm`], fence, [`Netback::has_work`]: whether sleeping is wrong after all; if so
    /// disarmed again.
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

    /// Receive buffers that the guest has posted, as far as they are known without looking; at
    /// most `want`, looking if that many are not known.
    pub fn posted(&mut self, want: u32) -> u32 {
        match self.rx.ready_for(want) {
            Ok(ready) => ready.min(want),
            Err(overrun) => {
                self.fatal = Some(overrun.into());
                0
            }
        }
    }

    /// Writes the responses of a batch whose frames came to `report`.
    #[inline]
    pub(super) fn respond(&mut self, report: &ToGuest) {
        self.rx.respond_all(&self.responses);
        self.responses.clear();
        self.count(report);
    }

    /// Counts what has become of frames for the guest.
    #[inline]
    pub(super) fn count(&mut self, report: &ToGuest) {
        self.counters.to_guest += u64::from(report.delivered);
        self.counters.to_guest_bytes += report.bytes;
        self.counters.to_guest_drops += report.drops;
    }

    pub(super) fn alive(&self) -> Result<(), Fatal> {
        self.fatal.map_or(Ok(()), Err)
    }

    pub(super) fn fail<T>(&mut self, fatal: impl Into<Fatal>) -> Result<T, Fatal> {
        let fatal = fatal.into();
        self.fatal = Some(fatal);
        // Nothing more is answered; grants of this batch were not begun.
        self.chains.clear();
        Err(fatal)
    }
}
