//! The user ids that domains and the manager run under.

use abi::DomId;

/// The user id of a domain, or of the manager (`None`). No two of an instance have the same, two
/// instances seldom do, and people's ids are far below. In a user namespace without such ids a
/// process keeps the user that it was started by.
pub(crate) fn user_of(id: Option<DomId>) -> u32 {
    // The lower 16 bits are the domain's number; the bit above them is the manager's.
    let base = 0x4000_0000 | (std::process::id() & 0x1fff) << 17;
    id.map_or(base | 1 << 16, |id| base | u32::from(id.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_user_id_of_its_own() {
        let all = [None, Some(DomId(0)), Some(DomId(1)), Some(DomId(u16::MAX))];
        let users: std::collections::BTreeSet<u32> = all.into_iter().map(user_of).collect();
        assert_eq!(users.len(), 4);
        assert!(users.iter().all(|user| *user >= 0x4000_0000));
    }
}
