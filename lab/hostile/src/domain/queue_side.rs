//! A guest with a dedicated queue that takes posted pages away from the device.

use abi::counted::Revocation;
use abi::hypercall::RevokeOp;
use abi::{GrantRef, GrantStatus, Handle};
use config::domain::GuestConfig;
use hostile::{Attack, with_attack};
use runtime::call::Calls;
use runtime::start::{StartError, Started};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;

/// Number of turns of the main loop between two attacks.
const TURNS: u32 = 16;
/// Maximum time between two turns of the main loop.
const SLEEP_MAX_NS: u64 = 1_000_000;
/// Number of pages per attack.
const PAGES: usize = 8;
/// Pages of the receive pool, whose table entries have the same numbers. The first pages of the
/// domain are those of the rings; their loss would end the connection.
const POOL: Range<u32> = 16..144;
/// Handles of tables that the guest tries in turn, because the monitor numbers the tables of all
/// domains together.
const HANDLES: u32 = 256;

/// Runs an ordinary guest that revokes the grants of posted pages by force, while the device writes
/// into them. After the last page that can be revoked, the guest exits, and its successor attacks
/// again.
pub(crate) fn attack(started: Started<GuestConfig>) -> Result<Infallible, StartError> {
    let attack = PageRevoker {
        calls: Rc::clone(&started.calls),
        table: Cell::new(Handle(1)),
        page: Cell::new(POOL.start),
        turns: Cell::new(0),
    };
    guest::run(with_attack(started, attack))
}

/// An attack on posted pages once per [`TURNS`] turns of the main loop.
#[derive(Debug)]
struct PageRevoker {
    calls: Rc<RefCell<Calls>>,
    /// The guest's table, or the next one to try.
    table: Cell<Handle>,
    /// The first page of the next attack.
    page: Cell<u32>,
    turns: Cell<u32>,
}

impl PageRevoker {
    fn revoke_posted(&self) {
        let (table, page) = (self.table.get(), self.page.get());
        // A grant keeps its generation, the first, as long as its page is in the pool.
        let revoke = |page| RevokeOp {
            table,
            gref: GrantRef::new(page, 1),
            how: Revocation::Force,
        };
        let revokes: Vec<RevokeOp> = (page..).take(PAGES).map(revoke).collect();
        let mut statuses = Vec::new();
        let mut calls = self.calls.borrow_mut();
        calls.revoke_grants(&revokes, &mut statuses);
        let is_unknown = |status: &GrantStatus| *status == GrantStatus::BadHandle;
        if statuses.iter().all(is_unknown) {
            self.table.set(Handle(table.0 % HANDLES + 1));
            return;
        }
        self.page.set(page + PAGES as u32);
        // The user's collateral limits the number of pages.
        if !statuses.contains(&GrantStatus::Okay) || !POOL.contains(&self.page.get()) {
            std::process::exit(0);
        }
    }
}

impl Attack for PageRevoker {
    fn on_turn(&self) {
        self.turns.set(self.turns.get() + 1);
        if self.turns.get() == TURNS {
            self.turns.set(0);
            self.revoke_posted();
        }
    }

    /// Shortens the sleep: after a few attacks, the lost pages stall the guest's stream.
    fn on_sleep(&self, timeout_ns: Option<u64>) -> Option<u64> {
        Some(timeout_ns.unwrap_or(SLEEP_MAX_NS).min(SLEEP_MAX_NS))
    }
}
