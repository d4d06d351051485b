//! Memory of an AF_XDP socket (linux/if_xdp.h): part of a region becomes what the kernel receives
//! into and sends from. Another process binds the socket, which does not need the memory for that.

use crate::Span;
use rustix::net::sockopt;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use std::io;
use std::os::fd::AsFd;

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
    // The memory is reserved for packets, never holds a Rust object, and stays the kernel's as long
    // as that likes, mapped or not.
    let memory = XdpUmemReg {
        addr: umem.span.addr() as u64,
        len: umem.span.len() as u64,
        chunk_size: umem.chunk_bytes,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, memory)?;
    sockopt::set_xdp_umem_fill_ring_size(socket, umem.entries)?;
    sockopt::set_xdp_umem_completion_ring_size(socket, umem.entries)?;
    sockopt::set_xdp_rx_ring_size(socket, umem.entries)?;
    if umem.transmits {
        sockopt::set_xdp_tx_ring_size(socket, umem.entries)?;
    }
    Ok(())
}
