//! A mock front end: a virtual machine's memory on a memfd, and messages with descriptors.

use super::driver::{Descriptor, DriverRing, INDIRECT, NEXT, WRITE};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use shmem::{Mapping, Span};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The first guest physical address.
pub const GPA: u64 = 0x4000_0000;
/// The first address in the front end's address space.
pub const UVA: u64 = 0x7f00_0000_0000;
/// Maximum bytes of memory of a ring.
pub const RING_BYTES: usize = 1 << 16;
/// Bytes of memory for the buffers of one ring.
pub const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of the longest header.
pub const HEADER: usize = 12;

/// A message's flags: version 1.
pub const VERSION: u32 = 1;
/// A message's flags: the front end requests an acknowledgement.
pub const NEED_REPLY: u32 = 8;

/// A ring with its notifications and its buffers.
#[derive(Debug)]
pub struct Ring {
    /// The ring.
    pub ring: DriverRing,
    /// The driver's notifications to the device.
    pub kick: OwnedFd,
    /// The device's notifications to the driver.
    pub call: OwnedFd,
    /// The device's notification that the ring is broken.
    pub err: OwnedFd,
    /// Offset of its buffers in the memory.
    buffers: usize,
    /// Bytes of buffers allocated so far; allocation wraps at the end of the memory.
    given: usize,
    /// Chains that the driver has posted and the device has not returned.
    pub chains: VecDeque<Posted>,
    free: VecDeque<u16>,
}

/// A chain that the driver has posted.
#[derive(Clone, Debug)]
pub struct Posted {
    /// Its first descriptor.
    pub head: u16,
    /// Its descriptors in the table.
    pub table: Vec<u16>,
    /// Its buffers: offset in the memory, and length.
    pub buffers: Vec<(usize, usize)>,
}

/// A virtual machine and its monitor.
#[derive(Debug)]
pub struct FrontEnd {
    /// The connection.
    pub socket: OwnedFd,
    /// The memory's file.
    pub file: OwnedFd,
    /// The memory as the virtual machine sees it.
    pub memory: Mapping,
    /// Receive queue 0, transmit queue 0, receive queue 1, …; with several pairs, also the control
    /// queue.
    pub rings: Vec<Ring>,
    /// The negotiated features.
    pub features: u64,
}

/// Returns a pair of connected sockets.
#[must_use]
pub fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, kind, flags, None).expect("sockets")
}

/// Sends bytes with descriptors; returns false if the other end is closed or full.
pub fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    sent == Ok(bytes.len())
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd")
}

impl Ring {
    /// Frees the descriptors of a chain that the device has returned.
    pub fn release(&mut self, posted: &Posted) {
        self.free.extend(&posted.table);
    }
}

impl FrontEnd {
    /// Returns a virtual machine with `pairs` queue pairs, whose rings have `size` entries, and the
    /// back end's end of its connection.
    #[must_use]
    pub fn new(pairs: usize, size: u16) -> (Self, OwnedFd) {
        let (socket, other) = pair(SocketType::STREAM);
        let rings = 2 * pairs + usize::from(pairs > 1);
        let bytes = rings * (RING_BYTES + BUFFER_BYTES);
        let file = memfd_create("vm", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, bytes as u64).expect("memory");
        let memory = Mapping::new(file.as_fd(), 0, bytes).expect("a mapping");
        let ring = |number: usize| {
            let span = memory.span().skip(number * RING_BYTES).take(RING_BYTES);
            Ring {
                ring: DriverRing::new(span, size),
                kick: event(),
                call: event(),
                err: event(),
                buffers: rings * RING_BYTES + number * BUFFER_BYTES,
                given: 0,
                chains: VecDeque::new(),
                free: (0..size).collect(),
            }
        };
        let front = Self {
            rings: (0..rings).map(ring).collect(),
            socket,
            file,
            memory,
            features: 0,
        };
        (front, other)
    }

    /// Opens another connection of the same virtual machine. Returns the back end's end.
    pub fn reconnect(&mut self) -> OwnedFd {
        let (socket, other) = pair(SocketType::STREAM);
        self.socket = socket;
        other
    }

