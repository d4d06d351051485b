//! What a program gives up before it does anything else: the user that it was started as,
//! capabilities, and every system call that it has no use for. The core's helpers do so, and the
//! driver domain on Xen. Of the calling thread, and so of all that it starts: to be done first.
//!
//! A call that is not on the list fails with EPERM. None of the lists has one that starts a
//! program, traces a process, or mounts.

mod calls;
mod probe;

pub use calls::{COMMON, Call, MANAGER, NETD, When};
pub use probe::probe;
pub use rustix::thread::CapabilitySet;

use rustix::process::{
    DumpableBehavior, Gid, Signal, Uid, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::{
    CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use std::io;

/// What is left to a program.
#[derive(Clone, Copy, Debug)]
pub struct Rights<'a> {
    /// Who it is, for messages.
    pub name: &'a str,
    /// The user and group that it becomes; none: it stays who it is.
    pub user: Option<u32>,
    /// Capabilities that it keeps, of those that it has.
    pub keep: CapabilitySet,
    /// Whether it ends when its parent does.
    pub ends_with_parent: bool,
    /// System calls; of one that is listed twice, the later line counts.
    pub calls: &'a [&'a [Call]],
}

/// Gives up everything but `rights`. Returns, in words, what this system could not take away.
///
/// # Errors
/// Capabilities are kept, or the filter is not in force. The program must not go on then.
pub fn confine(rights: &Rights<'_>) -> io::Result<Vec<String>> {
    let mut missing = Vec::new();
    let had = capabilities(None)?.permitted;
    // Needs a capability itself, so that it comes first; what is not in the bounding set or cannot
    // be taken out of it cannot be regained either: there are no new privileges (below).
    for capability in had.difference(rights.keep).iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
    if let Some(user) = rights.user
        && become_user(user).is_err()
    {
        missing.push(format!("an own user for the {}", rights.name));
    }
    let kept = capabilities(None)?.permitted.intersection(rights.keep);
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    clear_ambient_capability_set()?;
    if rights.keep.is_empty() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    }
    set_no_new_privs(true)?;
    if rights.ends_with_parent {
        // After the change of user, which would take it back. If the parent is gone already, its
        // end of the link is closed, and that ends us as well.
        set_parent_process_death_signal(Some(Signal::KILL))?;
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

/// The C library tries clone3 first, whose flags a filter cannot see, and understands only this as
/// "use clone". Of two filters the one that denies counts.
fn no_clone3() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = [(libc::SYS_clone3, vec![])].into_iter().collect();
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, unknown, TargetArch::x86_64)?.try_into()
}

/// The filter that lets these calls through.
fn filter(calls: &[&[Call]]) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules = std::collections::BTreeMap::new();
    for call in calls.iter().copied().flatten() {
        let rule = |argument, operation, value| {
            let length = SeccompCmpArgLen::Qword;
            let condition = SeccompCondition::new(argument, length, operation, value)?;
            SeccompRule::new(vec![condition])
        };
        let of = match call.when {
            When::Always => vec![],
            When::Is(argument, value) => vec![rule(argument, SeccompCmpOp::Eq, value)?],
            When::Has(argument, bits) => vec![rule(argument, SeccompCmpOp::MaskedEq(bits), bits)?],
            When::HasNot(argument, bits) => vec![rule(argument, SeccompCmpOp::MaskedEq(bits), 0)?],
            When::OneOf(argument, values) => {
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
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// In a thread of its own, which is confined for good.
    fn confined<T: Send>(calls: &[&[Call]], work: impl FnOnce(String) -> T + Send) -> T {
        let rights = Rights {
            name: "test",
            user: None,
            keep: CapabilitySet::empty(),
            ends_with_parent: true,
            calls,
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let status = std::fs::File::open("/proc/thread-self/status").unwrap();
                confine(&rights).unwrap();
                work(std::io::read_to_string(status).unwrap())
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn a_manager_has_no_capability_and_opens_nothing() {
        let (left, opened, started, made) = confined(MANAGER, |left| {
            let opened = std::fs::File::open("/dev/null").map(drop);
            let started = std::process::Command::new("/bin/true").spawn().map(drop);
            let made = rustix::net::socket(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                None,
            );
            (left, opened, started, made.map(drop))
        });
        for line in ["CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
            assert!(left.contains(line), "{left}");
        }
        let denied = Some(libc::EPERM);
        assert_eq!(opened.unwrap_err().raw_os_error(), denied);
        assert_eq!(started.unwrap_err().raw_os_error(), denied);
        assert_eq!(made, Err(Errno::PERM));
    }

    #[test]
    fn netd_opens_devices_and_enters_no_namespace_but_a_networks() {
        let (opened, left) = confined(NETD, |_| {
            let opened = std::fs::File::open("/dev/null").map(drop);
            let user = std::fs::File::open("/proc/self/ns/user").unwrap();
            let kind = rustix::thread::LinkNameSpaceType::User;
            let left = rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&user),
                Some(kind),
            );
            (opened, left)
        });
        assert!(opened.is_ok());
        assert_eq!(left, Err(Errno::PERM));
    }

    #[test]
    fn requests_of_a_list_are_made_and_no_others() {
        const REQUESTS: &[Call] = &[Call {
            number: libc::SYS_ioctl,
            when: When::OneOf(1, &[libc::FIONBIO, libc::FIONREAD]),
        }];
        let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (blocking, waiting, cloexec) = confined(&[COMMON, REQUESTS], |_| {
            (
                end.set_nonblocking(true),
                rustix::io::ioctl_fionread(&end),
                rustix::io::ioctl_fioclex(&end),
            )
        });
        assert!(blocking.is_ok());
        assert_eq!(waiting, Ok(0));
        assert_eq!(cloexec, Err(Errno::PERM));
    }

    #[test]
    fn a_confined_thread_starts_threads() {
        assert_eq!(
            confined(MANAGER, |_| std::thread::spawn(|| 2).join().unwrap()),
            2
        );
    }
}
