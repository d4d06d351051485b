//! How fast pages may be taken away from users, in the whole machine.
//!
//! Each revocation interrupts every processor that runs the user. So all granters share one budget:
//! one alone may use all of it, and one that asks while others do gets its share by weight
//! (start-time fair queueing: every operation moves its domain's place in the queue back, by less
//! the more the domain weighs). What a dead user had is taken away for nothing, and granting
//! interrupts nobody, so neither comes here.

use abi::DomId;
use shmem::rate::TokenBucket;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Revocations in a row, in the whole machine.
const BURST: u32 = 1 << 13;
/// Revocations a second in the long run: at 23 to 33 µs each, about half of a processor.
const PER_SECOND: u64 = 20_000;
/// How far an operation of a domain of weight 1 moves its place.
const STEP: u64 = 1 << 16;

/// One domain's place.
#[derive(Debug)]
struct Flow {
    weight: u32,
    /// Where its next operations begin, if others are not ahead of that already.
    next: u64,
    /// Where those begin that wait.
    waiting: Option<u64>,
}

#[derive(Debug)]
struct Queue {
    budget: TokenBucket,
    /// Where a domain that comes anew begins: where the first of those is that wait.
    now: u64,
    flows: BTreeMap<DomId, Flow>,
    /// How many operations wait, by place and domain.
    waiting: BTreeMap<(u64, DomId), u32>,
}

/// The budget and who waits for it.
#[derive(Debug)]
pub struct Churn(Mutex<Queue>);

impl Default for Churn {
    fn default() -> Self {
        Self(Mutex::new(Queue {
            budget: TokenBucket::new(PER_SECOND, BURST),
            now: 0,
            flows: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }))
    }
}

impl Churn {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A domain has been built; one without a word weighs 1.
    pub fn insert(&self, id: DomId, weight: u32) {
        self.forget(id);
        self.lock().flows.insert(id, Flow::new(weight));
    }

    /// A domain is no more.
    pub fn forget(&self, id: DomId) {
        let mut queue = self.lock();
        if let Some(start) = queue.flows.remove(&id).and_then(|flow| flow.waiting) {
            queue.waiting.remove(&(start, id));
        }
    }

    /// A domain revokes so many grants, at most a call's worth, if it may now. Those that wait
    /// before it are served first.
    ///
    /// # Errors
    /// When to ask again, at the earliest: it waits until then.
    pub fn take(&self, id: DomId, cost: u32, now_ns: u64) -> Result<(), u64> {
        let Queue {
            budget,
            now,
            flows,
            waiting,
        } = &mut *self.lock();
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
        // The first that waits in front of this one has not asked again yet, and keeps its place.
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

    /// Every domain asks for `cost` operations whenever it may, looking once a millisecond; how
    /// many each got within so many milliseconds.
    fn flood(churn: &Churn, domains: &[(u16, u32)], ms: std::ops::Range<u64>) -> Vec<u64> {
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

    /// Row 34: however many domains revoke as fast as they can, together they get what a single
    /// one would. Each gets the same part of it, whatever the size of its calls.
    #[test]
    fn attack_34_grant_churn_has_one_budget_for_the_machine() {
        let churn = Churn::default();
        let domains: Vec<_> = (1..=64)
            .map(|id| (id, [1, 16, 169][id as usize % 3]))
            .collect();
        // The first millisecond has the burst, and is left out.
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
    fn attack_34_who_weighs_more_may_churn_more() {
        let churn = Churn::default();
        for (id, weight) in [(1, 1), (2, 4), (3, 0)] {
            churn.insert(DomId(id), weight);
        }
        let domains = [(1, 16), (2, 16), (3, 16)];
        flood(&churn, &domains, 0..1);
        let got = flood(&churn, &domains, 1..6_000);
        assert!(got[1].abs_diff(4 * got[0]) <= 160, "{got:?}");
        assert!(got[0].abs_diff(got[2]) <= 160, "{got:?}");
    }

    /// An innocent domain's few revocations wait for no more than one call of each of the others.
    #[test]
    fn attack_34_a_storm_of_others_holds_up_nobody_for_long() {
        let churn = Churn::default();
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
    fn one_alone_has_all_of_it() {
        let churn = Churn::default();
        assert_eq!(flood(&churn, &[(1, 1)], 0..1), [u64::from(BURST)]);
        let got = flood(&churn, &[(1, 100)], 1..1001);
        assert_eq!(got, [PER_SECOND]);
        // A domain that waited and is gone does not hold up others.
        let then = churn.take(DomId(1), 8000, 1001 * MS);
        assert_eq!(
            then,
            Err(1001 * MS + 399 * MS),
            "one millisecond's worth is there"
        );
        churn.forget(DomId(1));
        assert_eq!(churn.take(DomId(2), 1, 1002 * MS), Ok(()));
        assert_eq!(churn.take(DomId(2), 8000, 3 * SECOND), Ok(()));
    }
}
