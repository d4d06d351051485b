//! The frontend of one virtual interface, in the guest domain.
//!
//! All its memory is laid out once ([`Layout`]) and granted page by page: the rings and the event
//! page and the receive buffers to be written, the transmit buffers to be read only. Spare pages of
//! receive buffers are granted when they are needed, and revoked when they are not (`turnover.rs`).
//!
//! A turn of the guest is: [`Netfront::receive`] (responses → frames), [`Netfront::refill`], the
//! endpoint takes the frames, [`Netfront::receive_done`] (their buffers are free or posted again),
//! [`Netfront::release`]; the endpoint yields frames into [`Netfront::buffers`],
//! [`Netfront::transmit`] sends them; [`Netfront::publish`], `fence(SeqCst)`, [`Netfront::notify`].
//!
//! Packets that are [singles](nic::single) may be taken and sent before the others:
//! [`Netfront::receive_singles`], [`Netfront::singles_done`], [`Netfront::transmit_singles`].
//!
//! Nothing that the driver domain writes is believed: ids, offsets, lengths and flags are checked
//! against what was posted (rows 2, 3, 6 of the field's list).

mod layout;
mod offers;
mod pool;
mod receive;
mod singles;
mod table;
mod transmit;
mod turnover;

pub use layout::{Layout, Sizes};
pub use offers::Exchange;
pub use pool::{TX_SMALL_BYTES, TxPool};
pub use table::{GrantError, GrantTable, GrantedPage, Granter};
pub use transmit::Transmitted;
pub use turnover::Turnover;

use crate::Fatal;
use crate::counters::Counters;
use crate::events::{EventPage, Events};
use crate::netif::rings::{RxFront, TxFront, rings};
use crate::netif::{Abilities, BackRecord, Features, FrontRecord, MAX_SLOTS, RecordError, Terms};
use crate::ring::BadPages;
use abi::{DomId, GrantRef, PAGE};
use offers::Offers;
use pool::{Slot, Stack};
use shmem::sync::fence;
use shmem::{Area, Fault, Span};
use std::sync::atomic::Ordering;
use turnover::RxPages;

/// What a netfront is made of.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The domain's own frames.
    pub frames: Area,
    /// The first of the frames that this netfront may have; it takes [`Layout::frames`].
    pub first_frame: u32,
    /// Where what lies.
    pub layout: Layout,
    /// The driver domain.
    pub backend: DomId,
    /// The interface's MAC.
    pub mac: [u8; 6],
    /// What it is to take, at the most.
    pub features: Features,
    /// Slots ahead of the one that is looked at whose headers are fetched into the cache.
    pub prefetch: u32,
    /// Whole free pages of receive buffers that stay granted; none: all do.
    pub release_threshold: Option<u32>,
    /// Where receive buffers lie, if their pages change hands; the layout's frames for them are left
    /// alone then.
    pub exchange: Option<Exchange>,
}

/// Why a netfront could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The backend offers something else.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The grant table is too small.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The domain has too few frames.
    #[error("the domain has too few page frames for this interface")]
    Frames,
}

impl From<BadPages> for SetupError {
    fn from(_: BadPages) -> Self {
        Self::Frames
    }
}

impl From<Fault> for SetupError {
    fn from(_: Fault) -> Self {
        Self::Frames
    }
}

/// The frontend of one virtual interface.
#[derive(Debug)]
pub struct Netfront {
    tx: TxFront,
    rx: RxFront,
    events: Events<EventPage>,
    terms: Terms,
    counters: Counters,
    fatal: Option<Fatal>,
    /// Grants of all pages but those of receive buffers.
    grants: Vec<GrantRef>,

    tx_pool: TxPool,
    /// Extra infos that were sent and not yet answered.
    tx_extras: u32,
    rx_pool: Stack,
    rx_pages: RxPages,
    /// What receive buffers accept, if their pages change hands.
    offers: Option<Offers>,
    /// For each slot of the rx ring the buffer that was posted there last.
    posted: Vec<u16>,
    /// Responses of a packet at the head of the ring whose rest is not there yet.
    partial: u32,
    prefetch: u32,
    /// Responses at the head of the ring whose headers were fetched.
    fetched: u32,
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
            // Nobody knows of these grants yet, so none of them is in use.
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
        let layout = setup.layout;
        let sizes = *layout.sizes();
        let (mut spans, mut granted) = (Vec::new(), Vec::new());
        for n in 0..layout.rx_spare().start {
            let exchange = setup.exchange.filter(|_| layout.rx_pool().contains(&n));
            let (memory, at, first) = match &exchange {
                None => (setup.frames, setup.first_frame + n, 0),
                Some(exchange) => {
                    let number = n - layout.rx_pool().start;
                    (exchange.pages, number, exchange.first.0)
                }
            };
            let page = memory.page(at).ok_or(SetupError::Frames)?;
            // Whatever lay here before is nobody's business (row 22).
            page.fill(0)?;
            spans.push(page);
            granted.push(GrantedPage {
                frame: first + at,
                readonly: n >= layout.tx_small().start,
                exchanged: exchange.is_some(),
            });
        }
        let spare: Vec<_> = layout
            .rx_spare()
            .map(|n| setup.frames.page(setup.first_frame + n))
            .collect::<Option<_>>()
            .ok_or(SetupError::Frames)?;
        table.grant(setup.backend, &granted, grants)?;
        let pages: Vec<_> = spans.into_iter().zip(grants.iter().copied()).collect();
        let part = |range: std::ops::Range<u32>| {
            pages
                .get(range.start as usize..range.end as usize)
                .ok_or(SetupError::Frames)
        };
        let ring = |range: std::ops::Range<u32>| {
            let most = 1 << back.max_order.min(crate::ring::ORDER_MAX);
            part(range.start..range.end.min(range.start + most))
        };
        let spans = |of: &[(Span, GrantRef)]| of.iter().map(|page| page.0).collect::<Vec<_>>();
        let refs = |of: &[(Span, GrantRef)]| of.iter().map(|page| page.1).collect();
        let (tx_ring, rx_ring) = (ring(layout.tx_ring())?, ring(layout.rx_ring())?);
        let (event, event_ref) = part(layout.event()..layout.event() + 1)?
            .first()
            .copied()
            .ok_or(SetupError::Frames)?;

