//! The deadlines of the main loop, in one queue.

use std::collections::{BTreeMap, BTreeSet};

/// A queue of deadlines, at most one for each key. Every operation takes logarithmic time; replaced
/// and cancelled deadlines occupy no memory.
#[derive(Debug)]
pub(crate) struct Deadlines<K> {
    by_key: BTreeMap<K, u64>,
    by_time: BTreeSet<(u64, K)>,
}

impl<K: Ord + Clone> Deadlines<K> {
    pub(crate) fn new() -> Self {
        Self {
            by_key: BTreeMap::new(),
            by_time: BTreeSet::new(),
        }
    }

    /// Sets the deadline of a key, which replaces an earlier one. `None` cancels the deadline.
    pub(crate) fn set(&mut self, key: K, at_ns: impl Into<Option<u64>>) {
        let at_ns = at_ns.into();
        let before = match at_ns {
            Some(at_ns) => self.by_key.insert(key.clone(), at_ns),
            None => self.by_key.remove(&key),
        };
        if let Some(before) = before {
            self.by_time.remove(&(before, key.clone()));
        }
        self.by_time.extend(at_ns.map(|at_ns| (at_ns, key)));
    }

    /// Returns whether a key has a pending deadline.
    pub(crate) fn has(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }

    /// Returns the time of the earliest deadline.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.by_time.first().map(|(at_ns, _)| *at_ns)
    }

    /// Removes the earliest deadline if it has passed, and returns its key.
    pub(crate) fn expire(&mut self, now_ns: u64) -> Option<K> {
        self.next_ns().filter(|at_ns| *at_ns <= now_ns)?;
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Set(u8, u64),
        Cancel(u8),
        /// Advances the time and takes all deadlines that are due.
        Pass(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let key = 0..6_u8;
        prop_oneof![
            4 => (key.clone(), 0..40_u64).prop_map(|(key, ahead)| Op::Set(key, ahead)),
            1 => key.prop_map(Op::Cancel),
            2 => (0..12_u64).prop_map(Op::Pass),
        ]
    }

    fn config() -> ProptestConfig {
        ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        }
    }

    proptest! {
        #![proptest_config(config())]

        /// No deadline expires early, is lost or expires twice, and the queue holds only pending
        /// deadlines.
        #[test]
        fn deadlines_expire_in_order_and_once(ops in prop::collection::vec(op(), 0..200)) {
            let mut queue = Deadlines::new();
            let mut set = BTreeMap::new();
            let mut now = 20;
            for op in ops {
                match op {
                    // Some of these deadlines have passed already.
                    Op::Set(key, ahead) => {
                        queue.set(key, now + ahead - 20);
                        set.insert(key, now + ahead - 20);
                    }
                    Op::Cancel(key) => {
                        queue.set(key, None);
                        set.remove(&key);
                    }
                    Op::Pass(time) => {
                        now += time;
                        let mut last = 0;
                        while let Some(key) = queue.expire(now) {
                            let at: u64 = set.remove(&key).expect("a deadline that is not set");
                            prop_assert!((last..=now).contains(&at), "{at} after {last} at {now}");
                            last = at;
                        }
                        prop_assert!(set.values().all(|at| *at > now), "{set:?} at {now}");
                    }
                }
                prop_assert_eq!(queue.next_ns(), set.values().min().copied());
                prop_assert!((0..6).all(|key| queue.has(&key) == set.contains_key(&key)));
                prop_assert_eq!((queue.by_key.len(), queue.by_time.len()), (set.len(), set.len()));
            }
        }
    }
}
