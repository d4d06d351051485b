//! The domain's side of hypercalls: writes the call page, wakes the monitor's worker, and waits for
//! the answer.

use crate::platform::{ConnectRecord, NO_RECORD, PeerEnd};
use abi::hypercall::{
    ANSWER_WORD, BindOp, COUNT, CreateGrantOp, DONE, ForeignMap, HypercallKind, KIND, OP_WORDS,
    OPS, OPS_MAX, REQUEST, RESULT, RevokeOp, STATUS_WORD, ShareOp,
};
use abi::{
    ConnId, DomId, GrantRef, GrantStatus, Handle, PAGE, RECORD_BYTES, Slot, XenbusState,
    layout::info,
};
use rustix::io::Errno;
use shmem::{Span, domain_memory::DomainMemory, futex};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Interval at which a waiting domain checks for the answer again. The domain waits without a
/// limit, because the monitor answers every call or kills the domain.
const WAIT_TIME: Duration = Duration::from_secs(1);

/// The domain's hypercall interface. A domain has only one.
#[derive(Debug)]
pub struct Calls {
    page: Span,
    number: u32,
}

/// A table of counted grants, or an exchange. Dropping this value releases this domain's part of
/// the table or exchange.
#[derive(Debug)]
pub struct OwnTable {
    calls: Rc<RefCell<Calls>>,
    handle: Handle,
}

impl OwnTable {
    /// Takes ownership of a table or an exchange.
    #[must_use]
    pub fn new(calls: &Rc<RefCell<Calls>>, handle: Handle) -> Self {
        let calls = Rc::clone(calls);
        Self { calls, handle }
    }

    /// Returns the handle.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for OwnTable {
    fn drop(&mut self) {
        // This fails only if the other domain or the monitor has already ended the table.
        let _ = self.calls.borrow_mut().end_table(self.handle);
    }
}

impl Calls {
    /// Takes this domain's only call page. Returns `None` on a second call.
    #[must_use]
    pub fn new(domain_memory: &DomainMemory) -> Option<Self> {
        let page = domain_memory.info.at(info::CALL, info::CALL_PAGES * PAGE)?;
        Some(Self { page, number: 0 })
    }

    /// Returns an interface whose calls all fail, for a process without a monitor.
    #[must_use]
    pub fn unavailable() -> Self {
        Self {
            page: Span::EMPTY,
            number: 0,
        }
    }

