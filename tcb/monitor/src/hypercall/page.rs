//! The call page, word by word.

use crate::memory::SharedDomainMemory;
use abi::GrantStatus;
use abi::RECORD_BYTES;
use abi::hypercall::{COUNT, DONE, KIND, OP_WORDS, OPS, REQUEST, RESULT, STATUS_WORD};
use abi::layout::info;
use rustix::io::Errno;
use shmem::Span;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The monitor's handle to a call page.
#[derive(Clone, Copy, Debug)]
pub struct CallPage {
    page: Span,
    /// The word that the domain changes to wake the worker.
    pub(crate) request: &'static AtomicU32,
    pub(super) kind: &'static AtomicU32,
    pub(super) count: &'static AtomicU32,
    result: &'static AtomicU32,
    done: &'static AtomicU32,
}

impl CallPage {
    /// Returns the call page in a domain's information region.
    #[must_use]
    pub fn of(memory: &SharedDomainMemory) -> Option<Self> {
        let page = memory
            .info
            .span()
            .sub(info::CALL, info::CALL_PAGES * abi::PAGE)?;
        Some(Self {
            page,
            request: page.u32(REQUEST)?,
            kind: page.u32(KIND)?,
            count: page.u32(COUNT)?,
            result: page.u32(RESULT)?,
            done: page.u32(DONE)?,
        })
    }

    /// Publishes a call's result and wakes the domain.
    pub fn finish(&self, number: u32, result: Result<(), Errno>) {
        let result = result
            .err()
            .map_or(0, |errno| errno.raw_os_error().saturating_neg());
        self.result.store(result as u32, Ordering::Relaxed);
        // Release: a domain that reads the number also reads the results.
        self.done.store(number, Ordering::Release);
        shmem::futex::wake(self.done, 1);
    }

    fn word(&self, op: usize, word: usize) -> Option<&'static AtomicU64> {
        self.page.u64(OPS + (op * OP_WORDS + word) * 8)
    }

    pub(super) fn get(&self, op: usize, word: usize) -> u64 {
        self.word(op, word)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    pub(super) fn put(&self, op: usize, word: usize, value: u64) {
        if let Some(word) = self.word(op, word) {
            word.store(value, Ordering::Relaxed);
        }
    }

    pub(super) fn words(&self, op: usize) -> [u64; 3] {
        [self.get(op, 0), self.get(op, 1), self.get(op, 2)]
    }

    pub(super) fn put_statuses(&self, statuses: &[GrantStatus]) {
        for (op, &status) in statuses.iter().enumerate() {
            self.put_status(op, status);
        }
    }

    pub(super) fn put_status(&self, op: usize, status: GrantStatus) {
        self.put(op, STATUS_WORD, i64::from(status as i16) as u64);
    }

    pub(super) fn put_errno(&self, op: usize, status: Result<(), Errno>) {
        let word = status.err().map_or(0, |errno| {
            i64::from(errno.raw_os_error()).saturating_neg() as u64
        });
        self.put(op, STATUS_WORD, word);
    }

    pub(super) fn body(&self) -> Span {
        self.page.skip(OPS + OP_WORDS * 8).take(RECORD_BYTES)
    }
}
