//! Executes a decoded call, and writes the results of its operations.

use super::call::DecodedCall;
use super::server::HypercallServer;
use super::shared::MonitorState;
use crate::device;
use crate::grant::mechanism::{ConnectionEnds, GrantResult, OtherCall};
use crate::space::{AddressSpace, SpaceError};
use abi::hypercall::{ANSWER_WORD, BindOp, CreateGrantOp, HypercallKind, ShareOp};
use abi::layout::fd;
use abi::{ConnId, DomId, GrantStatus, Handle, RECORD_BYTES, Slot, XenbusState};
use rustix::io::Errno;
use shmem::time;
use std::sync::atomic::Ordering;

impl<S: AddressSpace> HypercallServer<S> {
    /// Executes a call. Returns false if the call does not exist.
    ///
    /// # Errors
    /// On any error, the domain must be killed and torn down.
    pub(super) fn run(&mut self, call: DecodedCall<'_>) -> Result<bool, SpaceError> {
        let page = self.page;
        match call {
            DecodedCall::ConnectSet(conn, state) => {
                let status = self.connect_set(conn, state);
                self.needs_notice |= status.is_ok() && state == Some(XenbusState::Connected);
                page.put_errno(0, status);
            }
            DecodedCall::ConnectGet(conn) => page.put_errno(0, self.connect_get(conn)),
            // The main thread is notified only once.
            DecodedCall::Ready => {
                self.needs_notice |= !self.counters.ready.swap(true, Ordering::Release)
            }
            DecodedCall::TableCreate(conn, entries) => {
                self.write_handle(self.table_create(conn, entries))
            }
            DecodedCall::TableBind(op) => {
                self.write_result(self.bind(&op).map(|()| 0), ANSWER_WORD)
            }
            DecodedCall::TableShare(op) => {
                self.write_result(self.share(&op).map(|()| 0), ANSWER_WORD)
            }
            DecodedCall::TableEnd(handle) => {
                self.write_result(self.end(handle).map(|()| 0), ANSWER_WORD)
            }
            DecodedCall::GrantCreate(ops) => self.grant_create(ops),
            DecodedCall::GrantRevoke(ops) => {
                page.put_statuses(&self.shared.counted.revoke(self.id, ops));
            }
            DecodedCall::DeviceControl(ops) => self.device_control(ops),
            DecodedCall::DeviceEnd(number) => {
                let ended = self.device_end(number)?;
                page.put_errno(0, ended);
            }
            DecodedCall::ForeignMap(map) => {
                let mapped = self.space.map_foreign(&map)?;
                page.put_errno(0, mapped);
            }
            DecodedCall::ForeignUnmap(at) => {
                let unmapped = self.space.unmap_foreign(at)?;
                page.put_errno(0, unmapped);
            }
            DecodedCall::Other(kind, ops) => return self.other(kind, ops),
        }
        Ok(true)
    }

    /// Executes a call of a mechanism other than counted grants. Returns false if the call does not
    /// exist.
    fn other(&mut self, kind: HypercallKind, ops: &[[u64; 3]]) -> Result<bool, SpaceError> {
        let (caller, shared) = (self.id, &*self.shared);
        let Some(mechanism) = &shared.mechanism else {
            return Ok(false);
        };
        let ends = &|conn| ends(shared, caller, conn);
        let call = OtherCall {
            caller,
            kind,
            ops,
            ends,
        };
        match mechanism.call(&mut self.space, &call)? {
            Some(GrantResult::Batch(statuses)) => self.page.put_statuses(&statuses),
            Some(GrantResult::Created(made)) => self.write_handle(made),
            None => return Ok(false),
        }
        Ok(true)
    }

    fn connect_set(&self, conn: ConnId, state: Option<XenbusState>) -> Result<(), Errno> {
        let state = state.ok_or(Errno::INVAL)?;
        let mut body = [0; RECORD_BYTES];
        self.page.body().get(&mut body).map_err(|_| Errno::FAULT)?;
        let (connections, now) = (&self.shared.connections, time::monotonic_ns());
        connections.set(self.id, conn, state, &body, now)
    }

