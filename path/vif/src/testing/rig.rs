//! Both ends of one interface over the same pages, in one thread.

use super::formats::format;
use super::grants::FakeGrants;
use super::memory::TestMemory;
use super::raw::{RawBack, RawFront};
use crate::netback::Netback;
use crate::netfront::{ExchangedPages, ExternalPages, GrantTable, Layout, Netfront, Setup, Sizes};
use crate::netif::rings::{RX_REQUEST, RX_RESPONSE, TX_REQUEST, TX_RESPONSE, rings};
use crate::netif::{BackRecord, Features, FrontRecord, MAX_SLOTS, Negotiated};
use crate::ring::{Format, GrantedRingPages};
use abi::classic::GrantEntry;
use abi::{DomId, Handle, PAGE, Slot};
use nic::Frame;
use shmem::sync::fence;
use shmem::{Area, Span};
use std::sync::atomic::Ordering;

/// The driver domain's id in rigs.
pub const BACKEND: DomId = DomId(7);

/// Slot of the first exchanged page, in rigs with exchanged pages.
const FIRST_SLOT: Slot = Slot(9);

/// A guest, a driver domain, and the interface between them.
#[derive(Debug)]
pub struct Rig {
    /// The guest's end.
    pub front: Netfront,
    /// The driver domain's end.
    pub back: Netback<FakeGrants>,
    /// The guest's grant table.
    pub table: GrantTable,
    /// The front's record.
    pub record: FrontRecord,
    /// The layout of the front's pages.
    pub layout: Layout,
    memory: TestMemory,
    table_span: Span,
    /// Pages outside the pool that may hold payload of frames, if any.
    outside: Option<Area>,
    /// The ring from the guest, the ring to it, and the page of the event channel, located before a
    /// hostile guest could rewrite its grant table.
    pages: (GrantedRingPages, GrantedRingPages, Span),
}

/// Returns small sizes that exercise every feature.
#[must_use]
pub fn sizes() -> Sizes {
    Sizes {
        tx_order: 0,
        rx_order: 0,
        rx_pages: 64,
        rx_buffer: 2048,
        tx_small_pages: 32,
        rx_spare_pages: 0,
        tx_large_pages: 40,
    }
}

/// Returns a backend's record that offers `features`.
#[must_use]
pub fn back_record(features: Features) -> BackRecord {
    BackRecord {
        features,
        max_order: 2,
        max_slots: MAX_SLOTS,
    }
}

impl Rig {
    /// Initial contents of the guest's frames.
    pub const INITIAL_BYTE: u8 = 0x5a;

    /// Creates two ends with all features.
    ///
    /// # Panics
    /// Panics if negotiation fails.
    #[must_use]
    pub fn new(sizes: Sizes) -> Self {
        Self::with(sizes, Features::ALL, Features::ALL)
    }

    /// Creates two ends with all features, for an endpoint that touches no payload, so that the
    /// guest's pools do not swap memory.
    ///
    /// # Panics
    /// Negotiation fails.
    #[must_use]
    pub fn untouched(sizes: Sizes) -> Self {
        let back = back_record(Features::ALL);
        Self::build((sizes, Features::ALL, back), None, None, false)
    }

    /// Creates two ends with these features.
    ///
    /// # Panics
    /// Panics if negotiation fails.
    #[must_use]
    pub fn with(sizes: Sizes, front: Features, back: Features) -> Self {
        Self::with_record(sizes, front, back_record(back))
    }

    /// Creates two ends; the driver domain's record is `back`.
    ///
    /// # Panics
    /// Panics if negotiation fails.
    #[must_use]
    pub fn with_record(sizes: Sizes, front: Features, back: BackRecord) -> Self {
        Self::with_threshold(sizes, front, back, None)
    }

    /// Creates two ends; the guest keeps `threshold` free pages of receive buffers granted. The
    /// rings have the thread's [`format()`].
    ///
    /// # Panics
    /// Panics if negotiation fails.
    #[must_use]
    pub fn with_threshold(
        sizes: Sizes,
        front: Features,
        back: BackRecord,
        release_threshold: Option<u32>,
    ) -> Self {
        Self::build((sizes, front, back), release_threshold, None, true)
    }

    /// Creates two ends, with features `back` at the driver domain. The guest may send from `pages`
    /// pages outside the pool and keeps up to `entries` of them granted at a time.
    ///
    /// # Panics
    /// Panics if negotiation fails.
    #[must_use]
    pub fn with_outside(sizes: Sizes, back: Features, pages: u32, entries: u32) -> Self {
        let back = back_record(back);
        Self::build(
            (sizes, Features::ALL, back),
            None,
            Some((pages, entries)),
            true,
        )
    }

