//! What the workers of all domains share.

use crate::connect::Connections;
use crate::device::Devices;
use crate::grant::mechanism::{Make, Mechanism, nothing};
use crate::grant::{Churn, CountedGrants, GrantAudit, Grants, Spaces};
use abi::DomId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the workers of all domains share. Each part has its own lock.
#[derive(Debug)]
pub struct Shared {
    /// Every domain's account.
    pub grants: Grants,
    /// The address spaces that workers of other domains change.
    pub spaces: Arc<Spaces>,
    /// Every counted grant.
    pub counted: CountedGrants,
    /// How fast pages may be taken away from users.
    pub churn: Churn,
    /// What there is beside counted grants.
    pub mechanism: Box<dyn Mechanism>,
    /// Every connection.
    pub connections: Connections,
    /// Every device.
    pub devices: Devices,
}

impl Default for Shared {
    fn default() -> Self {
        Self::new(nothing)
    }
}

impl Shared {
    /// Nothing yet, of a monitor with these mechanisms beside counted grants.
    #[must_use]
    pub fn new(mechanism: Make) -> Self {
        let spaces = Arc::new(Spaces::default());
        Self {
            grants: Grants::default(),
            counted: CountedGrants::new(Arc::clone(&spaces)),
            churn: Churn::default(),
            mechanism: mechanism(&spaces),
            spaces,
            connections: Connections::default(),
            devices: Devices::default(),
        }
    }

    /// Ends whatever there is of a domain that has no process, and never had one.
    pub(crate) fn give_up(&self, id: DomId) {
        self.grants.lock().fence(id);
        self.connections.close_all(id);
        self.devices.end_all(id);
        self.counted.pins.forget(id);
        self.mechanism.tear_down(&self.grants, id);
        self.counted.tear_down(&self.grants, id);
        self.churn.forget(id);
        self.grants.lock().clear(id);
    }

    /// What the books say of every domain, and how much in them has no counterpart: see
    /// [`Grants::audit`].
    #[must_use]
    pub fn audit(&self) -> (BTreeMap<DomId, GrantAudit>, u64) {
        self.grants.audit(&self.counted, &*self.mechanism)
    }
}