    fn connect_get(&self, conn: ConnId) -> Result<(), Errno> {
        let view = self.shared.connections.get(self.id, conn)?;
        self.page.put(0, 1, u64::from(view.peer.0));
        self.page.put(0, 2, view.role as u64);
        self.page.put(0, 3, view.own as u64);
        self.page.put(0, 4, view.state as u64);
        self.page.body().put(&view.body).map_err(|_| Errno::FAULT)
    }

    fn table_create(&self, conn: ConnId, entries: u32) -> Result<Handle, GrantStatus> {
        let (own, peer) = ends(&self.shared, self.id, conn)?;
        self.shared.counted.create_table(own, peer, entries)
    }

    /// Binds the table or exchange with this handle.
    fn bind(&self, op: &BindOp) -> Result<(), GrantStatus> {
        let other = self.shared.mechanism.as_ref();
        let other = other.and_then(|other| other.bind(self.id, op));
        other.unwrap_or_else(|| self.shared.counted.bind(self.id, op))
    }

    fn share(&self, op: &ShareOp) -> Result<(), GrantStatus> {
        let (_, device) = ends(&self.shared, self.id, op.conn)?;
        self.shared.counted.share(self.id, device, op)
    }

    /// Ends the caller's half of the table or exchange with this handle.
    fn end(&self, handle: Handle) -> Result<(), GrantStatus> {
        let other = self.shared.mechanism.as_ref();
        let other = other.and_then(|other| other.end(self.id, handle));
        other.unwrap_or_else(|| self.shared.counted.end_table(self.id, handle))
    }

    fn grant_create(&mut self, ops: &[CreateGrantOp]) {
        let answers = self.shared.counted.create(self.id, ops);
        for (op, (status, gref)) in answers.iter().enumerate() {
            self.page.put(op, ANSWER_WORD, u64::from(gref.0));
            self.page.put_status(op, *status);
        }
    }

    fn device_control(&self, ops: &[[u64; 3]]) {
        for (op, &[device, word, other]) in ops.iter().enumerate() {
            let answer = self.shared.devices.control(self.id, device, [word, other]);
            self.page.put(op, ANSWER_WORD, answer.unwrap_or(0));
            self.page.put_errno(op, answer.map(drop));
        }
    }

    /// Ends one of the domain's devices permanently. The inner error is the call's result.
    fn device_end(&mut self, number: u64) -> Result<Result<(), Errno>, SpaceError> {
        let shared = &*self.shared;
        let at = i32::try_from(number).ok();
        let at = at.and_then(|number| fd::DEVICE.checked_add(number));
        let has_descriptor = || at.is_none_or(|at| self.space.has_descriptor(at));
        let device = match shared.devices.begin_end(self.id, number, has_descriptor) {
            Ok(ending) => ending,
            Err(errno) => return Ok(Err(errno)),
        };
        device.control.iter().for_each(|control| control.end());
        let ranges = device::slots(&device.pages).unwrap_or_default();
        let slots: Vec<_> = ranges.iter().cloned().flatten().map(Slot).collect();
        self.space.unmap(&slots).map_err(SpaceError::fatal)?;
        shared.grants.lock().unreserve(self.id, &ranges);
        shared.counted.pins.remove(self.id, number);
        shared.devices.remove(self.id, number);
        self.needs_notice = true;
        Ok(Ok(()))
    }

    /// Writes the handle of a new object as the call's result.
    fn write_handle(&self, made: Result<Handle, GrantStatus>) {
        self.write_result(made.map(|handle| u64::from(handle.0)), 1);
    }

    /// Writes the status of a call's one operation and, if it is `Okay`, its result.
    fn write_result(&self, outcome: Result<u64, GrantStatus>, word: usize) {
        if let Ok(value) = outcome {
            self.page.put(0, word, value);
        }
        let status = outcome.err().unwrap_or(GrantStatus::Okay);
        self.page.put_status(0, status);
    }
}

/// Returns a domain's end of a connection, and the domain at the other end.
fn ends(shared: &MonitorState, id: DomId, conn: ConnId) -> Result<ConnectionEnds, GrantStatus> {
    let reached = shared.connections.other_end(id, conn);
    let (peer, _) = reached.map_err(|_| GrantStatus::BadDomain)?;
    Ok(((id, conn), peer))
}