    /// Returns an interface over a call page that a test answers.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn with_page(page: Span) -> Self {
        Self { page, number: 0 }
    }

    /// Creates a table of counted grants for a connection of this domain.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the call.
    pub fn create_table(&mut self, conn: ConnId, entries: u32) -> Result<Handle, GrantStatus> {
        self.single(
            HypercallKind::TableCreate,
            [u64::from(conn.0), u64::from(entries), 0],
        )?;
        Ok(Handle(self.get(1) as u32))
    }

    /// Binds another domain's table, or an exchange, to this domain's window.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the call.
    pub fn bind_table(&mut self, bind: &BindOp) -> Result<(), GrantStatus> {
        self.single(HypercallKind::TableBind, bind.encode())
    }

    /// Shares the pages of a bound table that are granted for I/O with a device of this domain.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the call.
    pub fn share_table(&mut self, share: &ShareOp) -> Result<(), GrantStatus> {
        self.single(HypercallKind::TableShare, share.encode())
    }

    /// Releases this domain's part of a table or an exchange.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the call.
    pub fn end_table(&mut self, table: Handle) -> Result<(), GrantStatus> {
        self.single(HypercallKind::TableEnd, [u64::from(table.0), 0, 0])
    }

    /// Creates an exchange of pages with a connection's other end. It has `pages` pages of this
    /// domain, which start at slot `first`.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the call.
    pub fn create_exchange(
        &mut self,
        conn: ConnId,
        pages: u32,
        first: Slot,
    ) -> Result<Handle, GrantStatus> {
        let words = [conn.0, pages, first.0].map(u64::from);
        self.single(HypercallKind::ExchangeCreate, words)?;
        Ok(Handle(self.get(1) as u32))
    }

    /// Grants pages in this domain's tables, and appends one result per operation to `made`.
    pub fn create_grants(
        &mut self,
        ops: &[CreateGrantOp],
        made: &mut Vec<Result<GrantRef, GrantStatus>>,
    ) {
        let mut status = Vec::new();
        for batch in ops.chunks(OPS_MAX) {
            status.clear();
            self.batches(
                HypercallKind::GrantCreate,
                batch,
                CreateGrantOp::encode,
                &mut status,
            );
            made.extend(status.iter().enumerate().map(|(n, status)| match status {
                GrantStatus::Okay => Ok(GrantRef(self.get(n * OP_WORDS + ANSWER_WORD) as u32)),
                refused => Err(*refused),
            }));
        }
    }

    /// Revokes grants of this domain's tables, and appends one status per operation to `status`.
    pub fn revoke_grants(&mut self, ops: &[RevokeOp], status: &mut Vec<GrantStatus>) {
        self.batches(HypercallKind::GrantRevoke, ops, RevokeOp::encode, status);
    }

    fn single(&mut self, kind: HypercallKind, words: [u64; 3]) -> Result<(), GrantStatus> {
        for (word, value) in words.into_iter().enumerate() {
            self.put(word, value);
        }
        self.put(STATUS_WORD, GrantStatus::GeneralError as i64 as u64);
        self.enter(kind, 1).map_err(|_| GrantStatus::GeneralError)?;
        match GrantStatus::from_wire(self.get(STATUS_WORD) as i64 as i16) {
            GrantStatus::Okay => Ok(()),
            refused => Err(refused),
        }
    }

    /// Writes this domain's record of a connection.
    ///
    /// # Errors
    /// Returns an error if the state transition is invalid, or the connection does not exist.
    pub(crate) fn set_connection(
        &mut self,
        conn: ConnId,
        state: XenbusState,
        record: &ConnectRecord,
    ) -> Result<(), Errno> {
        self.put(0, u64::from(conn.0));
        self.put(1, state as u64);
        self.record().write(record).map_err(|_| Errno::FAULT)?;
        self.enter(HypercallKind::ConnectSet, 1)?;
        self.outcome()
    }

    /// Returns the other end of a connection, or `None` if `conn` exceeds the last connection.
    ///
    /// # Errors
    /// Returns an error if the monitor rejected the call.
    pub(crate) fn connection(&mut self, conn: ConnId) -> Result<Option<PeerEnd>, Errno> {
        self.put(0, u64::from(conn.0));
        self.enter(HypercallKind::ConnectGet, 1)?;
        if self.get(STATUS_WORD) as i64 != 0 {
            return Ok(None);
        }
        let mut record = NO_RECORD;
        self.record().read(&mut record).map_err(|_| Errno::FAULT)?;
        Ok(Some(PeerEnd {
            domain: DomId(self.get(1) as u16),
            state: XenbusState::from_wire(self.get(4)).unwrap_or(XenbusState::Unknown),
            record,
        }))
    }

    /// Sends several messages to a device, in as few calls as possible, and returns each answer.
    pub(crate) fn control_device(
        &mut self,
        device: u32,
        all: &[[u64; 2]],
    ) -> Vec<Result<u64, Errno>> {
        let mut answers = Vec::with_capacity(all.len());
        for batch in all.chunks(OPS_MAX) {
            let places = (0..).step_by(OP_WORDS);
            for (at, [word, other]) in places.clone().zip(batch) {
                self.put(at, u64::from(device));
                self.put(at + 1, *word);
                self.put(at + 2, *other);
            }
            let entered = self.enter(HypercallKind::DeviceControl, batch.len() as u32);
            let answer = |at: usize| {
                entered?;
                self.outcome_of(at).map(|()| self.get(at + ANSWER_WORD))
            };
            answers.extend(places.take(batch.len()).map(answer));
        }
        answers
    }

    /// Releases one of this domain's devices permanently, after the domain has closed its
    /// descriptor.
    ///
    /// # Errors
    /// Returns an error if the device does not exist, or its descriptor is open.
    pub(crate) fn end_device(&mut self, device: u32) -> Result<(), Errno> {
        self.errno_of(HypercallKind::DeviceEnd, [u64::from(device), 0, 0])
    }

    /// Maps a memory file that this domain has received.
    ///
    /// # Errors
    /// Returns the monitor's error (see [`HypercallKind::ForeignMap`]).
    pub(crate) fn map_foreign(&mut self, map: &ForeignMap) -> Result<(), Errno> {
        self.errno_of(HypercallKind::ForeignMap, map.encode())
    }

    /// Unmaps the file that is mapped at this page of the range.
    ///
    /// # Errors
    /// Returns an error if no file is mapped at the page.
    pub(crate) fn unmap_foreign(&mut self, page: u32) -> Result<(), Errno> {
        self.errno_of(HypercallKind::ForeignUnmap, [u64::from(page), 0, 0])
    }

    /// Makes a call with one operation whose status is an errno.
    fn errno_of(&mut self, kind: HypercallKind, words: [u64; 3]) -> Result<(), Errno> {
        for (at, word) in words.into_iter().enumerate() {
            self.put(at, word);
        }
        self.enter(kind, 1)?;
        self.outcome()
    }

    /// Reports that the domain has started.
    ///
    /// # Errors
    /// Returns an error if the monitor rejected the call.
    pub(crate) fn ready(&mut self) -> Result<(), Errno> {
        self.enter(HypercallKind::Ready, 0)
    }

    /// Makes calls of `kind` for operations that `words` encodes, and appends one status per
    /// operation to `status`.
    pub fn batches<T: Copy>(
        &mut self,
        kind: HypercallKind,
        ops: &[T],
        words: impl Fn(T) -> [u64; 3],
        status: &mut Vec<GrantStatus>,
    ) {
        for batch in ops.chunks(OPS_MAX) {
            for (n, &op) in batch.iter().enumerate() {
                for (word, value) in words(op).into_iter().enumerate() {
                    self.put(n * OP_WORDS + word, value);
                }
                self.put(
                    n * OP_WORDS + STATUS_WORD,
                    GrantStatus::GeneralError as i64 as u64,
                );
            }
            let done = self.enter(kind, batch.len() as u32).is_ok();
            status.extend((0..batch.len()).map(|n| {
                if done {
                    GrantStatus::from_wire(self.get(n * OP_WORDS + STATUS_WORD) as i64 as i16)
                } else {
                    GrantStatus::GeneralError
                }
            }));
        }
    }

    /// Makes the call that is in the page, and waits for the answer.
    fn enter(&mut self, kind: HypercallKind, count: u32) -> Result<(), Errno> {
        let word = |offset| self.page.u32(offset).ok_or(Errno::FAULT);
        let (request, done) = (word(REQUEST)?, word(DONE)?);
        word(KIND)?.store(kind as u32, Ordering::Relaxed);
        word(COUNT)?.store(count, Ordering::Relaxed);
        self.number = self.number.wrapping_add(1);
        // Release ensures that a worker that reads the number also reads the operations.
        request.store(self.number, Ordering::Release);
        futex::wake(request, 1);
        loop {
            let current = done.load(Ordering::Acquire);
            if current == self.number {
                break;
            }
            futex::wait(done, current, Some(WAIT_TIME));
        }
        match word(RESULT)?.load(Ordering::Relaxed) as i32 {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(error.saturating_neg())),
        }
    }

    /// Returns the result of a call's only operation, whose status is an errno.
    fn outcome(&self) -> Result<(), Errno> {
        self.outcome_of(0)
    }

    /// Returns the result of the operation that begins at word `at`.
    fn outcome_of(&self, at: usize) -> Result<(), Errno> {
        match self.get(at + STATUS_WORD) as i64 {
            0 => Ok(()),
            // A status outside the range of an errno becomes EINVAL.
            status => Err(i32::try_from(status.saturating_neg())
                .map_or(Errno::INVAL, Errno::from_raw_os_error)),
        }
    }

    fn put(&self, word: usize, value: u64) {
        if let Some(word) = self.page.u64(OPS + word * 8) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn get(&self, word: usize) -> u64 {
        self.page
            .u64(OPS + word * 8)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn record(&self) -> Span {
        self.page.skip(OPS + OP_WORDS * 8).take(RECORD_BYTES)
    }
}
