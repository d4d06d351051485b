//! Loom models, which try every order of events. Run them by `RUSTFLAGS="--cfg loom" cargo test -p
//! shmem --lib -- model`.

use super::*;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, thread};
use abi::GrantRef;
use abi::counted::Translation;
use loom::cell::UnsafeCell;
use loom::model::Builder;

/// A table, and its pages as mapped in the user's address space.
struct Table<const ENTRIES: usize> {
    announcements: AtomicU64,
    entries: [Entry; ENTRIES],
}

struct Entry {
    translation: AtomicU64,
    status: AtomicU32,
    /// Whether the page is mapped in the window. The revoker unmaps it.
    page: UnsafeCell<bool>,
    /// The generation of the grant to which the page's bytes belong.
    bytes: AtomicU32,
}

impl Word<u32> for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
}

impl Word<u64> for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

const FIRST: u32 = 1;
const UNOWNED: u32 = 0;

/// Creates a table in which every entry grants its page with generation [`FIRST`].
fn table<const ENTRIES: usize>() -> Arc<Table<ENTRIES>> {
    let entry = |_| Entry {
        translation: AtomicU64::new(granted(FIRST).0),
        status: AtomicU32::new(0),
        page: UnsafeCell::new(true),
        bytes: AtomicU32::new(FIRST),
    };
    Arc::new(Table {
        announcements: AtomicU64::new(0),
        entries: std::array::from_fn(entry),
    })
}

fn granted(generation: u32) -> Translation {
    Translation::valid(2 + generation, generation, false)
}

fn gref(generation: u32) -> GrantRef {
    GrantRef::new(0, generation)
}

impl Entry {
    fn claim(&self, generation: u32) -> bool {
        claim(&self.translation, &self.status, gref(generation), true)
    }

    fn holds(&self, generation: u32) -> bool {
        still_permits(&self.translation, gref(generation), true)
    }

    /// Accesses the page in a use that may continue.
    fn touch(&self, generation: u32) {
        // Loom reports a race with a change of `page` by the revoker.
        self.page.with(|page| {
            // SAFETY: loom checks that no thread writes the cell meanwhile.
            assert!(unsafe { *page }, "accessed an unmapped page");
        });
        let bytes = self.bytes.load(Ordering::Relaxed);
        assert_eq!(bytes, generation, "read the bytes of another grant");
    }

    /// Maps the page into the window, or unmaps it, as the monitor does.
    fn set_mapped(&self, is_mapped: bool) {
        // SAFETY: loom checks that no thread reads the cell meanwhile.
        self.page.with_mut(|page| unsafe { *page = is_mapped });
    }

    fn is_idle(&self) -> bool {
        self.status.load(Ordering::Relaxed) == 0
    }
}

/// Runs one batch of the user over one entry. Returns whether it accessed the page.
fn batch(table: &Table<1>, generation: u32) -> bool {
    let [entry] = &table.entries;
    let before = announced(&table.announcements);
    if !entry.claim(generation) {
        return false;
    }
    full_fence();
    let held = is_unchanged(&table.announcements, before) || entry.holds(generation);
    if held {
        entry.touch(generation);
    }
    release(&entry.status);
    held
}

/// Runs the monitor's ordinary revocation of all entries. Returns whether each page was unmapped.
fn revoke<const ENTRIES: usize>(table: &Table<ENTRIES>) -> [bool; ENTRIES] {
    let words = table.entries.each_ref();
    let valid = words.map(|entry| Translation(entry.translation.load(Ordering::Relaxed)));
    for (entry, valid) in words.iter().zip(valid) {
        announce(&entry.translation, valid);
    }
    publish(&table.announcements);
    let unmapped = words.map(|entry| {
        let unmapped = is_unused(&entry.status);
        if unmapped {
            entry
                .translation
                .store(Translation::INVALID.0, Ordering::Relaxed);
        }
        unmapped
    });
    for ((entry, valid), unmapped) in words.iter().zip(valid).zip(unmapped) {
        if !unmapped {
            // N-9: the revocation was refused, so the entry becomes valid again.
            entry.translation.store(valid.0, Ordering::Release);
        }
    }
    for (entry, unmapped) in words.iter().zip(unmapped) {
        if unmapped {
            entry.set_mapped(false);
            // The granter, which has regained its page, writes other data to it.
            entry.bytes.store(UNOWNED, Ordering::Relaxed);
        }
    }
    unmapped
}

