//! The machine-wide limit on the rate at which pages are revoked from users.
//!
//! Each revocation interrupts every processor that runs the user. So all granters share one budget:
//! a single granter may use all of it, and competing granters receive shares by weight. The
//! algorithm is start-time fair queueing: every operation moves its domain back in the queue, by an
//! amount inversely proportional to the domain's weight. Two kinds of change bypass the budget,
//! because they interrupt no processor: revoking from a dead user, and granting.

use abi::DomId;
use shmem::lock;
use shmem::rate::TokenBucket;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Revocations in a burst, for the whole machine.
const BURST: u32 = 1 << 13;
/// Revocations per second in the long run: at 23 to 33 µs each, about half of a processor.
const PER_SECOND: u64 = 20_000;
/// The virtual time that one operation adds to the next start time of a domain of weight 1.
const STEP: u64 = 1 << 16;

/// One domain's position in the queue.
#[derive(Debug)]
struct Flow {
    weight: u32,
    /// Start time of its next operations, unless the virtual time is already later.
    next: u64,
    /// Start time of its waiting operations.
    waiting: Option<u64>,
}

#[derive(Debug)]
struct Queue {
    budget: TokenBucket,
    /// The virtual time, which is the start time of the first waiting operations. A domain that was
    /// idle starts here.
    now: u64,
    flows: BTreeMap<DomId, Flow>,
    /// The number of waiting operations, by start time and domain.
    waiting: BTreeMap<(u64, DomId), u32>,
}

/// The budget, and the queue of domains that wait for it.
#[derive(Debug)]
pub struct ChurnBudget(Mutex<Queue>);

impl Default for ChurnBudget {
    fn default() -> Self {
        Self(Mutex::new(Queue {
            budget: TokenBucket::new(PER_SECOND, BURST),
            now: 0,
            flows: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }))
    }
}

impl ChurnBudget {
    /// Sets the weight of a new domain; a domain without an entry has weight 1.
    pub fn insert(&self, id: DomId, weight: u32) {
        self.forget(id);
        lock(&self.0).flows.insert(id, Flow::new(weight));
    }

    /// Removes a domain.
    pub fn forget(&self, id: DomId) {
        let mut queue = lock(&self.0);
        if let Some(start) = queue.flows.remove(&id).and_then(|flow| flow.waiting) {
            queue.waiting.remove(&(start, id));
        }
    }

    /// Takes `cost` revocations, at most as many as one call can request, from the budget. Domains
    /// that wait in front of this one are served first.
    ///
    /// # Errors
    /// Returns the earliest time of a retry; the domain is queued until then.
    pub fn take(&self, id: DomId, cost: u32, now_ns: u64) -> Result<(), u64> {
        let Queue {
            budget,
            now,
            flows,
            waiting,
        } = &mut *lock(&self.0);
        let own = flows.entry(id).or_insert_with(|| Flow::new(1));
        let start = *own.waiting.get_or_insert(own.next.max(*now));
        waiting.insert((start, id), cost);
        let all = waiting.range(..=(start, id)).map(|(_, cost)| *cost);
        let all = all.fold(0, u32::saturating_add);
        let then = budget.ready_at(now_ns, all).unwrap_or(u64::MAX);
        if then > now_ns {
            return Err(then);
        }
        budget.take(now_ns, cost);
        // A domain in front of this one that has not retried yet keeps its position.
        let first = waiting.first_key_value();
        *now = (*now).max(first.map_or(start, |((start, _), _)| *start));
        waiting.remove(&(start, id));
        own.waiting = None;
        own.next = start.saturating_add(u64::from(cost) * STEP / u64::from(own.weight));
        Ok(())
    }
}

impl Flow {
    fn new(weight: u32) -> Self {
        Self {
            weight: weight.max(1),
            next: 0,
            waiting: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;

    /// Makes every domain request `cost` operations, repeatedly in each millisecond until it is
    /// deferred. Returns the number of operations that each domain received in the period `ms`.
    fn flood(churn: &ChurnBudget, domains: &[(u16, u32)], ms: std::ops::Range<u64>) -> Vec<u64> {
        let mut got = vec![0; domains.len()];
        for now in ms {
            for (got, &(id, cost)) in got.iter_mut().zip(domains) {
                while churn.take(DomId(id), cost, now * MS).is_ok() {
                    *got += u64::from(cost);
                }
            }
        }
        got
    }

    /// Row 34: domains that revoke as fast as possible together receive as many revocations as a
    /// single domain would. Their shares are equal, whatever the size of their calls.
    #[test]
    fn attack_34_all_granters_share_one_churn_budget() {
        let churn = ChurnBudget::default();
        let domains: Vec<_> = (1..=64)
            .map(|id| (id, [1, 16, 169][id as usize % 3]))
            .collect();
        // The first millisecond includes the burst, so it is not measured.
        flood(&churn, &domains, 0..1);
        let got = flood(&churn, &domains, 1..10_000);
        let all: u64 = got.iter().sum();
        assert!((190_000..=200_000).contains(&all), "{all}");
        let fair = all / 64;
        for (domain, got) in domains.iter().zip(&got) {
            assert!(got.abs_diff(fair) <= 2 * 169, "{domain:?} {got} of {fair}");
        }
    }

    #[test]
    fn attack_34_churn_is_shared_by_weight() {
        let churn = ChurnBudget::default();
        for (id, weight) in [(1, 1), (2, 4), (3, 0)] {
            churn.insert(DomId(id), weight);
        }
        let domains = [(1, 16), (2, 16), (3, 16)];
        flood(&churn, &domains, 0..1);
        let got = flood(&churn, &domains, 1..6_000);
        assert!(got[1].abs_diff(4 * got[0]) <= 160, "{got:?}");
        assert!(got[0].abs_diff(got[2]) <= 160, "{got:?}");
    }

    /// The few revocations of a well-behaved domain wait for at most one call of each other domain.
    #[test]
    fn attack_34_a_churn_storm_delays_others_briefly() {
        let churn = ChurnBudget::default();
        let storm: Vec<_> = (2..=17).map(|id| (id, 169)).collect();
        flood(&churn, &storm, 0..2_000);
        let waited = (0..).find(|ms| {
            let now = 2_000 + ms;
            let passes = churn.take(DomId(1), 16, now * MS).is_ok();
            flood(&churn, &storm, now..now + 1);
            passes
        });
        let round_ms = 16 * 169 * 1000 / PER_SECOND;
        assert!(waited.is_some_and(|ms| ms <= round_ms), "{waited:?} ms");
    }

    #[test]
    fn a_single_granter_gets_the_whole_budget() {
        let churn = ChurnBudget::default();
        assert_eq!(flood(&churn, &[(1, 1)], 0..1), [u64::from(BURST)]);
        let got = flood(&churn, &[(1, 100)], 1..1001);
        assert_eq!(got, [PER_SECOND]);
        // A waiting domain that is removed does not delay others.
        let then = churn.take(DomId(1), 8000, 1001 * MS);
        assert_eq!(
            then,
            Err(1001 * MS + 399 * MS),
            "one millisecond's worth is available"
        );
        churn.forget(DomId(1));
        assert_eq!(churn.take(DomId(2), 1, 1002 * MS), Ok(()));
        assert_eq!(churn.take(DomId(2), 8000, 3 * SECOND), Ok(()));
    }
}
