//! Requests of the front end, and their payloads.

use crate::ProtocolError;
use crate::request::VhostRequest;
use std::os::fd::OwnedFd;

/// Bytes of a message's header: request, flags, bytes of payload, each a u32.
pub(crate) const HEADER_BYTES: usize = 12;
/// Bytes of the longest payload: a configuration space, or a memory table.
pub(crate) const PAYLOAD_MAX: usize = 512;
/// Maximum number of descriptors of one message. A memory table has this number.
pub(crate) const FDS_MAX: usize = 8;

/// Bits of the flags that hold the version.
const VERSION_MASK: u32 = 3;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A validated header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VhostHeader {
    pub(crate) request: VhostRequest,
    pub(crate) needs_reply: bool,
    pub(crate) payload_bytes: usize,
}

impl VhostHeader {
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ProtocolError> {
        let [r0, r1, r2, r3, f0, f1, f2, f3, p0, p1, p2, p3] = *bytes;
        let code = u32::from_le_bytes([r0, r1, r2, r3]);
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        let bytes = u32::from_le_bytes([p0, p1, p2, p3]);
        if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
            return Err(ProtocolError::Flags(flags));
        }
        let payload_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if payload_bytes > PAYLOAD_MAX {
            let request = code;
            return Err(ProtocolError::TooLong { request, bytes });
        }
        Ok(Self {
            request: VhostRequest::from_wire(code).ok_or(ProtocolError::Unknown(code))?,
            needs_reply: flags & NEED_REPLY != 0,
            payload_bytes,
        })
    }
}

/// A request with its payload and its descriptors.
#[derive(Debug)]
pub(crate) struct VhostMessage {
    pub(crate) header: VhostHeader,
    pub(crate) payload: [u8; PAYLOAD_MAX],
    pub(crate) fds: Vec<OwnedFd>,
}

impl VhostMessage {
    /// Returns the payload.
    pub(crate) fn payload(&self) -> &[u8] {
        self.payload.get(..self.header.payload_bytes).unwrap_or(&[])
    }

    fn field<const N: usize>(&self, at: usize) -> Result<[u8; N], ProtocolError> {
        let rest = self.payload().get(at..);
        let field = rest.and_then(|rest| rest.first_chunk::<N>()).copied();
        field.ok_or(ProtocolError::TooShort(
            self.header.request,
            self.header.payload_bytes,
        ))
    }

    /// Returns the u32 at an offset of the payload.
    pub(crate) fn u32(&self, at: usize) -> Result<u32, ProtocolError> {
        self.field(at).map(u32::from_le_bytes)
    }

    /// Returns the u64 at an offset of the payload.
    pub(crate) fn u64(&self, at: usize) -> Result<u64, ProtocolError> {
        self.field(at).map(u64::from_le_bytes)
    }

    /// Returns the only descriptor.
    pub(crate) fn fd(&mut self) -> Result<OwnedFd, ProtocolError> {
        self.fds(1)?;
        let count = ProtocolError::Descriptors(self.header.request, 0);
        self.fds.pop().ok_or(count)
    }

    /// Checks the number of descriptors.
    pub(crate) fn fds(&self, count: usize) -> Result<(), ProtocolError> {
        match self.fds.len() {
            have if have == count => Ok(()),
            have => Err(ProtocolError::Descriptors(self.header.request, have)),
        }
    }
}

/// The back end's request that the front end read the configuration space again:
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG` of version 1, without payload.
pub(crate) const CONFIG_CHANGED: [u8; HEADER_BYTES] = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// Returns a reply to `request`.
pub(crate) fn reply(request: VhostRequest, payload: &[u8]) -> Vec<u8> {
    let header = [
        request as u32,
        VERSION | REPLY,
        u32::try_from(payload.len()).unwrap_or(0),
    ];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend_from_slice(payload);
    bytes
}
