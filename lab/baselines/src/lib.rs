//! Grant mechanisms that only comparisons use. The program `grantwayd-lab` is the core with these
//! mechanisms in addition to counted grants. No shipped program contains them.
//!
//! | module | contents |
//! |---|---|
//! | `entry` | entries of a classic table: capture and consumption |
//! | `usage` | entries in use and mapped pages of all domains, behind one lock |
//! | `pages` | slots of a window with individually mapped pages |
//! | `copy`, `map` | classic grants: a hypercall per use |
//! | `flip` | exchanges: page flipping |
//! | `caller` | the calls of one domain |
//! | `audit` | consistency check of the usage |
//!
//! A domain can rewrite entries of its table at any time ([`abi::classic::GrantEntry`]). The
//! monitor relies only on its private record of the entries *in use*: it reads an entry once,
//! checks it, and captures it by a compare-and-swap that sets the in-use flags. Until the last use
//! ends, changes of the entry by the domain have no effect.
//!
//! Locks are acquired in this order: an exchange's `op` (held while an agent changes address
//! spaces), the accounts, the usage, the registry of exchanges, an exchange's `state`. All except
//! `op` are held only for bookkeeping, and not while bytes are copied or an address space changes.
//! A batch pins pages under the locks, executes without them, and then commits or rolls back under
//! the locks.

mod audit;
mod caller;
mod copy;
mod entry;
mod flip;
mod map;
mod pages;
mod usage;

use abi::hypercall::BindOp;
use abi::{ConnId, DomId, GrantStatus, Handle};
use caller::ClassicCaller;
use flip::Exchanges;
use monitor::grant::mechanism::{GrantResult, Mechanism, OtherCall};
use monitor::grant::{GrantAccounts, GrantAudit};
use monitor::space::{AddressSpace, SpaceError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use usage::GrantUsage;

/// Returns classic grants and exchanges for a monitor with these accounts.
#[must_use]
pub fn mechanisms(grants: &Arc<GrantAccounts>) -> Box<dyn Mechanism> {
    Box::new(Baselines {
        grants: Arc::clone(grants),
        usage: GrantUsage::default(),
        flips: Exchanges::new(Arc::clone(grants)),
        callers: RwLock::default(),
    })
}

#[derive(Debug)]
struct Baselines {
    grants: Arc<GrantAccounts>,
    usage: GrantUsage,
    flips: Exchanges,
    /// Domains that have made a call. A thread locks a caller before an address space.
    callers: RwLock<BTreeMap<DomId, Arc<Mutex<ClassicCaller>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Baselines {
    fn caller(&self, id: DomId) -> Arc<Mutex<ClassicCaller>> {
        // In most cases a read lock suffices, so that calls of different domains do not wait for
        // each other.
        let made = self.callers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(caller) = made.get(&id) {
            return Arc::clone(caller);
        }
        drop(made);
        let mut callers = self.callers_mut();
        let made = callers.entry(id);
        Arc::clone(made.or_insert_with(|| Arc::new(Mutex::new(ClassicCaller::new(id)))))
    }

    fn callers_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<DomId, Arc<Mutex<ClassicCaller>>>> {
        self.callers.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mechanism for Baselines {
    fn call(
        &self,
        space: &mut dyn AddressSpace,
        call: &OtherCall<'_>,
    ) -> Result<Option<GrantResult>, SpaceError> {
        let caller = self.caller(call.caller);
        lock(&caller).call((&self.usage, &self.flips), &self.grants, space, call)
    }

    fn has_object(&self, handle: Handle) -> bool {
        self.flips.has_exchange(handle)
    }

    fn refers_to(&self, id: DomId) -> bool {
        self.flips.refers_to(id) || self.usage.refers_to(id)
    }

    fn has_object_for(&self, granter: DomId, conn: ConnId) -> bool {
        self.flips.has_exchange_for(granter, conn)
    }

    fn bind(&self, user: DomId, op: &BindOp) -> Option<Result<(), GrantStatus>> {
        self.has_object(op.table).then(|| self.flips.bind(user, op))
    }

    fn end(&self, caller: DomId, handle: Handle) -> Option<Result<(), GrantStatus>> {
        self.has_object(handle)
            .then(|| self.flips.end(caller, handle))
    }

    fn tear_down(&self, id: DomId) {
        self.flips.tear_down(id);
        let own = self.caller(id);
        lock(&own).tear_down(&self.grants, &self.usage);
        let others: Vec<_> = {
            let mut callers = self.callers_mut();
            callers.remove(&id);
            let all = callers.iter();
            all.map(|(id, caller)| (*id, Arc::clone(caller))).collect()
        };
        // The dead domain's grants can no longer be pinned. So only callers that already have the
        // domain's memory in their address space must be handled.
        for (user, caller) in others {
            let mut caller = lock(&caller);
            // If the change fails, the user's domain is killed.
            let _ = self.grants.change(user, |space| {
                let forgot = caller.granter_died(&self.grants, space, id);
                forgot.map_err(SpaceError::fatal)
            });
        }
    }

    fn audit(&self, parts: &mut BTreeMap<DomId, GrantAudit>) -> u64 {
        let leaked = audit::audit(&self.usage, &self.grants, parts);
        let (owned, strays) = self.flips.audit();
        for (id, pages) in owned {
            parts.entry(id).or_default().owned += pages;
        }
        leaked + strays
    }
}
