//! Messages between initiator and participants: one JSON object each, over a Unix socket that
//! preserves message boundaries (`SOCK_SEQPACKET`) and passes descriptors.

use super::SessionError;
use crate::model::Mode;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, connect, recvmsg, sendmsg, socket_with,
};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Maximum length of a message, bytes.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Maximum length of a document passed as a descriptor, bytes.
pub const DOCUMENT_MAX: u64 = 64 << 20;

/// A message, and the session to which it belongs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// Session id.
    pub session: u64,
    /// The message.
    pub message: SessionMessage,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SessionMessage {
    /// Initiator: announces the session and its first event.
    Configured {
        /// The event.
        event: String,
        /// Events between samples.
        period: u64,
    },
    /// Participant: registers a domain.
    Register {
        /// Domain name.
        name: String,
        /// The side that attributes its samples.
        mode: Mode,
        /// Processes of the domain.
        scope: DomainScope,
    },
    /// Participant, with a sealed memfd: symbols of the domain, in the format of `/proc/kallsyms`.
    Symbols,
    /// Initiator: the participant is registered. An active domain also receives its ring and
    /// virtual interrupt.
    Reserved,
    /// Initiator: rejects the registration, or removes a registered participant.
    Refused {
        /// Reason.
        why: String,
    },
    /// Participant: ready to receive samples.
    Ready,
    /// Initiator: all participants begin at this time.
    Armed {
        /// `CLOCK_MONOTONIC_RAW`, nanoseconds.
        at_raw_ns: u64,
    },
    /// Initiator: sampling has ended; requests the results.
    Drain,
    /// Participant: names of addresses in its samples.
    Names {
        /// Some of the names; more messages may follow.
        names: Vec<AddressName>,
    },
    /// Agent-only participant, with a sealed memfd: its whole session, in the file format.
    Profile,
    /// Participant: its results are complete.
    Drained {
        /// Samples that it read from its ring.
        read: u64,
    },
    /// Initiator: the session is complete.
    Merged {
        /// Number of samples of the domain in the session.
        samples: u64,
    },
}

/// Processes of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DomainScope {
    /// These processes and their descendants.
    Processes(Vec<u32>),
    /// The participant's PID namespace.
    Namespace,
    /// No process of this host: an agent in a separate machine.
    Elsewhere,
}

/// The name of an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressName {
    /// Process id in the participant's namespace.
    pub pid: u32,
    /// Address. For a caller, the return address minus one.
    pub address: u64,
    /// Program or library.
    pub module: String,
    /// Offset in the module.
    pub offset: u64,
    /// Functions from the outermost to the innermost inlined one, and whether each was inlined.
    pub frames: Vec<(String, bool)>,
}

/// One end of a connection.
#[derive(Debug)]
pub struct SessionLink(OwnedFd);

/// Maximum descriptors of one message.
const DESCRIPTORS: usize = 2;

pub(super) fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

impl SessionLink {
    /// Connects to the initiator at `path`.
    ///
    /// # Errors
    /// Returns an error if no initiator listens there.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = new_socket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// Returns an error if no connection is pending.
    pub fn accept(listener: impl AsFd) -> io::Result<Self> {
        Ok(Self(accept_with(listener, SocketFlags::CLOEXEC)?))
    }

    /// Returns the process and the user of the peer at the time of its connect.
    ///
    /// # Errors
    /// Returns an error if the kernel does not report them.
    pub fn peer(&self) -> io::Result<(u32, u32)> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0)?;
        let pid = peer.pid.as_raw_nonzero().get();
        Ok((pid.cast_unsigned(), peer.uid.as_raw()))
    }

    /// Sends a message without blocking.
    ///
    /// # Errors
    /// Returns an error if the peer has disconnected or reads too slowly.
    pub fn send(
        &self,
        session: u64,
        message: SessionMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.write(session, message, descriptors, SendFlags::DONTWAIT)
    }

    /// Sends a message. Blocks until it fits into the buffer.
    ///
    /// # Errors
    /// Returns an error if the peer has disconnected.
    pub fn send_all(
        &self,
        session: u64,
        message: SessionMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.write(session, message, descriptors, SendFlags::empty())
    }

    fn write(
        &self,
        session: u64,
        message: SessionMessage,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(&Envelope { session, message })?;
        if bytes.len() > MESSAGE_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let bytes = [IoSlice::new(&bytes)];
        sendmsg(&self.0, &bytes, &mut control, flags | SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message with its length and descriptors, or `None` if none is pending.
    ///
    /// # Errors
    /// Returns an error if the peer has disconnected, or its message is malformed.
    pub fn receive(&self) -> Result<Option<(Envelope, usize, Vec<OwnedFd>)>, SessionError> {
        let mut bytes = vec![0u8; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got = match recvmsg(&self.0, &mut parts, &mut control, flags) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            other => other.map_err(io::Error::from)?,
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        if got.bytes == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            return Err(SessionError::Nonsense("a message that is too long"));
        }
        let text = bytes.get(..got.bytes).unwrap_or_default();
        let envelope = serde_json::from_slice(text)
            .map_err(|_| SessionError::Nonsense("a malformed message"))?;
        Ok(Some((envelope, got.bytes, descriptors)))
    }
}

impl AsFd for SessionLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Creates a document in sealed memory, so that reading it never blocks and its contents never
/// change.
///
/// # Errors
/// Returns an error if memory is exhausted.
pub fn document(write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("xenoprof-document", flags)?);
    write(&file)?;
    fcntl_add_seals(&file, sealed())?;
    Ok(file.into())
}

