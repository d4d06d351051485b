//! State that the workers of all domains share.

use crate::connect::Connections;
use crate::device::Devices;
use crate::grant::mechanism::{Mechanism, MechanismFactory};
use crate::grant::{ChurnBudget, CountedTables, GrantAccounts, GrantAudit};
use abi::{DomId, XenbusState};
use std::collections::BTreeMap;
use std::sync::Arc;

/// State that the workers of all domains share. Each part has its own lock.
#[derive(Debug)]
pub struct MonitorState {
    /// Every domain's account.
    pub grants: Arc<GrantAccounts>,
    /// Every counted grant.
    pub counted: CountedTables,
    /// The machine-wide rate limit of revocations.
    pub churn: ChurnBudget,
    /// Mechanisms other than counted grants, if any.
    pub mechanism: Option<Box<dyn Mechanism>>,
    /// Every connection.
    pub connections: Connections,
    /// Every device.
    pub devices: Devices,
}

impl MonitorState {
    /// Creates the empty state of a monitor with these mechanisms in addition to counted grants.
    #[must_use]
    pub fn new(mechanism: Option<MechanismFactory>) -> Self {
        let grants = Arc::new(GrantAccounts::default());
        Self {
            counted: CountedTables::new(Arc::clone(&grants)),
            churn: ChurnBudget::default(),
            mechanism: mechanism.map(|make| make(&grants)),
            grants,
            connections: Connections::default(),
            devices: Devices::default(),
        }
    }

    /// Tears down everything that belongs to a domain. `end` kills its process and its agent, if
    /// any; afterwards the domain can access no page.
    pub fn end(&self, id: DomId, end: impl FnOnce()) {
        self.grants.lock().fence(id);
        self.connections.end_all(id, XenbusState::Closed);
        end();
        // Devices end before other domains regain sole access to their pages.
        self.devices.end_all(id);
        self.counted.pins.forget(id);
        self.churn.forget(id);
        self.mechanism.iter().for_each(|other| other.tear_down(id));
        self.grants.lock().set_space(id, None);
        self.counted.tear_down(id);
        self.grants.lock().clear(id);
    }

    /// Returns the audit of every domain, and the number of entries without a counterpart: see
    /// [`GrantAccounts::audit`].
    #[must_use]
    pub fn audit(&self) -> (BTreeMap<DomId, GrantAudit>, u64) {
        self.grants.audit(&self.counted, self.mechanism.as_deref())
    }
}