/// N-8, N-9: no use accesses a page that an ordinary revocation has unmapped.
#[test]
fn a_use_and_a_revocation_never_both_win() {
    loom::model(|| {
        let table = table();
        let other = Arc::clone(&table);
        let user = thread::spawn(move || [batch(&other, FIRST), batch(&other, FIRST)]);
        let [revoked] = revoke(&table);
        user.join().unwrap();
        assert!(table.entries[0].is_idle(), "a use has not ended");
        // N-7: no use begins after a revocation. N-9: a refused grant is unchanged.
        assert_eq!(batch(&table, FIRST), !revoked);
    });
}

/// N-10: a drained entry becomes idle, and no use begins after the announcement.
#[test]
fn a_drained_entry_becomes_idle() {
    loom::model(|| {
        let table = table();
        let [entry] = &table.entries;
        let other = Arc::clone(&table);
        let user = thread::spawn(move || batch(&other, FIRST));
        announce(&entry.translation, granted(FIRST));
        publish(&table.announcements);
        let idle_immediately = is_unused(&entry.status);
        let used = user.join().unwrap();
        assert!(is_unused(&entry.status));
        entry.set_mapped(false);
        assert!(!(idle_immediately && used) || !batch(&table, FIRST));
        assert!(!batch(&table, FIRST));
    });
}

/// N-6: a stale reference never begins a use of the page that replaced the original one.
#[test]
fn a_stale_reference_uses_nothing() {
    loom::model(|| {
        let table = table();
        let [entry] = &table.entries;
        let other = Arc::clone(&table);
        let user = thread::spawn(move || batch(&other, FIRST));
        if revoke(&table) == [true] {
            entry
                .translation
                .store(granted(FIRST + 1).0, Ordering::Release);
        }
        user.join().unwrap();
        let now = Translation(entry.translation.load(Ordering::Relaxed));
        assert_eq!(batch(&table, FIRST), now.permits(gref(FIRST), true));
    });
}

/// N-5: if a user finds a grant, the page has the contents with which it was granted.
#[test]
fn a_new_grant_shows_its_page() {
    loom::model(|| {
        let table = table();
        let [entry] = &table.entries;
        entry
            .translation
            .store(Translation::INVALID.0, Ordering::Relaxed);
        let other = Arc::clone(&table);
        let user = thread::spawn(move || batch(&other, FIRST));
        entry.set_mapped(true);
        entry.translation.store(granted(FIRST).0, Ordering::Release);
        user.join().unwrap();
        assert!(batch(&table, FIRST));
    });
}

/// N-7, N-8: a batch of a user encloses another batch, and one announcement covers the entries of
/// both.
#[test]
fn a_nested_batch_ends_only_its_own_uses() {
    /// Reads through entry 0 while it writes through both entries.
    fn nested(table: &Table<2>) {
        let (count, entries) = (&table.announcements, &table.entries);
        let read = &entries[0];
        let before = announced(count);
        let claimed = read.claim(FIRST);
        full_fence();
        let held = claimed && (is_unchanged(count, before) || read.holds(FIRST));
        let before = announced(count);
        let writes = entries.each_ref().map(|entry| entry.claim(FIRST));
        full_fence();
        let undisturbed = is_unchanged(count, before);
        for (entry, _) in entries.iter().zip(writes).filter(|(_, claimed)| *claimed) {
            if undisturbed || entry.holds(FIRST) {
                entry.touch(FIRST);
            }
        }
        for (entry, _) in entries.iter().zip(writes).filter(|(_, claimed)| *claimed) {
            release(&entry.status);
        }
        if held {
            read.touch(FIRST);
        }
        if claimed {
            release(&read.status);
        }
    }
    bounded(4).check(|| {
        let table = table();
        let other = Arc::clone(&table);
        let user = thread::spawn(move || nested(&other));
        revoke(&table);
        user.join().unwrap();
        assert!(
            table.entries.iter().all(Entry::is_idle),
            "a use has not ended"
        );
    });
}

/// N-5 … N-9 over two generations: the monitor revokes the grant, repeats a refused revocation,
/// grants the page again, and revokes it again.
#[test]
fn a_new_generation_is_used_and_revoked() {
    bounded(5).check(|| {
        let table = table();
        let other = Arc::clone(&table);
        let user = thread::spawn(move || {
            batch(&other, FIRST);
            batch(&other, FIRST + 1);
        });
        if revoke(&table) == [true] || revoke(&table) == [true] {
            let [entry] = &table.entries;
            entry.set_mapped(true);
            entry.bytes.store(FIRST + 1, Ordering::Relaxed);
            entry
                .translation
                .store(granted(FIRST + 1).0, Ordering::Release);
            revoke(&table);
        }
        user.join().unwrap();
        assert!(table.entries[0].is_idle(), "a use has not ended");
    });
}

/// Returns a model checker that tries only orders with at most `preemptions` preemptions of
/// threads.
fn bounded(preemptions: usize) -> Builder {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder
}