    /// Returns the size of the memory, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.span().len() as u64
    }

    /// Sends a message.
    pub fn send(&self, request: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let header = [request, VERSION | flags, payload.len() as u32];
        let mut bytes: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend_from_slice(payload);
        send(&self.socket, &bytes, fds)
    }

    /// Returns the payload of a reply that has arrived.
    #[must_use]
    pub fn reply(&self) -> Option<Vec<u8>> {
        let mut header = [0; 12];
        let got = rustix::io::read(&self.socket, &mut header).ok()?;
        let bytes = header.last_chunk::<4>().copied().map(u32::from_le_bytes);
        if got != header.len() {
            return None;
        }
        let mut payload = vec![0; bytes? as usize];
        if !payload.is_empty() {
            rustix::io::read(&self.socket, &mut payload).ok()?;
        }
        Some(payload)
    }

    /// Returns whether the back end has closed the connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        rustix::io::read(&self.socket, &mut [0; 1]) != Err(rustix::io::Errno::AGAIN)
    }

    /// Returns the description of one region that covers all memory.
    #[must_use]
    pub fn region(&self) -> [u64; 4] {
        [GPA, self.bytes(), UVA, 0]
    }

    /// Returns the part of the memory at an offset.
    #[must_use]
    pub fn at(&self, offset: usize, bytes: usize) -> Span {
        self.memory.span().skip(offset).take(bytes)
    }

    /// Notifies the device of a ring. A full descriptor also wakes the device.
    pub fn kick(&self, ring: usize) {
        let _ = rustix::io::write(&self.rings[ring].kick, &1_u64.to_ne_bytes());
    }

    /// Returns whether the device has notified the driver of a ring since the last call.
    pub fn was_called(&self, ring: usize) -> bool {
        rustix::io::read(&self.rings[ring].call, &mut [0; 8]).is_ok()
    }

    /// Makes a chain of buffers with these lengths available, and returns it, or `None` if the ring
    /// is full. The buffers of a transmit queue hold `contents`.
    pub fn post(
        &mut self,
        ring: usize,
        lengths: &[usize],
        indirect: bool,
        contents: &[u8],
    ) -> Option<Posted> {
        let is_written = ring.is_multiple_of(2);
        let memory = self.memory.span();
        let Ring {
            ring,
            buffers,
            given,
            chains,
            free,
            ..
        } = &mut self.rings[ring];
        let needed = if indirect { 1 } else { lengths.len() };
        if free.len() < needed || lengths.is_empty() {
            return None;
        }
        let mut take = |bytes: usize| {
            if *given + bytes > BUFFER_BYTES {
                *given = 0;
            }
            let at = *buffers + *given;
            *given += bytes.next_multiple_of(16);
            at
        };
        let places: Vec<(usize, usize)> = lengths.iter().map(|len| (take(*len), *len)).collect();
        let mut rest = contents;
        for (at, len) in &places {
            let (here, behind) = rest.split_at(rest.len().min(*len));
            memory.skip(*at).write(here).expect("memory");
            rest = behind;
        }
        let write = if is_written { WRITE } else { 0 };
        let describe = |(at, len): (usize, usize), next: Option<u16>| Descriptor {
            gpa: GPA + at as u64,
            bytes: len as u32,
            flags: write | next.map_or(0, |_| NEXT),
            next: next.unwrap_or(0),
        };
        let table: Vec<u16> = free.drain(..needed).collect();
        let count = places.len();
        if indirect {
            let at = take(16 * count);
            for (n, place) in places.iter().enumerate() {
                let next = (n + 1 < count).then_some(n as u16 + 1);
                let entry = describe(*place, next).encode();
                memory.skip(at + 16 * n).write(&entry).expect("memory");
            }
            ring.describe(
                table[0],
                Descriptor {
                    gpa: GPA + at as u64,
                    bytes: 16 * count as u32,
                    flags: INDIRECT,
                    next: 0,
                },
            );
        } else {
            for (n, place) in places.iter().enumerate() {
                ring.describe(table[n], describe(*place, table.get(n + 1).copied()));
            }
        }
        let posted = Posted {
            head: table[0],
            table,
            buffers: places,
        };
        ring.offer(posted.head);
        ring.publish();
        chains.push_back(posted.clone());
        Some(posted)
    }

    /// Makes a command of the control queue available. Returns the location of its answer.
    pub fn command(&mut self, ring: usize, command: &[u8]) -> Span {
        const ANSWER: usize = 64;
        let at = self.rings[ring].buffers;
        self.at(at, ANSWER).write(command).expect("memory");
        let answer = self.at(at + ANSWER, 1);
        answer.write(&[0xff]).expect("memory");
        let ring = &mut self.rings[ring].ring;
        let describe = |at, bytes, flags| Descriptor {
            gpa: GPA + at as u64,
            bytes,
            flags,
            next: 1,
        };
        ring.describe(0, describe(at, command.len() as u32, NEXT));
        ring.describe(1, describe(at + ANSWER, 1, WRITE));
        ring.offer(0);
        ring.publish();
        answer
    }

    /// Takes the next chain that the device has returned, with the bytes that it wrote. The device
    /// returns chains in order.
    pub fn take_back(&mut self, ring: usize) -> Option<(Posted, Vec<u8>)> {
        let memory = self.memory.span();
        let ring = &mut self.rings[ring];
        let (head, bytes) = ring.ring.returned()?;
        let posted = ring.chains.pop_front().expect("a chain that was posted");
        assert_eq!(u32::from(posted.head), head, "chains are returned in order");
        ring.release(&posted);
        let mut written = Vec::new();
        for (at, len) in &posted.buffers {
            let mut here = vec![0; (*len).min(bytes as usize - written.len())];
            memory.skip(*at).read(&mut here).expect("memory");
            written.extend(here);
        }
        assert_eq!(
            written.len(),
            bytes as usize,
            "no more than the buffers hold"
        );
        Some((posted, written))
    }

    /// Returns the next frame of a receive queue, with its header.
    pub fn received(&mut self, ring: usize, header_bytes: usize) -> Option<Vec<u8>> {
        let (_, mut frame) = self.take_back(ring)?;
        let count = frame.get(10..12).filter(|_| header_bytes == HEADER);
        let count = count.map_or(1, |count| u16::from_le_bytes([count[0], count[1]]));
        for _ in 1..count {
            frame.extend(self.take_back(ring).expect("the rest of a frame").1);
        }
        Some(frame)
    }
}
