//! All tables of counted grants, and the quarantine of each domain that uses them.

use super::quarantine::Quarantine;
use super::table::GrantTableState;
use crate::grant::accounts::GrantAccounts;
use crate::grant::mechanism::GrantAudit;
use crate::pins::Pins;
use abi::{ConnId, DomId, Handle};
use sandbox::mappings_max;
use shmem::time;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The total time for which revocations may wait for a user with a full quarantine to end uses.
/// After this time, the monitor kills the user.
const WAIT_BUDGET: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) tables: BTreeMap<Handle, Arc<GrantTableState>>,
    /// By the domain that uses the grants.
    pub(super) quarantines: BTreeMap<DomId, Quarantine>,
}

/// Operations on counted grants so far.
#[derive(Debug, Default)]
pub struct CountedCounters {
    /// Grants created.
    pub created: AtomicU64,
    /// Grants revoked, forced ones included.
    pub revoked: AtomicU64,
    /// Grants revoked by force while they were in use.
    pub forced: AtomicU64,
}

/// All tables of counted grants.
#[derive(Debug)]
pub struct CountedTables {
    registry: Mutex<Registry>,
    pub(super) grants: Arc<GrantAccounts>,
    wait_budget: Duration,
    /// The number of mappings that a process may have.
    pub(super) mappings: u32,
    /// Frames that devices have pinned.
    pub pins: Pins,
    /// Operations of all domains so far.
    pub counters: CountedCounters,
}

impl CountedTables {
    /// Returns an empty registry with the system's limits.
    #[must_use]
    pub fn new(grants: Arc<GrantAccounts>) -> Self {
        Self::with_limits(grants, WAIT_BUDGET, mappings_max())
    }

    /// Returns an empty registry. `wait_budget` is the total time for which revocations wait for a
    /// user whose collateral is exhausted. `mappings` is the number of mappings that a process may
    /// have.
    #[must_use]
    pub fn with_limits(grants: Arc<GrantAccounts>, wait_budget: Duration, mappings: u32) -> Self {
        Self {
            registry: Mutex::default(),
            grants,
            wait_budget,
            mappings,
            pins: Pins::default(),
            counters: CountedCounters::default(),
        }
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a started domain with a collateral of `collateral` frames.
    pub fn insert(&self, id: DomId, collateral: u32) {
        let quarantine = Quarantine::new(collateral, self.wait_budget, time::monotonic_ns());
        self.registry().quarantines.insert(id, quarantine);
    }

    pub(super) fn forget(&self, table: &GrantTableState) {
        self.registry().tables.remove(&table.handle);
    }

    pub(super) fn table(&self, handle: Handle) -> Option<Arc<GrantTableState>> {
        self.registry().tables.get(&handle).cloned()
    }

    /// Returns whether this table exists.
    #[must_use]
    pub fn has_table(&self, handle: Handle) -> bool {
        self.registry().tables.contains_key(&handle)
    }

    /// Returns whether a table, a quarantine or a pin refers to a domain.
    #[must_use]
    pub fn refers_to(&self, id: DomId) -> bool {
        let tables: Vec<_> = {
            let registry = self.registry();
            if registry.quarantines.contains_key(&id) {
                return true;
            }
            registry.tables.values().cloned().collect()
        };
        let of_table = |table: &Arc<GrantTableState>| {
            table.granter == id || table.user == id || table.is_shared_with(id)
        };
        tables.iter().any(of_table) || self.pins.refers_to(id)
    }

    /// Returns whether a domain has created a table for this connection.
    #[must_use]
    pub fn has_table_for(&self, granter: DomId, conn: ConnId) -> bool {
        let registry = self.registry();
        let mut tables = registry.tables.values();
        tables.any(|table| table.granter == granter && table.conn == conn)
    }

    /// Adds every domain's entries to the audit.
    pub fn audit(&self, all: &mut BTreeMap<DomId, GrantAudit>) {
        let tables: Vec<_> = {
            let registry = self.registry();
            for (&id, quarantine) in &registry.quarantines {
                all.entry(id).or_default().collateral_used = quarantine.used();
            }
            registry.tables.values().cloned().collect()
        };
        for table in tables {
            let state = table.state();
            let shared = state.shared.as_ref();
            for (index, _, granted) in state.entries.granted() {
                if let Some(shared) = shared.filter(|shared| shared.contains(index)) {
                    let device = all.entry(shared.device).or_default();
                    device.mapped.insert((table.granter, granted.frame));
                }
                let granter = all.entry(table.granter).or_default();
                granter.granted.insert(granted.frame);
                if state.bound.is_some() {
                    let user = all.entry(table.user).or_default();
                    user.mapped.insert((table.granter, granted.frame));
                }
            }
        }
    }
}
