//! Granters with one table each. One user has bound all tables, and a test can read its address
//! space.
#![allow(dead_code)] // each test uses its part

use crate::spy::Spy;
use abi::counted::{Revocation, table_slots, translation_bytes};
use abi::hypercall::{BindOp, CreateGrantOp, RevokeOp};
use abi::{ConnId, DomId, GrantRef, GrantStatus, Handle, Slot};
use monitor::grant::{CountedTables, GrantAccounts, GrantAudit};
use monitor::memory::SharedDomainMemory;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) const USER: DomId = DomId(0);
/// Frames that forced revocations may take from the user.
pub(crate) const COLLATERAL: u32 = 8;

/// Sizes of a rig.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Number of granters, which are the domains 1, 2, …
    pub(crate) granters: u16,
    /// Number of entries of each granter's table, and of its frames.
    pub(crate) entries: u32,
    /// See [`CountedTables::with_limits`].
    pub(crate) wait_budget: Duration,
    pub(crate) mappings: u32,
}

pub(crate) struct Rig {
    sizes: Sizes,
    pub(crate) grants: Arc<GrantAccounts>,
    pub(crate) counted: CountedTables,
    spy: Arc<Mutex<Spy>>,
    handles: Vec<Handle>,
}

impl Rig {
    /// Returns the audit of counted grants, by domain.
    pub(crate) fn audit(&self) -> BTreeMap<DomId, GrantAudit> {
        let mut audits = BTreeMap::new();
        self.counted.audit(&mut audits);
        audits
    }

    pub(crate) fn new(sizes: Sizes) -> Self {
        let Sizes {
            granters, entries, ..
        } = sizes;
        let grants = Arc::new(GrantAccounts::default());
        let (wait_budget, mappings) = (sizes.wait_budget, sizes.mappings);
        let counted = CountedTables::with_limits(Arc::clone(&grants), wait_budget, mappings);
        let slots = entries + table_slots(entries);
        for id in 0..=granters {
            let memory = Arc::new(
                SharedDomainMemory::create(DomId(id), entries, entries, &[], None).unwrap(),
            );
            let window = slots * u32::from(granters);
            grants.lock().insert(DomId(id), memory, window);
        }
        let spy = Arc::new(Mutex::new(Spy::default()));
        let space: Arc<Mutex<Spy>> = Arc::clone(&spy);
        grants.lock().set_space(USER, Some(space));
        counted.insert(USER, COLLATERAL);
        let mut rig = Self {
            sizes,
            grants,
            counted,
            spy,
            handles: Vec::new(),
        };
        for granter in 1..=granters {
            let own = (DomId(granter), ConnId(0));
            let made = rig.counted.create_table(own, USER, entries);
            rig.handles.push(made.unwrap());
            assert_eq!(rig.bind(granter), Ok(()));
        }
        rig
    }

    pub(crate) fn handle(&self, granter: u16) -> Handle {
        self.handles[usize::from(granter) - 1]
    }

    /// Returns the slot of an entry.
    pub(crate) fn slot(&self, granter: u16, index: u32) -> Slot {
        let entries = self.sizes.entries;
        Slot(u32::from(granter - 1) * (entries + table_slots(entries)) + index)
    }

    pub(crate) fn bind(&self, granter: u16) -> Result<(), GrantStatus> {
        let entries = self.sizes.entries;
        let op = BindOp {
            granter: DomId(granter),
            table: self.handle(granter),
            first: self.slot(granter, 0),
            tables: self.slot(granter, entries),
            entries,
        };
        self.counted.bind(USER, &op)
    }

    /// Grants frames writable; each element of `pages` is an entry and a frame.
    pub(crate) fn create(
        &self,
        granter: u16,
        pages: &[(u32, u32)],
    ) -> Vec<(GrantStatus, GrantRef)> {
        let create = |&(index, frame): &(u32, u32)| CreateGrantOp {
            table: self.handle(granter),
            index,
            frame,
            readonly: false,
            io: false,
        };
        let ops: Vec<_> = pages.iter().map(create).collect();
        self.counted.create(DomId(granter), &ops)
    }

    /// Grants every frame through the entry with the same number.
    pub(crate) fn create_all(&self, granter: u16) -> Vec<GrantRef> {
        let pages: Vec<_> = (0..self.sizes.entries).map(|n| (n, n)).collect();
        let made = self.create(granter, &pages).into_iter();
        made.map(|(status, gref)| {
            assert_eq!(status, GrantStatus::Okay);
            gref
        })
        .collect()
    }

    pub(crate) fn revoke(
        &self,
        granter: u16,
        grefs: &[GrantRef],
        how: Revocation,
    ) -> Vec<GrantStatus> {
        let revoke = |&gref: &GrantRef| RevokeOp {
            table: self.handle(granter),
            gref,
            how,
        };
        let ops: Vec<_> = grefs.iter().map(revoke).collect();
        self.counted.revoke(DomId(granter), &ops)
    }

    pub(crate) fn end_table(&self, caller: DomId, granter: u16) -> Result<(), GrantStatus> {
        let handle = self.handle(granter);
        self.counted.end_table(caller, handle)
    }

    /// Returns the user's address space.
    pub(crate) fn space(&self) -> MutexGuard<'_, Spy> {
        self.spy.lock().unwrap()
    }

    /// Returns the reason for which the user was killed, if it was.
    pub(crate) fn destroyed(&self) -> Option<String> {
        self.space().fake.destroyed.clone()
    }

    /// Sets the user's count of uses of an entry.
    pub(crate) fn set_uses(&self, space: &Spy, granter: u16, index: u32, uses: u32) {
        let at = translation_bytes(self.sizes.entries) as u64 + u64::from(index) * 4;
        // After the user has ended its half, the table no longer exists.
        if let Some(file) = space.files.get(&self.handle(granter).memory()) {
            file.write_all_at(&uses.to_le_bytes(), at).unwrap();
        }
    }

    /// Returns the number of entries without a counterpart in the audit.
    pub(crate) fn leaked(&self) -> u64 {
        self.grants.audit(&self.counted, None).1
    }
}
