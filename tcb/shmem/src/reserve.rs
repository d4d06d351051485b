//! The address range that spans of this process point into.
//!
//! One reservation without access rights, made at first use and kept for ever. Areas take from it
//! and never give back; regions give back, and what they gave back is only ever used for other
//! regions. So no address of a span can come to hold a Rust object.

use abi::PAGE;
use std::io;
use std::ops::Range;
use std::sync::Mutex;

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
    let mut free = FREE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
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
    let mut error = io::Error::from_raw_os_error(libc::ENOMEM);
    for size in SIZES {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping without access rights at an address of the kernel's choice
        // touches nothing that exists.
        let start =
            unsafe { libc::mmap(core::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
        if start != libc::MAP_FAILED {
            let start = start.expose_provenance();
            return Ok(start..start + size);
        }
        error = io::Error::last_os_error();
    }
    Err(error)
}

/// Bytes in whole pages, at least one.
pub(crate) fn whole_pages(bytes: usize) -> io::Result<usize> {
    bytes
        .max(1)
        .checked_next_multiple_of(PAGE)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Cuts `bytes` (whole pages) off the part that was never used.
fn take_fresh(free: &mut Free, bytes: usize) -> io::Result<usize> {
    if bytes > free.fresh.len() {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    let start = free.fresh.start;
    free.fresh.start += bytes;
    Ok(start)
}

/// Addresses for an area: `bytes` in whole pages, never used before.
pub(crate) fn for_area(bytes: usize) -> io::Result<usize> {
    with_free(|free| take_fresh(free, bytes))
}

/// Addresses for a region: `bytes` in whole pages; first fit among what regions gave back.
pub(crate) fn for_region(bytes: usize) -> io::Result<usize> {
    with_free(|free| {
        let Some(at) = free.returned.iter().position(|range| range.len() >= bytes) else {
            return take_fresh(free, bytes);
        };
        let range = &mut free.returned[at];
        let start = range.start;
        range.start += bytes;
        if range.start == range.end {
            free.returned.remove(at);
        }
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

/// Maps over addresses from [`for_area`] or [`for_region`].
///
/// # Safety
/// `start..start + bytes` came from one of the two and was not given back; whatever is mapped
/// there belongs to no thread any more.
pub(crate) unsafe fn map_over(
    start: usize,
    bytes: usize,
    protection: i32,
    flags: i32,
    fd: i32,
) -> io::Result<()> {
    let address = core::ptr::with_exposed_provenance_mut(start);
    // SAFETY: replaces part of our own reservation, which the caller vouches for.
    let mapped = unsafe { libc::mmap(address, bytes, protection, flags | libc::MAP_FIXED, fd, 0) };
    if mapped == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