        let features = setup
            .features
            .with(Features::RX_COPY)
            .with(Features::RX_META);
        let halves = setup.exchange.is_none()
            && back.features.has(Features::RX_OFFSET)
            && setup.features.has(Features::RX_OFFSET);
        let record = FrontRecord {
            features: match setup.exchange {
                None => features.with(Features::RX_ANY_ORDER),
                Some(_) => features.with(Features::RX_FLIP),
            },
            max_slots: MAX_SLOTS,
            rx_buffer: if halves { sizes.rx_buffer } else { PAGE as u16 },
            mac: setup.mac,
            table: setup.exchange.map_or(table.table(), |own| own.handle),
            event: event_ref,
            tx_ring: refs(tx_ring),
            rx_ring: refs(rx_ring),
        };
        let terms = Terms::of(back, &record)?;

        let bytes = usize::from(terms.rx_buffer);
        let per_page = PAGE / bytes;
        let granted_rx = part(layout.rx_pool())?;
        // A spare page has its reference when it is granted.
        let spare = spare.into_iter().map(|page| (page, GrantRef(0)));
        let rx_slots = granted_rx
            .iter()
            .copied()
            .chain(spare)
            .flat_map(|(page, gref)| {
                (0..per_page).map(move |n| Slot::new(page, gref, n * bytes, bytes))
            })
            .collect();
        let rx_frames = layout.rx_pool().chain(layout.rx_spare());
        let rx_pages = RxPages::new(
            (setup.frames, setup.backend),
            rx_frames.map(|n| setup.first_frame + n).collect(),
            per_page,
            layout.sizes().rx_pages,
            setup.release_threshold,
        );
        let small = part(layout.tx_small())?
            .iter()
            .enumerate()
            .flat_map(|(n, &(page, gref))| pool::small_slots(page, gref, n))
            .collect();
        let large = part(layout.tx_large())?
            .iter()
            .map(|&(page, gref)| Slot::new(page, gref, 0, PAGE))
            .collect();

        let (tx, rx) = rings(&terms, &spans(tx_ring), &spans(rx_ring), event)?;
        let rx = RxFront::new(rx);
        let mut front = Self {
            tx: TxFront::new(tx),
            posted: vec![0; rx.slots() as usize],
            rx,
            events: Events::front(EventPage::new(event).ok_or(BadPages)?),
            terms,
            counters: Counters::default(),
            fatal: None,
            // Those of receive buffers come and go with their pages.
            grants: grants
                .iter()
                .zip(0..)
                .filter(|(_, n)| !layout.rx_pool().contains(n))
                .map(|(gref, _)| *gref)
                .collect(),
            tx_pool: TxPool::new(small, large),
            tx_extras: 0,
            rx_pool: Stack::new(rx_slots, layout.sizes().rx_pages as usize * per_page),
            rx_pages,
            offers: setup.exchange.map(|own| Offers::new(own, setup.backend)),
            partial: 0,
            prefetch: setup.prefetch,
            fetched: 0,
        };
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
    pub fn has_news(&self) -> bool {
        self.tx.has_news() || self.rx.has_news()
    }

    /// Lets the driver domain see every request that was written: one store per ring.
    pub fn publish(&mut self) {
        self.tx.publish();
        self.rx.publish();
    }

    /// Whether the driver domain asked to be told about what was published since the last call.
    /// A `fence(SeqCst)` must lie between [`Netfront::publish`] and this.
    #[must_use]
    pub fn should_notify(&mut self) -> bool {
        // Both are asked: each remembers what it was asked about.
        let (rx, tx) = (self.rx.should_notify(), self.tx.should_notify());
        rx | tx
    }

    /// [`Netfront::should_notify`], and if so tells the driver domain; whether its doorbell has
    /// to be rung.
    #[must_use]
    pub fn notify(&mut self) -> bool {
        if !self.should_notify() {
            return false;
        }
        self.counters.notifications += 1;
        self.events.notify()
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

    fn alive(&self) -> Result<(), Fatal> {
        self.fatal.map_or(Ok(()), Err)
    }

    fn fail<T>(&mut self, fatal: impl Into<Fatal>) -> Result<T, Fatal> {
        let fatal = fatal.into();
        self.fatal = Some(fatal);
        Err(fatal)
    }
}
