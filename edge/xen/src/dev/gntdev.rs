//! Pages that other domains grant: `/dev/xen/gntdev`.

use super::window::{ForeignWindow, PageRights};
use super::{ioctl, open, request};
use crate::hypercall_counters::{Hypercall, HypercallCounters};
use abi::{GrantRef, GrantStatus, PAGE};
use shmem::Span;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

/// `IOCTL_GNTDEV_MAP_GRANT_REF`.
const MAP: libc::Ioctl = request(b'G', 0, size_of::<MapGrantRef<1>>());
/// `IOCTL_GNTDEV_UNMAP_GRANT_REF`.
const UNMAP: libc::Ioctl = request(b'G', 1, size_of::<UnmapGrantRef>());
/// `IOCTL_GNTDEV_GRANT_COPY`.
const COPY: libc::Ioctl = request(b'G', 8, size_of::<CopyArgument>());

/// All requests of the device.
pub const GNTDEV_REQUESTS: [u64; 3] = [MAP, UNMAP, COPY];

/// Number of operations that Linux puts into one hypercall (`GNTDEV_COPY_BATCH`).
const COPY_BATCH: u64 = 16;

/// Maximum number of pages that one request maps.
pub const MAPPED_MAX: usize = 256;

/// `GNTCOPY_source_gref`.
const SOURCE_GREF: u16 = 1;
/// `GNTCOPY_dest_gref`.
const DEST_GREF: u16 = 2;

/// The structure of [`MAP`], for `count` pages, at most `N`.
#[repr(C)]
struct MapGrantRef<const N: usize> {
    count: u32,
    padding: u32,
    index: u64,
    pages: [ForeignPage; N],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ForeignPage {
    domain: u32,
    gref: u32,
}

#[repr(C)]
struct UnmapGrantRef {
    index: u64,
    count: u32,
    padding: u32,
}

#[repr(C)]
struct CopyArgument {
    count: u32,
    segments: *mut CopySegment,
}

/// A copy between a page of another domain and memory of this process, in the kernel's form.
/// `flags` states which of the two places is a grant and which an address.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopySegment {
    source: u64,
    dest: u64,
    len: u16,
    flags: u16,
    status: i16,
}

/// A place in a page that another domain has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedRange {
    /// The domain.
    pub domain: u16,
    /// Its grant.
    pub gref: u32,
    /// First byte within the page.
    pub offset: u16,
}

impl GrantedRange {
    /// Encodes the place like the kernel's union.
    fn encode(self) -> u64 {
        u64::from(self.gref) | u64::from(self.offset) << 32 | u64::from(self.domain) << 48
    }
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStatus(i16);

impl CopyStatus {
    /// Returns the status of the grant operation.
    #[must_use]
    pub fn status(self) -> GrantStatus {
        GrantStatus::from_wire(self.0)
    }
}

impl CopySegment {
    /// Returns a copy from a granted page to memory of this process.
    ///
    /// Like [`CopySegment::from_local`], it takes memory of spans, whose bytes may change at any
    /// time. Returns `None` if the bytes would cross the end of the granted page, for which the
    /// kernel would reject the whole batch.
    #[must_use]
    pub fn to_local(from: GrantedRange, to: Span) -> Option<Self> {
        Self::new(from, to, SOURCE_GREF)
    }

    /// Returns a copy from memory of this process to a granted page.
    #[must_use]
    pub fn from_local(from: Span, to: GrantedRange) -> Option<Self> {
        Self::new(to, from, DEST_GREF)
    }

    fn new(remote: GrantedRange, own: Span, flags: u16) -> Option<Self> {
        if usize::from(remote.offset) + own.len() > PAGE {
            return None;
        }
        let (remote, own_address) = (remote.encode(), own.addr() as u64);
        let (source, dest) = match flags {
            SOURCE_GREF => (remote, own_address),
            _ => (own_address, remote),
        };
        Some(Self {
            source,
            dest,
            len: own.len() as u16,
            flags,
            status: GrantStatus::GeneralError as i16,
        })
    }

    /// Merges `next` into this copy if its bytes follow this copy's at both ends. Then Xen checks
    /// one grant less, and both copies have the same result.
    #[must_use]
    pub fn join(&mut self, next: &Self) -> bool {
        let len = u64::from(self.len);
        let behind = match (self.flags, next.flags) {
            (SOURCE_GREF, SOURCE_GREF) => (self.source + (len << 32), self.dest + len),
            (DEST_GREF, DEST_GREF) => (self.source + len, self.dest + (len << 32)),
            _ => return false,
        };
        // Each copy is within its granted page and the second follows the first, so the merged copy
        // is also within the page.
        let joins = behind == (next.source, next.dest);
        if joins {
            self.len += next.len;
        }
        joins
    }

