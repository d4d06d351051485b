//! Receives frames that the kernel sends through the interface.

use abi::PAGE;
use nic::frame::SNAPSHOT_MAX;
use nic::virtio;
use nic::{Buffer, Buffers, Frame, Offload, Piece};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Receive parameters, which match the interface's set-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxLimits {
    pub(super) vnet_header: bool,
    pub(super) checksum: bool,
    pub(super) tso: bool,
    /// Maximum length of a received frame in bytes.
    pub(super) bytes: usize,
    /// Whether headers stay out of the buffers.
    pub(super) split: bool,
    /// Whether frames use the buffers in the order in which they were taken.
    pub(super) in_order: bool,
}

/// Counters of dropped frames, and of batches that ended early.
#[derive(Debug, Default)]
pub(super) struct RxCounters {
    malformed: u64,
    truncated: u64,
    fault: u64,
    no_buffer: u64,
    error: u64,
}

impl RxCounters {
    pub(super) fn list(&self) -> [(&'static str, u64); 5] {
        [
            ("rx_malformed", self.malformed),
            ("rx_truncated", self.truncated),
            ("rx_fault", self.fault),
            ("rx_no_buffer", self.no_buffer),
            ("rx_error", self.error),
        ]
    }

    /// Returns the counters of a dedicated queue, by name.
    pub(super) fn queue_list(&self) -> [(&'static str, u64); 5] {
        [
            ("queue_malformed", self.malformed),
            ("queue_truncated", self.truncated),
            ("queue_fault", self.fault),
            ("queue_no_buffer", self.no_buffer),
            ("queue_error", self.error),
        ]
    }
}

/// Returns whether a read error is permanent.
const fn is_final(errno: i32) -> bool {
    matches!(
        errno,
        libc::EBADFD | libc::EBADF | libc::ENODEV | libc::ENXIO | libc::EIO
    )
}

/// Reasons for dropping a received frame.
enum Dropped {
    /// The virtio header is invalid, or the frame is shorter than an Ethernet header.
    Malformed,
    /// The frame exceeds the maximum length and was truncated.
    Truncated,
    /// The memory into which the frame was read is inaccessible.
    Fault,
}

/// The buffers of the next frame, and their I/O vectors.
pub(super) struct Receiver {
    /// A small buffer for the start of the frame.
    first: Option<Buffer>,
    /// Buffers for the rest of a longer frame. Together with `first` they hold at least one byte
    /// more than the longest frame, so a frame that is longer than allowed is detected as
    /// truncated. They are in ascending order of address, or in the order in which they were taken.
    more: Vec<Buffer>,
    /// Total length of `more` in bytes.
    more_bytes: usize,
    /// Private memory into which the kernel writes the virtio header.
    header: [u8; virtio::HEADER_BYTES],
    /// Private memory into which the kernel writes a frame's header if headers stay out of the
    /// buffers.
    start: [u8; SNAPSHOT_MAX],
    /// I/O vectors: one each for the virtio header, `start` and `first`, and one for each
    /// contiguous run in `more`.
    vectors: Vec<libc::iovec>,
    /// Whether `more` has changed since `vectors` was written.
    stale: bool,
    /// Whether the supply has large buffers. If so, a frame never continues in small buffers,
    /// because it would then have too many pieces for the egress port.
    has_large: bool,
    /// Whether the last batch ended because no buffer was free.
    pub(super) starved: bool,
    /// Whether the last batch emptied the queue.
    pub(super) empty: bool,
    /// Whether the interface was removed. No later batch returns a frame, and every wait on the
    /// descriptor reports an error.
    pub(super) removed: bool,
    pub(super) counters: RxCounters,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            first: None,
            more: Vec::new(),
            more_bytes: 0,
            header: [0; virtio::HEADER_BYTES],
            start: [0; SNAPSHOT_MAX],
            vectors: Vec::new(),
            stale: false,
            has_large: false,
            starved: false,
            empty: false,
            removed: false,
            counters: RxCounters::default(),
        }
    }
}

