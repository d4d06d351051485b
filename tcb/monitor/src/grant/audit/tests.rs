//! Corrupts accounts: the audit must report each error and its size.

use super::*;
use crate::memory::SharedDomainMemory;
use std::sync::Arc;

const USER: DomId = DomId(0);
const IDLE: DomId = DomId(2);
const SLOTS: u32 = 8;

fn accounts() -> GrantAccounts {
    let grants = GrantAccounts::default();
    for id in [USER, DomId(1), IDLE] {
        let memory = Arc::new(SharedDomainMemory::create(id, 4, 8, &[], None).unwrap());
        grants.lock().insert(id, memory, SLOTS);
    }
    grants
}

fn leaks(grants: &GrantAccounts) -> u64 {
    let counted = CountedTables::new(Arc::default());
    grants.audit(&counted, None).1
}

#[test]
fn consistent_accounts_have_no_leak() {
    assert_eq!(leaks(&accounts()), 0);
    assert_eq!(leaks(&GrantAccounts::default()), 0);
}

/// An account is closed when its last holder is removed, and not earlier.
#[test]
fn an_account_without_holders_is_a_leak() {
    let grants = accounts();
    grants.lock().hold_memory(IDLE);
    grants.lock().clear(IDLE);
    assert_eq!(leaks(&grants), 0, "its memory is still held");
    // Production code never sets this field directly.
    grants.lock().corrupt(IDLE, |account| account.holders = 0);
    assert_eq!(leaks(&grants), 1);
}

#[test]
fn slots_of_a_missing_table_are_leaks() {
    let grants = accounts();
    // Two tables at adjacent slots; the first has another slot after those of the second.
    for (slot, handle) in [(3, 1), (4, 1), (5, 2), (7, 1)] {
        let mut accounts = grants.lock();
        let window = accounts.window(USER).unwrap();
        let table = WindowSlot::Table(Handle(handle));
        assert!(window.reserve(table, std::slice::from_ref(&(slot..slot + 1))));
    }
    assert_eq!(leaks(&grants), 4);
    let knows = |handle| handle == Handle(2);
    assert_eq!(slots_without_table(&grants.lock(), knows), 3);
}
