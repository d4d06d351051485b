//! One domain's calls, from the page to the answer.

use super::budget::{Budget, Cost};
use super::call::Operations;
use super::page::CallPage;
use super::shared::Shared;
use crate::space::{AddressSpace, SpaceError};
use abi::DomId;
use rustix::io::Errno;
use shmem::time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a domain's calls amount to; written by its worker, read by anybody.
#[derive(Debug, Default)]
pub struct CallCounters {
    /// Calls answered.
    pub calls: AtomicU64,
    /// Operations in them.
    pub operations: AtomicU64,
    /// Whether a call is being carried out, or held back: the domain waits for the monitor.
    pub serving: AtomicBool,
    /// It has said that it is ready.
    pub ready: AtomicBool,
}

/// Serves one domain's calls.
#[derive(Debug)]
pub struct Server<S> {
    pub(super) id: DomId,
    pub(super) page: CallPage,
    pub(super) shared: Arc<Shared>,
    pub(super) space: S,
    pub(super) counters: Arc<CallCounters>,
    /// Whether the domain has said that it is ready, has brought up its end of a connection, or has
    /// done with a device, since this was last asked.
    pub(super) has_news: bool,
    operations: Operations,
    budget: Budget,
}

impl<S: AddressSpace> Server<S> {
    /// A server for a domain whose account is open and whose address space is `space`.
    pub fn new(
        id: DomId,
        page: CallPage,
        shared: Arc<Shared>,
        space: S,
        counters: Arc<CallCounters>,
    ) -> Self {
        Self {
            id,
            page,
            shared,
            space,
            counters,
            has_news: false,
            operations: Operations::default(),
            budget: Budget::new(id),
        }
    }

    /// The call page.
    pub fn page(&self) -> CallPage {
        self.page
    }

    /// Carries out the call that lies in the page and says how it went; `number` is its number.
    ///
    /// # Errors
    /// The domain must be killed and torn down. The call stays unanswered.
    pub fn serve(&mut self, number: u32) -> Result<(), SpaceError> {
        let page = self.page;
        self.counters.serving.store(true, Ordering::Relaxed);
        let [kind, count] = [page.kind, page.count].map(|word| word.load(Ordering::Relaxed));
        let count = count as usize;
        let words = |op| page.words(op);
        let mut operations = std::mem::take(&mut self.operations);
        let (cost, result) = match operations.decode(kind, count, words) {
            Ok(call) => {
                let cost = Cost::of(&call, self.id, &self.shared);
                match self.run(call)? {
                    true => (cost, Ok(())),
                    false => (Cost::NONSENSE, Err(Errno::INVAL)),
                }
            }
            Err(errno) => (Cost::NONSENSE, Err(errno)),
        };
        self.operations = operations;
        let churn = &self.shared.churn;
        self.budget.charge(cost, churn, time::monotonic_ns());
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        if result.is_ok() {
            self.counters
                .operations
                .fetch_add(count as u64, Ordering::Relaxed);
        }
        self.counters.serving.store(false, Ordering::Relaxed);
        page.finish(number, result);
        Ok(())
    }

    /// How long the domain waits until its next call may be served, or it is to be asked again,
    /// nanoseconds. Who waits for that waits for the monitor.
    pub fn debt_ns(&mut self) -> u64 {
        let debt_ns = match self.budget.due_ns(&self.shared.churn) {
            // Without a look at the clock.
            0 => 0,
            due_ns => due_ns.saturating_sub(time::monotonic_ns()),
        };
        self.counters.serving.store(debt_ns > 0, Ordering::Relaxed);
        debt_ns
    }

    /// Whether there is something to be told since this was last asked.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }
}
