//! What participants may make the initiator keep: so much each, and so much in sum.

/// Bytes of memory for what one participant sent.
const EACH_BYTES: usize = 512 << 20;
/// Bytes of memory for what all of them sent.
const ALL_BYTES: usize = 1 << 30;

/// What is kept of all participants.
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

/// What is kept of one participant, bytes.
#[derive(Debug, Default)]
pub(super) struct Kept(usize);

impl Budget {
    /// Takes `bytes` out of what may be kept, before they are.
    ///
    /// # Errors
    /// Whose share that is more than, in words about the participant.
    pub(super) fn charge(&mut self, kept: &mut Kept, bytes: usize) -> Result<(), String> {
        let own = kept.0.saturating_add(bytes);
        if own > self.each {
            return Err("sent more than a participant may".to_owned());
        }
        let all = self.kept.saturating_add(bytes);
        if all > self.all {
            return Err("sent more than there is room for, with what the others sent".to_owned());
        }
        (kept.0, self.kept) = (own, all);
        Ok(())
    }

    /// Gives back what was kept of a participant that is forgotten.
    pub(super) fn forget(&mut self, kept: Kept) {
        self.kept = self.kept.saturating_sub(kept.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_one_nor_all_together_get_more_than_their_share() {
        let mut budget = Budget {
            each: 10,
            all: 15,
            kept: 0,
        };
        let (mut a, mut b) = (Kept::default(), Kept::default());
        assert!(budget.charge(&mut a, 6).is_ok());
        let error = budget.charge(&mut a, 5).unwrap_err();
        assert_eq!(error, "sent more than a participant may");
        assert!(budget.charge(&mut a, usize::MAX).is_err());
        assert!(
            budget.charge(&mut a, 4).is_ok(),
            "what was refused is not kept"
        );
        let error = budget.charge(&mut b, 6).unwrap_err();
        assert!(error.contains("the others"), "{error}");
        budget.forget(a);
        assert!(budget.charge(&mut b, 10).is_ok());
    }
}
