//! The memory of one interface: its layout and grants.

use crate::table::{CountedTable, FlipPages};
use abi::{ConnId, DomId, GrantRef, Handle, Slot};
use config::domain::FILE_GRANTS;
use nic::Frame;
use runtime::call::Calls;
use runtime::ledger::{Hop, Ledger};
use runtime::platform::{ConnectRecord, Platform};
use shmem::Area;
use std::cell::RefCell;
use std::rc::Rc;
use vif::Fatal;
use vif::netfront::{
    ExternalPages, GrantError, GrantTable, GrantedPage, Granter, Layout, Netfront, Setup,
};
use vif::netif::{BackRecord, Features};

/// Common state of a guest's interfaces.
#[derive(Clone)]
pub(super) struct GuestContext {
    pub platform: Rc<dyn Platform>,
    /// Hypercalls, for counted grants and exchanged pages.
    pub calls: Rc<RefCell<Calls>>,
    /// The classic grant table.
    pub table: Rc<RefCell<GrantTable>>,
    pub grant_entries: u32,
    /// The guest's memory.
    pub frames: Area,
}

/// Configuration of one interface, and the start of its memory.
#[derive(Clone, Copy)]
pub(super) struct InterfaceSpec {
    pub first_frame: u32,
    /// First slot of exchanged pages.
    pub flip_slot: Slot,
    pub layout: Layout,
    pub features: Features,
    pub prefetch: u32,
    pub release_threshold: Option<u32>,
    /// See [`Setup::headroom`].
    pub headroom: u16,
    /// See [`Setup::swap`].
    pub swap: bool,
    pub mac: [u8; 6],
    /// Memory of a file that is sent in place, and its first frame number.
    pub file: Option<(Area, u32)>,
}

/// The memory of one interface.
pub(super) struct InterfaceMemory {
    common: GuestContext,
    shape: InterfaceSpec,
    /// Whether no netfront has used the memory's frames yet.
    fresh: bool,
    /// The table of counted grants, if any.
    counted_table: Option<CountedTable>,
    /// Exchanged pages, if any.
    flips: Option<FlipPages>,
}

impl InterfaceMemory {
    pub(super) fn new(common: GuestContext, shape: InterfaceSpec) -> Self {
        Self {
            common,
            shape,
            fresh: true,
            counted_table: None,
            flips: None,
        }
    }

    /// Lays out a netfront for a driver domain with record `back`, and grants its pages with the
    /// mechanism that the driver domain requests; returns the record's body.
    pub(super) fn lay_out(
        &mut self,
        conn: ConnId,
        backend: DomId,
        back: &BackRecord,
    ) -> Result<(Netfront, ConnectRecord), String> {
        // A guest's memory is unused when the guest starts.
        let fresh = std::mem::take(&mut self.fresh);
        let mut setup = Setup {
            fresh,
            ..self.setup(backend)
        };
        let calls = &self.common.calls;
        self.counted_table = if back.features.has(Features::COUNTED_GRANTS) {
            let (entries, first) = (self.common.grant_entries, self.shape.first_frame);
            let table = CountedTable::create(calls, conn, entries, first)
                .map_err(|why| format!("cannot create a grant table: {}", why.name()))?;
            Some(table)
        } else {
            None
        };
        if back.features.has(Features::RX_FLIP) {
            let pages = self.shape.layout.sizes().rx_pages;
            let place = (self.common.platform.window(), self.shape.flip_slot, pages);
            // A failed connection may have left its exchange at the same slots.
            self.flips = None;
            let flips = FlipPages::create(calls, conn, place)
                .map_err(|why| format!("cannot create a page exchange: {}", why.name()))?;
            setup.exchange = Some(flips.exchange(self.common.table.borrow().span()));
            self.flips = Some(flips);
        }
        let (netfront, record) = self
            .with_granter(|granter| Netfront::new(&setup, granter, back))
            .map_err(|error| error.to_string())?;
        Ok((netfront, record.encode()))
    }

