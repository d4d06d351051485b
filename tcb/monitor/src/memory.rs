//! The regions that a domain consists of.

use abi::DomId;
use abi::layout::{self, info, mailbox};
use shmem::{Region, Span};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A domain's information region, its page frames and its mailbox. They live as long as anybody has
/// a use for them: the domain, or a domain that has one of its frames mapped.
#[derive(Debug)]
pub struct Memory {
    /// The information region.
    pub info: Region,
    /// The page frames.
    pub frames: Arc<Region>,
    frames_readonly: OwnedFd,
    /// The mailbox, which is the domain's and the manager's: nobody here looks into it.
    pub mailbox: Region,
    /// How many page frames there are.
    pub frame_count: u32,
    /// How many entries the grant table has.
    pub grant_entries: u32,
}

impl Memory {
    /// Makes all regions, all zero but for a configuration, in which the domain finds what it is
    /// to do. Frames that another one has left are taken, if they are as many.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptors left.
    pub fn create(
        id: DomId,
        frame_count: u32,
        grant_entries: u32,
        config: &[u8],
        left: Left,
    ) -> io::Result<Self> {
        let bytes = info::bytes(grant_entries, config.len());
        let info = Region::create(&format!("info-{id}"), bytes)?;
        let place = info.span().skip(info::config(grant_entries));
        let written = place.take(config.len()).put(config);
        written.map_err(|_| io::ErrorKind::OutOfMemory)?;
        let bytes = frame_count as usize * layout::PAGE;
        let frames = match left.filter(|left| left.span().len() == bytes) {
            Some(left) => left,
            None => Arc::new(Region::create(&format!("frames-{id}"), bytes)?),
        };
        let frames_readonly = frames.readonly_fd()?;
        let mailbox = Region::create(&format!("mailbox-{id}"), mailbox::BYTES)?;
        Ok(Self {
            info,
            frames,
            frames_readonly,
            mailbox,
            frame_count,
            grant_entries,
        })
    }

    /// One page frame, if it exists.
    #[must_use]
    pub fn frame(&self, n: u32) -> Option<Span> {
        self.frames.span().page(n)
    }

    /// Puts another page of the host's under frame `n`, with the same bytes: a device that has
    /// pinned the one before keeps it, and sees no more of this one. The owner must not touch the
    /// frame meanwhile.
    ///
    /// # Errors
    /// There is no such frame, or no memory; the frame's bytes are lost then.
    pub fn exchange(&self, n: u32) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let page = self.frame(n).ok_or(io::ErrorKind::InvalidInput)?;
        let fault = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let mut bytes = [0; layout::PAGE];
        page.get(&mut bytes).map_err(fault)?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let bytes_of = |pages: u32| u64::from(pages) * layout::PAGE as u64;
        fallocate(self.frames.fd(), hole, bytes_of(n), bytes_of(1))?;
        page.put(&bytes).map_err(fault)
    }

    /// The frames' descriptors: for reading and writing, and for reading only.
    #[must_use]
    pub fn frames_fds(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.frames.fd(), self.frames_readonly.as_fd())
    }
}

/// Page frames of a domain that is gone, as it has left them, for the one that takes its place.
pub type Left = Option<Arc<Region>>;
