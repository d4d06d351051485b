//! One domain's calls, from the page to the result.

use super::budget::{Budget, CallCost};
use super::call::Operations;
use super::page::CallPage;
use super::shared::MonitorState;
use crate::space::{AddressSpace, SpaceError};
use abi::DomId;
use rustix::io::Errno;
use shmem::time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counters of a domain's calls. Its worker writes them; any thread may read them.
#[derive(Debug, Default)]
pub struct CallCounters {
    /// Calls answered.
    pub calls: AtomicU64,
    /// Operations in answered calls.
    pub operations: AtomicU64,
    /// Whether a call is being executed or deferred, so that the domain waits for the monitor.
    pub serving: AtomicBool,
    /// Whether the domain has reported that it is ready.
    pub ready: AtomicBool,
}

/// Server of one domain's calls.
#[derive(Debug)]
pub struct HypercallServer<S> {
    pub(super) id: DomId,
    pub(super) page: CallPage,
    pub(super) shared: Arc<MonitorState>,
    pub(super) space: S,
    pub(super) counters: Arc<CallCounters>,
    /// Whether the domain has become ready, has connected its end of a connection, or has ended a
    /// device since the last [`HypercallServer::take_notice`].
    pub(super) needs_notice: bool,
    operations: Operations,
    budget: Budget,
}

impl<S: AddressSpace> HypercallServer<S> {
    /// Creates a server for a domain whose account is open and whose address space is `space`.
    pub fn new(
        id: DomId,
        page: CallPage,
        shared: Arc<MonitorState>,
        space: S,
        counters: Arc<CallCounters>,
    ) -> Self {
        Self {
            id,
            page,
            shared,
            space,
            counters,
            needs_notice: false,
            operations: Operations::default(),
            budget: Budget::new(id),
        }
    }

    /// Returns the call page.
    pub fn page(&self) -> CallPage {
        self.page
    }

    /// Executes the call in the page and publishes its result; `number` is the call's number.
    ///
    /// # Errors
    /// On any error, the domain must be killed and torn down. The call then stays unanswered.
    pub fn serve(&mut self, number: u32) -> Result<(), SpaceError> {
        let page = self.page;
        self.counters.serving.store(true, Ordering::Relaxed);
        let [kind, count] = [page.kind, page.count].map(|word| word.load(Ordering::Relaxed));
        let count = count as usize;
        let words = |op| page.words(op);
        let mut operations = std::mem::take(&mut self.operations);
        let (cost, result) = match operations.decode(kind, count, words) {
            Ok(call) => {
                let cost = CallCost::of(&call, self.id, &self.shared);
                match self.run(call)? {
                    true => (cost, Ok(())),
                    false => (CallCost::INVALID, Err(Errno::INVAL)),
                }
            }
            Err(errno) => (CallCost::INVALID, Err(errno)),
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

    /// Returns the time in nanoseconds after which the worker serves the domain's next call, or
    /// checks the budget again. A deferred domain counts as waiting for the monitor.
    pub fn debt_ns(&mut self) -> u64 {
        let debt_ns = match self.budget.due_ns(&self.shared.churn) {
            // Avoids a read of the clock.
            0 => 0,
            due_ns => due_ns.saturating_sub(time::monotonic_ns()),
        };
        self.counters.serving.store(debt_ns > 0, Ordering::Relaxed);
        debt_ns
    }

    /// Returns whether the main thread must check the domain because of a call since the last
    /// `take_notice`.
    pub fn take_notice(&mut self) -> bool {
        std::mem::take(&mut self.needs_notice)
    }
}