    /// Like [`InterfaceMemory::lay_out`], with a granter that cannot revoke pages.
    pub(super) fn lay_out_fixed(
        &self,
        back: &BackRecord,
        granter: &mut dyn Granter,
    ) -> Result<(Netfront, ConnectRecord), String> {
        let setup = Setup {
            release_threshold: None,
            external_pages: None,
            ..self.setup(DomId(0))
        };
        let (netfront, record) =
            Netfront::new(&setup, granter, back).map_err(|error| error.to_string())?;
        Ok((netfront, record.encode()))
    }

    fn setup(&self, backend: DomId) -> Setup {
        let InterfaceSpec {
            first_frame,
            flip_slot: _,
            layout,
            features,
            prefetch,
            release_threshold,
            headroom,
            swap,
            mac,
            file,
        } = self.shape;
        Setup {
            frames: self.common.frames,
            first_frame,
            layout,
            fresh: false,
            backend,
            mac,
            features,
            prefetch,
            release_threshold,
            headroom,
            exchange: None,
            external_pages: file.map(|(memory, first_frame)| ExternalPages {
                memory,
                first_frame,
                first_entry: layout.frames(),
                entries: ExternalPages::entries(FILE_GRANTS),
            }),
            swap,
        }
    }

    /// Runs `act` with the granter of this interface's pages.
    pub(super) fn with_granter<T>(&mut self, act: impl FnOnce(&mut dyn Granter) -> T) -> T {
        match &mut self.counted_table {
            Some(table) => act(table),
            None => act(&mut *self.common.table.borrow_mut()),
        }
    }

    /// Returns whether frames may lie in the pages of a file.
    pub(super) fn has_file(&self) -> bool {
        self.shape.file.is_some()
    }

    /// Sends frames, which may lie in pages outside the pool.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        netfront: &mut Netfront,
        ledger: &Ledger,
        frames: &mut Vec<Frame>,
    ) -> Result<(), Fatal> {
        let sent = match netfront.tracks() {
            true => self.with_granter(|granter| {
                netfront.transmit_tracked(frames, &mut Charged { granter, ledger })
            }),
            false => netfront.transmit(frames),
        };
        sent.map(drop)
    }

    /// Adds pages to the receive pool or removes them, if it is elastic.
    pub(super) fn recycle_pages(
        &mut self,
        netfront: &mut Netfront,
        ledger: &Ledger,
        act: fn(&mut Netfront, &mut dyn Granter),
    ) {
        if netfront.is_elastic() {
            ledger.charge_to(Hop::Grant, || {
                self.with_granter(|granter| act(netfront, granter))
            });
        }
    }

    /// Ends the state of a closed connection.
    pub(super) fn end(&mut self) {
        self.counted_table = None;
        self.flips = None;
    }
}

/// A granter that charges its cycles to the grant hop.
struct Charged<'a> {
    granter: &'a mut dyn Granter,
    ledger: &'a Ledger,
}

impl Granter for Charged<'_> {
    fn enter(
        &mut self,
        to: DomId,
        pages: &[GrantedPage],
        made: &mut Vec<Result<GrantRef, GrantError>>,
    ) {
        let granter = &mut self.granter;
        self.ledger
            .charge_to(Hop::Grant, || granter.enter(to, pages, made));
    }

    fn revoke_pages(&mut self, grefs: &[GrantRef], left: &mut Vec<bool>) {
        let granter = &mut self.granter;
        self.ledger
            .charge_to(Hop::Grant, || granter.revoke_pages(grefs, left));
    }

    fn revoke_if_unused(&mut self, gref: GrantRef) -> bool {
        let granter = &mut self.granter;
        self.ledger
            .charge_to(Hop::Grant, || granter.revoke_if_unused(gref))
    }

    fn end(&mut self, grefs: &mut Vec<GrantRef>) {
        let granter = &mut self.granter;
        self.ledger.charge_to(Hop::Grant, || granter.end(grefs));
    }

    fn table(&self) -> Handle {
        self.granter.table()
    }
}