    /// Returns the number of operations that Linux makes of this copy: one for each page of this
    /// process that it touches.
    fn operations(&self) -> u64 {
        let own = match self.flags {
            SOURCE_GREF => self.dest,
            _ => self.source,
        };
        let page = PAGE as u64;
        (own % page + u64::from(self.len)).div_ceil(page)
    }

    /// Returns the result of the copy, which is an error until [`Gntdev::copy`] has executed it.
    #[must_use]
    pub fn copied(&self) -> CopyStatus {
        CopyStatus(self.status)
    }
}

/// The device.
#[derive(Debug)]
pub struct Gntdev {
    device: File,
    tally: Arc<HypercallCounters>,
}

impl Gntdev {
    /// Opens the device, without mapping anything. Counts requests in `hypercall_counters`.
    ///
    /// # Errors
    ///
    /// Returns an error if the device does not exist or is inaccessible.
    pub fn open(tally: Arc<HypercallCounters>) -> io::Result<Self> {
        let device = open("/dev/xen/gntdev", 0)?;
        Ok(Self { device, tally })
    }

    /// Executes all copies in one request, and sets the result of each. If the kernel rejects the
    /// batch, copies that were not executed have an error.
    pub fn copy(&self, segments: &mut [CopySegment]) {
        let operations = segments.iter().map(CopySegment::operations).sum();
        let calls = u64::div_ceil(operations, COPY_BATCH);
        self.tally.count(Hypercall::Copy, calls, operations);
        let mut argument = CopyArgument {
            count: segments.len() as u32,
            segments: segments.as_mut_ptr(),
        };
        // SAFETY: this is the structure of the request, over an exclusively borrowed slice. The
        // kernel reads and writes the memory that the segments name. That is memory of spans, which
        // may change at any time and contains no Rust object. The kernel checks that it is mapped.
        let refused = unsafe { ioctl(&self.device, COPY, &mut argument) }.is_err();
        if refused {
            // The kernel does not always report the copies that it had executed before it stopped.
            for segment in segments {
                segment.status = GrantStatus::BadCopyArg as i16;
            }
        }
    }

    /// Maps pages that domain `domain` grants, all or none, consecutively from the start of
    /// `window` on, until they are unmapped.
    ///
    /// # Errors
    ///
    /// Returns an error if a page is not granted with these rights, or the pages are more than
    /// [`MAPPED_MAX`] or do not fit into the window.
    pub fn map(
        self: &Rc<Self>,
        domain: u16,
        grefs: impl ExactSizeIterator<Item = GrantRef>,
        window: ForeignWindow,
        rights: PageRights,
    ) -> io::Result<Mapped> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let count = grefs.len();
        if count == 0 || count > MAPPED_MAX {
            return Err(invalid());
        }
        let window = window.part(0, count).ok_or_else(invalid)?;
        let mut argument = MapGrantRef {
            count: count as u32,
            padding: 0,
            index: 0,
            pages: [ForeignPage { domain: 0, gref: 0 }; MAPPED_MAX],
        };
        for (page, gref) in argument.pages.iter_mut().zip(grefs) {
            *page = ForeignPage {
                domain: domain.into(),
                gref: gref.0,
            };
        }
        // SAFETY: this is the structure of the request. It has room for at least the number of
        // pages that it states, and contains no pointer.
        unsafe { ioctl(&self.device, MAP, &mut argument)? };
        self.tally.count(Hypercall::Map, 1, count as u64);
        let mut mapped = Mapped {
            device: Rc::clone(self),
            window,
            index: argument.index,
            count: count as u32,
            span: Span::EMPTY,
        };
        mapped.span = window.map_device(self.device.as_fd(), argument.index, rights)?;
        Ok(mapped)
    }
}

/// Mapped granted pages. Dropping this unmaps them.
#[derive(Debug)]
pub struct Mapped {
    device: Rc<Gntdev>,
    window: ForeignWindow,
    index: u64,
    count: u32,
    span: Span,
}