// SAFETY: the pointers in `vectors` are only passed to the kernel, during a call with exclusive
// access. They point to `header` and `start`, which every call sets again, and to spans, which
// every thread may use.
unsafe impl Send for Receiver {}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver")
            .field("first", &self.first)
            .field("more", &self.more)
            .finish_non_exhaustive()
    }
}

impl Receiver {
    /// Reads until the queue is empty, the budget is reached, or no buffer is free. Appends the
    /// frames to `out` and returns their number.
    pub(super) fn receive_batch(
        &mut self,
        fd: BorrowedFd<'_>,
        limits: RxLimits,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let before = out.len();
        self.starved = false;
        self.empty = false;
        for _ in 0..budget {
            if !self.add_buffers(limits, buffers) {
                self.counters.no_buffer += 1;
                self.starved = true;
                break;
            }
            let read = match self.read(fd, limits) {
                Ok(bytes) => self.frame(bytes, limits),
                Err(libc::EAGAIN) => {
                    self.empty = true;
                    break;
                }
                Err(libc::EFAULT) => Err(Dropped::Fault),
                Err(errno) => {
                    self.counters.error += 1;
                    self.removed = is_final(errno);
                    break;
                }
            };
            match read {
                Ok(frame) => out.push(frame),
                Err(Dropped::Malformed) => self.counters.malformed += 1,
                Err(Dropped::Truncated) => self.counters.truncated += 1,
                Err(Dropped::Fault) => {
                    // A page of this domain is inaccessible. The buffers return to the pool, and
                    // the next frame uses other buffers.
                    self.counters.fault += 1;
                    self.release(buffers);
                }
            }
        }
        out.len() - before
    }

    pub(super) fn release(&mut self, buffers: &mut dyn Buffers) {
        for buffer in self.first.take().into_iter().chain(self.more.drain(..)) {
            buffers.put(buffer.id);
        }
        self.more_bytes = 0;
        self.stale = true;
    }

    /// Adds buffers until they hold one byte more than the longest frame. Returns false if no
    /// buffer is free. Frames then wait in the interface's queue, so they are delayed and not
    /// truncated.
    fn add_buffers(&mut self, limits: RxLimits, buffers: &mut dyn Buffers) -> bool {
        if self.first.is_none() {
            self.first = match limits.in_order && !self.more.is_empty() {
                true => Some(self.take_oldest()),
                false => buffers.take(),
            };
        }
        let Some(first) = self.first else {
            return false;
        };
        while first.span.len().saturating_add(self.more_bytes) <= limits.bytes {
            let large = buffers.take_large();
            self.has_large |= large.is_some();
            let next = large.or_else(|| if self.has_large { None } else { buffers.take() });
            let Some(buffer) = next else { return false };
            if buffer.span.is_empty() || self.more.len() + 3 >= libc::UIO_MAXIOV as usize {
                buffers.put(buffer.id);
                return false;
            }
            self.more_bytes += buffer.span.len();
            self.more.push(buffer);
            self.stale = true;
        }
        true
    }

    /// Removes and returns the buffer of `more` that was taken first. `more` must not be empty.
    fn take_oldest(&mut self) -> Buffer {
        let oldest = self.more.remove(0);
        self.more_bytes -= oldest.span.len();
        self.stale = true;
        oldest
    }