    /// Creates two ends, with features `back` at the driver domain. The guest leaves `headroom`
    /// bytes free in front of each receive buffer.
    ///
    /// # Panics
    /// Panics if negotiation fails.
    #[must_use]
    pub fn with_headroom(sizes: Sizes, back: Features, headroom: u16) -> Self {
        let parties = (sizes, Features::ALL, back_record(back));
        Self::of(parties, None, None, true, headroom)
    }

    fn build(
        parties: (Sizes, Features, BackRecord),
        release_threshold: Option<u32>,
        outside: Option<(u32, u32)>,
        swap: bool,
    ) -> Self {
        Self::of(parties, release_threshold, outside, swap, 0)
    }

    fn of(
        (sizes, front, back): (Sizes, Features, BackRecord),
        release_threshold: Option<u32>,
        outside: Option<(u32, u32)>,
        swap: bool,
        headroom: u16,
    ) -> Self {
        let rings_feature = match format() {
            Format::Xen => Features::default(),
            Format::Native => Features::NATIVE_RINGS,
        };
        let front = front.with(rings_feature);
        let features = back.features.with(rings_feature);
        let back = BackRecord { features, ..back };
        let layout = Layout::new(sizes);
        let (outside_pages, entries) = outside.unwrap_or_default();
        let table_pages = ((layout.grants() + entries) as usize * 8 + 8).div_ceil(PAGE);
        // Exchanged pages follow all other pages. The first exchanged page has a slot other than 0.
        let flips = back.features.has(Features::RX_FLIP);
        let exchanged = layout.frames() + table_pages as u32;
        let flipped = if flips { layout.sizes().rx_pages } else { 0 };
        let memory = TestMemory::new(exchanged + flipped + outside_pages);
        let area = memory.area();
        let frame_bytes = layout.frames() as usize * PAGE;
        let frames = area.at(0, frame_bytes).expect("room for the frames");
        frames.fill(Self::INITIAL_BYTE).expect("own memory");
        let table_span = area.at(frame_bytes, table_pages * PAGE);
        let table_span = table_span.expect("room for the table");
        let mut table = GrantTable::new(table_span);
        let pages = area.part(exchanged as usize * PAGE, flipped as usize * PAGE);
        let external = area.part(
            (exchanged + flipped) as usize * PAGE,
            outside_pages as usize * PAGE,
        );
        let external = external.filter(|_| outside.is_some());
        let exchange = pages.filter(|_| flips).map(|pages| ExchangedPages {
            pages,
            first: FIRST_SLOT,
            handle: Handle(5),
            table: table_span,
        });
        let setup = Setup {
            frames: area,
            first_frame: 0,
            layout,
            fresh: false,
            backend: BACKEND,
            mac: [2, 0, 0, 0, 0, 1],
            features: front,
            prefetch: 2,
            release_threshold,
            headroom,
            exchange,
            external_pages: external.map(|memory| ExternalPages {
                memory,
                first_frame: exchanged + flipped,
                first_entry: layout.frames(),
                entries,
            }),
            swap,
        };
        let (front, record) = Netfront::new(&setup, &mut table, &back).expect("a front");
        let record = FrontRecord::decode(&record.encode()).expect("a record");
        let negotiated = Negotiated::of(&back, &record).expect("terms");
        assert_eq!(
            &negotiated,
            front.negotiated(),
            "both ends agree on the same"
        );
        let mut grants = FakeGrants::new(table_span, area, BACKEND);
        grants.exchange = exchange.map(|own| (own.pages, own.first));
        let pages = Self::pages(&memory, table_span, &record);
        let shared = rings(&negotiated, &pages.0, &pages.1, pages.2).expect("rings");
        let back = Netback::new(negotiated, &pages.0, &pages.1, pages.2, grants).expect("a back");
        Self {
            front,
            back,
            table,
            record,
            layout,
            memory,
            table_span,
            outside: setup.external_pages.map(|outside| outside.memory),
            pages: (shared.0, shared.1, pages.2),
        }
    }

    /// Returns the ring pages and the event page that the record's grants name.
    fn pages(
        memory: &TestMemory,
        table: Span,
        record: &FrontRecord,
    ) -> (Vec<Span>, Vec<Span>, Span) {
        let page = |index: u32| {
            let entry = table.load_u64(index as usize * 8).expect("in the table");
            memory
                .area()
                .page(GrantEntry(entry).frame())
                .expect("in the domain")
        };
        let pages = |refs: &[abi::GrantRef]| refs.iter().map(|gref| page(gref.index())).collect();
        (
            pages(&record.tx_ring),
            pages(&record.rx_ring),
            page(record.event.index()),
        )
    }

