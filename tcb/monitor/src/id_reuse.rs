//! Reuse of domain ids and connection numbers. The oldest is reused first, and only once nothing
//! refers to it.

use crate::domain::Domain;
use crate::hypervisor::Hypervisor;
use crate::id_pool::IdPool;
use crate::spec::DomainError;
use abi::DomId;
use abi::core::Stage;

impl Hypervisor {
    /// Takes an id to which nothing refers.
    pub(crate) fn next_id(&mut self, name: &str) -> Result<DomId, DomainError> {
        let mut ids = std::mem::replace(&mut self.ids, IdPool::new(0, 0));
        let id = ids.take(|id| u16::try_from(id).is_ok_and(|id| self.is_referenced(DomId(id))));
        self.ids = ids;
        let id = id.and_then(|id| u16::try_from(id).ok());
        id.map(DomId)
            .ok_or_else(|| DomainError::new(name, "there are no more domain ids"))
    }

    /// Returns whether any part of the monitor refers to a domain: its account, a grant, a pin, a
    /// table, a window, a device, a connection, or a worker's notice.
    fn is_referenced(&self, id: DomId) -> bool {
        let shared = &self.shared;
        let mut others = shared.mechanism.iter();
        shared.grants.lock().has_account(id)
            || shared.counted.refers_to(id)
            || others.any(|other| other.refers_to(id))
            || shared.connections.refers_to(id)
            || shared.devices.refers_to(id)
            || self.notices.refers_to(id)
            || self.domains.iter().any(|domain| domain.id == id)
    }

    /// Returns whether a domain, dead or alive, still has an account: a page of it may be mapped,
    /// granted or held.
    #[must_use]
    pub fn is_used(&self, id: DomId) -> bool {
        self.shared.grants.lock().has_account(id)
    }

    /// Removes a domain that was torn down, and its connections.
    ///
    /// # Errors
    /// Returns an error if the domain does not exist, or is not torn down yet.
    pub fn forget(&mut self, id: DomId) -> Result<(), DomainError> {
        let position = self.position_of_torn_down(id).ok_or_else(|| {
            DomainError::new(&self.name(id), "it has not ended, so it cannot be removed")
        })?;
        self.domains.remove(position);
        self.retire(id);
        Ok(())
    }

    /// Returns the position of a torn-down domain in the list of domains.
    pub(crate) fn position_of_torn_down(&self, id: DomId) -> Option<usize> {
        let is_torn_down =
            |domain: &Domain| domain.id == id && domain.liveness.stage == Stage::TornDown;
        self.domains.iter().position(is_torn_down)
    }

    /// Releases the id of a domain that is no longer in the list. The id is reused once nothing
    /// else refers to it.
    pub(crate) fn retire(&mut self, id: DomId) {
        self.shared.connections.remove_all(id);
        self.ids.release(id.0.into());
        self.release_unused();
    }

    /// Releases the numbers of removed connections that are no longer in use.
    pub(crate) fn release_unused(&self) {
        let shared = &self.shared;
        shared.connections.release_unused(|domain, conn| {
            let mut others = shared.mechanism.iter();
            shared.counted.has_table_for(domain, conn)
                || others.any(|other| other.has_object_for(domain, conn))
        });
    }
}

#[cfg(test)]
mod tests;
