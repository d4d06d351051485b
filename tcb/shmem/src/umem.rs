//! The memory of an AF_XDP socket (linux/if_xdp.h): the kernel receives into a part of a region and
//! sends from it. The process that binds the socket does not need the memory.

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
/// Returns an error if the descriptor is not an AF_XDP socket, the socket already has memory, or
/// the kernel rejects the sizes.
pub fn register(socket: &impl AsFd, umem: &Umem) -> io::Result<()> {
    // The memory is reserved for packets and never contains a Rust object. The kernel keeps its
    // pages as long as necessary, even if they are unmapped.
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
