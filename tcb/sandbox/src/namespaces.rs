//! The namespaces of a domain: a separate PID namespace, and empty mount and network namespaces.
//!
//! All domains share the empty mount and network namespaces, which are created at the first start.
//! Sharing is harmless, because the file system is read-only and has no files, and no domain can
//! create a socket in the network. It is also faster: the destruction of a mount namespace waits
//! for every CPU.

use crate::child::{self, ChildPlan, REPORT_BYTES};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// The empty namespaces.
struct EmptyNamespaces {
    mounts: File,
    network: File,
    /// Whether the file system still has files, because it could not be emptied.
    has_files: bool,
}

/// Forks. In the child, `run` never returns.
fn clone(flags: i32, run: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: this is a plain fork without shared memory. The child only runs `run`, which uses raw
    // system calls and does not return.
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
    fn create() -> io::Result<Self> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let pid = clone(libc::CLONE_NEWNS | libc::CLONE_NEWNET, || {
            // SAFETY: this runs in the process that was just created.
            unsafe { child::hold_empty_namespaces(theirs.as_raw_fd(), ours.as_raw_fd()) }
        })?;
        drop(theirs);
        let mut report = [0; REPORT_BYTES];
        let received = rustix::net::recv(&ours, &mut report, RecvFlags::empty());
        let open = |kind| File::open(format!("/proc/{pid}/ns/{kind}"));
        let (mounts, network) = (open("mnt"), open("net"));
        // The process that holds the namespaces exits when the link is closed.
        drop(ours);
        rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty())?;
        let [_, has_files, ..] = report;
        if received?.0 != REPORT_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self {
            mounts: mounts?,
            network: network?,
            has_files: has_files != 0,
        })
    }

    fn get() -> io::Result<&'static Self> {
        static NAMESPACES: OnceLock<EmptyNamespaces> = OnceLock::new();
        match NAMESPACES.get() {
            Some(namespaces) => Ok(namespaces),
            None => Self::create().map(|namespaces| NAMESPACES.get_or_init(|| namespaces)),
        }
    }
}

/// Creates a domain's first process, isolated as far as the system permits. For root, the process
/// is in the shared empty namespaces; otherwise in a user namespace with separate empty namespaces,
/// or, on systems that forbid user namespaces, in no new namespaces. Returns its id, and whether it
/// is in new namespaces.
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
        Ok(namespaces) => {
            if namespaces.has_files {
                missing.push("an empty file system");
            }
            let enter = Some([
                namespaces.mounts.as_raw_fd(),
                namespaces.network.as_raw_fd(),
            ]);
            // SAFETY: this runs in the process that was just created.
            let pid = clone(libc::CLONE_NEWPID, || unsafe {
                child::run(plan, enter, false)
            })?;
            return Ok((pid, true));
        }
        Err(error) if forbidden(&error) => {}
        Err(error) => return Err(error),
    }
    let all = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    // SAFETY: this runs in the process that was just created.
    match clone(all, || unsafe { child::run(plan, None, true) }) {
        Ok(pid) => return Ok((pid, true)),
        Err(error) if forbidden(&error) => {}
        Err(error) => return Err(error),
    }
    missing.push("separate namespaces (PID, mount, network)");
    // SAFETY: this runs in the process that was just created.
    let pid = clone(0, || unsafe { child::run(plan, None, false) })?;
    Ok((pid, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::INITIAL_FDS;
    use std::os::fd::{AsFd, OwnedFd, RawFd};

    /// Returns a duplicate with a number above those of the initial descriptors.
    fn duplicate(fd: impl AsFd) -> OwnedFd {
        rustix::io::fcntl_dupfd_cloexec(fd, 100).expect("a descriptor")
    }

    /// The numbers depend on descriptors that the monitor opens and closes meanwhile, so they may
    /// equal those of a domain's initial descriptors.
    #[test]
    fn namespace_descriptors_may_have_any_number() {
        const LOW: [RawFd; 2] = [INITIAL_FDS as RawFd - 2, INITIAL_FDS as RawFd - 1];
        let namespaces = match EmptyNamespaces::get() {
            Ok(namespaces) => namespaces,
            // Without the right to create these namespaces, no domain enters them.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return,
            Err(error) => panic!("the empty namespaces: {error}"),
        };
        let (mounts, network) = (
            duplicate(&namespaces.mounts),
            duplicate(&namespaces.network),
        );
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a link");
        let (ours, theirs) = (duplicate(ours), duplicate(theirs));
        let null = duplicate(File::open("/dev/null").expect("a file"));
        let plan = ChildPlan {
            link: theirs.as_raw_fd(),
            other_end: ours.as_raw_fd(),
            program: null.as_raw_fd(),
            argv: &[std::ptr::null()],
            fds: [null.as_raw_fd(); INITIAL_FDS],
            cpu: rustix::thread::sched_getcpu(),
        };
        // SAFETY: this runs in the process that was just created.
        let pid = clone(0, || unsafe {
            libc::dup2(mounts.as_raw_fd(), LOW[0]);
            libc::dup2(network.as_raw_fd(), LOW[1]);
            child::run(&plan, Some(LOW), false)
        })
        .expect("a process");
        drop(theirs);
        rustix::net::send(&ours, &[1], rustix::net::SendFlags::empty())
            .expect("the go-ahead is sent");
        let mut report = [0; REPORT_BYTES];
        let received = rustix::net::recv(&ours, &mut report, RecvFlags::empty()).expect("a report");
        rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty()).expect("it is reaped");
        assert_eq!(received.0, REPORT_BYTES);
        assert_eq!(
            report[0],
            child::StartStep::Ready as u8,
            "{}",
            child::StartStep::text(report[0])
        );
    }
}
