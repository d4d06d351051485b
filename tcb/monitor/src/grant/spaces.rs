//! Address spaces as the workers of other domains reach them, and the numbers under which they
//! know the memory of tables and exchanges.

use crate::space::{AddressSpace, SpaceError};
use abi::{DomId, GrantStatus, Handle};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An address space that is changed by the workers of several domains.
pub type SharedSpace = Arc<Mutex<dyn AddressSpace + Send>>;

#[derive(Default)]
struct Reachable {
    /// The last handle that was given out.
    last: u32,
    by_domain: BTreeMap<DomId, SharedSpace>,
}

/// The address spaces of all domains that run.
///
/// A worker locks a space for as long as the agent behind it works; the registry is locked for
/// bookkeeping alone.
#[derive(Default)]
pub struct Spaces(Mutex<Reachable>);

impl std::fmt::Debug for Spaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spaces").finish_non_exhaustive()
    }
}

impl Spaces {
    fn lock(&self) -> MutexGuard<'_, Reachable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A domain has started: the workers of others reach its address space by `space`.
    pub fn insert(&self, id: DomId, space: SharedSpace) {
        self.lock().by_domain.insert(id, space);
    }

    /// A domain's process is gone.
    pub fn remove(&self, id: DomId) {
        self.lock().by_domain.remove(&id);
    }

    /// Whether a domain's address space can be reached.
    #[must_use]
    pub fn names(&self, id: DomId) -> bool {
        self.lock().by_domain.contains_key(&id)
    }

    /// A handle that was never given out: tables and exchanges count together, since an address
    /// space knows their memory by it ([`Handle::memory`]).
    ///
    /// # Errors
    /// `NoSpace`: all of them were given out.
    pub fn next_handle(&self) -> Result<Handle, GrantStatus> {
        let mut reachable = self.lock();
        let next = reachable.last.checked_add(1).ok_or(GrantStatus::NoSpace)?;
        reachable.last = next;
        Ok(Handle(next))
    }

    /// Changes a domain's address space. A domain whose space does not let itself be changed is
    /// killed, and its end waited for.
    ///
    /// # Errors
    /// What `change` says; the domain is gone.
    pub fn change<T>(
        &self,
        id: DomId,
        change: impl FnOnce(&mut dyn AddressSpace) -> Result<T, SpaceError>,
    ) -> Result<T, SpaceError> {
        let space = self.lock().by_domain.get(&id).map(Arc::clone);
        let space = space.ok_or_else(|| SpaceError::Lost("the domain is gone".into()))?;
        let mut space = space.lock().unwrap_or_else(PoisonError::into_inner);
        let done = change(&mut *space);
        if let Err(SpaceError::Lost(why)) = &done {
            space.destroy(why);
        }
        done
    }

    /// Kills a domain, and waits for its end.
    pub(super) fn destroy(&self, id: DomId, why: &str) {
        let _ = self.change(id, |_| Err::<(), _>(SpaceError::Lost(why.into())));
    }
}
