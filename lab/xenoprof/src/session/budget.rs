//! Bounds on the initiator's memory for participants, per participant and in total.

/// Maximum bytes of memory for the data of one participant.
const EACH_BYTES: usize = 512 << 20;
/// Maximum bytes of memory for the data of all participants.
const ALL_BYTES: usize = 1 << 30;

/// Memory in use for all participants.
#[derive(Debug)]
pub(super) struct Budget {
    each: usize,
    all: usize,
    kept: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            each: EACH_BYTES,
            all: ALL_BYTES,
            kept: 0,
        }
    }
}

/// Memory in use for one participant, bytes.
#[derive(Debug, Default)]
pub(super) struct MemoryInUse(usize);

impl Budget {
    /// Reserves `bytes` before they are stored.
    ///
    /// # Errors
    /// Returns the reason for removing the participant if its share or the total is exceeded.
    pub(super) fn charge(&mut self, kept: &mut MemoryInUse, bytes: usize) -> Result<(), String> {
        let own = kept.0.saturating_add(bytes);
        if own > self.each {
            return Err("sent too much data".to_owned());
        }
        let all = self.kept.saturating_add(bytes);
        if all > self.all {
            return Err("sent too much data, together with the others".to_owned());
        }
        (kept.0, self.kept) = (own, all);
        Ok(())
    }

    /// Releases the memory of a removed participant.
    pub(super) fn forget(&mut self, kept: MemoryInUse) {
        self.kept = self.kept.saturating_sub(kept.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_bound_each_participant_and_all() {
        let mut budget = Budget {
            each: 10,
            all: 15,
            kept: 0,
        };
        let (mut a, mut b) = (MemoryInUse::default(), MemoryInUse::default());
        assert!(budget.charge(&mut a, 6).is_ok());
        let error = budget.charge(&mut a, 5).unwrap_err();
        assert_eq!(error, "sent too much data");
        assert!(budget.charge(&mut a, usize::MAX).is_err());
        assert!(
            budget.charge(&mut a, 4).is_ok(),
            "rejected data are not charged"
        );
        let error = budget.charge(&mut b, 6).unwrap_err();
        assert!(error.contains("the others"), "{error}");
        budget.forget(a);
        assert!(budget.charge(&mut b, 10).is_ok());
    }
}
