//! Acts as a shim: receives descriptors over a socket.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, accept_with, recvmsg,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// Maximum number of descriptors of a message.
const FDS_MAX: usize = 8;

/// Accepts a connection, receives the descriptors of one message, and closes the connection.
pub(crate) fn accept(listener: Option<&OwnedFd>) -> Result<Vec<OwnedFd>, Errno> {
    let connection = accept_with(listener.ok_or(Errno::NOENT)?, SocketFlags::CLOEXEC)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    recvmsg(
        &connection,
        &mut bytes,
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut received = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            received.extend(fds);
        }
    }
    Ok(received)
}
