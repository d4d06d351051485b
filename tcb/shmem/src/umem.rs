//! The memory of an AF_XDP socket (linux/if_xdp.h): the kernel receives into and sends from a part
//! of a region. Another process binds the socket, for which it does not need the memory.

use crate::Span;
use rustix::net::sockopt;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use std::io;
use std::os::fd::AsFd;

/// The memory and the rings of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Umem {
    /// The memory for packets.
    pub span: Span,
    /// Size of a chunk, which holds one packet, in bytes.
    pub chunk_bytes: u32,
    /// Entries of each ring.
    pub entries: u32,
    /// Whether the socket also sends.
    pub transmits: bool,
}

/// Registers a socket's memory and rings.
///
/// # Errors
/// The descriptor is not an AF_XDP socket, the socket has memory already, or the kernel refuses the
/// sizes.
pub fn register(socket: &impl AsFd, umem: &Umem) -> io::Result<()> {
    // The memory is reserved for packets, and never holds a Rust object. The kernel keeps it as
    // long as necessary, whether mapped or not.
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
