//! Messages and descriptors over a non-blocking stream.

use crate::ProtocolError;
use crate::message::{FDS_MAX, HEADER_BYTES, PAYLOAD_MAX, VhostHeader, VhostMessage};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A connection's socket, and the message being received.
#[derive(Debug)]
pub(crate) struct VmmSocket {
    fd: OwnedFd,
    header: [u8; HEADER_BYTES],
    payload: [u8; PAYLOAD_MAX],
    /// Bytes of header and payload that have arrived.
    have: usize,
    fds: Vec<OwnedFd>,
    /// Whether the kernel discarded descriptors that did not fit.
    excess: bool,
}

impl VmmSocket {
    /// Takes a connected stream and makes it nonblocking.
    pub(crate) fn new(fd: OwnedFd) -> Result<Self, ProtocolError> {
        nonblocking(fd.as_fd()).map_err(ProtocolError::Socket)?;
        Ok(Self {
            fd,
            header: [0; HEADER_BYTES],
            payload: [0; PAYLOAD_MAX],
            have: 0,
            fds: Vec::new(),
            excess: false,
        })
    }

    /// Returns the next message, if all of it has arrived.
    pub(crate) fn receive(&mut self) -> Result<Option<VhostMessage>, ProtocolError> {
        if self.have < HEADER_BYTES && !self.fill(HEADER_BYTES)? {
            return Ok(None);
        }
        let header = VhostHeader::decode(&self.header)?;
        if !self.fill(HEADER_BYTES + header.payload_bytes)? {
            return Ok(None);
        }
        let fds = std::mem::take(&mut self.fds);
        if self.excess {
            return Err(ProtocolError::Descriptors(header.request, FDS_MAX + 1));
        }
        self.have = 0;
        let payload = self.payload;
        Ok(Some(VhostMessage {
            header,
            payload,
            fds,
        }))
    }

    /// Reads until `end` bytes of the message have arrived. Returns false if some are still
    /// missing.
    fn fill(&mut self, end: usize) -> Result<bool, ProtocolError> {
        while self.have < end {
            let room = match self.have.checked_sub(HEADER_BYTES) {
                None => self.header.get_mut(self.have..),
                Some(at) => self.payload.get_mut(at..end - HEADER_BYTES),
            };
            let Some(room) = room else { return Ok(false) };
            let (got, excess) = match read(self.fd.as_fd(), room, &mut self.fds) {
                Ok(read) => read,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET) => return Err(ProtocolError::Closed),
                Err(error) => return Err(ProtocolError::Socket(error.into())),
            };
            self.excess |= excess || self.fds.len() > FDS_MAX;
            if self.excess {
                self.fds.clear();
            }
            if got == 0 {
                return Err(ProtocolError::Closed);
            }
            self.have += got;
        }
        Ok(true)
    }

    /// Sends a reply. Returns an error if the buffer is full, which means that the front end reads
    /// no replies.
    pub(crate) fn send(&self, reply: &[u8]) -> Result<(), ProtocolError> {
        match rustix::io::write(&self.fd, reply) {
            Ok(sent) if sent == reply.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err(ProtocolError::RepliesUnread),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ProtocolError::Closed),
            Err(error) => Err(ProtocolError::Socket(error.into())),
        }
    }
}

impl AsFd for VmmSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads bytes and appends the descriptors that arrived with them. Returns the number of bytes, and
/// whether the kernel discarded descriptors in excess of a message's maximum.
pub(crate) fn read(
    fd: BorrowedFd<'_>,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<(usize, bool), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(fd, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(arrived) = message {
            fds.extend(arrived);
        }
    }
    Ok((got.bytes, got.flags.contains(ReturnFlags::CTRUNC)))
}

/// Makes a descriptor nonblocking.
pub(crate) fn nonblocking(fd: BorrowedFd<'_>) -> std::io::Result<()> {
    let flags = fcntl_getfl(fd)?;
    if !flags.contains(OFlags::NONBLOCK) {
        fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    }
    Ok(())
}