    /// Updates `vectors`. Contiguous buffers share one vector. The buffers are sorted first,
    /// because a pool returns pages in any order.
    fn write_vectors(&mut self, limits: RxLimits) {
        if std::mem::take(&mut self.stale) || self.vectors.is_empty() {
            if !limits.in_order {
                let first = self.first.map_or(0, |first| first.span.len());
                sort_by_page(first, &mut self.more);
            }
            self.vectors.clear();
            self.vectors.extend(
                [libc::iovec {
                    iov_base: std::ptr::null_mut(),
                    iov_len: 0,
                }; 3],
            );
            for buffer in &self.more {
                let (start, len) = (buffer.span.as_ptr(), buffer.span.len());
                match self.vectors.get_mut(3..).and_then(<[_]>::last_mut) {
                    Some(last) if last.iov_base as usize + last.iov_len == start as usize => {
                        last.iov_len += len;
                    }
                    _ => self.vectors.push(libc::iovec {
                        iov_base: start.cast(),
                        iov_len: len,
                    }),
                }
            }
        }
        if let ([header, start, rest, ..], Some(first)) = (self.vectors.as_mut_slice(), self.first)
        {
            let split_bytes = if limits.split { SNAPSHOT_MAX } else { 0 };
            let after_header = first.span.skip(split_bytes);
            header.iov_base = (&raw mut self.header).cast();
            header.iov_len = if limits.vnet_header {
                virtio::HEADER_BYTES
            } else {
                0
            };
            start.iov_base = (&raw mut self.start).cast();
            start.iov_len = split_bytes;
            rest.iov_base = after_header.as_ptr().cast();
            rest.iov_len = after_header.len();
        }
    }

    /// Makes one system call. Returns the number of bytes of the virtio header and the frame, or an
    /// errno.
    fn read(&mut self, fd: BorrowedFd<'_>, limits: RxLimits) -> Result<usize, i32> {
        if !limits.vnet_header
            && !limits.split
            && self.more.is_empty()
            && let Some(first) = self.first
        {
            // SAFETY: the span lies in memory that is reserved for packets for the life of the
            // process and never holds a Rust object. If a page is inaccessible, the call returns
            // EFAULT.
            let got =
                unsafe { libc::read(fd.as_raw_fd(), first.span.as_ptr().cast(), first.span.len()) };
            return result(got);
        }
        self.write_vectors(limits);
        // SAFETY: the first two vectors are `header` and `start`, which are exclusively borrowed
        // during the call, and are no longer than these. The others are spans, as above, or runs of
        // contiguous spans. `add_buffers` limits their number to UIO_MAXIOV.
        let got = unsafe {
            libc::readv(
                fd.as_raw_fd(),
                self.vectors.as_ptr(),
                self.vectors.len() as libc::c_int,
            )
        };
        result(got)
    }

    /// Returns the frame of a read of `bytes` bytes. The buffers of a dropped frame are used for
    /// the next frame. If the kernel cannot write to a page, it stops the copy there without an
    /// error; the reader of the page then detects the fault.
    fn frame(&mut self, bytes: usize, limits: RxLimits) -> Result<Frame, Dropped> {
        let header_bytes = if limits.vnet_header {
            virtio::HEADER_BYTES
        } else {
            0
        };
        let len = bytes
            .checked_sub(header_bytes)
            .filter(|len| *len >= super::length::ETHERNET)
            .ok_or(Dropped::Malformed)?;
        if len > limits.bytes {
            return Err(Dropped::Truncated);
        }
        let offload = if limits.vnet_header {
            virtio::decode(&self.header, len, limits.checksum, limits.tso)
                .map_err(|virtio::MalformedHeader| Dropped::Malformed)?
        } else {
            Offload::default()
        };
        let split_bytes = if limits.split {
            len.min(SNAPSHOT_MAX)
        } else {
            0
        };
        let header = self.start.get(..split_bytes).unwrap_or(&[]);
        let mut frame = Frame::with_header(header).ok_or(Dropped::Malformed)?;
        let mut rest = len - split_bytes;
        let mut used = 0;
        for buffer in self.first.iter().chain(&self.more) {
            if rest == 0 && used > 0 {
                break;
            }
            let place = if used == 0 { split_bytes } else { 0 };
            let span = buffer.span.skip(place).take(rest);
            rest -= span.len();
            used += 1;
            frame.push(Piece {
                span,
                buffer: buffer.id,
            });
        }
        frame.snapshot().map_err(|_| Dropped::Fault)?;
        frame.offload = offload;
        self.first = None;
        if used > 1 {
            let used_buffers = self.more.drain(..used - 1);
            self.more_bytes -= used_buffers.map(|buffer| buffer.span.len()).sum::<usize>();
            self.stale = true;
        }
        Ok(frame)
    }
}

