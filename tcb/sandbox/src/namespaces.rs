//! The namespaces of a domain: a separate PID namespace, and empty mount and network namespaces.
//!
//! All domains share the empty mount and network namespaces, which are created at the first start.
//! There is nothing in them to share (a read-only file system without files; a network in which no
//! domain can create a socket), and destroying a mount namespace per domain would wait for every
//! CPU each time.

use crate::child::{self, ChildPlan, REPORT_BYTES};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// Empty namespaces.
struct EmptyNamespaces {
    mounts: File,
    network: File,
    /// Whether the file system could not be emptied.
    full_root: bool,
}

/// Forks. In the child, `run` never returns.
fn clone(flags: i32, run: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: a plain fork (no memory is shared); the child only runs `run`, which uses raw system
    // calls and does not return.
    let pid = unsafe {
        let flags = (flags | libc::SIGCHLD) as libc::c_ulong;
        libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0)
    };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            run();
            Err(io::ErrorKind::Other.into())
        }
        pid => Ok(pid as i32),
    }
}

impl EmptyNamespaces {
    fn make() -> io::Result<Self> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let pid = clone(libc::CLONE_NEWNS | libc::CLONE_NEWNET, || {
            // SAFETY: runs in the process just created.
            unsafe { child::hold_void(theirs.as_raw_fd(), ours.as_raw_fd()) }
        })?;
        drop(theirs);
        let mut report = [0; REPORT_BYTES];
        let received = rustix::net::recv(&ours, &mut report, RecvFlags::empty());
        let open = |kind| File::open(format!("/proc/{pid}/ns/{kind}"));
        let (mounts, network) = (open("mnt"), open("net"));
        // The holder ends with the link.
        drop(ours);
        rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty())?;
        let [_, full_root, ..] = report;
        if received?.0 != REPORT_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self {
            mounts: mounts?,
            network: network?,
            full_root: full_root != 0,
        })
    }

    fn get() -> io::Result<&'static Self> {
        static VOID: OnceLock<EmptyNamespaces> = OnceLock::new();
        match VOID.get() {
            Some(void) => Ok(void),
            None => Self::make().map(|void| VOID.get_or_init(|| void)),
        }
    }
}

/// Creates a domain's first process, isolated as far as permitted: for root, in the shared empty
/// namespaces; otherwise in a user namespace with separate empty ones; or, on systems that forbid
/// that, in no new namespaces. Returns its id, and whether it is in new namespaces.
pub(crate) fn fork(
    plan: &ChildPlan<'_>,
    missing: &mut Vec<&'static str>,
) -> io::Result<(i32, bool)> {
    let forbidden = |error: &io::Error| {
        matches!(
            error.raw_os_error(),
            Some(libc::EPERM | libc::EACCES | libc::ENOSPC | libc::EUSERS | libc::EINVAL)
        )
    };
    match EmptyNamespaces::get() {
        Ok(void) => {
            if void.full_root {
                missing.push("an empty file system");
            }
            let enter = Some([void.mounts.as_raw_fd(), void.network.as_raw_fd()]);
            // SAFETY: runs in the process just created.
            let pid = clone(libc::CLONE_NEWPID, || unsafe {
                child::run(plan, enter, false)
            })?;
            return Ok((pid, true));
        }
        Err(error) if forbidden(&error) => {}
        Err(error) => return Err(error),
    }
    let all = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    // SAFETY: runs in the process just created.
    match clone(all, || unsafe { child::run(plan, None, true) }) {
        Ok(pid) => return Ok((pid, true)),
        Err(error) if forbidden(&error) => {}
        Err(error) => return Err(error),
    }
    missing.push("separate namespaces (PID, mount, network)");
    // SAFETY: runs in the process just created.
    let pid = clone(0, || unsafe { child::run(plan, None, false) })?;
    Ok((pid, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::HANDED;
    use std::os::fd::{AsFd, OwnedFd, RawFd};

    /// Returns a duplicate with a number outside the arranged range.
    fn aside(fd: impl AsFd) -> OwnedFd {
        rustix::io::fcntl_dupfd_cloexec(fd, 100).expect("a descriptor")
    }

    /// Otherwise their numbers would depend on descriptors that the program opens and closes
    /// meanwhile.
    #[test]
    fn namespace_descriptors_may_have_any_number() {
        const LOW: [RawFd; 2] = [HANDED as RawFd - 2, HANDED as RawFd - 1];
        let void = match EmptyNamespaces::get() {
            Ok(void) => void,
            // Without the right to create them, no domain enters them.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return,
            Err(error) => panic!("the empty namespaces: {error}"),
        };
        let (mounts, network) = (aside(&void.mounts), aside(&void.network));
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a link");
        let (ours, theirs) = (aside(ours), aside(theirs));
        let null = aside(File::open("/dev/null").expect("a file"));
        let plan = ChildPlan {
            link: theirs.as_raw_fd(),
            other_end: ours.as_raw_fd(),
            program: null.as_raw_fd(),
            argv: &[std::ptr::null()],
            fds: [null.as_raw_fd(); HANDED],
            cpu: rustix::thread::sched_getcpu(),
        };
        // SAFETY: runs in the process just created.
        let pid = clone(0, || unsafe {
            libc::dup2(mounts.as_raw_fd(), LOW[0]);
            libc::dup2(network.as_raw_fd(), LOW[1]);
            child::run(&plan, Some(LOW), false)
        })
        .expect("a process");
        drop(theirs);
        rustix::net::send(&ours, &[1], rustix::net::SendFlags::empty()).expect("its order to go");
        let mut report = [0; REPORT_BYTES];
        let received = rustix::net::recv(&ours, &mut report, RecvFlags::empty()).expect("a report");
        rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty()).expect("its end");
        assert_eq!(received.0, REPORT_BYTES);
        assert_eq!(
            report[0],
            child::StartStep::Ready as u8,
            "{}",
            child::StartStep::text(report[0])
        );
    }
}
