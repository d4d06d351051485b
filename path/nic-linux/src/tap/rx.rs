//! Reception of frames that the kernel sends out of the interface.

use abi::PAGE;
use nic::frame::SNAPSHOT;
use nic::virtio;
use nic::{Buffer, Buffers, Frame, Offload, Piece};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Parameters of receiving, which match the interface's set-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxLimits {
    pub(super) vnet_header: bool,
    pub(super) checksum: bool,
    pub(super) tso: bool,
    /// Length of the longest frame that may arrive.
    pub(super) bytes: usize,
    /// Whether headers are kept out of the buffers.
    pub(super) split: bool,
    /// Whether frames fill buffers in the order in which these were taken.
    pub(super) in_order: bool,
}

/// Counters of dropped frames, and of calls that ended early.
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

/// Reason for dropping a received frame.
enum Dropped {
    /// The virtio header is invalid, or the frame is shorter than an Ethernet header.
    Malformed,
    /// The frame exceeded the maximum length and was truncated.
    Truncated,
    /// The memory into which the frame was read is inaccessible.
    Fault,
}

/// Buffers of the next frame, and the vectors that describe them.
pub(super) struct Receiver {
    /// A small buffer for the start of the frame.
    first: Option<Buffer>,
    /// Buffers for the rest of a longer frame. Together with `first` they hold one byte more than
    /// the longest frame, so a frame that fills them was truncated. In ascending order of address,
    /// or in the order of taking.
    more: Vec<Buffer>,
    /// Bytes of `more`.
    more_bytes: usize,
    /// Private memory into which the kernel writes the virtio header.
    header: [u8; virtio::BYTES],
    /// Private memory into which the kernel writes a frame's header if it is kept out of the
    /// buffers.
    start: [u8; SNAPSHOT],
    /// I/O vectors: one for the virtio header, one for `start`, one for `first`, and one for each
    /// contiguous run of `more`.
    vectors: Vec<libc::iovec>,
    /// Whether `more` has changed since `vectors` was written.
    stale: bool,
    /// Whether the supply has large buffers. If so, a frame never continues in small ones, which
    /// would give it too many pieces for the egress port.
    has_large: bool,
    /// Whether the last call ended for lack of buffers.
    pub(super) starved: bool,
    /// Whether the last call emptied the queue.
    pub(super) empty: bool,
    /// Whether the interface has been removed. No later call returns a frame, and every wait on the
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
            header: [0; virtio::BYTES],
            start: [0; SNAPSHOT],
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
// access; they point to `header` and `start` (set again by every call) and to spans, which every
// thread may use.
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
    /// Reads until the queue is empty, the budget is reached or the buffers are used up. Appends
    /// the frames to `out` and returns their number.
    pub(super) fn batch(
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
            if !self.make_ready(limits, buffers) {
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
                    // the next frame gets others.
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

    /// Adds buffers until the longest frame fits with a byte to spare. If the supply runs out,
    /// frames wait in the interface's queue: they are late rather than truncated.
    fn make_ready(&mut self, limits: RxLimits, buffers: &mut dyn Buffers) -> bool {
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

    /// Removes the buffer of `more` that was taken first; `more` must not be empty.
    fn take_oldest(&mut self) -> Buffer {
        let oldest = self.more.remove(0);
        self.more_bytes -= oldest.span.len();
        self.stale = true;
        oldest
    }

    /// Updates `vectors`. Contiguous buffers share one vector. A pool returns pages in any order,
    /// so they are sorted first.
    fn write_vectors(&mut self, limits: RxLimits) {
        if std::mem::take(&mut self.stale) || self.vectors.is_empty() {
            if !limits.in_order {
                let first = self.first.map_or(0, |first| first.span.len());
                in_pages(first, &mut self.more);
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
            let apart = if limits.split { SNAPSHOT } else { 0 };
            let behind = first.span.skip(apart);
            header.iov_base = (&raw mut self.header).cast();
            header.iov_len = if limits.vnet_header { virtio::BYTES } else { 0 };
            start.iov_base = (&raw mut self.start).cast();
            start.iov_len = apart;
            rest.iov_base = behind.as_ptr().cast();
            rest.iov_len = behind.len();
        }
    }

    /// Makes one system call; returns the number of bytes of header and frame, or an errno.
    fn read(&mut self, fd: BorrowedFd<'_>, limits: RxLimits) -> Result<usize, i32> {
        if !limits.vnet_header
            && !limits.split
            && self.more.is_empty()
            && let Some(first) = self.first
        {
            // SAFETY: the span lies in memory that is reserved for packets for the life of the
            // process and never holds a Rust object; an inaccessible page is EFAULT.
            let got =
                unsafe { libc::read(fd.as_raw_fd(), first.span.as_ptr().cast(), first.span.len()) };
            return result(got);
        }
        self.write_vectors(limits);
        // SAFETY: the first vectors are `header` and `start`, exclusively borrowed through the
        // call, and no longer than these; the others are spans, as above, or several contiguous
        // ones. There are at most UIO_MAXIOV (`make_ready`).
        let got = unsafe {
            libc::readv(
                fd.as_raw_fd(),
                self.vectors.as_ptr(),
                self.vectors.len() as libc::c_int,
            )
        };
        result(got)
    }

    /// Returns the frame that a read of `bytes` bytes received. The buffers of a dropped frame stay
    /// ready. The kernel does not report a page that it could not write to (it ends the copy
    /// there): the reader of the page detects that.
    fn frame(&mut self, bytes: usize, limits: RxLimits) -> Result<Frame, Dropped> {
        let header_bytes = if limits.vnet_header { virtio::BYTES } else { 0 };
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
        let apart = if limits.split { len.min(SNAPSHOT) } else { 0 };
        let header = self.start.get(..apart).unwrap_or(&[]);
        let mut frame = Frame::with_header(header).ok_or(Dropped::Malformed)?;
        let mut rest = len - apart;
        let mut used = 0;
        for buffer in self.first.iter().chain(&self.more) {
            if rest == 0 && used > 0 {
                break;
            }
            let place = if used == 0 { apart } else { 0 };
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
            let gone = self.more.drain(..used - 1);
            self.more_bytes -= gone.map(|buffer| buffer.span.len()).sum::<usize>();
            self.stale = true;
        }
        Ok(frame)
    }
}

/// Sorts the buffers behind the first, which holds `first` bytes. Whole pages follow in memory
/// order, at offsets that are multiples of a page in the frame too, so that each page of a guest is
/// filled from one page.
fn in_pages(first: usize, more: &mut [Buffer]) {
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
    // A half page without its other half, or else the last one, completes the page that `first`
    // begins.
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

/// Returns the number of the sorted `buffers` that make up one whole page, starting at index `at`.
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

    /// Returns the numbers of half pages in the order in which a frame uses them.
    fn ordered(first: usize, halves: &[usize]) -> Vec<usize> {
        let area = Area::anonymous(16 * PAGE).unwrap();
        let buffer = |half: &usize| Buffer {
            id: BufferId(*half as u32),
            span: area.at(half * PAGE / 2, PAGE / 2).unwrap(),
        };
        let mut more: Vec<_> = halves.iter().map(buffer).collect();
        in_pages(first, &mut more);
        more.iter().map(|buffer| buffer.id.0 as usize).collect()
    }

    #[test]
    fn pages_of_a_frame_are_pages_of_memory() {
        // The other half of 5 is missing, so 5 follows the first buffer.
        assert_eq!(ordered(2048, &[5, 3, 2, 7, 6]), [5, 2, 3, 6, 7]);
        assert_eq!(ordered(2048, &[9, 0, 1, 5, 3, 2]), [5, 0, 1, 2, 3, 9]);
        // Without a single half page, a whole page is split.
        assert_eq!(ordered(2048, &[4, 5, 2, 3]), [5, 2, 3, 4]);
        // 3 and 4 are adjacent, but in different pages.
        assert_eq!(ordered(2048, &[3, 4]), [3, 4]);
        assert_eq!(ordered(2048, &[8]), [8]);
        assert_eq!(ordered(2048, &[]), []);
        assert_eq!(ordered(PAGE, &[5, 3, 2]), [2, 3, 5]);
    }

    #[test]
    fn whole_pages_stay_as_they_lie() {
        let area = Area::anonymous(4 * PAGE).unwrap();
        let page = |number: u32| Buffer {
            id: BufferId(number),
            span: area.at(number as usize * PAGE, PAGE).unwrap(),
        };
        let mut more = [2, 0, 3, 1].map(page);
        in_pages(2048, &mut more);
        assert_eq!(more.map(|buffer| buffer.id.0), [0, 1, 2, 3]);
    }
}