    /// Returns the guest's memory.
    #[must_use]
    pub fn memory(&self) -> &TestMemory {
        &self.memory
    }

    /// Returns the guest's pages outside the pool that may hold payload of frames.
    ///
    /// # Panics
    /// Panics if it has none.
    #[must_use]
    pub fn outside(&self) -> Area {
        self.outside.expect("a rig with pages outside the pool")
    }

    /// Returns the guest's grant table, as bytes.
    #[must_use]
    pub fn table_span(&self) -> Span {
        self.table_span
    }

    /// Returns the ring from the guest, for a hostile guest.
    #[must_use]
    pub fn raw_tx(&self) -> RawFront<TX_REQUEST, TX_RESPONSE> {
        RawFront::new(self.pages.0)
    }

    /// Returns the ring to the guest, for a hostile guest.
    #[must_use]
    pub fn raw_rx(&self) -> RawFront<RX_REQUEST, RX_RESPONSE> {
        RawFront::new(self.pages.1)
    }

    /// Returns the ring from the guest, for a hostile driver domain.
    #[must_use]
    pub fn raw_tx_back(&self) -> RawBack<TX_REQUEST, TX_RESPONSE> {
        RawBack::new(self.pages.0)
    }

    /// Returns the ring to the guest, for a hostile driver domain.
    #[must_use]
    pub fn raw_rx_back(&self) -> RawBack<RX_REQUEST, RX_RESPONSE> {
        RawBack::new(self.pages.1)
    }

    /// Returns the event channel's page.
    #[must_use]
    pub fn event_page(&self) -> Span {
        self.pages.2
    }

    /// Sends these bytes from the guest, as a frame read into its buffers; returns whether it was
    /// sent.
    ///
    /// # Panics
    /// Panics if the interface is disabled.
    pub fn send(&mut self, bytes: &[u8], offload: nic::Offload) -> bool {
        let Some(mut frame) = self.guest_frame(bytes) else {
            return false;
        };
        frame.offload = offload;
        let mut frames = vec![frame];
        let sent = self
            .front
            .transmit(&mut frames)
            .expect("a live interface")
            .sent;
        for mut frame in frames {
            frame.recycle(self.front.buffers());
        }
        self.front.publish();
        sent == 1
    }

    /// Returns these bytes as a frame in the guest's transmit buffers: one small, then large ones.
    pub fn guest_frame(&mut self, bytes: &[u8]) -> Option<Frame> {
        use nic::{Buffers, Piece};
        let pool = self.front.buffers();
        let mut frame = Frame::empty();
        let mut rest = bytes;
        while !rest.is_empty() {
            let buffer = if frame.pieces.is_empty() {
                pool.take()
            } else {
                pool.take_large()
            };
            let Some(buffer) = buffer else {
                frame.recycle(pool);
                return None;
            };
            let n = rest.len().min(buffer.span.len());
            buffer.span.write(&rest[..n]).expect("own memory");
            frame.push(Piece {
                span: buffer.span.take(n),
                buffer: buffer.id,
            });
            rest = &rest[n..];
        }
        frame.snapshot().expect("own memory");
        Some(frame)
    }

    /// Takes packets from the guest at the driver domain, and answers them.
    ///
    /// # Panics
    /// Panics if the interface is disabled.
    pub fn take_from_guest(&mut self, budget: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.back
            .from_guest(budget, &mut frames)
            .expect("a live interface");
        let bytes = frames
            .iter()
            .map(|frame| frame.to_vec().expect("own memory"))
            .collect();
        self.back.from_guest_done();
        bytes
    }

    /// Delivers frames from the driver domain to the guest; returns the number delivered.
    pub fn deliver_to_guest(&mut self, frames: &[Frame]) -> u32 {
        let pick: Vec<u32> = (0..frames.len() as u32).collect();
        let report = self.back.to_guest(frames, &pick);
        self.back.publish();
        report.delivered
    }

    /// Receives packets at the guest, and posts the buffers again.
    ///
    /// # Panics
    /// Panics if the interface is disabled.
    pub fn receive(&mut self, budget: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.front
            .receive(budget, &mut frames)
            .expect("a live interface");
        let bytes = frames
            .iter()
            .map(|frame| frame.to_vec().expect("own memory"))
            .collect();
        self.front.receive_done(&mut frames);
        self.front.publish();
        bytes
    }

    /// Returns whether each end's doorbell would be rung now: (the driver domain's, the guest's).
    pub fn pending_doorbells(&mut self) -> (bool, bool) {
        fence(Ordering::SeqCst);
        (self.front.notify(), self.back.notify().is_some())
    }
}
