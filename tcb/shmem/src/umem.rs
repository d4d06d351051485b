//! Memory of an AF_XDP socket (linux/if_xdp.h): part of a region becomes what the kernel receives
//! into and sends from. Another process binds the socket, which does not need the memory for that.

use crate::Span;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// What a socket's memory and rings are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Umem {
    /// Where packets lie.
    pub span: Span,
    /// Bytes of a chunk, which holds one packet.
    pub chunk_bytes: u32,
    /// Entries of each ring.
    pub entries: u32,
    /// Whether it sends, too.
    pub transmits: bool,
}

/// Gives a socket its memory and its rings.
///
/// # Errors
/// It is no such socket, has a memory already, or the kernel refuses the sizes.
pub fn register(socket: &impl AsFd, umem: &Umem) -> io::Result<()> {
    let socket = socket.as_fd();
    let memory = libc::xdp_umem_reg_v1 {
        addr: umem.span.addr() as u64,
        len: umem.span.len() as u64,
        chunk_size: umem.chunk_bytes,
        headroom: 0,
    };
    // SAFETY: the option reads the struct; the memory that it names is reserved for packets, never
    // holds a Rust object, and stays the kernel's as long as that likes, mapped or not.
    unsafe { set(socket, libc::XDP_UMEM_REG, &memory) }?;
    let rings = [
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_RX_RING,
    ];
    let transmit = umem.transmits.then_some(libc::XDP_TX_RING);
    for option in rings.into_iter().chain(transmit) {
        // SAFETY: each of these options reads one int.
        unsafe { set(socket, option, &umem.entries) }?;
    }
    Ok(())
}

/// # Safety
/// `value` is what the option reads.
unsafe fn set<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &T) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads the value, whose size is given and which lives through the call; the
    // rest is the caller's word.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            (&raw const *value).cast(),
            bytes,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
