//! Limits on the cost that a domain's calls impose on other domains: they take the monitor's locks,
//! wake its main thread, and make processors flush translations. A domain above its limits waits,
//! and so does its worker; no other thread is delayed.
//!
//! A call is charged after its execution: the call that exhausts a budget is answered, and the next
//! one is served once the debt is paid.

use super::call::DecodedCall;
use super::shared::MonitorState;
use crate::grant::ChurnBudget;
use abi::DomId;
use abi::hypercall::{HypercallKind, OPS_MAX};
use shmem::rate::TokenBucket;
use shmem::time;

/// Units per second for all calls. A unit is 1/32 of the cheapest call, which takes half a
/// microsecond: a flood of these is limited to a third of a worker's capacity. A driver domain that
/// copies or maps every packet by calls of one operation needs at most half of the budget, since it
/// waits for each call. A driver domain that reassigns queues continuously, and checks every 500 µs
/// whether they have drained, needs a fortieth of the budget.
const UNITS_PER_SECOND: u64 = 16 << 20;
/// Units in a burst: as many as accrue in a quarter of a second. The start of a driver domain with
/// 64 guests needs a tenth of it.
const UNITS_BURST: u32 = 4 << 20;
/// A call of the data path, which uses only the caller's account.
const DATA_CALL: u32 = 32;
/// Any other call: it takes locks that other domains need.
const CONTROL_CALL: u32 = 160;
/// A call that creates an object or wakes another domain.
const EXPENSIVE_CALL: u32 = 512;
/// One operation of a call outside the data path.
const CONTROL_OPERATION: u32 = 32;

/// Counted grants that a domain may create and revoke in a burst: enough for the largest table at
/// the start and at the end of a connection.
const CHURN_BURST: u32 = 1 << 13;
/// Counted grants that a domain may create and revoke per second in the long run.
const CHURN_PER_SECOND: u64 = 20_000;
/// Charge for creating a table or an exchange, in counted grants: each takes memory and a handle
/// that is never reused.
const CHURN_TABLE: u32 = 64;

/// The cost of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallCost {
    units: u32,
    /// Grants created and revoked.
    churn: u32,
    /// Interruptions of the users of revoked grants ([`crate::grant::ChurnBudget`]).
    revocations: u32,
}

impl CallCost {
    /// Returns the cost of a decoded call of domain `id`. The caller must compute the cost before
    /// it executes the call, while the grants that the call revokes exist.
    pub(super) fn of(call: &DecodedCall<'_>, id: DomId, shared: &MonitorState) -> Self {
        let counted = &shared.counted;
        let revocations = match call {
            DecodedCall::GrantRevoke(ops) => counted.cost_of_revocations(id, ops),
            DecodedCall::TableEnd(handle) => counted.cost_of_end(id, *handle),
            _ => 0,
        };
        Self {
            revocations,
            ..Self::without_revocations(call)
        }
    }

    fn without_revocations(call: &DecodedCall<'_>) -> Self {
        let control = |operations: usize| CONTROL_CALL + operations as u32 * CONTROL_OPERATION;
        let (units, churn) = match call {
            DecodedCall::Other(HypercallKind::ExchangeCreate, _)
            | DecodedCall::TableCreate(..)
            | DecodedCall::TableShare(_) => (EXPENSIVE_CALL, CHURN_TABLE),
            DecodedCall::Other(_, ops) => (DATA_CALL + ops.len() as u32, 0),
            DecodedCall::ConnectGet(_) => (control(1), 0),
            DecodedCall::DeviceControl(ops) => (control(ops.len()), 0),
            DecodedCall::GrantCreate(ops) => (control(ops.len()), ops.len() as u32),
            DecodedCall::GrantRevoke(ops) => (control(ops.len()), ops.len() as u32),
            DecodedCall::ConnectSet(..)
            | DecodedCall::Ready
            | DecodedCall::TableBind(_)
            | DecodedCall::TableEnd(_)
            | DecodedCall::DeviceEnd(_)
            | DecodedCall::ForeignMap(_)
            | DecodedCall::ForeignUnmap(_) => (EXPENSIVE_CALL, 0),
        };
        Self {
            units,
            churn,
            revocations: 0,
        }
    }

    /// Cost of an invalid call.
    pub(super) const INVALID: Self = Self {
        units: EXPENSIVE_CALL,
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
    /// Revocations that the machine-wide budget has not granted yet.
    outstanding: u32,
    /// Earliest time of the next request to the machine-wide budget.
    retry_ns: u64,
    due_ns: u64,
}

impl Budget {
    pub(super) fn new(id: DomId) -> Self {
        Self {
            id,
            units: TokenBucket::new(UNITS_PER_SECOND, UNITS_BURST),
            churn: TokenBucket::new(CHURN_PER_SECOND, CHURN_BURST),
            outstanding: 0,
            retry_ns: 0,
            due_ns: 0,
        }
    }

    /// Charges a call.
    pub(super) fn charge(&mut self, cost: CallCost, churn: &ChurnBudget, now_ns: u64) {
        let mut due_ns = pay(&mut self.units, cost.units, now_ns);
        if cost.churn > 0 {
            due_ns = due_ns.max(pay(&mut self.churn, cost.churn, now_ns));
        }
        self.outstanding = self.outstanding.saturating_add(cost.revocations);
        self.take_outstanding(churn, now_ns);
        self.due_ns = due_ns;
    }

    /// Returns the time at which to serve the next call, or to call this function again; 0 means
    /// now.
    pub(super) fn due_ns(&mut self, churn: &ChurnBudget) -> u64 {
        if self.outstanding == 0 {
            return self.due_ns;
        }
        self.take_outstanding(churn, time::monotonic_ns());
        self.due_ns.max(self.retry_ns)
    }

    /// Takes the outstanding revocations from the machine-wide budget until the budget defers this
    /// domain. Each request covers at most the revocations of one call.
    fn take_outstanding(&mut self, churn: &ChurnBudget, now_ns: u64) {
        if now_ns < self.retry_ns {
            return;
        }
        self.retry_ns = 0;
        while self.outstanding > 0 {
            let part = self.outstanding.min(OPS_MAX as u32);
            if let Err(retry_ns) = churn.take(self.id, part, now_ns) {
                self.retry_ns = retry_ns;
                break;
            }
            self.outstanding -= part;
        }
    }
}

/// Takes `cost` tokens. Returns the time at which the debt is paid, or 0 if the bucket has no debt.
fn pay(bucket: &mut TokenBucket, cost: u32, now_ns: u64) -> u64 {
    // Refill before charging: tokens that accrue in a full bucket are lost.
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

    /// Returns the number of calls like this one that a domain can make per second, measured over
    /// ten seconds.
    fn rate(call: &DecodedCall<'_>) -> u64 {
        let (mut budget, mut now_ns, mut calls) = (Budget::new(DomId(1)), S, 0);
        let churn = ChurnBudget::default();
        while now_ns < 11 * S {
            budget.charge(CallCost::without_revocations(call), &churn, now_ns);
            now_ns = now_ns.max(budget.due_ns);
            calls += 1;
        }
        calls / 10
    }

    #[test]
    fn floods_are_limited_but_normal_load_is_not() {
        let ready = rate(&DecodedCall::Ready);
        assert!((30_000..40_000).contains(&ready), "{ready}");
        let empty = rate(&DecodedCall::Other(HypercallKind::GrantCopy, &[]));
        assert!((500_000..600_000).contains(&empty), "{empty}");
        let bytes = rate(&DecodedCall::DeviceControl(&[[0; 3]]));
        assert!((80_000..100_000).contains(&bytes), "{bytes}");
    }
}
