//! Set-up of a netfront: lays out, zeroes and grants its memory, and makes its record.

use super::layout::Layout;
use super::offers::ExchangedPages;
use super::pool::{PoolBuffer, RxBuffers, TxOrder, TxPool, halves};
use super::rx_pages::RxPages;
use super::table::{GrantError, GrantedPage, Granter};
use super::tracked::ExternalPages;
use crate::netif::{BackRecord, Features, FrontRecord, MAX_SLOTS, Negotiated, RecordError};
use crate::ring::{BadPages, ORDER_MAX};
use abi::{DomId, GrantRef, Handle, PAGE};
use shmem::{Area, Fault, Span};
use std::ops::Range;

/// Parameters of a netfront.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The domain's own frames.
    pub frames: Area,
    /// First frame for this netfront; it uses [`Layout::frames`].
    pub first_frame: u32,
    /// The layout.
    pub layout: Layout,
    /// Whether those frames were never written. They are then zero, and the kernel need not
    /// allocate them before they are used.
    pub fresh: bool,
    /// The driver domain.
    pub backend: DomId,
    /// The interface's MAC.
    pub mac: [u8; 6],
    /// Upper bound of the features to negotiate.
    pub features: Features,
    /// Distance in slots at which headers are prefetched.
    pub prefetch: u32,
    /// Number of whole free pages of receive buffers that stay granted; `None`: all.
    pub release_threshold: Option<u32>,
    /// Bytes left free in front of a receive buffer of a whole page. Frames start behind them.
    pub headroom: u16,
    /// The pages of receive buffers, if pages are exchanged; the layout's frames for them then stay
    /// unused.
    pub exchange: Option<ExchangedPages>,
    /// Pages outside the pool that may hold payload of frames from the guest.
    pub external_pages: Option<ExternalPages>,
    /// Whether small transmit buffers may swap their memory with receive buffers: the endpoint
    /// touches payload and does not rely on the contents of free buffers, and no device of the
    /// driver domain is restricted to the pages of the receive pool.
    pub swap: bool,
}

impl Setup {
    /// Returns whether the pools swap memory: both have buffers of half a page, whose pages are
    /// granted for as long as the interface exists.
    pub(super) fn swaps(&self, back: &BackRecord) -> bool {
        let is_fixed = self.release_threshold.is_none()
            && self.exchange.is_none()
            && self.layout.rx_spare().is_empty();
        self.swap && is_fixed && self.rx_buffer(back) == (PAGE / 2) as u16
    }

    /// Returns the size of the receive buffers.
    fn rx_buffer(&self, back: &BackRecord) -> u16 {
        let parts = self.exchange.is_none()
            && back.features.has(Features::RX_OFFSET)
            && self.features.has(Features::RX_OFFSET);
        match (parts, self.layout.sizes().rx_buffer) {
            (true, size) if usize::from(size) == PAGE => {
                size - self
                    .headroom
                    .min(HEADROOM_MAX)
                    .next_multiple_of(HEADROOM_UNIT)
            }
            (true, size) => size,
            (false, _) => PAGE as u16,
        }
    }
}

/// Maximum of [`Setup::headroom`].
const HEADROOM_MAX: u16 = 1024;

/// Headroom shortens a buffer by whole units, so that all headrooms within a unit leave buffers of
/// the same length.
const HEADROOM_UNIT: u16 = 64;

/// Error of setting up a netfront.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The backend's record does not match.
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

/// A netfront's pages and their grants, by position in the layout.
pub(super) struct PageLayout {
    layout: Layout,
    /// Pages granted from the start, by number.
    pages: Vec<(Span, GrantRef)>,
    /// Pages of receive buffers that are granted on demand.
    spare: Vec<Span>,
}

