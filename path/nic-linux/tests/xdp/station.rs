//! A sender and receiver on the other end of a veth pair.

use super::ETHERTYPE;
use netdev::netns::Namespace;
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};
use testing::{TIMEOUT, wait_for};

/// Returns a numbered frame with an EtherType that no other sender uses.
pub(crate) fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 0xaa, 2, 0, 0, 0, 0, 0xbb];
    frame.extend(ETHERTYPE);
    frame.extend(number.to_be_bytes());
    frame.extend((frame.len()..len).map(|at| (at as u32 + number) as u8));
    frame
}

/// A packet socket on an interface.
pub(crate) struct Station(OwnedFd);

impl Station {
    pub(crate) fn new(namespace: &Namespace, ifname: &str) -> Self {
        let protocol = u16::from_be_bytes(ETHERTYPE).to_be();
        let fd = namespace.enter(|| {
            let name = CString::new(ifname).unwrap();
            let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: the first system call has no pointers, and the second one reads the name.
            let (fd, index) = unsafe {
                (
                    libc::socket(libc::AF_PACKET, kind, i32::from(protocol)),
                    libc::if_nametoindex(name.as_ptr()),
                )
            };
            assert!(fd >= 0 && index > 0);
            // SAFETY: all fields are integers and bytes, for which zero is valid.
            let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = index as i32;
            let bytes = size_of_val(&address) as u32;
            // SAFETY: `bind` reads the address, whose size is passed.
            let bound = unsafe { libc::bind(fd, (&raw const address).cast(), bytes) };
            assert_eq!(bound, 0);
            fd
        });
        // SAFETY: the kernel has just returned this descriptor, which has no other owner.
        Self(unsafe { OwnedFd::from_raw_fd(fd.unwrap()) })
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        let send = || {
            let bytes = frame.as_ptr().cast();
            // SAFETY: `write` reads the slice.
            unsafe { libc::write(self.0.as_raw_fd(), bytes, frame.len()) }
        };
        let would_wait = || std::io::Error::last_os_error().kind() == ErrorKind::WouldBlock;
        // The kernel may not have processed earlier frames yet.
        let sent = wait_for("the socket's send buffer is full", || {
            Some(send()).filter(|sent| *sent >= 0 || !would_wait())
        });
        assert_eq!(sent, frame.len() as isize);
    }

    pub(crate) fn receive(&self, count: usize) -> Vec<Vec<u8>> {
        self.receive_within(count, TIMEOUT)
    }

    pub(crate) fn receive_within(&self, count: usize, limit: Duration) -> Vec<Vec<u8>> {
        let end = Instant::now() + limit;
        let mut all = Vec::new();
        while all.len() < count && Instant::now() < end {
            let mut bytes = vec![0; 4096];
            // SAFETY: `read` writes at most the length of the slice.
            let got =
                unsafe { libc::read(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
            if let Ok(got) = usize::try_from(got) {
                bytes.truncate(got);
                all.push(bytes);
            }
        }
        all
    }
}
