//! Does what a decoded call asks for, and writes the answers of its operations.

use super::call::{Call, ConnectSet, ExchangeCreate, TableCreate};
use super::page::CallPage;
use super::shared::Shared;
use crate::device;
use crate::grant::{Copier, Mapper};
use crate::space::{AddressSpace, SpaceError};
use abi::hypercall::{ANSWER_WORD, Bind, Create, OPS_MAX};
use abi::layout::fd;
use abi::{ConnId, DomId, GrantStatus, Handle, RECORD_BYTES, Slot, XenbusState};
use rustix::io::Errno;
use shmem::time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Does the calls of one domain.
#[derive(Debug)]
pub(super) struct Executor<S> {
    id: DomId,
    page: CallPage,
    shared: Arc<Shared>,
    pub(super) mapper: Mapper<S>,
    copier: Copier,
    ready: Arc<AtomicBool>,
    /// Whether the domain has brought up its end of a connection since this was last asked.
    pub(super) connected: bool,
    /// Devices that the domain has done with since this was last asked.
    pub(super) ended: Vec<u64>,
    statuses: Vec<GrantStatus>,
}

impl<S: AddressSpace> Executor<S> {
    pub(super) fn new(
        id: DomId,
        page: CallPage,
        shared: Arc<Shared>,
        space: S,
        ready: Arc<AtomicBool>,
    ) -> Self {
        Self {
            id,
            page,
            shared,
            mapper: Mapper::new(id, space),
            copier: Copier::default(),
            ready,
            connected: false,
            ended: Vec::new(),
            statuses: Vec::with_capacity(OPS_MAX),
        }
    }

    /// Does one call.
    ///
    /// # Errors
    /// The domain must be killed and torn down: see [`Mapper::map`].
    pub(super) fn run(&mut self, call: Call<'_>) -> Result<(), SpaceError> {
        let page = self.page;
        match call {
            Call::GrantCopy(ops) => {
                let statuses = &mut self.statuses;
                self.copier.run(&self.shared.grants, self.id, ops, statuses);
                page.put_statuses(statuses);
            }
            Call::GrantMap(ops) => {
                let statuses = &mut self.statuses;
                self.mapper.map(&self.shared.grants, ops, statuses)?;
                page.put_statuses(statuses);
            }
            Call::GrantUnmap(ops) => {
                let statuses = &mut self.statuses;
                self.mapper.unmap(&self.shared.grants, ops, statuses)?;
                page.put_statuses(statuses);
            }
            Call::ConnectSet(record) => {
                let is_up = |record: &ConnectSet| record.state == XenbusState::Connected;
                let rises = record.as_ref().is_ok_and(is_up);
                let status = record.and_then(|record| self.connect_set(record));
                self.connected |= rises && status.is_ok();
                page.put_errno(0, status);
            }
            Call::ConnectGet(conn) => {
                let status = conn.and_then(|conn| self.connect_get(conn));
                page.put_errno(0, status);
            }
            Call::Ready => self.ready.store(true, Ordering::Release),
            Call::TableCreate(table) => {
                let made = self.table_create(table);
                self.answer(made.map(|handle| u64::from(handle.0)), 1);
            }
            Call::TableBind(op) => self.answer(self.bind(&op).map(|()| 0), ANSWER_WORD),
            Call::TableEnd(handle) => self.answer(self.end(handle).map(|()| 0), ANSWER_WORD),
            Call::GrantCreate(ops) => self.grant_create(ops),
            Call::GrantRevoke(ops) => {
                let Shared {
                    grants, counted, ..
                } = &*self.shared;
                page.put_statuses(&counted.revoke(grants, self.id, ops));
            }
            Call::ExchangeCreate(exchange) => {
                let made = self.exchange_create(exchange);
                self.answer(made.map(|handle| u64::from(handle.0)), 1);
            }
            Call::GrantTransfer(ops) => {
                let Shared {
                    grants, exchanges, ..
                } = &*self.shared;
                page.put_statuses(&exchanges.transfer(grants, self.id, ops));
            }
            Call::DeviceControl(ops) => self.device_control(ops),
            Call::DeviceEnd(number) => {
                let ended = self.device_end(number)?;
                page.put_errno(0, ended);
            }
        }
        Ok(())
    }

    fn connect_set(&self, record: ConnectSet) -> Result<(), Errno> {
        let mut body = [0; RECORD_BYTES];
        self.page.body().read(&mut body).map_err(|_| Errno::FAULT)?;
        let conn = record.conn.ok_or(Errno::NOENT)?;
        let now = time::monotonic_ns();
        self.shared
            .connections
            .set(self.id, conn, record.state, &body, now)
    }

    fn connect_get(&self, conn: ConnId) -> Result<(), Errno> {
        let view = self.shared.connections.get(self.id, conn)?;
        self.page.put(0, 1, u64::from(view.peer.0));
        self.page.put(0, 2, view.role as u64);
        self.page.put(0, 3, view.own as u64);
        self.page.put(0, 4, view.state as u64);
        self.page.body().write(&view.body).map_err(|_| Errno::FAULT)
    }

