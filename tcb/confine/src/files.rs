//! Landlock: the files that a program may open, and the processes that it may reach.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::io;

/// The newest Landlock version that this crate requests; older kernels apply the restrictions that
/// they support.
const NEWEST: ABI = ABI::V6;

/// Restricts the calling thread to files beneath `paths`, which it may open, read, write and
/// truncate, and send device requests to. The thread cannot create or remove files, bind or connect
/// TCP sockets, or reach processes outside this restriction. Paths that do not exist are skipped.
/// Returns whether the kernel supports Landlock.
pub(crate) fn restrict(paths: &[&str]) -> io::Result<bool> {
    let wanted: BitFlags<AccessFs> =
        AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    for path in paths {
        if let Ok(fd) = PathFd::new(path) {
            let rule = PathBeneath::new(fd, wanted);
            rules = rules.add_rule(rule).map_err(io::Error::other)?;
        }
    }
    let status = rules.restrict_self().map_err(io::Error::other)?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Returns whether the kernel supports Landlock. Tests it on a thread that restricts itself and
/// ends.
#[must_use]
pub fn has_landlock() -> bool {
    let spawned = std::thread::Builder::new().spawn(|| restrict(&[]).is_ok_and(|has| has));
    spawned.is_ok_and(|thread| thread.join().unwrap_or(false))
}
