//! Foreign memory: files whose descriptors a domain received from the virtual machine monitor that
//! it serves. The domain passes the number of a descriptor in its table, and its agent maps the
//! file.
//!
//! The monitor checks a duplicate of the descriptor and passes the same duplicate to the agent, so
//! the domain cannot exchange the file in between. It accepts only files that support seals:
//! memfds, and files of tmpfs and hugetlbfs. Operations on these involve no other file system and
//! no process that serves one, so they do not block. The monitor itself never maps these files.

use crate::grant::{WindowSlot, WindowSlots};
use abi::hypercall::ForeignMap;
use abi::layout::{FOREIGN_PAGES, FOREIGN_REGIONS_MAX, PAGE};
use rustix::fs::{fcntl_get_seals, fstat};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// A domain's mappings of foreign memory.
#[derive(Debug)]
pub(crate) struct ForeignMappings {
    /// The maximum number of mapped pages.
    limit: u32,
    range: WindowSlots,
}

impl ForeignMappings {
    /// Creates an empty set with a limit of `limit` mapped pages.
    pub(crate) fn new(limit: u32) -> Self {
        let range = WindowSlots::new(FOREIGN_PAGES);
        Self { limit, range }
    }

    /// Reserves the pages for a mapping of `file`. Rounds the length up to a multiple of the file's
    /// page size, since the kernel maps huge pages only as a whole.
    ///
    /// # Errors
    /// Returns `EINVAL` if the file does not support seals. Returns `ENOSPC` if the mapping exceeds
    /// a limit. Returns `EEXIST` if the pages are not free, or the mapping is empty.
    pub(crate) fn take(&mut self, file: &OwnedFd, map: &ForeignMap) -> Result<Range<u32>, Errno> {
        fcntl_get_seals(file).map_err(|_| Errno::INVAL)?;
        let unit = (fstat(file)?.st_blksize as u64).max(PAGE as u64);
        let bytes = map.bytes.checked_next_multiple_of(unit);
        let pages = bytes.and_then(|bytes| u32::try_from(bytes / PAGE as u64).ok());
        let end = pages.and_then(|pages| pages.checked_add(map.page));
        let pages = map.page..end.ok_or(Errno::NOSPC)?;
        let held = self.range.held();
        let sum = held.fold((1, pages.len()), |(n, sum), (held, _)| {
            (n + 1, sum + held.len())
        });
        if sum.0 > FOREIGN_REGIONS_MAX || sum.1 > self.limit as usize {
            return Err(Errno::NOSPC);
        }
        let reserved = std::slice::from_ref(&pages);
        match !pages.is_empty() && self.range.reserve(WindowSlot::Page, reserved) {
            true => Ok(pages),
            false => Err(Errno::EXIST),
        }
    }

    /// Returns the pages of the mapping that starts at `page`.
    pub(crate) fn at(&self, page: u64) -> Option<Range<u32>> {
        let mut all = self.range.held().map(|(pages, _)| pages);
        all.find(|pages| u64::from(pages.start) == page)
    }

    /// Frees the pages of a mapping.
    pub(crate) fn free(&mut self, pages: Range<u32>) {
        self.range.unreserve(&[pages]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    const GIB: u64 = 1 << 30;

    fn memfd() -> OwnedFd {
        memfd_create("vm", MemfdFlags::CLOEXEC).unwrap()
    }

    fn map(page: u32, bytes: u64) -> ForeignMap {
        let (number, offset) = (0, 0);
        ForeignMap {
            number,
            page,
            offset,
            bytes,
        }
    }

    #[test]
    fn only_memory_files_are_accepted() {
        let mut foreign = ForeignMappings::new(FOREIGN_PAGES);
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let open = |path: &str| OwnedFd::from(std::fs::File::open(path).unwrap());
        for other in [
            reader,
            open("/dev/null"),
            open("/dev/zero"),
            open("/proc/self/mem"),
        ] {
            assert_eq!(foreign.take(&other, &map(0, 4096)), Err(Errno::INVAL));
        }
        assert_eq!(foreign.take(&memfd(), &map(0, 4096)), Ok(0..1));
    }

    #[test]
    fn pages_are_bounded_and_held_once() {
        let limit = (4 * GIB / PAGE as u64) as u32;
        let mut foreign = ForeignMappings::new(limit);
        let file = memfd();
        assert_eq!(
            foreign.take(&file, &map(5, 3 * GIB)),
            Ok(5..5 + limit / 4 * 3)
        );
        assert_eq!(foreign.take(&file, &map(limit, GIB + 1)), Err(Errno::NOSPC));
        assert_eq!(
            foreign.take(&file, &map(limit, u64::MAX)),
            Err(Errno::NOSPC)
        );
        assert_eq!(foreign.take(&file, &map(limit, 1 << 60)), Err(Errno::NOSPC));
        for page in [0, 5, 6, limit / 2] {
            assert_eq!(
                foreign.take(&file, &map(page, GIB)),
                Err(Errno::EXIST),
                "{page}"
            );
        }
        for page in [FOREIGN_PAGES, FOREIGN_PAGES - 1, u32::MAX] {
            assert!(foreign.take(&file, &map(page, 8192)).is_err(), "{page}");
        }
        assert_eq!(foreign.take(&file, &map(limit, 0)), Err(Errno::EXIST));
        assert_eq!(foreign.at(6), None);
        let pages = foreign.at(5).unwrap();
        foreign.free(pages);
        assert_eq!(foreign.take(&file, &map(0, 4 * GIB)), Ok(0..limit));
    }

    #[test]
    fn regions_are_bounded() {
        let mut foreign = ForeignMappings::new(FOREIGN_PAGES);
        let file = memfd();
        for page in 0..FOREIGN_REGIONS_MAX as u32 {
            foreign.take(&file, &map(page, 1)).unwrap();
        }
        assert_eq!(foreign.take(&file, &map(1000, 1)), Err(Errno::NOSPC));
    }

    #[test]
    fn no_foreign_memory_unless_described() {
        let taken = ForeignMappings::new(0).take(&memfd(), &map(0, 4096));
        assert_eq!(taken, Err(Errno::NOSPC));
    }
}
