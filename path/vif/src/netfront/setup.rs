//! How a netfront comes to be: its memory is laid out, zeroed and granted, and its record says so.

use super::layout::Layout;
use super::offers::Exchange;
use super::pool::{Slot, Stack, TxPool, small_slots};
use super::rx_pages::RxPages;
use super::table::{GrantError, GrantedPage, Granter};
use super::tracked::Outside;
use crate::netif::{BackRecord, Features, FrontRecord, MAX_SLOTS, RecordError, Terms};
use crate::ring::{BadPages, ORDER_MAX};
use abi::{DomId, GrantRef, Handle, PAGE};
use shmem::{Area, Fault, Span};
use std::ops::Range;

/// What a netfront is made of.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The domain's own frames.
    pub frames: Area,
    /// The first of the frames that this netfront may have; it takes [`Layout::frames`].
    pub first_frame: u32,
    /// Where what lies.
    pub layout: Layout,
    /// Whether nobody has written to those frames yet: they are zero, and the kernel need not find
    /// memory for them before they are used.
    pub fresh: bool,
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
    /// Where receive buffers lie, if their pages change hands; the layout's frames for them are
    /// left alone then.
    pub exchange: Option<Exchange>,
    /// Pages outside the pool that frames from the guest may lie in.
    pub outside: Option<Outside>,
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

/// A netfront's pages, laid out.
pub(super) struct Laid {
    layout: Layout,
    /// Those that are granted from the start, by number.
    pages: Vec<(Span, GrantRef)>,
    /// Those of receive buffers that are granted when they are needed.
    spare: Vec<Span>,
}

impl Laid {
    /// Grants the pages of `setup`, which are zero then; `grants` has all grants that were made,
    /// even if there was an error.
    pub(super) fn out(
        setup: &Setup,
        table: &mut dyn Granter,
        grants: &mut Vec<GrantRef>,
    ) -> Result<Self, SetupError> {
        let layout = setup.layout;
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
            // The driver domain is not to see what lay here before (row 22).
            if exchange.is_some() || !setup.fresh {
                page.fill(0)?;
            }
            spans.push(page);
            granted.push(GrantedPage {
                frame: first + at,
                readonly: n >= layout.tx_small().start,
                exchanged: exchange.is_some(),
                entry: None,
            });
        }
        let spare = layout
            .rx_spare()
            .map(|n| setup.frames.page(setup.first_frame + n))
            .collect::<Option<_>>()
            .ok_or(SetupError::Frames)?;
        table.grant(setup.backend, &granted, grants)?;
        Ok(Self {
            layout,
            pages: spans.into_iter().zip(grants.iter().copied()).collect(),
            spare,
        })
    }

    /// What the front says to the back.
    pub(super) fn record(
        &self,
        setup: &Setup,
        table: Handle,
        back: &BackRecord,
    ) -> Result<FrontRecord, SetupError> {
        let features = setup
            .features
            .with(Features::RX_COPY)
            .with(Features::RX_META);
        let halves = setup.exchange.is_none()
            && back.features.has(Features::RX_OFFSET)
            && setup.features.has(Features::RX_OFFSET);
        let [tx_ring, rx_ring] = self.rings(back)?;
        let refs = |of: &[(Span, GrantRef)]| of.iter().map(|page| page.1).collect();
        Ok(FrontRecord {
            features: match setup.exchange {
                None => features.with(Features::RX_ANY_ORDER),
                Some(_) => features.with(Features::RX_FLIP),
            },
            max_slots: MAX_SLOTS,
            rx_buffer: if halves {
                self.layout.sizes().rx_buffer
            } else {
                PAGE as u16
            },
            mac: setup.mac,
            table: setup.exchange.map_or(table, |own| own.handle),
            event: self.event()?.1,
            tx_ring: refs(tx_ring),
            rx_ring: refs(rx_ring),
        })
    }

    fn part(&self, range: Range<u32>) -> Result<&[(Span, GrantRef)], SetupError> {
        self.pages
            .get(range.start as usize..range.end as usize)
            .ok_or(SetupError::Frames)
    }

    /// The ring from the guest and the one to it, as many of their pages as the back takes.
    pub(super) fn rings(&self, back: &BackRecord) -> Result<[&[(Span, GrantRef)]; 2], SetupError> {
        let most = 1 << back.max_order.min(ORDER_MAX);
        let ring = |range: Range<u32>| self.part(range.start..range.end.min(range.start + most));
        Ok([ring(self.layout.tx_ring())?, ring(self.layout.rx_ring())?])
    }

    /// The event channel's page.
    pub(super) fn event(&self) -> Result<(Span, GrantRef), SetupError> {
        let event = self.layout.event();
        let page = self.part(event..event + 1)?.first();
        page.copied().ok_or(SetupError::Frames)
    }

    /// Grants that stay as long as the interface does: those of receive buffers come and go with
    /// their pages.
    pub(super) fn fixed_grants(&self) -> Vec<GrantRef> {
        let fixed = (0..)
            .zip(&self.pages)
            .filter(|(n, _)| !self.layout.rx_pool().contains(n));
        fixed.map(|(_, page)| page.1).collect()
    }

    /// The buffers to send from.
    pub(super) fn tx_pool(&self) -> Result<TxPool, SetupError> {
        let small = self.part(self.layout.tx_small())?.iter().enumerate();
        let small = small.flat_map(|(n, &(page, gref))| small_slots(page, gref, n));
        let large = self.part(self.layout.tx_large())?.iter();
        let large = large.map(|&(page, gref)| Slot::new(page, gref, 0, PAGE));
        Ok(TxPool::new(small.collect(), large.collect()))
    }

    /// The buffers to receive into.
    pub(super) fn rx_pool(&self, terms: &Terms) -> Result<Stack, SetupError> {
        let bytes = usize::from(terms.rx_buffer);
        let per_page = PAGE / bytes;
        let granted = self.part(self.layout.rx_pool())?;
        // A spare page has its reference when it is granted.
        let spare = self.spare.iter().map(|&page| (page, GrantRef(0)));
        let slots = granted
            .iter()
            .copied()
            .chain(spare)
            .flat_map(|(page, gref)| {
                (0..per_page).map(move |n| Slot::new(page, gref, n * bytes, bytes))
            });
        Ok(Stack::new(slots.collect(), granted.len() * per_page))
    }

    /// The pages of those.
    pub(super) fn rx_pages(&self, setup: &Setup, terms: &Terms) -> RxPages {
        let frames = self.layout.rx_pool().chain(self.layout.rx_spare());
        RxPages::new(
            (setup.frames, setup.backend),
            frames.map(|n| setup.first_frame + n).collect(),
            PAGE / usize::from(terms.rx_buffer),
            self.layout.sizes().rx_pages,
            setup.release_threshold,
        )
    }
}
