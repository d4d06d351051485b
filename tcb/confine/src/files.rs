//! Landlock: files that a program opens, and processes that it reaches.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::io;

/// The newest version whose restrictions this crate asks for; older kernels apply those they know.
const NEWEST: ABI = ABI::V6;

/// Restricts the calling thread to files beneath `paths`: it opens, reads, writes and shortens
/// them, and runs requests on devices. It makes and removes nothing, binds and connects no TCP
/// socket, and reaches no process outside of this restriction. A path that does not exist is left
/// out. Returns whether the kernel has Landlock.
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

/// Whether the kernel has Landlock. Asks on a thread that restricts itself and ends.
#[must_use]
pub fn has_landlock() -> bool {
    let asked = std::thread::Builder::new().spawn(|| restrict(&[]).is_ok_and(|has| has));
    asked.is_ok_and(|thread| thread.join().unwrap_or(false))
}
