//! Confinement of a program: its user, capabilities, files and system calls. The core's helpers
//! confine themselves, and so does the driver domain on Xen. [`confine`] confines the calling
//! thread and all threads that it starts, so a program calls it before it starts threads.
//!
//! A call that is not on the list fails with EPERM. No list contains a call that starts a program,
//! traces a process, or mounts. [`roles`] has the rights of each helper.

mod calls;
mod files;
mod probe;
pub mod roles;

pub use calls::{AllowedCall, COMMON_CALLS, CallCondition, SERVER_CALLS};
pub use files::has_landlock;
pub use probe::probe;
pub use rustix::thread::CapabilitySet;

use rustix::process::{
    DumpableBehavior, Gid, Signal, Uid, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use std::io;
use std::os::unix::fs::MetadataExt;

/// The rights that a program keeps.
#[derive(Clone, Copy, Debug)]
pub struct Rights<'a> {
    /// The program's name, for messages.
    pub name: &'a str,
    /// The user and group to which the program changes. Unset: unchanged.
    pub user: Option<u32>,
    /// The capabilities that the program keeps, if it has them.
    pub capabilities: CapabilitySet,
    /// Whether the kernel kills the program when its parent exits.
    pub ends_with_parent: bool,
    /// The files that the program may open, and the folders beneath which it may open files. Unset:
    /// no Landlock. Landlock also denies access to other processes: their memory, descriptors and
    /// namespaces, and signals to them.
    pub files: Option<&'a [&'a str]>,
    /// The allowed system calls. For a call that is listed twice, the later entry applies.
    pub calls: &'a [&'a [AllowedCall]],
}

/// Returns a user id that no other process has, if this process belongs to root.
#[must_use]
pub fn own_user() -> Option<u32> {
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino());
    let own = abi::user_ids::user_of(std::process::id(), namespace);
    rustix::process::geteuid().is_root().then_some(own)
}

/// Drops all rights except `rights`. Returns the restrictions that this system does not support.
///
/// # Errors
/// Returns an error if capabilities could not be dropped, or the filter could not be installed. The
/// caller must then exit.
pub fn confine(rights: &Rights<'_>) -> io::Result<Vec<String>> {
    let mut missing = Vec::new();
    let had = capabilities(None)?.permitted;
    // This is the first step, because it needs a capability. A failure is harmless: with
    // NO_NEW_PRIVS (below), the program cannot regain capabilities that remain in the bounding set.
    for capability in had.difference(rights.capabilities).iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
    // Without this flag, the change of user would drop all capabilities.
    set_keep_capabilities(!rights.capabilities.is_empty())?;
    if let Some(user) = rights.user
        && become_user(user).is_err()
    {
        missing.push(format!("a separate user for {}", rights.name));
    }
    let kept = capabilities(None)?
        .permitted
        .intersection(rights.capabilities);
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    set_keep_capabilities(false)?;
    clear_ambient_capability_set()?;
    if rights.capabilities.is_empty() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    }
    set_no_new_privs(true)?;
    if rights.ends_with_parent {
        // Set after the change of user, which resets the signal. If the parent has exited already,
        // its end of the link is closed, and the program exits as well.
        set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    if let Some(files) = rights.files
        && !files::restrict(files)?
    {
        missing.push(format!("Landlock for {} (Linux 5.13)", rights.name));
    }
    for filter in [no_clone3(), filter(rights.calls)] {
        apply_filter(&filter.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    Ok(missing)
}

fn become_user(user: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Returns a filter by which clone3 fails with ENOSYS. The C library tries clone3 first, whose
/// flags a filter cannot read, and falls back to clone only after ENOSYS. If two filters disagree,
/// the denial applies.
fn no_clone3() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = [(libc::SYS_clone3, vec![])].into_iter().collect();
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, unknown, TargetArch::x86_64)?.try_into()
}

/// Returns the filter that allows these calls.
fn filter(calls: &[&[AllowedCall]]) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules = std::collections::BTreeMap::new();
    for call in calls.iter().copied().flatten() {
        let rule = |argument, operation, value| {
            let length = SeccompCmpArgLen::Qword;
            let condition = SeccompCondition::new(argument, length, operation, value)?;
            SeccompRule::new(vec![condition])
        };
        let of = match call.when {
            CallCondition::Always => vec![],
            CallCondition::Is(argument, value) => vec![rule(argument, SeccompCmpOp::Eq, value)?],
            CallCondition::Own(argument) => {
                vec![rule(argument, SeccompCmpOp::Eq, std::process::id().into())?]
            }
            CallCondition::Has(argument, bits) => {
                vec![rule(argument, SeccompCmpOp::MaskedEq(bits), bits)?]
            }
            CallCondition::HasNot(argument, bits) => {
                vec![rule(argument, SeccompCmpOp::MaskedEq(bits), 0)?]
            }
            CallCondition::OneOf(argument, values) => {
                let is = |value: &u64| rule(argument, SeccompCmpOp::Eq, *value);
                values.iter().map(is).collect::<Result<_, _>>()?
            }
        };
        rules.insert(call.number, of);
    }
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, denied, SeccompAction::Allow, TargetArch::x86_64)?;
    filter.try_into()
}

#[cfg(test)]
mod tests;
