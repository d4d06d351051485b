//! What a domain's calls may cost others: the monitor's locks, its main thread, and processors
//! that flush translations. A domain that wants more waits, in its own worker.
//!
//! Calls are paid for afterwards, so the one that empties a budget is answered; the next one is
//! looked at when the debt is paid.

use super::call::Call;
use abi::DomId;
use shmem::rate::TokenBucket;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

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

/// Revocations of all domains, a second: each interrupts the processors that the user runs on.
const REVOCATIONS_PER_SECOND: u64 = 2 * CHURN_PER_SECOND;
/// Who has revoked within this time shares them.
const SHARING_NS: u64 = 1_000_000_000;

/// What one call costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    units: u32,
    /// Grants made and revoked.
    churn: u32,
    /// The revocations among them.
    revocations: u32,
}

impl Cost {
    /// The cost of a call, as it was decoded.
    pub(super) fn of(call: &Call<'_>) -> Self {
        let data = |operations: usize| Self {
            units: DATA_CALL + operations as u32,
            ..Self::default()
        };
        let control = |operations: usize| Self {
            units: CONTROL_CALL + operations as u32 * CONTROL_OPERATION,
            ..Self::default()
        };
        let making = Self {
            units: MAKING_CALL,
            ..Self::default()
        };
        match call {
            Call::GrantCopy(ops) => data(ops.len()),
            Call::GrantMap(ops) => data(ops.len()),
            Call::GrantUnmap(ops) => data(ops.len()),
            Call::GrantTransfer(ops) => data(ops.len()),
            Call::ConnectGet(_) => control(1),
            Call::DeviceControl(ops) => control(ops.len()),
            Call::GrantCreate(ops) => Self {
                churn: ops.len() as u32,
                ..control(ops.len())
            },
            Call::GrantRevoke(ops) => Self {
                churn: ops.len() as u32,
                revocations: ops.len() as u32,
                ..control(ops.len())
            },
            Call::TableCreate(_) | Call::ExchangeCreate(_) => Self {
                churn: CHURN_TABLE,
                ..making
            },
            Call::ConnectSet(_)
            | Call::Ready
            | Call::TableBind(_)
            | Call::TableEnd(_)
            | Call::DeviceEnd(_) => making,
        }
    }

    /// The cost of a call that makes no sense.
    pub(super) fn of_nonsense() -> Self {
        Self {
            units: MAKING_CALL,
            ..Self::default()
        }
    }
}

/// One domain's budget.
#[derive(Debug)]
pub(super) struct Budget {
    id: DomId,
    units: TokenBucket,
    churn: TokenBucket,
    revocations: TokenBucket,
    due_ns: u64,
}

impl Budget {
    pub(super) fn new(id: DomId) -> Self {
        Self {
            id,
            units: TokenBucket::new(UNITS_PER_SECOND, UNITS_BURST),
            churn: TokenBucket::new(CHURN_PER_SECOND, CHURN_BURST),
            revocations: TokenBucket::new(CHURN_PER_SECOND, CHURN_BURST),
            due_ns: 0,
        }
    }

    /// A call was made.
    pub(super) fn charge(&mut self, cost: Cost, shares: &RevocationShares, now_ns: u64) {
        let mut due_ns = pay(&mut self.units, cost.units, now_ns);
        if cost.churn > 0 {
            due_ns = due_ns.max(pay(&mut self.churn, cost.churn, now_ns));
        }
        if cost.revocations > 0 {
            let share = shares.of(self.id, now_ns);
            self.revocations.set_rate(now_ns, share);
            due_ns = due_ns.max(pay(&mut self.revocations, cost.revocations, now_ns));
        }
        self.due_ns = due_ns;
    }

    /// When the next call may be served; 0: at once.
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
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

/// Who shares [`REVOCATIONS_PER_SECOND`], all alike: when each revoked last.
#[derive(Debug, Default)]
pub struct RevocationShares(Mutex<BTreeMap<DomId, u64>>);

impl RevocationShares {
    /// What a domain that revokes now may revoke in a second.
    fn of(&self, id: DomId, now_ns: u64) -> u64 {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.insert(id, now_ns);
        last.retain(|_, at| now_ns.saturating_sub(*at) < SHARING_NS);
        let sharers = last.len().max(1) as u64;
        (REVOCATIONS_PER_SECOND / sharers).clamp(1, CHURN_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::counted::Revocation;
    use abi::hypercall::{OPS_MAX, Revoke};
    use abi::{GrantRef, Handle};

    const S: u64 = 1_000_000_000;

    /// How many calls like this one domain makes in ten seconds if it makes as many as it may.
    fn rate(call: &Call<'_>, shares: &RevocationShares) -> u64 {
        let (mut budget, mut now_ns, mut calls) = (Budget::new(DomId(1)), S, 0);
        while now_ns < 11 * S {
            budget.charge(Cost::of(call), shares, now_ns);
            now_ns = now_ns.max(budget.due_ns());
            calls += 1;
        }
        calls / 10
    }

    fn revoke() -> Revoke {
        Revoke {
            table: Handle(1),
            gref: GrantRef(0),
            how: Revocation::Force,
        }
    }

    #[test]
    fn floods_are_cut_and_work_is_not() {
        let shares = RevocationShares::default();
        let ready = rate(&Call::Ready, &shares);
        assert!((30_000..40_000).contains(&ready), "{ready}");
        let empty = rate(&Call::GrantCopy(&[]), &shares);
        assert!((500_000..600_000).contains(&empty), "{empty}");
        let told = rate(&Call::DeviceControl(&[[0; 3]]), &shares);
        assert!((80_000..100_000).contains(&told), "{told}");
    }

    /// N-15.
    #[test]
    fn revocations_are_bounded_alone_and_together() {
        let ops = [revoke(); OPS_MAX];
        let call = Call::GrantRevoke(&ops);
        let shares = RevocationShares::default();
        let alone = rate(&call, &shares) * OPS_MAX as u64;
        assert!((19_000..22_000).contains(&alone), "{alone}");
        // Of 64 that revoke without a pause each has its part, and no more.
        let shares = RevocationShares::default();
        let mut budgets: Vec<_> = (0..64).map(|n| Budget::new(DomId(n))).collect();
        let mut revoked = 0;
        for now_ns in (S..21 * S).step_by(1_000_000) {
            for budget in budgets.iter_mut().filter(|b| b.due_ns() <= now_ns) {
                budget.charge(Cost::of(&call), &shares, now_ns);
                // What a burst is for is over after the first ten seconds.
                revoked += if now_ns >= 16 * S { OPS_MAX as u64 } else { 0 };
            }
        }
        let together = revoked / 5;
        assert!((30_000..50_000).contains(&together), "{together}");
    }
}
