//! Pages that other domains grant: `/dev/xen/gntdev`.

use super::window::{PageRights, Window};
use super::{ioctl, open, request};
use crate::tally::{Hypercall, Tally};
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

/// All of them.
pub const GNTDEV_REQUESTS: [u64; 3] = [MAP, UNMAP, COPY];

/// Operations that Linux puts into one hypercall (`GNTDEV_COPY_BATCH`).
const COPY_BATCH: u64 = 16;

/// Pages that are mapped by one request at the most.
pub const MAPPED_MAX: usize = 256;

/// `GNTCOPY_source_gref`.
const SOURCE_GREF: u16 = 1;
/// `GNTCOPY_dest_gref`.
const DEST_GREF: u16 = 2;

/// The structure of [`MAP`]: `count` pages, which is at most `N`.
#[repr(C)]
struct MapGrantRef<const N: usize> {
    count: u32,
    padding: u32,
    index: u64,
    pages: [GrantedPage; N],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GrantedPage {
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

/// One copy between a page of another domain and memory of ours, as the kernel takes it. Which of
/// the two places is an address and which a grant, `flags` says.
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
pub struct Remote {
    /// The domain.
    pub domain: u16,
    /// Its grant.
    pub gref: u32,
    /// First byte within the page.
    pub offset: u16,
}

impl Remote {
    /// As the kernel's union has it.
    fn encode(self) -> u64 {
        u64::from(self.gref) | u64::from(self.offset) << 32 | u64::from(self.domain) << 48
    }
}

/// How a copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied(i16);

impl Copied {
    /// The status of the grant operation.
    #[must_use]
    pub fn status(self) -> GrantStatus {
        GrantStatus::from_wire(self.0)
    }
}

impl CopySegment {
    /// From a granted page to memory of ours.
    ///
    /// Both kinds take memory that spans reach: its bytes may change at any time. None: the bytes
    /// would cross the end of the granted page, for which the kernel would refuse the whole batch.
    #[must_use]
    pub fn to_us(from: Remote, to: Span) -> Option<Self> {
        Self::new(from, to, SOURCE_GREF)
    }

    /// From memory of ours to a granted page.
    #[must_use]
    pub fn from_us(from: Span, to: Remote) -> Option<Self> {
        Self::new(to, from, DEST_GREF)
    }

    fn new(remote: Remote, own: Span, flags: u16) -> Option<Self> {
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

    /// Takes up `next`, if its bytes lie behind this one's at both ends: then Xen has to look at
    /// one grant less. They end alike.
    #[must_use]
    pub fn join(&mut self, next: &Self) -> bool {
        let len = u64::from(self.len);
        let behind = match (self.flags, next.flags) {
            (SOURCE_GREF, SOURCE_GREF) => (self.source + (len << 32), self.dest + len),
            (DEST_GREF, DEST_GREF) => (self.source + len, self.dest + (len << 32)),
            _ => return false,
        };
        // Each lies in its granted page, and the second behind the first, so both do together.
        let joins = behind == (next.source, next.dest);
        if joins {
            self.len += next.len;
        }
        joins
    }

    /// Operations that Linux makes of it: one for each page of ours that it touches.
    fn operations(&self) -> u64 {
        let own = match self.flags {
            SOURCE_GREF => self.dest,
            _ => self.source,
        };
        let page = PAGE as u64;
        (own % page + u64::from(self.len)).div_ceil(page)
    }

    /// How it ended; an error before [`Gntdev::copy`].
    #[must_use]
    pub fn copied(&self) -> Copied {
        Copied(self.status)
    }
}

/// The device.
#[derive(Debug)]
pub struct Gntdev {
    device: File,
    tally: Arc<Tally>,
}

impl Gntdev {
    /// Opens it; what is asked for is counted in `tally`. Nothing is mapped.
    ///
    /// # Errors
    /// It is not there, or not for us.
    pub fn open(tally: Arc<Tally>) -> io::Result<Self> {
        let device = open("/dev/xen/gntdev", 0)?;
        Ok(Self { device, tally })
    }

    /// Carries out all copies, by as few hypercalls as the kernel makes of them. Each says how it
    /// ended; if the kernel refuses the batch, those that were not carried out say so.
    pub fn copy(&self, segments: &mut [CopySegment]) {
        let operations = segments.iter().map(CopySegment::operations).sum();
        let calls = u64::div_ceil(operations, COPY_BATCH);
        self.tally.count(Hypercall::Copy, calls, operations);
        let mut argument = CopyArgument {
            count: segments.len() as u32,
            segments: segments.as_mut_ptr(),
        };
        // SAFETY: the structure of this request, over a slice that is ours alone. The kernel reads
        // and writes the memory that the segments name; each names memory of a span, which may
        // change at any time, and which no Rust object lies in. It checks that it is there.
        let refused = unsafe { ioctl(&self.device, COPY, &mut argument) }.is_err();
        if refused {
            // What the kernel had done before it stopped it has not told in every case.
            for segment in segments {
                segment.status = GrantStatus::BadCopyArg as i16;
            }
        }
    }

    /// Maps pages that domain `domain` grants, one behind the other, from the start of `window` on:
    /// all of them or none. They stay in the window's first pages until they are unmapped.
    ///
    /// # Errors
    /// One of them is not granted so, there are more than [`MAPPED_MAX`], or more than fit.
    pub fn map(
        self: &Rc<Self>,
        domain: u16,
        grefs: impl ExactSizeIterator<Item = GrantRef>,
        window: Window,
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
            pages: [GrantedPage { domain: 0, gref: 0 }; MAPPED_MAX],
        };
        for (page, gref) in argument.pages.iter_mut().zip(grefs) {
            *page = GrantedPage {
                domain: domain.into(),
                gref: gref.0,
            };
        }
        // SAFETY: the structure of this request, with room for as many pages as it says or more; it
        // points at nothing.
        unsafe { ioctl(&self.device, MAP, &mut argument)? };
        self.tally.count(Hypercall::Map, 1, count as u64);
        let mut mapped = Mapped {
            device: Rc::clone(self),
            window,
            index: argument.index,
            count: count as u32,
            span: Span::EMPTY,
        };
        mapped.span = window.show(self.device.as_fd(), argument.index, rights)?;
        Ok(mapped)
    }
}

/// Granted pages that are mapped; unmapped when this is dropped.
#[derive(Debug)]
pub struct Mapped {
    device: Rc<Gntdev>,
    window: Window,
    index: u64,
    count: u32,
    span: Span,
}

impl Mapped {
    /// Their bytes.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.window.hide();
        let count = self.count;
        self.device.tally.count(Hypercall::Unmap, 1, count.into());
        let mut argument = UnmapGrantRef {
            index: self.index,
            count,
            padding: 0,
        };
        // SAFETY: the structure of this request; it points at nothing.
        let _ = unsafe { ioctl(&self.device.device, UNMAP, &mut argument) };
    }
}

const _: () = {
    // As <xen/gntdev.h> has them.
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

    const THERE: Remote = Remote {
        domain: 7,
        gref: 0x1234_5678,
        offset: 0x0fc0,
    };

    #[test]
    fn segments_are_what_the_kernel_takes() {
        let own = Area::anonymous(PAGE).unwrap().at(64, 60).unwrap();
        let there = 0x0007_0fc0_1234_5678;
        let out = CopySegment::from_us(own, THERE).unwrap();
        assert_eq!((out.source, out.dest), (own.addr() as u64, there));
        assert_eq!((out.flags, out.len), (DEST_GREF, 60));
        let back = CopySegment::to_us(THERE, own).unwrap();
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
    fn a_copy_is_an_operation_for_each_page_of_ours() {
        let area = Area::anonymous(2 * PAGE).unwrap();
        let there = Remote { offset: 0, ..THERE };
        for (at, len, wanted) in [
            (0, PAGE, 1),
            (PAGE - 1, 1, 1),
            (PAGE - 1, 2, 2),
            (64, PAGE, 2),
        ] {
            let own = area.at(at, len).unwrap();
            for segment in [
                CopySegment::to_us(there, own),
                CopySegment::from_us(own, there),
            ] {
                assert_eq!(segment.unwrap().operations(), wanted, "{at}+{len}");
            }
        }
    }

    #[test]
    fn copies_that_lie_behind_each_other_are_joined() {
        let page = Area::anonymous(2 * PAGE).unwrap();
        let there = |offset| Remote { offset, ..THERE };
        let make = [
            CopySegment::from_us as fn(Span, Remote) -> _,
            |own, there| CopySegment::to_us(there, own),
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
            // To the last byte of the granted page, and not into the next one.
            assert!(first.join(&segment(360, 296, PAGE - 296)));
            assert!(!first.join(&segment(64 + PAGE, 0, 8)));
        }
        let out = CopySegment::from_us(page.at(8, 8).unwrap(), there(8)).unwrap();
        let mut back = CopySegment::to_us(there(0), page.at(0, 8).unwrap()).unwrap();
        assert!(!back.join(&out), "the other way");
    }

    #[test]
    fn a_copy_across_the_end_of_a_granted_page_is_none() {
        let page = Area::anonymous(PAGE).unwrap();
        let own = |len| page.at(0, len).unwrap();
        assert!(CopySegment::to_us(THERE, own(64)).is_some());
        assert!(CopySegment::to_us(THERE, own(65)).is_none());
        assert!(CopySegment::from_us(own(65), THERE).is_none());
    }

    #[test]
    fn requests_have_the_numbers_of_xens_header() {
        assert_eq!([MAP, UNMAP, COPY], [0x0018_4700, 0x0010_4701, 0x0010_4708]);
    }
}
