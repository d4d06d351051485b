//! The backend of one virtual interface, in the driver domain: pure steps over slots.
//!
//! A turn of the driver is: [`Netback::from_guest`] (requests → frames), whatever is done with
//! the frames, [`Netback::to_guest`] of any interface they go to (frames → copies → responses),
//! [`Netback::publish`] of all of these, [`Netback::from_guest_done`] (grants given up, requests
//! answered), one `fence(SeqCst)`, [`Netback::notify`] of all.
//!
//! Packets that are [singles](nic::single) may be taken and given before the others, by
//! [`Netback::singles_from_guest`] and [`Netback::singles_to_guest`].
//!
//! Every grant of a batch is held until `from_guest_done`, and no request is answered before
//! (row 31 of the field's list); a response is written only after its copies (RING-8).

mod from_guest;
mod lent;
mod posted;
mod singles;
mod to_guest;

pub use lent::{Loan, Returned};
pub use singles::Taken;
pub use to_guest::ToGuest;

use crate::Fatal;
use crate::counters::Counters;
use crate::events::{EventPage, Events};
use crate::grants::{Access, CopyOut, Grants};
use crate::netif::rings::{RX_RESPONSE, RxBack, TX_RESPONSE, TxBack, rings};
use crate::netif::{Abilities, Terms};
use crate::ring::{BadPages, Watch};
use from_guest::Chain;
use lent::Lent;
use posted::Posted;
use shmem::Span;
use shmem::sync::fence;
use std::sync::atomic::Ordering;
use to_guest::Planned;

/// The most accesses that one batch of [`Netback::from_guest`] makes: what a grant mechanism that
/// copies needs room for, and a bound on the bytes that one guest gets moved in one turn.
pub const ACCESSES_MAX: usize = 256;

/// The backend of one virtual interface.
#[derive(Debug)]
pub struct Netback<G> {
    tx: TxBack,
    rx: RxBack,
    events: Events<EventPage>,
    grants: G,
    terms: Terms,
    counters: Counters,
    fatal: Option<Fatal>,

    // What `from_guest` has taken and `from_guest_done` has not yet answered.
    chains: Vec<Chain>,
    accesses: Vec<Access>,
    tx_responses: Vec<[u32; TX_RESPONSE]>,
    reading: bool,
    /// Slots of a packet at the head of the ring whose rest is not there yet.
    partial: u32,

    // Room for the work of `to_guest`; empty between calls.
    planned: Vec<Planned>,
    copies: Vec<CopyOut>,
    rx_responses: Vec<[u32; RX_RESPONSE]>,
    placed: Vec<Access>,

    // The batch of `post`; empty between batches.
    posted: Vec<Posted>,
    post_accesses: Vec<Access>,
    post_next: usize,
    posting: bool,
    /// Requests that a device has from turn to turn.
    lent: Lent,
    /// Whether requests are left out for what merged frames need.
    leaves_out: bool,
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
            chains: Vec::new(),
            accesses: Vec::new(),
            tx_responses: Vec::new(),
            reading: false,
            partial: 0,
            planned: Vec::new(),
            copies: Vec::new(),
            rx_responses: Vec::new(),
            placed: Vec::new(),
            posted: Vec::new(),
            post_accesses: Vec::new(),
            post_next: 0,
            posting: false,
            lent: Lent::default(),
            leaves_out: false,
        })
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
        if self.reading {
            self.grants.read_end();
        }
        if self.posting {
            self.grants.post_end();
        }
        for gref in self.lent.drain() {
            self.grants.let_go(gref);
        }
        self.grants
    }

    /// Whether there is anything to [`Netback::publish`], or to ask [`Netback::notify`] about.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.tx.has_news() || self.rx.has_news()
    }

    /// Lets the guest see every response that was written: one store per ring.
    pub fn publish(&mut self) {
        self.rx.publish();
        self.tx.publish();
    }

    /// Whether the guest asked to be told about what was published since the last call. A
    /// `fence(SeqCst)` must lie between [`Netback::publish`] and this.
    #[must_use]
    pub fn should_notify(&mut self) -> bool {
        // Both are asked: each remembers what it was asked about.
        let (rx, tx) = (self.rx.should_notify(), self.tx.should_notify());
        rx | tx
    }

    /// [`Netback::should_notify`], and if so tells the guest; whether its doorbell has to be
    /// rung.
    #[must_use]
    pub fn notify(&mut self) -> bool {
        if !self.should_notify() {
            return false;
        }
        self.counters.notifications += 1;
        self.events.notify()
    }

    /// Whether more receive buffers are used, without a word to the guest, than are left.
    #[must_use]
    pub fn is_short(&mut self) -> bool {
        let untold = self.rx.untold();
        self.posted(untold) < untold
    }

    /// Asks the guest to tell about new packets, and if `wants_requests` about new receive
    /// buffers. A `fence(SeqCst)` must lie between this and the last [`Netback::has_work`]
    /// before sleeping; one fence serves any number of interfaces.
    pub fn arm(&mut self, wants_requests: bool) {
        self.tx.arm(self.partial);
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
        self.fatal.is_none() && self.tx.pending() > self.partial
    }

    /// A look at whether [`Netback::has_work`] may have changed since it was false; it is good until
    /// the next [`Netback::from_guest`].
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.tx.watch(self.partial)
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

    fn alive(&self) -> Result<(), Fatal> {
        self.fatal.map_or(Ok(()), Err)
    }

    fn fail<T>(&mut self, fatal: impl Into<Fatal>) -> Result<T, Fatal> {
        let fatal = fatal.into();
        self.fatal = Some(fatal);
        // Nothing more is answered; grants of this batch were not begun.
        self.chains.clear();
        self.accesses.clear();
        self.tx_responses.clear();
        Err(fatal)
    }
}

#[cfg(test)]
mod tests;
