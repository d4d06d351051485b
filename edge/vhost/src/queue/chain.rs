//! Descriptor chains.

use crate::memory::VmMemory;
use shmem::{Fault, Span};

/// Maximum number of bytes of a chain that the device uses. A driver may post larger buffers, but
/// no frame fills them.
const BYTES_MAX: usize = 1 << 17;
/// Entries of an indirect table.
const INDIRECT_MAX: u32 = 1024;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Bytes of an entry.
const DESCRIPTOR: usize = 16;

/// The direction in which a chain's bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// The device reads them.
    Read,
    /// The device writes them.
    Write,
    /// The device reads the first buffers and writes the rest, as for a command of a control queue.
    Both,
}

/// Reason for dropping a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChain {
    /// The chain has more descriptors than its table: it loops.
    #[error("the chain loops")]
    Loop,
    /// A descriptor names a next descriptor beyond the end of the table.
    #[error("a descriptor outside the table")]
    Outside,
    /// A buffer, or an indirect table, is outside the memory.
    #[error("an address outside the memory")]
    Address,
    /// An indirect table that lies inside another one, is too long, or does not hold a whole number
    /// of descriptors.
    #[error("an invalid indirect table")]
    Indirect,
    /// A buffer has the wrong direction.
    #[error("a buffer with the wrong direction")]
    Direction,
    /// The chain has more bytes than the longest frame.
    #[error("the chain is too long")]
    TooLong,
    /// Memory is not accessible.
    #[error("memory is not accessible")]
    Fault,
}

impl From<Fault> for BadChain {
    fn from(_: Fault) -> Self {
        Self::Fault
    }
}

/// A contiguous part of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSegment {
    /// Its bytes.
    pub span: Span,
    /// The guest physical address of the first byte.
    pub gpa: u64,
}

/// The buffers of one chain. Reading another chain into it reuses its allocations.
#[derive(Debug, Default)]
pub struct DescriptorChain {
    head: u16,
    segments: Vec<ChainSegment>,
    bytes: usize,
    /// Segments that the device reads.
    readable: usize,
}

#[derive(Clone, Copy)]
pub(super) struct DescriptorTable {
    pub(super) span: Span,
    pub(super) entries: u16,
}

pub(super) struct ChainEntry {
    gpa: u64,
    bytes: u32,
    flags: u16,
    next: u16,
}

impl DescriptorTable {
    #[inline]
    pub(super) fn entry(&self, index: u16) -> Result<ChainEntry, BadChain> {
        if index >= self.entries {
            return Err(BadChain::Outside);
        }
        let at = DESCRIPTOR * usize::from(index);
        let place = self.span.sub(at, DESCRIPTOR).ok_or(BadChain::Outside)?;
        // Two inlined loads cost less than a copy. The driver chooses the alignment of indirect
        // tables.
        let [gpa, rest] = match place.addr().is_multiple_of(8) {
            true => [place.load_u64(0)?, place.load_u64(8)?],
            false => {
                let mut bytes = [0; DESCRIPTOR];
                place.read(&mut bytes)?;
                let all = u128::from_le_bytes(bytes);
                [all as u64, (all >> 64) as u64]
            }
        };
        Ok(ChainEntry {
            gpa,
            bytes: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        })
    }

    /// Prefetches an entry.
    #[inline]
    pub(super) fn prefetch(&self, index: u16) {
        let place = self.span.skip(DESCRIPTOR * usize::from(index));
        place.take(DESCRIPTOR).prefetch();
    }
}

impl ChainEntry {
    /// Returns the buffer of a chain that consists of only this descriptor and lies in one region,
    /// or `None` for any other chain.
    #[inline]
    pub(super) fn single_buffer(
        &self,
        memory: &VmMemory,
        direction: CopyDirection,
    ) -> Option<ChainSegment> {
        let wanted = match direction {
            CopyDirection::Read => 0,
            CopyDirection::Write => WRITE,
            CopyDirection::Both => return None,
        };
        if self.flags & (NEXT | WRITE | INDIRECT) != wanted {
            return None;
        }
        let (gpa, bytes) = (self.gpa, self.bytes as usize);
        let span = memory.at(gpa, bytes)?;
        (span.len() == bytes).then_some(ChainSegment { span, gpa })
    }
}