/// Sorts the buffers that follow the first buffer of `first` bytes. Puts whole pages in memory
/// order and at frame offsets that are multiples of the page size, so that each page of a guest is
/// filled from one page.
fn sort_by_page(first: usize, more: &mut [Buffer]) {
    more.sort_unstable_by_key(|buffer| buffer.span.addr());
    let mut whole = 0;
    let mut at = 0;
    while at < more.len() {
        let buffers = page_at(more, at);
        if let Some(found) = buffers {
            if let Some(part) = more.get_mut(whole..at + found) {
                part.rotate_right(found);
            }
            whole += found;
        }
        at += buffers.unwrap_or(1);
    }
    // A half page whose other half is missing, or otherwise the last half page, fills the rest of
    // the page that `first` begins.
    let half = whole.min(more.len().saturating_sub(1));
    if !first.is_multiple_of(PAGE)
        && more
            .get(half)
            .is_some_and(|buffer| buffer.span.len() < PAGE)
        && let Some(part) = more.get_mut(..=half)
    {
        part.rotate_right(1);
    }
}

/// Returns how many of the sorted `buffers` from index `at` form one whole page, or `None` if they
/// form none.
fn page_at(buffers: &[Buffer], at: usize) -> Option<usize> {
    let rest = buffers.get(at..)?;
    let start = rest.first()?.span.addr();
    let mut bytes = 0;
    let fits = |buffer: &&Buffer| {
        let follows = buffer.span.addr() == start + bytes && bytes < PAGE;
        bytes += buffer.span.len();
        follows
    };
    let count = rest.iter().take_while(fits).count();
    let filled: usize = rest
        .iter()
        .take(count)
        .map(|buffer| buffer.span.len())
        .sum();
    (start.is_multiple_of(PAGE) && filled == PAGE).then_some(count)
}

fn result(got: libc::ssize_t) -> Result<usize, i32> {
    usize::try_from(got).map_err(|_| {
        io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic::BufferId;
    use shmem::Area;

    /// Returns the numbers of the half pages in the order in which a frame uses them.
    fn ordered(first: usize, halves: &[usize]) -> Vec<usize> {
        let area = Area::anonymous(16 * PAGE).unwrap();
        let buffer = |half: &usize| Buffer {
            id: BufferId(*half as u32),
            span: area.at(half * PAGE / 2, PAGE / 2).unwrap(),
        };
        let mut more: Vec<_> = halves.iter().map(buffer).collect();
        sort_by_page(first, &mut more);
        more.iter().map(|buffer| buffer.id.0 as usize).collect()
    }

    #[test]
    fn frame_pages_match_memory_pages() {
        // The other half of half page 5 is missing, so 5 follows the first buffer.
        assert_eq!(ordered(2048, &[5, 3, 2, 7, 6]), [5, 2, 3, 6, 7]);
        assert_eq!(ordered(2048, &[9, 0, 1, 5, 3, 2]), [5, 0, 1, 2, 3, 9]);
        // If every half page has its other half, a whole page is split.
        assert_eq!(ordered(2048, &[4, 5, 2, 3]), [5, 2, 3, 4]);
        // Half pages 3 and 4 are adjacent, but in different pages.
        assert_eq!(ordered(2048, &[3, 4]), [3, 4]);
        assert_eq!(ordered(2048, &[8]), [8]);
        assert_eq!(ordered(2048, &[]), []);
        assert_eq!(ordered(PAGE, &[5, 3, 2]), [2, 3, 5]);
    }

    #[test]
    fn whole_pages_are_in_memory_order() {
        let area = Area::anonymous(4 * PAGE).unwrap();
        let page = |number: u32| Buffer {
            id: BufferId(number),
            span: area.at(number as usize * PAGE, PAGE).unwrap(),
        };
        let mut more = [2, 0, 3, 1].map(page);
        sort_by_page(2048, &mut more);
        assert_eq!(more.map(|buffer| buffer.id.0), [0, 1, 2, 3]);
    }
}
