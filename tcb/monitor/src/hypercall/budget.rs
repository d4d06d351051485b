//! What a domain's calls may cost others: the monitor's locks, its main thread, and processors
//! that flush translations. A domain that wants more waits, in its own worker.
//!
//! Calls are paid for afterwards, so the one that empties a budget is answered; the next one is
//! looked at when the debt is paid.

use super::call::Call;
use super::shared::Shared;
use crate::grant::Churn;
use abi::DomId;
use abi::hypercall::{Kind, OPS_MAX};
use shmem::rate::TokenBucket;
use shmem::time;

/// Units a second of all calls. A unit is a 32nd of the cheapest call, which is served in half a
/// microsecond: a flood of these is cut to a third of what a worker can serve. A driver domain that
/// copies or maps every packet by calls of one operation needs half of it at the most, since it
/// waits for each; one that moves queues without a pause, and asks every 500 µs whether they have
/// moved, a fortieth.
const UNITS_PER_SECOND: u64 = 16 << 20;
/// Units in a row: a quarter of a second's. The start of a driver domain with 64 guests needs a
/// tenth.
const UNITS_BURST: u32 = 4 << 20;
/// A call of the data path: it works on the caller's own account.
const DATA_CALL: u32 = 32;
/// Any other call takes locks that others take.
const CONTROL_CALL: u32 = 160;
/// A call that makes something, or wakes somebody.
const MAKING_CALL: u32 = 512;
/// One operation of a call that is none of the data path's.
const CONTROL_OPERATION: u32 = 32;

/// Counted grants that a domain may make and revoke in a row: what the largest table needs at the
/// start of a connection and at its end.
const CHURN_BURST: u32 = 1 << 13;
/// The same, a second, in the long run.
const CHURN_PER_SECOND: u64 = 20_000;
/// What a table or an exchange counts for: it takes memory, and a number that is never used again.
const CHURN_TABLE: u32 = 64;

/// What one call costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    units: u32,
    /// Grants made and revoked.
    churn: u32,
    /// How often that interrupts users ([`crate::grant::Churn`]).
    revocations: u32,
}

impl Cost {
    /// The cost of a call of `id`'s, as it was decoded; before it is carried out, since what it
    /// revokes is not there any more afterwards.
    pub(super) fn of(call: &Call<'_>, id: DomId, shared: &Shared) -> Self {
        let counted = &shared.counted;
        let revocations = match call {
            Call::GrantRevoke(ops) => counted.cost_of_revocations(id, ops),
            Call::TableEnd(handle) => counted.cost_of_end(id, *handle),
            _ => 0,
        };
        Self {
            revocations,
            ..Self::of_work(call)
        }
    }

    fn of_work(call: &Call<'_>) -> Self {
        let control = |operations: usize| CONTROL_CALL + operations as u32 * CONTROL_OPERATION;
        let (units, churn) = match call {
            Call::Other(Kind::ExchangeCreate, _) | Call::TableCreate(..) => {
                (MAKING_CALL, CHURN_TABLE)
            }
            Call::Other(_, ops) => (DATA_CALL + ops.len() as u32, 0),
            Call::ConnectGet(_) => (control(1), 0),
            Call::DeviceControl(ops) => (control(ops.len()), 0),
            Call::GrantCreate(ops) => (control(ops.len()), ops.len() as u32),
            Call::GrantRevoke(ops) => (control(ops.len()), ops.len() as u32),
            Call::ConnectSet(..)
            | Call::Ready
            | Call::TableBind(_)
            | Call::TableEnd(_)
            | Call::DeviceEnd(_) => (MAKING_CALL, 0),
        };
        Self {
            units,
            churn,
            revocations: 0,
        }
    }

    /// The cost of a call that makes no sense.
    pub(super) const NONSENSE: Self = Self {
        units: MAKING_CALL,
        churn: 0,
        revocations: 0,
    };
}

/// One domain's budget.
#[derive(Debug)]
pub(super) struct Budget {
    id: DomId,
    units: TokenBucket,
    churn: TokenBucket,
    /// Revocations that are to be taken out of what all domains have.
    owed: u32,
    /// When it may be its turn to do so.
    turn_ns: u64,
    due_ns: u64,
}

impl Budget {
    pub(super) fn new(id: DomId) -> Self {
        Self {
            id,
            units: TokenBucket::new(UNITS_PER_SECOND, UNITS_BURST),
            churn: TokenBucket::new(CHURN_PER_SECOND, CHURN_BURST),
            owed: 0,
            turn_ns: 0,
            due_ns: 0,
        }
    }

    /// A call was made.
    pub(super) fn charge(&mut self, cost: Cost, churn: &Churn, now_ns: u64) {
        let mut due_ns = pay(&mut self.units, cost.units, now_ns);
        if cost.churn > 0 {
            due_ns = due_ns.max(pay(&mut self.churn, cost.churn, now_ns));
        }
        self.owed = self.owed.saturating_add(cost.revocations);
        self.take_turns(churn, now_ns);
        self.due_ns = due_ns;
    }

    /// When to ask again whether the next call may be served; 0: at once.
    pub(super) fn due_ns(&mut self, churn: &Churn) -> u64 {
        if self.owed == 0 {
            return self.due_ns;
        }
        self.take_turns(churn, time::monotonic_ns());
        self.due_ns.max(self.turn_ns)
    }

    /// Pays what is owed to all, a call's worth at a time, as far as it is this domain's turn.
    fn take_turns(&mut self, churn: &Churn, now_ns: u64) {
        if now_ns < self.turn_ns {
            return;
        }
        self.turn_ns = 0;
        while self.owed > 0 {
            let part = self.owed.min(OPS_MAX as u32);
            if let Err(then_ns) = churn.take(self.id, part, now_ns) {
                self.turn_ns = then_ns;
                break;
            }
            self.owed -= part;
        }
    }
}

/// Takes `cost` tokens; when the debt is paid, 0 if there is none.
fn pay(bucket: &mut TokenBucket, cost: u32, now_ns: u64) -> u64 {
    // Filled before it is charged: what accrues in a full bucket is lost.
    bucket.available(now_ns);
    bucket.charge(cost);
    match bucket.ready_at(now_ns, 0) {
        Some(then) if then > now_ns => then,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const S: u64 = 1_000_000_000;

    /// How many calls like this one domain makes in ten seconds if it makes as many as it may.
    fn rate(call: &Call<'_>) -> u64 {
        let (mut budget, mut now_ns, mut calls) = (Budget::new(DomId(1)), S, 0);
        let churn = Churn::default();
        while now_ns < 11 * S {
            budget.charge(Cost::of_work(call), &churn, now_ns);
            now_ns = now_ns.max(budget.due_ns);
            calls += 1;
        }
        calls / 10
    }

    #[test]
    fn floods_are_cut_and_work_is_not() {
        let ready = rate(&Call::Ready);
        assert!((30_000..40_000).contains(&ready), "{ready}");
        let empty = rate(&Call::Other(Kind::GrantCopy, &[]));
        assert!((500_000..600_000).contains(&empty), "{empty}");
        let told = rate(&Call::DeviceControl(&[[0; 3]]));
        assert!((80_000..100_000).contains(&told), "{told}");
    }
}
