//! Reuses ids of domains and numbers of connections once nothing names them, the oldest first.

use crate::domain::Domain;
use crate::hypervisor::Hypervisor;
use crate::id_pool::IdPool;
use crate::spec::DomainError;
use abi::DomId;
use abi::core::Stage;

impl Hypervisor {
    /// Takes an id that nothing names.
    pub(crate) fn next_id(&mut self, name: &str) -> Result<DomId, DomainError> {
        let mut ids = std::mem::replace(&mut self.ids, IdPool::new(0, 0));
        let id = ids.take(|id| u16::try_from(id).is_ok_and(|id| self.names(DomId(id))));
        self.ids = ids;
        let id = id.and_then(|id| u16::try_from(id).ok());
        id.map(DomId)
            .ok_or_else(|| DomainError::new(name, "there are no more domain ids"))
    }

    /// Returns whether any part of the monitor names a domain: its account, a grant, a pin, a
    /// table, a window, a device, a connection, or a worker's notice.
    fn names(&self, id: DomId) -> bool {
        let shared = &self.shared;
        let mut others = shared.mechanism.iter();
        shared.grants.lock().knows(id)
            || shared.counted.names(id)
            || others.any(|other| other.names(id))
            || shared.connections.names(id)
            || shared.devices.names(id)
            || self.post.names(id)
            || self.domains.iter().any(|domain| domain.id == id)
    }

    /// Returns whether a page of a domain, dead or alive, is still mapped, granted or held.
    #[must_use]
    pub fn is_used(&self, id: DomId) -> bool {
        self.shared.grants.lock().knows(id)
    }

    /// Removes a domain that was torn down, and its connections.
    ///
    /// # Errors
    /// The domain does not exist, or is not torn down yet.
    pub fn forget(&mut self, id: DomId) -> Result<(), DomainError> {
        let place = self.place_of_gone(id).ok_or_else(|| {
            DomainError::new(&self.name(id), "it has not ended, so it cannot be removed")
        })?;
        self.domains.remove(place);
        self.retire(id);
        Ok(())
    }

    /// Returns the position in the list of a domain that was torn down.
    pub(crate) fn place_of_gone(&self, id: DomId) -> Option<usize> {
        let is_gone = |domain: &Domain| domain.id == id && domain.life.stage == Stage::Gone;
        self.domains.iter().position(is_gone)
    }

    /// Releases the id of a domain that is no longer in the list: it is reused once nothing else
    /// names it.
    pub(crate) fn retire(&mut self, id: DomId) {
        self.shared.connections.remove_all(id);
        self.ids.give_back(id.0.into());
        self.release_unused();
    }

    /// Releases the numbers of removed connections that are no longer in use.
    pub(crate) fn release_unused(&self) {
        let shared = &self.shared;
        shared.connections.release_unused(|domain, conn| {
            let mut others = shared.mechanism.iter();
            shared.counted.is_for(domain, conn) || others.any(|other| other.is_for(domain, conn))
        });
    }
}

#[cfg(test)]
mod tests;