impl Mapped {
    /// Returns the bytes of the pages.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.window.unmap();
        let count = self.count;
        self.device.tally.count(Hypercall::Unmap, 1, count.into());
        let mut argument = UnmapGrantRef {
            index: self.index,
            count,
            padding: 0,
        };
        // SAFETY: this is the structure of the request, and it contains no pointer.
        let _ = unsafe { ioctl(&self.device.device, UNMAP, &mut argument) };
    }
}

const _: () = {
    // The sizes that <xen/gntdev.h> defines.
    assert!(size_of::<MapGrantRef<1>>() == 24);
    assert!(size_of::<MapGrantRef<3>>() == 40);
    assert!(size_of::<UnmapGrantRef>() == 16);
    assert!(size_of::<CopyArgument>() == 16);
    assert!(size_of::<CopySegment>() == 24);
};

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;

    const GRANTED: GrantedRange = GrantedRange {
        domain: 7,
        gref: 0x1234_5678,
        offset: 0x0fc0,
    };

    #[test]
    fn segments_match_the_kernels_structure() {
        let own = Area::anonymous(PAGE).unwrap().at(64, 60).unwrap();
        let there = 0x0007_0fc0_1234_5678;
        let out = CopySegment::from_local(own, GRANTED).unwrap();
        assert_eq!((out.source, out.dest), (own.addr() as u64, there));
        assert_eq!((out.flags, out.len), (DEST_GREF, 60));
        let back = CopySegment::to_local(GRANTED, own).unwrap();
        assert_eq!((back.source, back.dest), (there, own.addr() as u64));
        assert_eq!((back.flags, back.len), (SOURCE_GREF, 60));
        for segment in [out, back] {
            assert_ne!(
                segment.copied().status(),
                GrantStatus::Okay,
                "before the copy"
            );
        }
    }

    #[test]
    fn a_copy_is_an_operation_for_each_own_page() {
        let area = Area::anonymous(2 * PAGE).unwrap();
        let there = GrantedRange {
            offset: 0,
            ..GRANTED
        };
        for (at, len, wanted) in [
            (0, PAGE, 1),
            (PAGE - 1, 1, 1),
            (PAGE - 1, 2, 2),
            (64, PAGE, 2),
        ] {
            let own = area.at(at, len).unwrap();
            for segment in [
                CopySegment::to_local(there, own),
                CopySegment::from_local(own, there),
            ] {
                assert_eq!(segment.unwrap().operations(), wanted, "{at}+{len}");
            }
        }
    }

    #[test]
    fn consecutive_copies_are_joined() {
        let page = Area::anonymous(2 * PAGE).unwrap();
        let there = |offset| GrantedRange { offset, ..GRANTED };
        let make = [
            CopySegment::from_local as fn(Span, GrantedRange) -> _,
            |own, there| CopySegment::to_local(there, own),
        ];
        for make in make {
            let segment = |at, offset, len| make(page.at(at, len).unwrap(), there(offset)).unwrap();
            let mut first = segment(64, 0, 96);
            assert!(first.join(&segment(160, 96, 200)));
            assert_eq!((first.len, first.operations()), (296, 1));
            for apart in [segment(361, 296, 9), segment(360, 297, 9)] {
                assert!(!first.join(&apart));
            }
            let mut elsewhere = segment(360, 296, 9);
            match elsewhere.flags {
                SOURCE_GREF => elsewhere.source += 1,
                _ => elsewhere.dest += 1,
            }
            assert!(!first.join(&elsewhere), "another grant");
            assert_eq!(first.len, 296);
            // Copies merge up to the last byte of the granted page, but not into the next page.
            assert!(first.join(&segment(360, 296, PAGE - 296)));
            assert!(!first.join(&segment(64 + PAGE, 0, 8)));
        }
        let out = CopySegment::from_local(page.at(8, 8).unwrap(), there(8)).unwrap();
        let mut back = CopySegment::to_local(there(0), page.at(0, 8).unwrap()).unwrap();
        assert!(!back.join(&out), "the opposite direction");
    }

    #[test]
    fn a_copy_across_the_end_of_a_granted_page_fails() {
        let page = Area::anonymous(PAGE).unwrap();
        let own = |len| page.at(0, len).unwrap();
        assert!(CopySegment::to_local(GRANTED, own(64)).is_some());
        assert!(CopySegment::to_local(GRANTED, own(65)).is_none());
        assert!(CopySegment::from_local(own(65), GRANTED).is_none());
    }

    #[test]
    fn requests_have_the_numbers_of_xens_header() {
        assert_eq!([MAP, UNMAP, COPY], [0x0018_4700, 0x0010_4701, 0x0010_4708]);
    }
}
