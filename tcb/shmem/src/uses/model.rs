//! Every order of events, by loom: `RUSTFLAGS="--cfg loom" cargo test -p shmem --lib uses`.

use super::*;
use crate::sync::{Arc, AtomicU32, AtomicU64, thread};

/// An entry of a table that has no other, and its page as the address space shows it.
struct Entry {
    announced: AtomicU64,
    translation: AtomicU64,
    status: AtomicU32,
    /// Whether the page is in the window: taken away by the revoker.
    page: loom::cell::UnsafeCell<bool>,
    bytes: AtomicU32,
}

impl EntryWords for Entry {
    fn translation(&self, order: Ordering) -> u64 {
        self.translation.load(order)
    }
    fn set_translation(&self, value: u64, order: Ordering) {
        self.translation.store(value, order);
    }
}

impl Announcements for Entry {
    fn announcements(&self, order: Ordering) -> u64 {
        self.announced.load(order)
    }
    fn set_announcements(&self, value: u64, order: Ordering) {
        self.announced.store(value, order);
    }
}

impl StatusWord for Entry {
    fn status(&self, order: Ordering) -> u32 {
        self.status.load(order)
    }
    fn set_status(&self, value: u32, order: Ordering) {
        self.status.store(value, order);
    }
}

const FIRST: u32 = 1;
const READ_ONLY: bool = false;

fn entry() -> Arc<Entry> {
    Arc::new(Entry {
        announced: AtomicU64::new(0),
        translation: AtomicU64::new(Translation::valid(3, FIRST, READ_ONLY).0),
        status: AtomicU32::new(0),
        page: loom::cell::UnsafeCell::new(true),
        bytes: AtomicU32::new(7),
    })
}

/// One batch of the user's: whether it touched the page.
fn batch(entry: &Entry) -> bool {
    let gref = GrantRef::new(0, FIRST);
    let before = announced(entry);
    if !claim(entry, gref, true) {
        return false;
    }
    settle();
    let held = undisturbed(entry, before) || holds(entry, gref, true);
    if held {
        // A race with the revoker's change is an error that loom finds.
        entry.page.with(|page| {
            // SAFETY: loom checks that nobody writes it meanwhile.
            assert!(unsafe { *page }, "touched a page that was taken away");
        });
        assert_eq!(entry.bytes.load(Ordering::Relaxed), 7, "another's bytes");
    }
    release(entry);
    held
}

/// The monitor's ordinary revocation: whether the page is gone.
fn revoke(entry: &Entry) -> bool {
    let valid = Translation(entry.translation(Ordering::Relaxed));
    announce(entry, valid);
    tell(entry);
    if !idle(entry) {
        // N-9: refused, the entry is valid again.
        entry.set_translation(valid.0, Ordering::Release);
        return false;
    }
    entry.set_translation(Translation::INVALID.0, Ordering::Relaxed);
    // SAFETY: loom checks that nobody reads it meanwhile.
    entry.page.with_mut(|page| unsafe { *page = false });
    // The granter has its page back, and puts something else there.
    entry.bytes.store(8, Ordering::Relaxed);
    true
}

/// N-8, N-9: no use touches a page that an ordinary revocation took away.
#[test]
fn a_use_and_a_revocation_never_both_win() {
    loom::model(|| {
        let entry = entry();
        let other = Arc::clone(&entry);
        let user = thread::spawn(move || [batch(&other), batch(&other)]);
        let revoked = revoke(&entry);
        user.join().unwrap();
        assert_eq!(entry.status(Ordering::Relaxed), 0, "every use ended");
        if revoked {
            assert!(!batch(&entry), "N-7: no use after it");
        } else {
            assert!(batch(&entry), "N-9: the refused grant is as good as before");
        }
    });
}

/// N-10: a drained entry is idle in the end, and no use begins after the announcement.
#[test]
fn what_drains_ends() {
    loom::model(|| {
        let entry = entry();
        let other = Arc::clone(&entry);
        let user = thread::spawn(move || batch(&other));
        announce(&*entry, Translation(entry.translation(Ordering::Relaxed)));
        tell(&*entry);
        let at_once = idle(&*entry);
        let used = user.join().unwrap();
        assert!(idle(&*entry));
        // SAFETY: loom checks that nobody reads it meanwhile.
        entry.page.with_mut(|page| unsafe { *page = false });
        assert!(!(at_once && used) || !batch(&entry));
        assert!(!batch(&entry));
    });
}

/// N-6: a stale reference never begins a use of the page that took its place.
#[test]
fn a_stale_reference_uses_nothing() {
    loom::model(|| {
        let entry = entry();
        let other = Arc::clone(&entry);
        let user = thread::spawn(move || batch(&other));
        if revoke(&entry) {
            let next = Translation::valid(4, FIRST + 1, READ_ONLY);
            entry.set_translation(next.0, Ordering::Release);
        }
        user.join().unwrap();
        let now = Translation(entry.translation(Ordering::Relaxed));
        assert_eq!(batch(&entry), now.permits(GrantRef::new(0, FIRST), true));
    });
}

/// N-5: whoever finds a grant finds the page as it was granted.
#[test]
fn a_new_grant_shows_its_page() {
    loom::model(|| {
        let entry = entry();
        let valid = entry.translation(Ordering::Relaxed);
        entry.set_translation(Translation::INVALID.0, Ordering::Relaxed);
        let other = Arc::clone(&entry);
        let user = thread::spawn(move || batch(&other));
        // SAFETY: loom checks that nobody reads it meanwhile.
        entry.page.with_mut(|page| unsafe { *page = true });
        entry.set_translation(valid, Ordering::Release);
        user.join().unwrap();
        assert!(batch(&entry));
    });
}
