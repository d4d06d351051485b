//! The address range of all spans of this process.
//!
//! The range is reserved without access rights at the first use, and never released. Areas take
//! addresses from it and never return them. Regions return theirs, and returned addresses are
//! reused only for regions. So no Rust object ever has the address of a span.

use abi::PAGE;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Mutex, PoisonError};

/// Sizes to try, in bytes, largest first. A process with an address-space limit has a smaller
/// reservation.
const SIZES: [usize; 3] = [1 << 40, 1 << 36, 1 << 32];

/// The free addresses.
struct Free {
    /// Addresses that were never used. Areas and regions take them from the start.
    fresh: Range<usize>,
    /// Addresses that regions have returned: sorted ranges, no two of which are adjacent.
    returned: Vec<Range<usize>>,
}

static FREE: Mutex<Option<Free>> = Mutex::new(None);

/// Runs `f` on the free list, after reserving the range at the first use.
fn with_free<T>(f: impl FnOnce(&mut Free) -> io::Result<T>) -> io::Result<T> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *free {
        Some(free) => f(free),
        none => f(none.insert(Free {
            fresh: reserve()?,
            returned: Vec::new(),
        })),
    }
}

/// Reserves the address range of all spans.
fn reserve() -> io::Result<Range<usize>> {
    crate::fault::install_fault_handler();
    let mut error = Errno::NOMEM;
    for size in SIZES {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping without access rights, at an address that the kernel selects,
        // affects no existing memory.
        match unsafe { mmap_anonymous(null_mut(), size, ProtFlags::empty(), flags) } {
            Ok(start) => {
                let start = start.expose_provenance();
                return Ok(start..start + size);
            }
            Err(errno) => error = errno,
        }
    }
    Err(error.into())
}

/// Rounds a number of bytes up to whole pages, at least one page.
pub(crate) fn whole_pages(bytes: usize) -> io::Result<usize> {
    let whole = bytes.max(1).checked_next_multiple_of(PAGE);
    whole.ok_or_else(|| Errno::NOMEM.into())
}

/// Removes `bytes` bytes (whole pages) from the start of the first range that is large enough.
/// Returns their address.
fn cut<'a>(
    mut ranges: impl Iterator<Item = &'a mut Range<usize>>,
    bytes: usize,
) -> io::Result<usize> {
    let fits = ranges.find(|range| range.len() >= bytes);
    let range = fits.ok_or(Errno::NOMEM)?;
    range.start += bytes;
    Ok(range.start - bytes)
}

/// Allocates addresses for an area: `bytes` bytes in whole pages, which were never used before.
pub(crate) fn for_area(bytes: usize) -> io::Result<usize> {
    with_free(|free| cut([&mut free.fresh].into_iter(), bytes))
}

/// Allocates addresses for a region: `bytes` bytes in whole pages. Prefers returned addresses, by
/// first fit.
pub(crate) fn for_region(bytes: usize) -> io::Result<usize> {
    with_free(|Free { fresh, returned }| {
        let start = cut(returned.iter_mut().chain([fresh]), bytes)?;
        returned.retain(|range| !range.is_empty());
        Ok(start)
    })
}

/// Returns the addresses of a region to the free list, after its memory was unmapped.
pub(crate) fn give_back(start: usize, bytes: usize) {
    let given = with_free(|Free { returned, .. }| {
        let at = returned.partition_point(|range| range.start < start);
        returned.insert(at, start..start + bytes);
        let next = returned.get(at + 1);
        if next.is_some_and(|next| next.start == start + bytes) {
            returned[at].end = returned.remove(at + 1).end;
        }
        if at > 0 && returned[at - 1].end == start {
            returned[at - 1].end = returned.remove(at).end;
        }
        Ok(())
    });
    debug_assert!(given.is_ok(), "the returned addresses were not reserved");
}

/// Maps a file starting at an offset, or anonymous memory, over addresses from [`for_area`] or
/// [`for_region`].
///
/// # Safety
/// One of the two functions returned `start..start + bytes`, the range was not given back since,
/// and no thread uses its current mapping.
pub(crate) unsafe fn map_over(
    start: usize,
    bytes: usize,
    protection: ProtFlags,
    flags: MapFlags,
    file: Option<(BorrowedFd<'_>, u64)>,
) -> io::Result<()> {
    let (address, flags) = (with_exposed_provenance_mut(start), flags | MapFlags::FIXED);
    // SAFETY: by the caller's promise, this replaces part of the reservation, which no thread uses.
    unsafe {
        match file {
            Some((file, offset)) => mmap(address, bytes, protection, flags, file, offset)?,
            None => mmap_anonymous(address, bytes, protection, flags)?,
        };
    }
    Ok(())
}

/// Unmaps addresses from [`for_region`] and returns them to the free list.
///
/// # Safety
/// See the contract of [`map_over`].
pub(crate) unsafe fn unmap(start: usize, bytes: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the caller promises the same about the addresses.
    let unmapped = unsafe { map_over(start, bytes, ProtFlags::empty(), flags, None) };
    // If this fails, the memory stays mapped, and its addresses are not reused.
    if unmapped.is_ok() {
        give_back(start, bytes);
    }
}
