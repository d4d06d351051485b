//! How a netback reaches the pages that a guest granted to it: one batch-level interface, one
//! implementation per grant mechanism (crate `domain`).

use abi::{GrantRef, GrantStatus};
use nic::SmallFrame;
use nic::frame::HOT;
use shmem::Span;

/// Access to (part of) a granted page for reading, for the time of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The grant, of the one guest that this interface belongs to.
    pub gref: GrantRef,
    /// First byte within the page.
    pub offset: u16,
    /// Bytes; the netback has checked that they stay within the page.
    pub len: u16,
    /// Where the bytes can be read until [`Grants::read_end`], or why they cannot.
    pub result: Result<Span, GrantStatus>,
}

impl Access {
    /// One that is not usable yet.
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

    /// Asks the processor for the header that may begin there, so that it is there when it is read.
    #[inline]
    pub fn prefetch(&self) {
        if let Ok(span) = self.result {
            span.take(HOT).prefetch();
        }
    }
}

/// Where the bytes of a [`CopyOut`] come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
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
    /// Where from.
    pub source: Source,
    /// The page, of the one guest that this interface belongs to.
    pub gref: GrantRef,
    /// First byte within the page.
    pub offset: u16,
    /// Bytes; the netback has checked that they stay within the page.
    pub len: u16,
    /// How it ended. Starts as an error, so that a copy which never ran cannot read as done.
    pub status: GrantStatus,
}

impl CopyOut {
    /// One that was not carried out yet: `len` bytes to `offset` of the page.
    #[must_use]
    #[inline]
    pub const fn new(source: Source, gref: GrantRef, offset: usize, len: usize) -> Self {
        Self {
            source,
            gref,
            offset: offset as u16,
            len: len as u16,
            status: GrantStatus::GeneralError,
        }
    }
}

/// One mechanism, for one guest.
pub trait Grants {
    /// Makes every access of the batch usable, or says per access why not. What begins there is
    /// read next: a mechanism fetches it ahead as soon as it knows where it is.
    fn read_begin(&mut self, accesses: &mut [Access]);

    /// The accesses of the last [`Grants::read_begin`] are over.
    fn read_end(&mut self);

    /// Carries out every copy of the batch; `frames` are what [`Source::Header`] refers to.
    fn write(&mut self, copies: &mut [CopyOut], frames: &[nic::Frame]);

    /// Whether pages come into this domain's reach at all, so that [`Grants::write_small_frames`]
    /// is of any use.
    fn in_reach(&self) -> bool {
        false
    }

    /// Copies the frames of `small_frames` that `pick` names, in its order, each to the place of
    /// one of `accesses`. The result of an access says whether the frame is there: it is not if the
    /// place is too small.
    fn write_small_frames(
        &mut self,
        accesses: &mut [Access],
        small_frames: &[SmallFrame],
        pick: &[u32],
    ) {
        let _ = (small_frames, pick);
        refuse(accesses);
    }

    /// Makes further pages usable for a device that writes them itself, until
    /// [`Grants::post_end`], or says per access why not. A mechanism that never has pages in this
    /// domain's reach cannot.
    fn post_begin(&mut self, accesses: &mut [Access]) {
        refuse(accesses);
    }

    /// No device writes any page of [`Grants::post_begin`] any more.
    fn post_end(&mut self) {}

    /// Makes pages usable for a device that writes them itself until [`Grants::hold_end`] of each,
    /// or says per access why not; appends to `frames`, for every access, which of the guest's
    /// frames the page is. A mechanism that does not learn that cannot do it.
    fn hold(&mut self, accesses: &mut [Access], frames: &mut Vec<u32>) {
        frames.extend(accesses.iter().map(|_| 0));
        refuse(accesses);
    }

    /// No device writes the page for the sake of this access any more: one that [`Grants::hold`]
    /// has made usable.
    fn hold_end(&mut self, _gref: GrantRef) {}
}

/// What a mechanism says that cannot do it.
fn refuse(accesses: &mut [Access]) {
    for access in accesses {
        access.result = Err(GrantStatus::GeneralError);
    }
}

impl<G: Grants + ?Sized> Grants for Box<G> {
    fn read_begin(&mut self, accesses: &mut [Access]) {
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
        accesses: &mut [Access],
        small_frames: &[SmallFrame],
        pick: &[u32],
    ) {
        (**self).write_small_frames(accesses, small_frames, pick);
    }

    fn post_begin(&mut self, accesses: &mut [Access]) {
        (**self).post_begin(accesses);
    }

    fn post_end(&mut self) {
        (**self).post_end();
    }

    fn hold(&mut self, accesses: &mut [Access], frames: &mut Vec<u32>) {
        (**self).hold(accesses, frames);
    }

    fn hold_end(&mut self, gref: GrantRef) {
        (**self).hold_end(gref);
    }
}