    fn table_create(&self, table: TableCreate) -> Result<Handle, GrantStatus> {
        let (own, peer) = self.ends(table.conn)?;
        let entries = table.entries.ok_or(GrantStatus::NoSpace)?;
        let Shared {
            grants, counted, ..
        } = &*self.shared;
        counted.create_table(grants, own, peer, entries)
    }

    fn exchange_create(&self, exchange: ExchangeCreate) -> Result<Handle, GrantStatus> {
        let (own, peer) = self.ends(exchange.conn)?;
        let place = exchange.place.ok_or(GrantStatus::BadSlot)?;
        let Shared {
            grants, exchanges, ..
        } = &*self.shared;
        exchanges.create(grants, own, peer, place)
    }

    /// The caller's end of a connection, and who is at the other.
    fn ends(&self, conn: Option<ConnId>) -> Result<((DomId, ConnId), DomId), GrantStatus> {
        let conn = conn.ok_or(GrantStatus::BadDomain)?;
        let connections = &self.shared.connections;
        let view = connections.get(self.id, conn);
        let peer = view.map_err(|_| GrantStatus::BadDomain)?.peer;
        // A connection that was taken away still has a peer, and no other end.
        let reached = connections.other_end(self.id, conn);
        reached.map_err(|_| GrantStatus::BadDomain)?;
        Ok(((self.id, conn), peer))
    }

    /// Binds the table or the exchange that has this handle.
    fn bind(&self, op: &Bind) -> Result<(), GrantStatus> {
        let Shared {
            grants,
            counted,
            exchanges,
            ..
        } = &*self.shared;
        if exchanges.knows(op.table) {
            exchanges.bind(grants, self.id, op)
        } else {
            counted.bind(grants, self.id, op)
        }
    }

    /// Ends the caller's half of the table or the exchange that has this handle.
    fn end(&self, handle: Handle) -> Result<(), GrantStatus> {
        let Shared {
            grants,
            counted,
            exchanges,
            ..
        } = &*self.shared;
        if exchanges.knows(handle) {
            exchanges.end(grants, self.id, handle)
        } else {
            counted.end_table(grants, self.id, handle)
        }
    }

    fn grant_create(&mut self, ops: &[Create]) {
        let answers = self.shared.counted.create(self.id, ops);
        for (op, (status, gref)) in answers.iter().enumerate() {
            self.page.put(op, ANSWER_WORD, u64::from(gref.0));
            self.page.put_status(op, *status);
        }
    }

    fn device_control(&self, ops: &[[u64; 3]]) {
        for (op, &[device, word, other]) in ops.iter().enumerate() {
            let told = self.shared.controls.tell(self.id, device, [word, other]);
            self.page.put(op, ANSWER_WORD, told.unwrap_or(0));
            self.page.put_errno(op, told.map(drop));
        }
    }

    /// The domain has done with one of its devices for good.
    fn device_end(&mut self, number: u64) -> Result<Result<(), Errno>, SpaceError> {
        let Shared {
            controls,
            grants,
            counted,
            ..
        } = &*self.shared;
        let at = i32::try_from(number).ok();
        let at = at.and_then(|number| fd::DEVICE.checked_add(number));
        let space = self.mapper.space();
        let is_there = || at.is_none_or(|at| space.has_descriptor(at));
        let (control, pages) = match controls.begin_end(self.id, number, is_there) {
            Ok(found) => found,
            Err(errno) => return Ok(Err(errno)),
        };
        control.end();
        let slots: Vec<_> = device::slots(&pages)
            .into_iter()
            .flatten()
            .map(Slot)
            .collect();
        let unmapped = self.mapper.space_mut().unmap(&slots);
        unmapped.map_err(SpaceError::fatal)?;
        grants.lock().unreserve_device(self.id, &pages);
        controls.remove(self.id, number);
        counted.pins.remove(self.id, number);
        self.ended.push(number);
        Ok(Ok(()))
    }

    /// Writes the status of a call's one operation and, if it is `Okay`, its answer.
    fn answer(&self, outcome: Result<u64, GrantStatus>, word: usize) {
        if let Ok(value) = outcome {
            self.page.put(0, word, value);
        }
        let status = outcome.err().unwrap_or(GrantStatus::Okay);
        self.page.put_status(0, status);
    }

    /// A granter has died: see [`Mapper::granter_died`].
    ///
    /// # Errors
    /// The domain must be killed.
    pub(super) fn granter_died(&mut self, granter: DomId) -> Result<(), SpaceError> {
        self.mapper.granter_died(&self.shared.grants, granter)
    }

    /// Ends everything that the domain used. Its process and its agent are gone.
    pub(super) fn tear_down(self) {
        let Shared {
            grants,
            spaces,
            counted,
            exchanges,
            churn,
            ..
        } = &*self.shared;
        churn.forget(self.id);
        exchanges.tear_down(grants, self.id);
        spaces.remove(self.id);
        counted.tear_down(grants, self.id);
        self.mapper.tear_down(grants);
    }
}
