//! How a netback accesses the pages that a guest granted: one batch-level interface with one
//! implementation per grant mechanism (crate `driver`).

use abi::{GrantRef, GrantStatus};
use nic::SmallBatch;
use nic::frame::SNAPSHOT_MIN;
use shmem::Span;
use std::fmt::Debug;

/// Access to a part of a granted page, for one batch.
#[derive(Clone, Copy, Debug)]
pub struct GrantAccess {
    /// Grant reference of this interface's guest.
    pub gref: GrantRef,
    /// First byte within the page.
    pub offset: u16,
    /// Length in bytes; the netback has checked that the range lies within the page.
    pub len: u16,
    /// The accessible bytes, valid until [`GrantMechanism::read_end`], or the reason why they are
    /// inaccessible.
    pub result: Result<Span, GrantStatus>,
}

impl GrantAccess {
    /// Returns an access that no mechanism has made usable yet.
    #[must_use]
    #[inline]
    pub const fn new(gref: GrantRef, offset: u16, len: u16) -> Self {
        Self {
            gref,
            offset,
            len,
            result: Err(GrantStatus::GeneralError),
        }
    }

    /// Prefetches the start of the range, where a header may lie.
    #[inline]
    pub fn prefetch(&self) {
        if let Ok(span) = self.result {
            span.take(SNAPSHOT_MIN).prefetch();
        }
    }
}

/// Source of a [`CopyOut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopySource {
    /// Memory that this domain can read.
    Span(Span),
    /// Bytes `from .. from + len` of the header snapshot of frame number `frame` of the batch.
    Header {
        /// Index into the batch's frames.
        frame: u32,
        /// First byte of the snapshot.
        from: u16,
    },
}

/// A copy into a granted page.
#[derive(Clone, Copy, Debug)]
pub struct CopyOut {
    /// Source of the bytes.
    pub source: CopySource,
    /// Grant reference of this interface's guest.
    pub gref: GrantRef,
    /// First byte within the page.
    pub offset: u16,
    /// Length in bytes; the netback has checked that the range lies within the page.
    pub len: u16,
    /// Result. Starts as an error, so that a copy that never ran cannot count as done.
    pub status: GrantStatus,
}

impl CopyOut {
    /// Returns a pending copy of `len` bytes to `offset` of the page.
    #[must_use]
    #[inline]
    pub const fn new(source: CopySource, gref: GrantRef, offset: usize, len: usize) -> Self {
        Self {
            source,
            gref,
            offset: offset as u16,
            len: len as u16,
            status: GrantStatus::GeneralError,
        }
    }
}

/// One grant mechanism, for one guest.
pub trait GrantMechanism: Debug {
    /// Makes every access of the batch usable or records an error in it. The caller reads the
    /// ranges next, so a mechanism prefetches each range as soon as it knows the address.
    fn read_begin(&mut self, accesses: &mut [GrantAccess]);

    /// Ends the accesses of the last [`GrantMechanism::read_begin`].
    fn read_end(&mut self);

    /// Executes every copy of the batch; [`CopySource::Header`] refers to `frames`.
    fn write(&mut self, copies: &mut [CopyOut], frames: &[nic::Frame]);

    /// Returns whether granted pages are mapped into this domain, which
    /// [`GrantMechanism::write_small_frames`] requires.
    fn in_reach(&self) -> bool {
        false
    }

    /// Copies the frames whose indexes are in `pick`, in order, each to the range of one access.
    /// Records an error in an access whose range is too small. With `prefetch`, fetches the whole
    /// destination of each copy first, because the caches of another CPU probably hold it.
    fn write_small_frames(
        &mut self,
        accesses: &mut [GrantAccess],
        small_frames: &SmallBatch,
        pick: &[u32],
        prefetch: bool,
    ) {
        let _ = (small_frames, pick, prefetch);
        refuse(accesses);
    }

    /// Makes further pages writable for a device until [`Self::post_end`], or records an error in
    /// their accesses. A mechanism that never maps pages into this domain rejects all accesses.
    fn post_begin(&mut self, accesses: &mut [GrantAccess]) {
        refuse(accesses);
    }

    /// Ends [`GrantMechanism::post_begin`]: no device writes to its pages any more.
    fn post_end(&mut self) {}

    /// Returns whether [`GrantMechanism::hold`] is supported.
    fn can_hold(&self) -> bool {
        false
    }

    /// Returns a number that changes with each revocation that the guest has announced. A guest
    /// may revoke a page by force while it is held.
    fn revocations(&self) -> u64 {
        0
    }

    /// Makes pages writable for a device, each until its [`Self::hold_end`], or records an error in
    /// their accesses. Appends the guest's frame number of each page to `frames`. A mechanism that
    /// does not know the frame numbers rejects all accesses.
    fn hold(&mut self, accesses: &mut [GrantAccess], frames: &mut Vec<u32>) {
        frames.extend(accesses.iter().map(|_| 0));
        refuse(accesses);
    }

    /// Ends one access of [`GrantMechanism::hold`]: no device writes to the page for it any more.
    fn hold_end(&mut self, _gref: GrantRef) {}
}

/// Rejects all accesses: the mechanism does not support the operation.
fn refuse(accesses: &mut [GrantAccess]) {
    for access in accesses {
        access.result = Err(GrantStatus::GeneralError);
    }
}

impl<G: GrantMechanism + ?Sized> GrantMechanism for Box<G> {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        (**self).read_begin(accesses);
    }

    fn read_end(&mut self) {
        (**self).read_end();
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[nic::Frame]) {
        (**self).write(copies, frames);
    }

    fn in_reach(&self) -> bool {
        (**self).in_reach()
    }

    fn write_small_frames(
        &mut self,
        accesses: &mut [GrantAccess],
        small_frames: &SmallBatch,
        pick: &[u32],
        prefetch: bool,
    ) {
        (**self).write_small_frames(accesses, small_frames, pick, prefetch);
    }

    fn post_begin(&mut self, accesses: &mut [GrantAccess]) {
        (**self).post_begin(accesses);
    }

    fn post_end(&mut self) {
        (**self).post_end();
    }

    fn can_hold(&self) -> bool {
        (**self).can_hold()
    }

    fn revocations(&self) -> u64 {
        (**self).revocations()
    }

    fn hold(&mut self, accesses: &mut [GrantAccess], frames: &mut Vec<u32>) {
        (**self).hold(accesses, frames);
    }

    fn hold_end(&mut self, gref: GrantRef) {
        (**self).hold_end(gref);
    }
}
