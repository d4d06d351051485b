//! The call page: decode once, check, do, say how it went.
//!
//! Every word of the page may change while it is read, and may hold anything. So the kind, the
//! count and each operation are read once into the monitor's own memory, and only that copy is
//! looked at. Nothing that stands in the page can make the monitor panic or loop.

use crate::connect::Connections;
use crate::device::{self, Controls};
use crate::grant::{Copier, Grants, Mapper, NewGrants};
use crate::memory::Memory;
use crate::space::{AddressSpace, SpaceError};
use abi::hypercall::{
    ANSWER_WORD, Bind, COUNT, Copy, Create, DONE, KIND, Kind, Map, OP_WORDS, OPS, OPS_MAX, REQUEST,
    RESULT, Revoke, STATUS_WORD, Transfer, Unmap,
};
use abi::layout::{fd, info};
use abi::{ConnId, DomId, GrantStatus, Handle, RECORD_BYTES, Slot, XenbusState};
use rustix::io::Errno;
use shmem::rate::TokenBucket;
use shmem::{Span, time};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Grants of the new mechanism that a domain may make and revoke in a row: what the largest table
/// needs at the start of a connection and at its end.
const CHURN_BURST: u32 = 1 << 13;
/// The same, a second, in the long run.
const CHURN_PER_SECOND: u64 = 20_000;
/// What a table or an exchange counts for: it takes memory, and a number that is never used again.
const CHURN_TABLE: usize = 64;
/// Between two looks at an empty budget.
const CHURN_LOOK: Duration = Duration::from_millis(1);

/// What a domain's calls amount to; written by its worker, read by anybody.
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls answered.
    pub calls: AtomicU64,
    /// Operations in them.
    pub operations: AtomicU64,
}

/// A private handle of a call page.
#[derive(Clone, Copy, Debug)]
pub struct CallPage {
    page: Span,
    request: &'static AtomicU32,
    done: &'static AtomicU32,
}

impl CallPage {
    /// The call page in a domain's information region.
    #[must_use]
    pub fn of(memory: &Memory) -> Option<Self> {
        let page = memory
            .info()
            .span()
            .sub(info::CALL, info::CALL_PAGES * abi::PAGE)?;
        Some(Self {
            page,
            request: page.u32(REQUEST)?,
            done: page.u32(DONE)?,
        })
    }

