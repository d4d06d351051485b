//! The link between the core and its helpers: [`abi::core`]'s records over a socket that preserves
//! record boundaries, with attached descriptors. Data of variable size are in sealed memory files
//! ([`sealed`]).
//!
//! Only [`Link::wait`] and [`wait_for`] block. The other end cannot make other functions block,
//! because they reject a descriptor that is not a sealed memory file before reading from it.

pub mod sealed;
mod wait;

pub use wait::wait_for;

use abi::core::{BYTES, DESCRIPTORS_MAX, Malformed, Message, Record};
use rustix::event::PollFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Error: a link is unusable.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end is closed.
    #[error("the other end is closed")]
    Closed,
    /// The received bytes are not a record.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// The kernel returned an error.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A received record with its attached descriptors.
#[derive(Debug)]
pub struct Received<M> {
    /// The record.
    pub record: Record<M>,
    /// The descriptors, in the order in which they were sent.
    pub fds: Vec<OwnedFd>,
}

/// One end of a link between two programs.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl From<OwnedFd> for Link {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<Link> for OwnedFd {
    fn from(link: Link) -> Self {
        link.0
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Link {
    /// Creates a link and returns both ends.
    ///
    /// # Errors
    /// Returns an error if the kernel has no descriptors left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (unix, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(unix, kind, SocketFlags::CLOEXEC, None)?;
        Ok((Self(ours), Self(theirs)))
    }

    /// Sends a record without blocking.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the socket's buffer is full, because the other end has not read
    /// earlier records. Other errors mean that the other end is closed.
    pub fn send<M: Message>(&self, record: &Record<M>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_bytes(&record.encode(), fds)
    }

    /// Sends an encoded record without blocking.
    ///
    /// # Errors
    /// Returns the errors of [`Link::send`].
    pub fn send_bytes(&self, bytes: &[u8; BYTES], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        retry_on_intr(|| sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags))?;
        Ok(())
    }

    /// Receives the next record without blocking. Returns `None` if no record is available.
    ///
    /// # Errors
    /// See [`LinkError`]; after any error the link is unusable.
    pub fn receive<M: Message>(&self) -> Result<Option<Received<M>>, LinkError> {
        // The buffer has one byte more than a record, so that longer messages are detected.
        let mut bytes = [0; BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = match recvmsg(&self.0, &mut parts, &mut ancillary, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(LinkError::Closed),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        if received.bytes == 0 {
            return Err(LinkError::Closed);
        }
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::from(Errno::MFILE).into());
        }
        let record = Record::decode(bytes.get(..received.bytes).unwrap_or_default())?;
        Ok(Some(Received { record, fds }))
    }

    /// Waits by [`wait_for`] until a record is available or can be sent, as `flags` request.
    pub fn wait(&self, flags: PollFlags, timeout_ns: Option<u64>) {
        let _ready = wait_for(&[((), self.0.as_fd(), flags)], timeout_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::core::{CoreMessage, CoreRequest};

    fn record(dev: u32) -> Record<CoreRequest> {
        let message = CoreRequest::Open { dev };
        Record { token: 7, message }
    }

    #[test]
    fn records_arrive_whole_with_their_descriptors() {
        let (one, other) = Link::pair().unwrap();
        assert!(other.receive::<CoreRequest>().unwrap().is_none());
        let file = sealed::write("x", b"beside").unwrap();
        one.send(&record(1), &[file.as_fd(), file.as_fd()]).unwrap();
        one.send(&record(2), &[]).unwrap();
        let first = other.receive::<CoreRequest>().unwrap().unwrap();
        assert_eq!((first.record, first.fds.len()), (record(1), 2));
        assert_eq!(sealed::read(&first.fds[1], 6).unwrap(), b"beside");
        let second = other.receive::<CoreRequest>().unwrap().unwrap();
        assert_eq!((second.record, second.fds.len()), (record(2), 0));
        drop(one);
        assert!(matches!(
            other.receive::<CoreRequest>(),
            Err(LinkError::Closed)
        ));
    }

    #[test]
    fn a_malformed_record_ends_the_link() {
        let (one, other) = Link::pair().unwrap();
        for bytes in [1, BYTES - 1, BYTES + 1, 2 * BYTES] {
            rustix::io::write(&one, &vec![0xff; bytes]).unwrap();
            let refused = other.receive::<CoreRequest>();
            let malformed = matches!(&refused, Err(LinkError::Malformed(_)));
            assert!(malformed, "{bytes}: {refused:?}");
        }
        let (token, message) = (1, CoreRequest::Status {});
        one.send(&Record { token, message }, &[]).unwrap();
        let other_kind = other.receive::<CoreMessage>();
        assert!(matches!(other_kind, Err(LinkError::Malformed(_))));
    }

    #[test]
    fn sending_to_a_full_link_does_not_block() {
        let (one, _other) = Link::pair().unwrap();
        let full = (0..100_000).find_map(|_| one.send(&record(1), &[]).err());
        assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