const fn sealed() -> SealFlags {
    SealFlags::WRITE
        .union(SealFlags::SHRINK)
        .union(SealFlags::GROW)
        .union(SealFlags::SEAL)
}

/// Reads a peer's document after `may_keep` has accepted its length in bytes.
///
/// # Errors
/// Returns an error if the document is not sealed memory or is too long.
pub fn read_document(
    fd: OwnedFd,
    may_keep: impl FnOnce(usize) -> Result<(), String>,
) -> Result<Vec<u8>, String> {
    let (file, len) = open_document(fd).map_err(|error| error.to_string())?;
    may_keep(len)?;
    let mut bytes = Vec::with_capacity(len);
    file.take(len as u64)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Returns a document, positioned at its start, and its length in bytes.
fn open_document(fd: OwnedFd) -> Result<(File, usize), SessionError> {
    let is_sealed = fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(sealed()));
    if !is_sealed {
        return Err(SessionError::Nonsense("a document that is not sealed"));
    }
    let mut file = File::from(fd);
    let len = file.metadata()?.len();
    if len > DOCUMENT_MAX {
        return Err(SessionError::Nonsense("a document that is too long"));
    }
    // The file position is shared with the writer.
    io::Seek::rewind(&mut file)?;
    Ok((file, len as usize))
}

#[cfg(test)]
mod tests {
    use super::super::listener::Listener;
    use super::*;
    use std::io::Write as _;

    fn pair() -> (SessionLink, SessionLink, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = Listener::at(&path).unwrap();
        let near = SessionLink::connect(&path).unwrap();
        (near, SessionLink::accept(&listener).unwrap(), folder)
    }

    #[test]
    fn messages_keep_boundaries_and_documents() {
        let (near, far, _folder) = pair();
        let fd = document(|mut file| file.write_all(b"00 T x\n")).unwrap();
        near.send(5, SessionMessage::Symbols, &[fd.as_fd()])
            .unwrap();
        near.send(5, SessionMessage::Ready, &[]).unwrap();
        let (envelope, _, mut descriptors) = far.receive().unwrap().unwrap();
        assert_eq!(envelope.message, SessionMessage::Symbols);
        let bytes = read_document(descriptors.pop().unwrap(), |_| Ok(())).unwrap();
        assert_eq!(bytes, b"00 T x\n");
        assert_eq!(
            far.receive().unwrap().unwrap().0.message,
            SessionMessage::Ready
        );
        assert!(far.receive().unwrap().is_none());
        assert_eq!(far.peer().unwrap().0, std::process::id());
        drop(near);
        assert!(far.receive().is_err());
    }

    #[test]
    fn unsealed_blocking_or_long_documents_are_refused() {
        let read = |fd| read_document(fd, |_| Ok(()));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        assert!(read(memfd_create("x", flags).unwrap()).is_err());
        let long = document(|file| file.set_len(3)).unwrap();
        let result = read_document(long, |len| Err(format!("{len} are too many")));
        assert_eq!(result.unwrap_err(), "3 are too many");
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(read(reader.into()).is_err());
    }

    #[test]
    fn malformed_messages_are_errors() {
        let (near, far, _folder) = pair();
        for nonsense in [&b"{"[..], b"{\"session\":1,\"message\":\"x\"}"] {
            rustix::net::send(&near, nonsense, SendFlags::empty()).unwrap();
            assert!(far.receive().is_err());
        }
    }
}