    /// The word that the domain changes and wakes us on.
    #[must_use]
    pub fn request(&self) -> &'static AtomicU32 {
        self.request
    }

    /// Says that the call is answered, and wakes the domain.
    pub fn finish(&self, number: u32, result: Result<(), Errno>) {
        let result = result
            .err()
            .map_or(0, |errno| errno.raw_os_error().saturating_neg());
        self.put_u32(RESULT, result as u32);
        // Release: who sees the number sees the results.
        self.done.store(number, Ordering::Release);
        shmem::futex::wake(self.done, 1);
    }

    fn get_u32(&self, offset: usize) -> u32 {
        self.page
            .u32(offset)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn put_u32(&self, offset: usize, value: u32) {
        if let Some(word) = self.page.u32(offset) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn word(&self, op: usize, word: usize) -> Option<&'static AtomicU64> {
        self.page.u64(OPS + (op * OP_WORDS + word) * 8)
    }

    fn get(&self, op: usize, word: usize) -> u64 {
        self.word(op, word)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn put(&self, op: usize, word: usize, value: u64) {
        if let Some(word) = self.word(op, word) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn words(&self, op: usize) -> [u64; 3] {
        [self.get(op, 0), self.get(op, 1), self.get(op, 2)]
    }

    fn put_statuses(&self, statuses: &[GrantStatus]) {
        for (op, &status) in statuses.iter().enumerate() {
            self.put(op, STATUS_WORD, status_word(status));
        }
    }

    fn body(&self) -> Span {
        self.page.skip(OPS + OP_WORDS * 8).take(RECORD_BYTES)
    }
}

/// What the workers of all domains share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Every grant.
    pub grants: Grants,
    /// Every grant of the new mechanism.
    pub new: NewGrants,
    /// Every connection.
    pub connections: Connections,
    /// What devices can be told.
    pub controls: Controls,
}

/// Serves one domain's calls.
#[derive(Debug)]
pub struct Server<S> {
    id: DomId,
    page: CallPage,
    shared: Arc<Shared>,
    mapper: Mapper<S>,
    copier: Copier,
    counters: Arc<Counters>,
    ready: Arc<AtomicBool>,
    connected: bool,
    /// Devices that the domain has done with since this was last asked.
    ended: Vec<u64>,
    churn: TokenBucket,
    copies: Vec<Copy>,
    maps: Vec<Map>,
    unmaps: Vec<Unmap>,
    statuses: Vec<GrantStatus>,
}

impl<S: AddressSpace> Server<S> {
    /// A server for a domain whose account is open and whose address space is `space`. `ready`
    /// is set when the domain says that it has started.
    pub fn new(
        id: DomId,
        page: CallPage,
        shared: Arc<Shared>,
        space: S,
        counters: Arc<Counters>,
        ready: Arc<AtomicBool>,
    ) -> Self {
        Self {
            id,
            page,
            shared,
            mapper: Mapper::new(id, space),
            copier: Copier::default(),
            counters,
            ready,
            connected: false,
            ended: Vec::new(),
            churn: TokenBucket::new(CHURN_PER_SECOND, CHURN_BURST),
            copies: Vec::with_capacity(OPS_MAX),
            maps: Vec::with_capacity(OPS_MAX),
            unmaps: Vec::with_capacity(OPS_MAX),
            statuses: Vec::with_capacity(OPS_MAX),
        }
    }

    /// The call page.
    pub fn page(&self) -> CallPage {
        self.page
    }

    /// The mapper and its address space.
    pub fn mapper(&self) -> &Mapper<S> {
        &self.mapper
    }

    /// The same, to change.
    pub fn mapper_mut(&mut self) -> &mut Mapper<S> {
        &mut self.mapper
    }

    /// Carries out the call that lies in the page and says how it went; `number` is its number.
    ///
    /// # Errors
    /// The domain must be killed and torn down: see [`Mapper::map`]. The call stays unanswered.
    pub fn serve(&mut self, number: u32) -> Result<(), SpaceError> {
        let (kind, count) = (self.page.get_u32(KIND), self.page.get_u32(COUNT) as usize);
        let result = match Kind::from_wire(kind) {
            Some(kind) if count <= OPS_MAX => self.call(kind, count)?,
            _ => Err(Errno::INVAL),
        };
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        if result.is_ok() {
            self.counters
                .operations
                .fetch_add(count as u64, Ordering::Relaxed);
        }
        self.page.finish(number, result);
        Ok(())
    }

    fn call(&mut self, kind: Kind, count: usize) -> Result<Result<(), Errno>, SpaceError> {
        let page = self.page;
        match kind {
            Kind::GrantCopy => {
                self.copies.clear();
                self.copies
                    .extend((0..count).map(|op| Copy::decode(page.words(op))));
                self.copier.run(
                    &self.shared.grants,
                    self.id,
                    &self.copies,
                    &mut self.statuses,
                );
                page.put_statuses(&self.statuses);
            }
            Kind::GrantMap => {
                self.maps.clear();
                self.maps
                    .extend((0..count).map(|op| Map::decode(page.words(op))));
                self.mapper
                    .map(&self.shared.grants, &self.maps, &mut self.statuses)?;
                page.put_statuses(&self.statuses);
            }
            Kind::GrantUnmap => {
                self.unmaps.clear();
                self.unmaps.extend((0..count).map(|op| Unmap {
                    // As in [`Map::decode`].
                    slot: Slot(page.get(op, 0) as u32),
                }));
                self.mapper
                    .unmap(&self.shared.grants, &self.unmaps, &mut self.statuses)?;
                page.put_statuses(&self.statuses);
            }
            Kind::ConnectSet if count == 1 => {
                let status = self.connect_set();
                self.connected |= status.is_ok();
                page.put(0, STATUS_WORD, errno_word(status));
            }
            Kind::ConnectGet if count == 1 => {
                let status = self.connect_get();
                page.put(0, STATUS_WORD, errno_word(status));
            }
            Kind::TableCreate if count == 1 => {
                self.wait_for_budget(CHURN_TABLE);
                let made = self.table_create();
                self.answer(0, made.map(|handle| u64::from(handle.0)), 1);
            }
            Kind::TableBind if count == 1 => {
                let op = Bind::decode(page.words(0));
                let bound = self.shared.new.bind(&self.shared.grants, self.id, &op);
                self.answer(0, bound.map(|()| 0), ANSWER_WORD);
            }
            Kind::TableEnd if count == 1 => {
                let handle = Handle(page.get(0, 0) as u32);
                let new = &self.shared.new;
                let ended = new.end_table(&self.shared.grants, self.id, handle);
                self.answer(0, ended.map(|()| 0), ANSWER_WORD);
            }
            Kind::GrantCreate => {
                self.wait_for_budget(count);
                let ops: Vec<_> = (0..count)
                    .map(|op| Create::decode(page.words(op)))
                    .collect();
                for (op, (status, gref)) in self.shared.new.create(self.id, &ops).iter().enumerate()
                {
                    page.put(op, ANSWER_WORD, u64::from(gref.0));
                    page.put(op, STATUS_WORD, status_word(*status));
                }
            }
            Kind::GrantRevoke => {
                self.wait_for_budget(count);
                let ops: Vec<_> = (0..count)
                    .map(|op| Revoke::decode(page.words(op)))
                    .collect();
                let new = &self.shared.new;
                page.put_statuses(&new.revoke(&self.shared.grants, self.id, &ops));
            }
            Kind::ExchangeCreate if count == 1 => {
                self.wait_for_budget(CHURN_TABLE);
                let made = self.exchange_create();
                self.answer(0, made.map(|handle| u64::from(handle.0)), 1);
            }
            Kind::GrantTransfer => {
                let ops: Vec<_> = (0..count)
                    .map(|op| Transfer::decode(page.words(op)))
                    .collect();
                let Shared { grants, new, .. } = &*self.shared;
                page.put_statuses(&new.transfer(grants, self.id, &ops));
            }
            Kind::DeviceControl => {
                for op in 0..count {
                    let [device, word, other] = page.words(op);
                    let told = self.shared.controls.tell(self.id, device, [word, other]);
                    page.put(op, ANSWER_WORD, told.unwrap_or(0));
                    page.put(op, STATUS_WORD, errno_word(told.map(drop)));
                }
            }
            Kind::DeviceEnd if count == 1 => {
                let ended = self.device_end(page.get(0, 0))?;
                page.put(0, STATUS_WORD, errno_word(ended));
            }
            Kind::Ready if count == 0 => self.ready.store(true, Ordering::Release),
            _ => return Ok(Err(Errno::INVAL)),
        }
        Ok(Ok(()))
    }

    /// The domain has done with one of its devices for good.
    fn device_end(&mut self, number: u64) -> Result<Result<(), Errno>, SpaceError> {
        let Shared {
            controls,
            grants,
            new,
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
        new.pins.remove(self.id, number);
        self.ended.push(number);
        Ok(Ok(()))
    }

    fn table_create(&self) -> Result<Handle, GrantStatus> {
        let (own, peer) = self.ends()?;
        let entries = u32::try_from(self.page.get(0, 1)).map_err(|_| GrantStatus::NoSpace)?;
        let Shared { grants, new, .. } = &*self.shared;
        new.create_table(grants, own, peer, entries)
    }

    fn exchange_create(&self) -> Result<Handle, GrantStatus> {
        let (own, peer) = self.ends()?;
        let [_, pages, first] = self.page.words(0).map(u32::try_from);
        let place = pages.and_then(|pages| Ok((pages, Slot(first?))));
        let Shared { grants, new, .. } = &*self.shared;
        let place = place.map_err(|_| GrantStatus::BadSlot)?;
        new.create_exchange(grants, own, peer, place)
    }

    /// The caller's end of the connection that word 0 names, and who is at the other.
    fn ends(&self) -> Result<((DomId, ConnId), DomId), GrantStatus> {
        let conn = connection(self.page.get(0, 0)).map_err(|_| GrantStatus::BadDomain)?;
        let view = self.shared.connections.get(self.id, conn);
        let peer = view.map_err(|_| GrantStatus::BadDomain)?.peer;
        Ok(((self.id, conn), peer))
    }

    /// Writes the status of an operation and, if it is `Okay`, its answer.
    fn answer(&self, op: usize, outcome: Result<u64, GrantStatus>, word: usize) {
        if let Ok(value) = outcome {
            self.page.put(op, word, value);
        }
        let status = outcome.err().unwrap_or(GrantStatus::Okay);
        self.page.put(op, STATUS_WORD, status_word(status));
    }

    /// Every grant made and revoked costs its user's processors time (each revocation flushes their
    /// translations): a granter that wants too many waits.
    fn wait_for_budget(&mut self, operations: usize) {
        loop {
            let now = time::monotonic_ns();
            if self.churn.take(now, operations as u32) {
                return;
            }
            std::thread::sleep(CHURN_LOOK);
        }
    }

    fn connect_set(&self) -> Result<(), Errno> {
        let [conn, state, _] = self.page.words(0);
        let state = XenbusState::from_wire(state).ok_or(Errno::INVAL)?;
        let mut body = [0; RECORD_BYTES];
        self.page.body().read(&mut body).map_err(|_| Errno::FAULT)?;
        let now = time::monotonic_ns();
        self.shared
            .connections
            .set(self.id, connection(conn)?, state, &body, now)
    }

    fn connect_get(&self) -> Result<(), Errno> {
        let conn = connection(self.page.get(0, 0))?;
        let view = self.shared.connections.get(self.id, conn)?;
        self.page.put(0, 1, u64::from(view.peer.0));
        self.page.put(0, 2, view.role as u64);
        self.page.put(0, 3, view.own as u64);
        self.page.put(0, 4, view.state as u64);
        self.page.body().write(&view.body).map_err(|_| Errno::FAULT)
    }

    /// Whether the domain has written a record of a connection since this was last asked.
    pub fn take_connected(&mut self) -> bool {
        std::mem::take(&mut self.connected)
    }

    /// Devices that the domain has done with since this was last asked.
    pub fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    /// A granter has died: see [`Mapper::granter_died`].
    ///
    /// # Errors
    /// The domain must be killed.
    pub fn granter_died(&mut self, granter: DomId) -> Result<(), SpaceError> {
        self.mapper.granter_died(&self.shared.grants, granter)
    }

    /// Lets go of everything that the domain used. Its process and its agent are gone.
    pub fn tear_down(self) {
        self.shared.new.tear_down(&self.shared.grants, self.id);
        self.mapper.tear_down(&self.shared.grants);
    }
}

fn connection(word: u64) -> Result<ConnId, Errno> {
    u32::try_from(word).map(ConnId).map_err(|_| Errno::NOENT)
}

fn status_word(status: GrantStatus) -> u64 {
    i64::from(status as i16) as u64
}

fn errno_word(status: Result<(), Errno>) -> u64 {
    status.err().map_or(0, |errno| {
        i64::from(errno.raw_os_error()).saturating_neg() as u64
    })
}