impl PageLayout {
    /// Zeroes and grants the pages of `setup`. Appends all grants that it makes to `grants`, even
    /// if it returns an error.
    pub(super) fn grant_pages(
        setup: &Setup,
        table: &mut dyn Granter,
        back: &BackRecord,
        grants: &mut Vec<GrantRef>,
    ) -> Result<Self, SetupError> {
        let layout = setup.layout;
        let writable_until = match setup.swaps(back) {
            true => layout.tx_small().end,
            false => layout.tx_small().start,
        };
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
            // The driver domain must not see earlier contents (row 22).
            if exchange.is_some() || !setup.fresh {
                page.fill(0)?;
            }
            spans.push(page);
            granted.push(GrantedPage {
                frame: first + at,
                readonly: n >= writable_until,
                // A dedicated queue of a NIC receives into the pool.
                io: layout.rx_pool().contains(&n),
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

    /// Returns the front's record.
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
        let [tx_ring, rx_ring] = self.rings(back)?;
        let refs = |of: &[(Span, GrantRef)]| of.iter().map(|page| page.1).collect();
        Ok(FrontRecord {
            features: match setup.exchange {
                None => features.with(Features::RX_ANY_ORDER),
                Some(_) => features.with(Features::RX_FLIP),
            },
            max_slots: MAX_SLOTS,
            rx_buffer: setup.rx_buffer(back),
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

    /// Returns the pages of the ring from the guest and of the ring to it, at most as many as the
    /// back accepts.
    pub(super) fn rings(&self, back: &BackRecord) -> Result<[&[(Span, GrantRef)]; 2], SetupError> {
        let most = 1 << back.max_order.min(ORDER_MAX);
        let ring = |range: Range<u32>| self.part(range.start..range.end.min(range.start + most));
        Ok([ring(self.layout.tx_ring())?, ring(self.layout.rx_ring())?])
    }

    /// Returns the event channel's page.
    pub(super) fn event(&self) -> Result<(Span, GrantRef), SetupError> {
        let event = self.layout.event();
        let page = self.part(event..event + 1)?.first();
        page.copied().ok_or(SetupError::Frames)
    }

    /// Returns the grants that last as long as the interface: all, or all except those of receive
    /// buffers.
    pub(super) fn fixed_grants(&self, with_rx: bool) -> Vec<GrantRef> {
        let fixed = (0..)
            .zip(&self.pages)
            .filter(|(n, _)| with_rx || !self.layout.rx_pool().contains(n));
        fixed.map(|(_, page)| page.1).collect()
    }

    /// Creates the transmit pool.
    pub(super) fn tx_pool(&self, order: TxOrder) -> Result<TxPool, SetupError> {
        let small = self.part(self.layout.tx_small())?.iter();
        let small = small.flat_map(|&(page, gref)| halves(page, gref));
        let large = self.part(self.layout.tx_large())?.iter();
        let large = large.map(|&(page, gref)| PoolBuffer::new(page, gref, 0, PAGE));
        Ok(TxPool::new(small.collect(), large.collect(), order))
    }

    /// Creates the receive pool.
    pub(super) fn rx_pool(
        &self,
        setup: &Setup,
        negotiated: &Negotiated,
    ) -> Result<RxBuffers, SetupError> {
        let bytes = usize::from(negotiated.rx_buffer);
        let per_page = PAGE / bytes;
        // Half pages, and the whole pages of a back without `rx-offset`, leave no room.
        let headroom = usize::from(setup.headroom).min(PAGE - per_page * bytes);
        let granted = self.part(self.layout.rx_pool())?;
        // A spare page gets its reference when it is granted.
        let spare = self.spare.iter().map(|&page| (page, GrantRef(0)));
        let slots = granted
            .iter()
            .copied()
            .chain(spare)
            .flat_map(|(page, gref)| {
                let offset = move |n| headroom + n * bytes;
                (0..per_page).map(move |n| PoolBuffer::new(page, gref, offset(n), bytes))
            });
        Ok(RxBuffers::new(slots.collect(), granted.len() * per_page))
    }

    /// Creates the page records of the receive pool.
    pub(super) fn rx_pages(&self, setup: &Setup, negotiated: &Negotiated) -> RxPages {
        let frames = self.layout.rx_pool().chain(self.layout.rx_spare());
        RxPages::new(
            (setup.frames, setup.backend),
            frames.map(|n| setup.first_frame + n).collect(),
            PAGE / usize::from(negotiated.rx_buffer),
            self.layout.sizes().rx_pages,
            setup.release_threshold,
        )
    }
}
