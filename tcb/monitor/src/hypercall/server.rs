//! One domain's calls, from the page to the answer.

use super::budget::{Budget, Cost};
use super::call::Operations;
use super::execute::Executor;
use super::page::CallPage;
use super::shared::Shared;
use crate::space::{AddressSpace, SpaceError};
use abi::DomId;
use abi::hypercall::{COUNT, KIND};
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
}

/// Serves one domain's calls.
#[derive(Debug)]
pub struct Server<S> {
    page: CallPage,
    operations: Operations,
    executor: Executor<S>,
    counters: Arc<CallCounters>,
    budget: Budget,
    /// It is in debt: no call is served.
    waits: bool,
    id: DomId,
    shared: Arc<Shared>,
}

impl<S: AddressSpace> Server<S> {
    /// A server for a domain whose account is open and whose address space is `space`. `ready`
    /// is set when the domain says that it has started.
    pub fn new(
        id: DomId,
        page: CallPage,
        shared: Arc<Shared>,
        space: S,
        counters: Arc<CallCounters>,
        ready: Arc<AtomicBool>,
    ) -> Self {
        Self {
            page,
            operations: Operations::default(),
            executor: Executor::new(id, page, Arc::clone(&shared), space, ready),
            counters,
            budget: Budget::new(id),
            waits: false,
            id,
            shared,
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
        let (kind, count) = (page.get_u32(KIND), page.get_u32(COUNT) as usize);
        let words = |op| page.words(op);
        let (cost, result) = match self.operations.decode(kind, count, words) {
            Ok(call) => {
                let cost = Cost::of(&call, self.id, &self.shared);
                match self.executor.run(call)? {
                    true => (cost, Ok(())),
                    false => (Cost::of_nonsense(), Err(Errno::INVAL)),
                }
            }
            Err(errno) => (Cost::of_nonsense(), Err(errno)),
        };
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

    /// When to ask again whether the next call may be served, nanoseconds of the monotonic clock;
    /// 0: at once. Who waits for that waits for the monitor.
    pub fn due_ns(&mut self) -> u64 {
        let due_ns = self.budget.due_ns(&self.shared.churn);
        let waits = due_ns > 0 && due_ns > time::monotonic_ns();
        if waits != self.waits {
            self.waits = waits;
            self.counters.serving.store(waits, Ordering::Relaxed);
        }
        if waits { due_ns } else { 0 }
    }

    /// Whether the domain has brought up its end of a connection since this was last asked.
    pub fn take_connected(&mut self) -> bool {
        std::mem::take(&mut self.executor.connected)
    }

    /// Devices that the domain has done with since this was last asked.
    pub fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.executor.ended)
    }

    /// A granter has died: see [`Caller::granter_died`](crate::grant::mechanism::Caller).
    ///
    /// # Errors
    /// The domain must be killed.
    pub fn granter_died(&mut self, granter: DomId) -> Result<(), SpaceError> {
        self.executor.granter_died(granter)
    }

    /// Ends everything that the domain used. Its process and its agent are gone.
    pub fn tear_down(self) {
        self.executor.tear_down();
    }
}
