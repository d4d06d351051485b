//! The users that domains and the manager are.

use abi::DomId;

/// A user of a domain's own, or of the manager's, that differs between domains and (mostly) between
/// instances, far from the ids that people use. Where there are no such users they do without.
pub(crate) fn user_of(id: Option<DomId>) -> u32 {
    // Domains have 16 bits below; the manager has what is above them all.
    let base = 0x4000_0000 | (std::process::id() & 0x1fff) << 17;
    id.map_or(base | 1 << 16, |id| base | u32::from(id.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_shares_a_user() {
        let all = [None, Some(DomId(0)), Some(DomId(1)), Some(DomId(u16::MAX))];
        let users: std::collections::BTreeSet<u32> = all.into_iter().map(user_of).collect();
        assert_eq!(users.len(), 4);
        assert!(users.iter().all(|user| *user >= 0x4000_0000));
    }
}
