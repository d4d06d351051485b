//! Landlock: the files that a program may open, and the processes that it may access.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::io;

/// The newest Landlock version that this crate requests. Older kernels apply the restrictions that
/// they support.
const LANDLOCK_ABI: ABI = ABI::V6;

/// Restricts the calling thread to files beneath `paths`. It may open, read, write and truncate
/// these files, and send device requests to them. The thread cannot create or remove files, bind or
/// connect TCP sockets, or access processes outside this restriction. Skips paths that do not
/// exist. Returns whether the kernel supports Landlock.
pub(crate) fn restrict(paths: &[&str]) -> io::Result<bool> {
    let wanted: BitFlags<AccessFs> =
        AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(LANDLOCK_ABI)))
        .and_then(|rules| rules.scope(Scope::from_all(LANDLOCK_ABI)))
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

/// Returns whether the kernel supports Landlock. Tests the support in a thread that restricts
/// itself and exits.
#[must_use]
pub fn has_landlock() -> bool {
    let spawned =
        std::thread::Builder::new().spawn(|| restrict(&[]).is_ok_and(|is_supported| is_supported));
    spawned.is_ok_and(|thread| thread.join().unwrap_or(false))
}