impl DescriptorChain {
    /// Returns the index of the first descriptor, which identifies the chain when it is returned.
    #[must_use]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Returns the buffers, in order.
    #[must_use]
    pub fn segments(&self) -> &[ChainSegment] {
        &self.segments
    }

    /// Returns the buffers that the device reads, and the buffers that it writes.
    #[must_use]
    pub fn halves(&self) -> (&[ChainSegment], &[ChainSegment]) {
        self.segments
            .split_at_checked(self.readable)
            .unwrap_or((&self.segments, &[]))
    }

    /// Returns the total length of the buffers, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the descriptors starting at `head`. Sets the head even on an error.
    #[inline]
    pub(super) fn read(
        &mut self,
        memory: &VmMemory,
        table: DescriptorTable,
        head: u16,
        direction: CopyDirection,
    ) -> Result<(), BadChain> {
        self.head = head;
        self.segments.clear();
        self.bytes = 0;
        self.readable = 0;
        let (mut table, mut index) = (table, head);
        let (mut left, mut nested) = (table.entries, false);
        loop {
            left = left.checked_sub(1).ok_or(BadChain::Loop)?;
            let entry = table.entry(index)?;
            if entry.flags & INDIRECT != 0 {
                // The specification forbids a next descriptor together with an indirect table.
                if nested || entry.flags & NEXT != 0 {
                    return Err(BadChain::Indirect);
                }
                table = indirect(memory, &entry)?;
                (index, left, nested) = (0, table.entries, true);
                continue;
            }
            let is_written = entry.flags & WRITE != 0;
            let is_wrong = match direction {
                CopyDirection::Read => is_written,
                CopyDirection::Write => !is_written,
                CopyDirection::Both => !is_written && self.readable < self.segments.len(),
            };
            if is_wrong {
                return Err(BadChain::Direction);
            }
            self.push(memory, &entry)?;
            if !is_written {
                self.readable = self.segments.len();
            }
            if self.bytes > BYTES_MAX {
                match direction {
                    CopyDirection::Read | CopyDirection::Both => return Err(BadChain::TooLong),
                    CopyDirection::Write => return Ok(()),
                }
            }
            if entry.flags & NEXT == 0 {
                return Ok(());
            }
            index = entry.next;
        }
    }

    /// Appends a buffer, which may lie in several regions.
    #[inline]
    fn push(&mut self, memory: &VmMemory, entry: &ChainEntry) -> Result<(), BadChain> {
        let (mut gpa, mut left) = (entry.gpa, entry.bytes as usize);
        while left > 0 && self.bytes <= BYTES_MAX {
            let span = memory.at(gpa, left).ok_or(BadChain::Address)?;
            self.segments.push(ChainSegment { span, gpa });
            self.bytes += span.len();
            left -= span.len();
            if left > 0 {
                let next = gpa.checked_add(span.len() as u64);
                gpa = next.ok_or(BadChain::Address)?;
            }
        }
        Ok(())
    }
}

/// Returns the table that an indirect descriptor refers to.
fn indirect(memory: &VmMemory, entry: &ChainEntry) -> Result<DescriptorTable, BadChain> {
    let bytes = entry.bytes;
    let entries = bytes / DESCRIPTOR as u32;
    if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR as u32) || entries > INDIRECT_MAX {
        return Err(BadChain::Indirect);
    }
    let span = memory.at(entry.gpa, bytes as usize);
    let span = span.filter(|span| span.len() == bytes as usize);
    Ok(DescriptorTable {
        span: span.ok_or(BadChain::Address)?,
        entries: entries as u16,
    })
}
