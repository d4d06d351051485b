//! Grant mechanisms that only comparisons use. The program `grantwayd-lab` is the core with these
//! beside counted grants; nothing that is shipped has them.
//!
//! | module | what it is |
//! |---|---|
//! | `entry` | entries of a classic table: how one is marked and used up |
//! | `books` | every domain's entries in use and pages mapped, behind one lock |
//! | `pages` | slots of a window that show a page mapped by itself |
//! | `copy`, `map` | classic grants: a hypercall per use |
//! | `flip` | exchanges: pages that change hands |
//! | `caller` | the calls of one domain |
//! | `audit` | whether the books agree |
//!
//! A domain writes entries of its own table at will ([`abi::classic::GrantEntry`]). What counts for
//! the monitor is its private record of the entries *in use*: an entry is read once, checked, and
//! captured by a compare-and-swap that sets its in-use flags; until the last use ends, nothing that
//! the domain writes over it changes anything.
//!
//! Locks, in the order in which they are taken: an exchange's `op` (held while an agent works), the
//! accounts, the books, the registry of exchanges, an exchange's `state`; all but the first for
//! bookkeeping only, never while bytes are copied or an address space is changed: pin under the
//! lock, act without it, then commit or roll back under the lock.

mod audit;
mod books;
mod caller;
mod copy;
mod entry;
mod flip;
mod map;
mod pages;

use abi::hypercall::Bind;
use abi::{ConnId, DomId, GrantStatus, Handle};
use books::Books;
use flip::Exchanges;
use monitor::grant::mechanism::{Caller, Mechanism, Part};
use monitor::grant::{Grants, Spaces};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Classic grants and exchanges, for a monitor whose domains are reached by these spaces.
#[must_use]
pub fn mechanisms(spaces: &Arc<Spaces>) -> Box<dyn Mechanism> {
    Box::new(Baselines {
        books: Arc::default(),
        flips: Arc::new(Exchanges::new(Arc::clone(spaces))),
    })
}

#[derive(Debug)]
struct Baselines {
    books: Arc<Books>,
    flips: Arc<Exchanges>,
}

impl Mechanism for Baselines {
    fn caller(&self, id: DomId) -> Box<dyn Caller> {
        let (books, flips) = (Arc::clone(&self.books), Arc::clone(&self.flips));
        Box::new(caller::Classic::new(id, books, flips))
    }

    fn knows(&self, handle: Handle) -> bool {
        self.flips.knows(handle)
    }

    fn names(&self, id: DomId) -> bool {
        self.flips.names(id) || self.books.names(id)
    }

    fn is_for(&self, granter: DomId, conn: ConnId) -> bool {
        self.flips.is_for(granter, conn)
    }

    fn hears_of_deaths(&self) -> bool {
        true
    }

    fn bind(&self, grants: &Grants, user: DomId, op: &Bind) -> Result<(), GrantStatus> {
        self.flips.bind(grants, user, op)
    }

    fn end(&self, grants: &Grants, caller: DomId, handle: Handle) -> Result<(), GrantStatus> {
        self.flips.end(grants, caller, handle)
    }

    fn tear_down(&self, grants: &Grants, id: DomId) {
        self.flips.tear_down(grants, id);
    }

    fn audit(&self, grants: &Grants) -> (BTreeMap<DomId, Part>, u64) {
        let (mut parts, leaked) = audit::audit(&self.books, grants);
        let (owned, strays) = self.flips.audit();
        for (id, pages) in owned {
            parts.entry(id).or_default().owned = pages;
        }
        (parts, leaked + strays)
    }
}
