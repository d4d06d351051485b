//! Memory and descriptors of a virtual machine in the domain that serves it.
//!
//! Each mapping occupies whole GiB of the range, and begins at the same offset within a GiB as in
//! its file, so that pages of every size are aligned. The monitor also checks each mapping.

use crate::call::Calls;
use abi::PAGE;
use abi::hypercall::ForeignMap;
use rustix::event::epoll;
use rustix::io::Errno;
use shmem::{Area, Span};
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

const GIB: u64 = 1 << 30;
/// Epoll data of all watched descriptors. The waiter need not distinguish them, because the domain
/// checks all of them after each sleep.
const WATCHED: u64 = u64::MAX - 1;

/// The range for foreign memory, and the epoll set on which the domain sleeps.
#[derive(Debug)]
pub(crate) struct ForeignMemory {
    range: Area,
    epoll: Rc<OwnedFd>,
    held: RefCell<OccupiedRanges>,
}

/// The GiB of the range that mappings occupy, in order.
#[derive(Debug, Default)]
struct OccupiedRanges(Vec<Range<u64>>);

impl OccupiedRanges {
    /// Allocates the first `count` adjacent free GiB in a range of `all` GiB.
    fn take(&mut self, count: u64, all: u64) -> Option<u64> {
        let mut first = 0;
        let mut place = 0;
        for held in &self.0 {
            if held.start - first >= count {
                break;
            }
            first = held.end;
            place += 1;
        }
        let end = first.checked_add(count).filter(|end| *end <= all)?;
        self.0.insert(place, first..end);
        Some(first)
    }

    /// Frees the GiB of the mapping that contains this GiB.
    fn free(&mut self, gib: u64) {
        self.0.retain(|held| !held.contains(&gib));
    }
}

impl ForeignMemory {
    pub(crate) fn new(range: Area, epoll: Rc<OwnedFd>) -> Self {
        Self {
            range,
            epoll,
            held: RefCell::default(),
        }
    }

    /// Maps a part of a file.
    pub(crate) fn map(
        &self,
        calls: &mut Calls,
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
    ) -> io::Result<Span> {
        let within = offset % GIB;
        let count = within.checked_add(bytes).ok_or(Errno::NOSPC)?.div_ceil(GIB);
        let all = self.range.len() as u64 / GIB;
        let mut held = self.held.borrow_mut();
        let gib = held.take(count, all).ok_or(Errno::NOSPC)?;
        let start = gib * GIB + within;
        let map = ForeignMap {
            number: file.as_raw_fd().cast_unsigned(),
            page: (start / PAGE as u64) as u32,
            offset,
            bytes,
        };
        let span = self.range.at(start as usize, bytes as usize);
        let mapped = calls.map_foreign(&map).and(span.ok_or(Errno::NOSPC));
        mapped.map_err(|errno| {
            held.free(gib);
            errno.into()
        })
    }

    /// Unmaps a region that [`ForeignMemory::map`] returned.
    pub(crate) fn unmap(&self, calls: &mut Calls, region: Span) -> io::Result<()> {
        let start = region.addr().checked_sub(self.range.span().addr());
        let start = start.ok_or(Errno::NOENT)? as u64;
        let page = u32::try_from(start / PAGE as u64).map_err(|_| Errno::NOENT)?;
        calls.unmap_foreign(page)?;
        self.held.borrow_mut().free(start / GIB);
        Ok(())
    }

    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, edges: bool) -> io::Result<()> {
        let edges = match edges {
            true => epoll::EventFlags::ET,
            false => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(WATCHED);
        Ok(epoll::add(
            &*self.epoll,
            fd,
            data,
            edges | epoll::EventFlags::IN,
        )?)
    }

    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&*self.epoll, fd)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_gap_is_used_again() {
        let mut held = OccupiedRanges::default();
        assert_eq!(
            [2, 3, 1].map(|count| held.take(count, 6)),
            [Some(0), Some(2), Some(5)]
        );
        assert_eq!(held.take(1, 6), None);
        held.free(3);
        assert_eq!([4, 3].map(|count| held.take(count, 6)), [None, Some(2)]);
        assert_eq!(held.take(u64::MAX, u64::MAX), None);
    }

    proptest! {
        #[test]
        fn mappings_never_overlap(ops in prop::collection::vec((any::<bool>(), 1u64..9), 1..60)) {
            let mut held = OccupiedRanges::default();
            for (takes, number) in ops {
                match takes {
                    true => drop(held.take(number, 32)),
                    false => held.free(number),
                }
                prop_assert!(held.0.windows(2).all(|pair| pair[0].end <= pair[1].start));
                prop_assert!(held.0.last().is_none_or(|last| last.end <= 32));
            }
        }
    }
}
