//! User ids of confined processes.
//!
//! Every domain and helper has a user id that no other process has. It is derived from the process
//! id and from the PID namespace, so that machines in different containers rarely share an id. The
//! ids lie between those that systemd-nspawn assigns to containers (up to 1 879 048 191) and
//! systemd's for foreign users (from 2 147 352 576), and above `/etc/subuid` (up to 600 100 000)
//! and the directory services' default range (up to 2 000 200 000).

/// The first id.
const FIRST: u32 = 0x7780_0000;
/// The number of bits of the kernel's largest process id.
const PID_BITS: u32 = 22;
/// The number of PID namespaces that are distinguished.
const NAMESPACES: u64 = 32;

/// Returns the user id of process `pid` in the PID namespace whose file has the inode number
/// `namespace`.
#[must_use]
pub fn user_of(pid: u32, namespace: u64) -> u32 {
    FIRST + (((namespace % NAMESPACES) as u32) << PID_BITS | pid & ((1 << PID_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_outside_all_other_ranges() {
        const NSPAWN_LAST: u32 = 1_879_048_191;
        const DIRECTORY_LAST: u32 = 2_000_200_000;
        const FOREIGN_FIRST: u32 = 2_147_352_576;
        for pid in [0, 1, 8192, (1 << PID_BITS) - 1, u32::MAX] {
            for namespace in [0, 31, 4_026_531_836, u64::MAX] {
                let user = user_of(pid, namespace);
                assert!(user > NSPAWN_LAST.max(DIRECTORY_LAST));
                assert!(user < FOREIGN_FIRST);
            }
        }
    }

    #[test]
    fn processes_have_different_ids() {
        let pids = [1, 2, 8193, 16_385, 65_537, (1 << PID_BITS) - 1];
        let mut all = BTreeSet::new();
        for namespace in [4_026_531_836, 4_026_532_201] {
            all.extend(pids.map(|pid| user_of(pid, namespace)));
        }
        assert_eq!(all.len(), 2 * pids.len());
    }
}
