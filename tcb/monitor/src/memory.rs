//! The memory regions of a domain.

use abi::DomId;
use abi::layout::{self, info, mailbox};
use shmem::{Region, Span};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A domain's information region, page frames and mailbox. They exist as long as they are in use by
/// the domain itself, or by a domain that maps one of its frames.
#[derive(Debug)]
pub struct SharedDomainMemory {
    /// The information region.
    pub info: Region,
    /// The page frames.
    pub frames: Arc<Region>,
    frames_readonly: OwnedFd,
    /// The mailbox, shared by the domain and the manager; the core does not read it.
    pub mailbox: Region,
    /// The number of page frames.
    pub frame_count: u32,
    /// The number of entries of the grant table.
    pub grant_entries: u32,
}

impl SharedDomainMemory {
    /// Creates all regions. They are zero, except for the configuration, which the domain reads at
    /// its start. The frames in `retained` are reused if their number matches.
    ///
    /// # Errors
    /// Returns an error if the kernel has no memory or no descriptors left.
    pub fn create(
        id: DomId,
        frame_count: u32,
        grant_entries: u32,
        config: &[u8],
        retained: RetainedFrames,
    ) -> io::Result<Self> {
        let bytes = info::bytes(grant_entries, config.len());
        let info = Region::create(&format!("info-{id}"), bytes)?;
        let place = info.span().skip(info::config(grant_entries));
        let written = place.take(config.len()).put(config);
        written.map_err(|_| io::ErrorKind::OutOfMemory)?;
        let bytes = frame_count as usize * layout::PAGE;
        let frames = match retained.filter(|retained| retained.span().len() == bytes) {
            Some(retained) => retained,
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

    /// Returns a page frame, or `None` if `n` is out of range.
    #[must_use]
    pub fn frame(&self, n: u32) -> Option<Span> {
        self.frames.span().page(n)
    }

    /// Replaces the host page of frame `n` by another one with the same bytes. A device that has
    /// pinned the old page keeps it, and cannot access later contents of the frame. The owner must
    /// not access the frame meanwhile.
    ///
    /// # Errors
    /// Returns an error if the frame does not exist, or if memory is exhausted, which loses the
    /// frame's bytes.
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

    /// Returns the descriptors of the frames: read-write, and read-only.
    #[must_use]
    pub fn frames_fds(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.frames.fd(), self.frames_readonly.as_fd())
    }
}

/// Page frames of a dead domain, for the domain that replaces it.
pub type RetainedFrames = Option<Arc<Region>>;
