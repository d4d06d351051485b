//! The policy of the `FORWARD` chain of the older `iptables`, whose rules nf_tables does not list
//! (linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h). Only tools use this
//! module, not netd.

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, with equal values in both families.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
const NAME: &[u8] = b"filter";
const NAME_BYTES: usize = 32;
const FORWARD: usize = 2;
/// Bytes of `struct ipt_get_entries` before the entries.
const ENTRIES_AT: usize = 40;
/// The offset of a standard target's verdict, after `struct xt_entry_target`.
const VERDICT_AT: usize = 32;
/// The verdict of a policy that drops: `-NF_DROP - 1`.
const DROP: i32 = -1;

/// `struct ipt_getinfo`.
#[repr(C)]
#[derive(Default)]
struct Info {
    name: [u8; NAME_BYTES],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    entries: u32,
    size: u32,
}

/// One of the two families.
#[derive(Clone, Copy)]
pub(crate) struct IpFamily {
    /// The program that lists and changes the family's rules.
    pub(crate) program: &'static str,
    family: AddressFamily,
    level: libc::c_int,
    names: &'static str,
    /// The offset, within an entry, of its target's offset.
    target_offset_at: usize,
}

pub(crate) const IPV4: IpFamily = IpFamily {
    program: "iptables-legacy",
    family: AddressFamily::INET,
    level: libc::SOL_IP,
    names: "/proc/thread-self/net/ip_tables_names",
    target_offset_at: 88,
};

pub(crate) const IPV6: IpFamily = IpFamily {
    program: "ip6tables-legacy",
    family: AddressFamily::INET6,
    level: libc::SOL_IPV6,
    names: "/proc/thread-self/net/ip6_tables_names",
    target_offset_at: 140,
};

/// Parses entries of a hostile kernel, with the policy at several offsets.
#[cfg(feature = "testing")]
pub(crate) fn read_hostile(entries: &[u8]) {
    for family in [IPV4, IPV6] {
        for at in [0, entries.len() / 2, entries.len(), usize::MAX] {
            let verdict = family.verdict(entries, at);
            assert!(verdict.is_none() || entries.len() >= at + VERDICT_AT + size_of::<i32>());
        }
    }
}

impl IpFamily {
    /// Returns the bytes of the rules of the calling thread's namespace if the policy of the
    /// `FORWARD` chain drops packets. Does not create a table that is not in use.
    pub(crate) fn dropping(self) -> io::Result<Option<Vec<u8>>> {
        let names = std::fs::read_to_string(self.names).unwrap_or_default();
        if !names.lines().any(|name| name.as_bytes() == NAME) {
            return Ok(None);
        }
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let protocol = Some(rustix::net::ipproto::RAW);
        let socket = rustix::net::socket_with(self.family, kind, flags, protocol)?;
        let mut info = Info::default();
        for (to, from) in info.name.iter_mut().zip(NAME) {
            *to = *from;
        }
        // SAFETY: the option reads and writes one `struct ipt_getinfo`, whose layout `Info` has.
        unsafe { self.get(&socket, GET_INFO, (&raw mut info).cast(), size_of::<Info>()) }?;
        let mut bytes = vec![0u8; ENTRIES_AT + info.size as usize];
        for (to, from) in bytes.iter_mut().zip(info.name) {
            *to = from;
        }
        if let Some(size) = bytes.get_mut(NAME_BYTES..NAME_BYTES + 4) {
            size.copy_from_slice(&info.size.to_ne_bytes());
        }
        let len = bytes.len();
        // SAFETY: the option reads the name and the size, and writes entries of that size after
        // them. It copies byte by byte and needs no alignment.
        unsafe { self.get(&socket, GET_ENTRIES, bytes.as_mut_ptr().cast(), len) }?;
        let entries = bytes.split_off(ENTRIES_AT);
        let policy = info.underflow.get(FORWARD).map_or(0, |at| *at as usize);
        Ok((self.verdict(&entries, policy) == Some(DROP)).then_some(entries))
    }

    /// Returns the verdict of the entry at `at`.
    fn verdict(self, entries: &[u8], at: usize) -> Option<i32> {
        let entry = entries.get(at..)?;
        let offset: &[u8; 2] = entry.get(self.target_offset_at..)?.first_chunk()?;
        let target = entry.get(usize::from(u16::from_ne_bytes(*offset))..)?;
        Some(i32::from_ne_bytes(
            *target.get(VERDICT_AT..)?.first_chunk()?,
        ))
    }

    /// # Safety
    /// `data` points to the `len` bytes of the structure that the option reads and writes.
    unsafe fn get(
        self,
        socket: &OwnedFd,
        option: libc::c_int,
        data: *mut libc::c_void,
        len: usize,
    ) -> io::Result<()> {
        let mut len = len as libc::socklen_t;
        // SAFETY: by the caller's promise; the kernel writes the length back.
        let result =
            unsafe { libc::getsockopt(socket.as_raw_fd(), self.level, option, data, &raw mut len) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
