//! The older `iptables`, whose rules nf_tables does not list: the policy of its `FORWARD` chain
//! (linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h). netd never looks.

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, alike in both families.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
const NAME: &[u8] = b"filter";
const NAME_BYTES: usize = 32;
const FORWARD: usize = 2;
/// Bytes of `struct ipt_get_entries` before the entries.
const ENTRIES_AT: usize = 40;
/// Where a standard target has its verdict, behind `struct xt_entry_target`.
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
pub(crate) struct Family {
    /// The program that lists and changes its rules.
    pub(crate) program: &'static str,
    family: AddressFamily,
    level: libc::c_int,
    names: &'static str,
    /// Where an entry has the offset of its target.
    target_offset_at: usize,
}

pub(crate) const IPV4: Family = Family {
    program: "iptables-legacy",
    family: AddressFamily::INET,
    level: libc::SOL_IP,
    names: "/proc/thread-self/net/ip_tables_names",
    target_offset_at: 88,
};

pub(crate) const IPV6: Family = Family {
    program: "ip6tables-legacy",
    family: AddressFamily::INET6,
    level: libc::SOL_IPV6,
    names: "/proc/thread-self/net/ip6_tables_names",
    target_offset_at: 140,
};

impl Family {
    /// The rules of the calling thread's namespace, as bytes, if they drop what no rule of the
    /// `FORWARD` chain accepts. A table that nobody has used is not made by this.
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
        // SAFETY: the option reads the name and the size, and writes entries of that size behind
        // them; it copies byte by byte and needs no alignment.
        unsafe { self.get(&socket, GET_ENTRIES, bytes.as_mut_ptr().cast(), len) }?;
        let entries = bytes.split_off(ENTRIES_AT);
        let policy = info.underflow.get(FORWARD).map_or(0, |at| *at as usize);
        Ok((self.verdict(&entries, policy) == Some(DROP)).then_some(entries))
    }

    /// The verdict of the entry at `at`.
    fn verdict(self, entries: &[u8], at: usize) -> Option<i32> {
        let entry = entries.get(at..)?;
        let offset: &[u8; 2] = entry.get(self.target_offset_at..)?.first_chunk()?;
        let target = entry.get(usize::from(u16::from_ne_bytes(*offset))..)?;
        Some(i32::from_ne_bytes(
            *target.get(VERDICT_AT..)?.first_chunk()?,
        ))
    }

    /// # Safety
    /// `data` is what the option reads and writes, `len` bytes of it.
    unsafe fn get(
        self,
        socket: &OwnedFd,
        option: libc::c_int,
        data: *mut libc::c_void,
        len: usize,
    ) -> io::Result<()> {
        let mut len = len as libc::socklen_t;
        // SAFETY: vouched for by the caller; the length is written back.
        let result =
            unsafe { libc::getsockopt(socket.as_raw_fd(), self.level, option, data, &raw mut len) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
