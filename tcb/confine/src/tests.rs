use super::*;
use crate::roles::{MANAGER, NETD};
use rustix::io::Errno;
use std::fs::File;

mod tables;

/// Runs `work` in a confined thread, which exits afterwards.
fn confined<T: Send>(rights: &Rights<'_>, work: impl FnOnce(String) -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let status = File::open("/proc/thread-self/status").unwrap();
            confine(rights).unwrap();
            work(std::io::read_to_string(status).unwrap())
        });
        thread.join().unwrap()
    })
}

#[test]
fn a_manager_has_no_capability_and_opens_nothing() {
    let (status, opened, started, made) = confined(&MANAGER, |status| {
        let opened = File::open("/dev/null").map(drop);
        let started = std::process::Command::new("/bin/true").spawn().map(drop);
        let made = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        );
        (status, opened, started, made.map(drop))
    });
    for line in ["CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
    let denied = Some(libc::EPERM);
    assert_eq!(opened.unwrap_err().raw_os_error(), denied);
    assert_eq!(started.unwrap_err().raw_os_error(), denied);
    assert_eq!(made, Err(Errno::PERM));
}

#[test]
fn netd_enters_only_network_namespaces() {
    let entered = confined(&NETD, |_| {
        let own = File::open("/proc/thread-self/ns/user").unwrap();
        let kind = rustix::thread::LinkNameSpaceType::User;
        rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&own), Some(kind))
    });
    assert_eq!(entered, Err(Errno::PERM));
}

#[test]
fn only_listed_requests_are_allowed() {
    const REQUESTS: &[AllowedCall] = &[AllowedCall {
        number: libc::SYS_ioctl,
        when: CallCondition::OneOf(1, &[libc::FIONBIO, libc::FIONREAD]),
    }];
    let rights = Rights {
        calls: &[COMMON_CALLS, REQUESTS],
        ..MANAGER
    };
    let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (blocking, waiting, cloexec) = confined(&rights, |_| {
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
fn a_confined_thread_can_start_threads() {
    assert_eq!(
        confined(&MANAGER, |_| std::thread::spawn(|| 2).join().unwrap()),
        2
    );
}

#[test]
fn netd_opens_only_taps_and_network_settings() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own");
    std::fs::write(&own, "").unwrap();
    let places = [
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/thread-self/ns/net",
        "/etc/passwd",
        "/proc/self/status",
        own.to_str().unwrap(),
    ];
    let (opened, made) = confined(&NETD, |_| {
        let opened = places.map(|path| File::open(path).is_ok());
        (opened, File::create_new(dir.path().join("new")).is_ok())
    });
    if has_landlock() {
        assert_eq!((opened, made), ([true, true, false, false, false], false));
    }
}
