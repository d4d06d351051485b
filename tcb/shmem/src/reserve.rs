//! The address range that spans of this process point into.
//!
//! One reservation without access rights, made at first use and kept for ever. Areas take from it
//! and never give back; regions give back, and what they gave back is only ever used for other
//! regions. So no address of a span can come to hold a Rust object.

use abi::PAGE;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Mutex, PoisonError};

/// Bytes reserved, largest first: a process under an address-space limit gets a smaller one.
const SIZES: [usize; 3] = [1 << 40, 1 << 36, 1 << 32];

/// What is free.
struct Free {
    /// Never used: areas and regions are cut off its start.
    fresh: Range<usize>,
    /// Given back by regions; sorted, no two touch.
    returned: Vec<Range<usize>>,
}

static FREE: Mutex<Option<Free>> = Mutex::new(None);

/// Runs `f` on the free list, after reserving the range if this is the first use.
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

/// Reserves the range.
fn reserve() -> io::Result<Range<usize>> {
    crate::fault::install_fault_handler();
    let mut error = Errno::NOMEM;
    for size in SIZES {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping without access rights at an address of the kernel's choice
        // touches nothing that exists.
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

/// Bytes in whole pages, at least one.
pub(crate) fn whole_pages(bytes: usize) -> io::Result<usize> {
    let whole = bytes.max(1).checked_next_multiple_of(PAGE);
    whole.ok_or_else(|| Errno::NOMEM.into())
}

/// Cuts `bytes` (whole pages) off the start of the first range that has so many.
fn cut<'a>(
    mut ranges: impl Iterator<Item = &'a mut Range<usize>>,
    bytes: usize,
) -> io::Result<usize> {
    let fits = ranges.find(|range| range.len() >= bytes);
    let range = fits.ok_or(Errno::NOMEM)?;
    range.start += bytes;
    Ok(range.start - bytes)
}

/// Addresses for an area: `bytes` in whole pages, never used before.
pub(crate) fn for_area(bytes: usize) -> io::Result<usize> {
    with_free(|free| cut([&mut free.fresh].into_iter(), bytes))
}

/// Addresses for a region: `bytes` in whole pages; first fit among what regions gave back.
pub(crate) fn for_region(bytes: usize) -> io::Result<usize> {
    with_free(|Free { fresh, returned }| {
        let start = cut(returned.iter_mut().chain([fresh]), bytes)?;
        returned.retain(|range| !range.is_empty());
        Ok(start)
    })
}

/// Takes back the addresses of a region; nothing is mapped there any more.
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
    debug_assert!(given.is_ok(), "what comes back was reserved");
}

/// Maps a file, or none, over addresses from [`for_area`] or [`for_region`].
///
/// # Safety
/// `start..start + bytes` came from one of the two and was not given back; whatever is mapped
/// there belongs to no thread any more.
pub(crate) unsafe fn map_over(
    start: usize,
    bytes: usize,
    protection: ProtFlags,
    flags: MapFlags,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let (address, flags) = (with_exposed_provenance_mut(start), flags | MapFlags::FIXED);
    // SAFETY: replaces part of our own reservation, which the caller vouches for.
    unsafe {
        match file {
            Some(file) => mmap(address, bytes, protection, flags, file, 0)?,
            None => mmap_anonymous(address, bytes, protection, flags)?,
        };
    }
    Ok(())
}
