//! The layout of a queue's memory: index words, descriptors and completions.
//!
//! ```text
//!   page 0     0  posted     index of the next descriptor; the driver writes it
//!             64  completed  index of the next completion; the device writes it
//!            128  acknowledged  index after the last taken completion; the driver writes it
//!            192  wake       descriptor whose posting wakes the device; the device writes it
//!            256  control    which frames a dedicated queue receives; the driver writes it
//!            320  effective  the control word in effect; the device writes it
//!            384  raised     number of interrupts of the queue; the device writes it
//!   then       descriptors, 32 bytes each, in whole pages; the driver writes them
//!   then       completions, 16 bytes each, in whole pages; the device writes them
//! ```

use super::addr::IoAddr;
use super::control::QueueControl;
use super::table::IoMemory;
use crate::frame::{ETHERNET_BYTES, SNAPSHOT_MAX};
use crate::offload::{Checksum, Gso, GsoKind, Offload};
use abi::PAGE;
use shmem::{Fault, Span};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of 32-bit words of a descriptor.
pub const DESCRIPTOR_WORDS: usize = 8;
/// Number of 32-bit words of a completion.
pub const COMPLETION_WORDS: usize = 4;
/// Offset of the word `posted`. Each index word has a separate cache line.
const POSTED_AT: usize = 0;
/// Offset of the word `completed`.
const COMPLETED_AT: usize = 64;
/// Offset of the word `acknowledged`.
const ACKNOWLEDGED_AT: usize = 128;
/// Offset of the word `wake`.
const WAKE_AT: usize = 192;
/// Offset of the word `control`.
const CONTROL_AT: usize = 256;
/// Offset of the word `effective`.
const EFFECTIVE_AT: usize = 320;
/// Offset of the word `raised`.
const RAISED_AT: usize = 384;
/// Offset of the descriptors.
const DESCRIPTORS_AT: usize = PAGE;

/// The maximum number of entries of a queue.
pub const ENTRIES_MAX: u32 = 1 << 15;

/// Flag of a descriptor: the device stores the first bytes of a frame at `header`, and the rest in
/// the buffer at `address`, after unused space of the same length.
const SPLIT: u32 = 1;
/// Flag of a descriptor: the device computes a checksum.
const CHECKSUM: u32 = 2;
/// Flag of a completion: the frame continues in the next one.
const MORE: u32 = 1;
/// Flag of a completion: the device has verified the transport checksum.
const VALID: u32 = 2;
/// Flag of a completion: an I/O fault occurred, and the buffer holds no data.
const ERROR: u32 = 4;
/// Flag of a completion: the device has merged the frame from TCP segments over IPv4.
const MERGED4: u32 = 8;
/// Flag of a completion: the device has merged the frame from TCP segments over IPv6.
const MERGED6: u32 = 16;
/// Flag of a completion: all merged segments had the same IPv4 identification.
const FIXED_ID: u32 = 32;
/// Position, among a completion's flags, of the start of the TCP header, in bits.
const TCP_AT: u32 = 16;
/// Position of the segment size in the last word of a completion, after the header's length, in
/// bits.
const SIZE_AT: u32 = 16;

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: u16 = 16;
/// Bytes of the shortest TCP header.
const TCP_HEADER: usize = 20;

/// Maximum length of a merged frame in bytes.
pub const MERGED_MAX: usize = 0xffff;

/// A posted buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Address of the first byte.
    pub address: IoAddr,
    /// Length in bytes.
    pub len: u32,
    /// Address for the first bytes of a frame, if the device splits headers.
    pub header: Option<IoAddr>,
    /// For a frame to send with a pending checksum: the first byte that the checksum covers, and
    /// the offset of the checksum field from that byte.
    pub checksum: Option<(u16, u16)>,
}

impl Descriptor {
    /// Encodes the descriptor.
    #[must_use]
    pub fn encode(&self) -> [u32; DESCRIPTOR_WORDS] {
        let address = self.address.bits();
        let header = self.header.map_or(0, IoAddr::bits);
        let (start, offset) = self.checksum.unwrap_or_default();
        let split = if self.header.is_some() { SPLIT } else { 0 };
        let checksum = if self.checksum.is_some() { CHECKSUM } else { 0 };
        [
            address as u32,
            (address >> 32) as u32,
            header as u32,
            (header >> 32) as u32,
            self.len,
            split | checksum,
            u32::from(start) | u32::from(offset) << 16,
            0,
        ]
    }

    /// Decodes a descriptor.
    #[must_use]
    pub fn decode(words: [u32; DESCRIPTOR_WORDS]) -> Self {
        let [low, high, header_low, header_high, len, flags, checksum, _] = words;
        let wide = |low, high| IoAddr::from_bits(u64::from(low) | u64::from(high) << 32);
        Self {
            address: wide(low, high),
            len,
            header: (flags & SPLIT != 0).then(|| wide(header_low, header_high)),
            checksum: (flags & CHECKSUM != 0).then_some((checksum as u16, (checksum >> 16) as u16)),
        }
    }
}

/// The device's report about a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Index of the descriptor.
    pub index: u32,
    /// Bytes of the frame in the buffer and the header space.
    pub len: u32,
    /// Bytes of the frame in the header space.
    pub header_len: u16,
    /// Whether the frame continues in the next descriptor's buffer.
    pub more: bool,
    /// Whether the device has verified the transport checksum.
    pub valid: bool,
    /// Whether an access to the buffer failed.
    pub error: bool,
    /// Description of a merged frame; set in the completion of its last part.
    pub merged: Option<Merged>,
}

/// Description of a frame that a device has merged from TCP segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Parameters for segmenting the frame again.
    pub gso: Gso,
    /// Offset of the TCP header, whose checksum is blank.
    pub tcp: u8,
    /// See [`crate::Frame::fixed_id`].
    pub fixed_id: bool,
}

impl Merged {
    /// Returns the offload, or `None` if it does not fit a frame of `len` bytes.
    #[must_use]
    pub fn offload(&self, len: usize) -> Option<Offload> {
        let tcp = usize::from(self.tcp);
        let fits =
            tcp >= ETHERNET_BYTES && tcp + TCP_HEADER <= len.min(SNAPSHOT_MAX) && self.gso.size > 0;
        fits.then_some(Offload {
            checksum: Checksum::Blank {
                start: self.tcp.into(),
                offset: TCP_CHECKSUM,
            },
            gso: Some(self.gso),
        })
    }

    /// Returns the description of `frame`, or `None` if it is not merged.
    #[must_use]
    pub fn of(offload: Offload, fixed_id: bool) -> Option<Self> {
        let Checksum::Blank { start, .. } = offload.checksum else {
            return None;
        };
        Some(Self {
            gso: offload.gso?,
            tcp: start.try_into().ok()?,
            fixed_id,
        })
    }

    const fn flags(&self) -> u32 {
        let kind = match self.gso.kind {
            GsoKind::Tcp4 => MERGED4,
            GsoKind::Tcp6 => MERGED6,
        };
        let fixed_id = if self.fixed_id { FIXED_ID } else { 0 };
        kind | fixed_id | (self.tcp as u32) << TCP_AT
    }

    fn decode(flags: u32, size: u16) -> Option<Self> {
        let kind = match flags & (MERGED4 | MERGED6) {
            0 => return None,
            MERGED6 => GsoKind::Tcp6,
            _ => GsoKind::Tcp4,
        };
        Some(Self {
            gso: Gso { kind, size },
            tcp: (flags >> TCP_AT) as u8,
            fixed_id: flags & FIXED_ID != 0,
        })
    }
}

impl Completion {
    /// Encodes the completion.
    #[must_use]
    pub fn encode(&self) -> [u32; COMPLETION_WORDS] {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.more, MORE) | flag(self.valid, VALID) | flag(self.error, ERROR);
        let merged = self.merged.as_ref().map_or(0, Merged::flags);
        let size = self.merged.map_or(0, |merged| merged.gso.size);
        let last = u32::from(self.header_len) | u32::from(size) << SIZE_AT;
        [self.index, self.len, flags | merged, last]
    }

    /// Decodes a completion. Unknown flags are ignored.
    #[must_use]
    pub fn decode(words: [u32; COMPLETION_WORDS]) -> Self {
        let [index, len, flags, last] = words;
        Self {
            index,
            len,
            header_len: last as u16,
            more: flags & MORE != 0,
            valid: flags & VALID != 0,
            error: flags & ERROR != 0,
            merged: Merged::decode(flags, (last >> SIZE_AT) as u16),
        }
    }
}

/// Returns the offset of the completions in a queue of `entries` entries.
const fn completions_at(entries: u32) -> usize {
    let descriptors = entries as usize * DESCRIPTOR_WORDS * 4;
    DESCRIPTORS_AT + descriptors.next_multiple_of(PAGE)
}

/// Returns the size in bytes, in whole pages, of the memory of a queue with `entries` entries.
#[must_use]
pub const fn queue_bytes(entries: u32) -> usize {
    let completions = entries as usize * COMPLETION_WORDS * 4;
    completions_at(entries) + completions.next_multiple_of(PAGE)
}

/// The driver's access to the memory of a queue. Each slot number is below the number of entries.
pub trait DriverMemory {
    /// Writes a descriptor; [`DriverMemory::set_posted`] publishes it.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn set_descriptor(&self, slot: u32, words: [u32; DESCRIPTOR_WORDS]) -> Result<(), Fault>;
    /// Publishes all descriptors before `index`.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn set_posted(&self, index: u32) -> Result<(), Fault>;
    /// Reads `completed`, and everything written before it.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn completed(&self) -> Result<u32, Fault>;
    /// Returns a copy of a completion.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn completion(&self, slot: u32) -> Result<[u32; COMPLETION_WORDS], Fault>;
    /// Publishes the index after the last completion that the driver has taken.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn set_acknowledged(&self, index: u32) -> Result<(), Fault>;
    /// Reads the index of the descriptor whose posting wakes the device.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn wake(&self) -> Result<u32, Fault>;
    /// Reads `raised`, and everything written before it.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn raised(&self) -> Result<u32, Fault>;
}

/// The device's access to the memory of a queue.
pub trait DeviceMemory {
    /// Reads `posted`, and everything written before it.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn posted(&self) -> Result<u32, Fault>;
    /// Returns a copy of a descriptor.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn descriptor(&self, slot: u32) -> Result<[u32; DESCRIPTOR_WORDS], Fault>;
    /// Writes a completion; [`DeviceMemory::set_completed`] publishes it.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn set_completion(&self, slot: u32, words: [u32; COMPLETION_WORDS]) -> Result<(), Fault>;
    /// Publishes all completions before `index`.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn set_completed(&self, index: u32) -> Result<(), Fault>;
    /// Reads `acknowledged`.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn acknowledged(&self) -> Result<u32, Fault>;
    /// Writes `wake`.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn set_wake(&self, index: u32) -> Result<(), Fault>;
    /// Publishes the number of interrupts, and everything written before it.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    fn set_raised(&self, interrupts: u32) -> Result<(), Fault>;
}

/// The driver's access to queue memory in this process.
#[derive(Clone, Copy, Debug)]
pub struct OwnMemory {
    posted: &'static AtomicU32,
    completed: &'static AtomicU32,
    acknowledged: &'static AtomicU32,
    wake: &'static AtomicU32,
    raised: &'static AtomicU32,
    control: &'static AtomicU64,
    effective: &'static AtomicU64,
    descriptors: Span,
    completions: Span,
}

impl OwnMemory {
    /// Opens the memory of an empty queue of `entries` entries, and sets its index words to 0,
    /// because an earlier process may have left other values. Returns `None` if `span` is too short
    /// or misaligned, or if `entries` is not a power of two up to [`ENTRIES_MAX`].
    #[must_use]
    pub fn new(span: Span, entries: u32) -> Option<Self> {
        if !entries.is_power_of_two() || entries > ENTRIES_MAX {
            return None;
        }
        let part = |at, words: usize| span.sub(at, entries as usize * words * 4);
        let memory = Self {
            posted: span.u32(POSTED_AT)?,
            completed: span.u32(COMPLETED_AT)?,
            acknowledged: span.u32(ACKNOWLEDGED_AT)?,
            wake: span.u32(WAKE_AT)?,
            raised: span.u32(RAISED_AT)?,
            control: span.u64(CONTROL_AT)?,
            effective: span.u64(EFFECTIVE_AT)?,
            descriptors: part(DESCRIPTORS_AT, DESCRIPTOR_WORDS)?,
            completions: part(completions_at(entries), COMPLETION_WORDS)?,
        };
        for word in [
            memory.posted,
            memory.completed,
            memory.acknowledged,
            memory.wake,
            memory.raised,
        ] {
            word.store(0, Ordering::Release);
        }
        for word in [memory.control, memory.effective] {
            word.store(0, Ordering::Release);
        }
        Some(memory)
    }

    /// Sets the driver's index words to those of an empty queue. The device has reset its words,
    /// and uses none of them until the queue is enabled.
    pub fn reset(&self) {
        for word in [self.posted, self.acknowledged] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Publishes a control word, and everything written before it.
    pub fn set_control(&self, control: QueueControl) {
        self.control.store(control.encode(), Ordering::Release);
    }

    /// Returns the control word in effect.
    #[must_use]
    pub fn effective(&self) -> QueueControl {
        QueueControl::decode(self.effective.load(Ordering::Acquire))
    }
}

impl DriverMemory for OwnMemory {
    #[inline]
    fn set_descriptor(&self, slot: u32, words: [u32; DESCRIPTOR_WORDS]) -> Result<(), Fault> {
        let at = slot as usize * size_of_val(&words);
        self.descriptors.write_words(at, &words)
    }

    #[inline]
    fn set_posted(&self, index: u32) -> Result<(), Fault> {
        self.posted.store(index, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn completed(&self) -> Result<u32, Fault> {
        Ok(self.completed.load(Ordering::Acquire))
    }

    #[inline]
    fn completion(&self, slot: u32) -> Result<[u32; COMPLETION_WORDS], Fault> {
        read(self.completions, slot)
    }

    #[inline]
    fn set_acknowledged(&self, index: u32) -> Result<(), Fault> {
        self.acknowledged.store(index, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn wake(&self) -> Result<u32, Fault> {
        Ok(self.wake.load(Ordering::Relaxed))
    }

    #[inline]
    fn raised(&self) -> Result<u32, Fault> {
        Ok(self.raised.load(Ordering::Acquire))
    }
}

#[inline]
fn read<const N: usize>(span: Span, slot: u32) -> Result<[u32; N], Fault> {
    let mut words = [0; N];
    span.read_words(slot as usize * size_of_val(&words), &mut words)?;
    Ok(words)
}

/// A device's access to queue memory, by I/O address.
#[derive(Clone, Copy, Debug)]
pub struct MappedMemory<'m, M> {
    /// The memory that the device may access.
    pub io: &'m M,
    /// I/O address of the queue's memory.
    pub base: IoAddr,
    /// Entries of the queue.
    pub entries: u32,
}

impl<M: IoMemory> MappedMemory<'_, M> {
    fn access<T>(
        &self,
        offset: usize,
        len: usize,
        act: impl FnOnce(Span) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let address = self.base.add(offset).ok_or(Fault)?;
        let done = self.io.access(address, len, act);
        done.map_err(|_| Fault).flatten()
    }

    fn load(&self, offset: usize) -> Result<u32, Fault> {
        self.access(offset, 4, |span| span.load_u32(0))
    }

    /// Reads the control word.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn control(&self) -> Result<QueueControl, Fault> {
        let word = self.access(CONTROL_AT, 8, |span| span.load_u64(0));
        word.map(QueueControl::decode)
    }

    /// Publishes the control word in effect, and everything written before it.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn set_effective(&self, control: QueueControl) -> Result<(), Fault> {
        let word = control.encode();
        self.access(EFFECTIVE_AT, 8, |span| span.store_u64(0, word))
    }

    fn store(&self, offset: usize, value: u32) -> Result<(), Fault> {
        self.access(offset, 4, |span| span.store_u32(0, value))
    }
}

impl<M: IoMemory> DeviceMemory for MappedMemory<'_, M> {
    fn posted(&self) -> Result<u32, Fault> {
        self.load(POSTED_AT)
    }

    fn descriptor(&self, slot: u32) -> Result<[u32; DESCRIPTOR_WORDS], Fault> {
        let len = DESCRIPTOR_WORDS * 4;
        self.access(DESCRIPTORS_AT + slot as usize * len, len, |span| {
            read(span, 0)
        })
    }

    fn set_completion(&self, slot: u32, words: [u32; COMPLETION_WORDS]) -> Result<(), Fault> {
        let len = COMPLETION_WORDS * 4;
        let at = completions_at(self.entries) + slot as usize * len;
        self.access(at, len, |span| span.write_words(0, &words))
    }

    fn set_completed(&self, index: u32) -> Result<(), Fault> {
        self.store(COMPLETED_AT, index)
    }

    fn acknowledged(&self) -> Result<u32, Fault> {
        self.load(ACKNOWLEDGED_AT)
    }

    fn set_wake(&self, index: u32) -> Result<(), Fault> {
        self.store(WAKE_AT, index)
    }

    fn set_raised(&self, interrupts: u32) -> Result<(), Fault> {
        self.store(RAISED_AT, interrupts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// D-6, D-8.
        #[test]
        fn queue_entries_decode_as_encoded(
            (address, header) in (any::<u64>(), any::<Option<u64>>()),
            (len, checksum) in (any::<u32>(), any::<Option<(u16, u16)>>()),
            (index, header_len) in (any::<u32>(), any::<u16>()),
            (more, valid, error) in any::<(bool, bool, bool)>(),
            merged in any::<Option<(bool, u16, u8, bool)>>(),
        ) {
            let descriptor = Descriptor {
                address: IoAddr::from_bits(address),
                len,
                header: header.map(IoAddr::from_bits),
                checksum,
            };
            prop_assert_eq!(Descriptor::decode(descriptor.encode()), descriptor);
            let merged = merged.map(|(is_v6, size, tcp, fixed_id)| Merged {
                gso: Gso { kind: if is_v6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 }, size },
                tcp,
                fixed_id,
            });
            let completion = Completion { index, len, header_len, more, valid, error, merged };
            prop_assert_eq!(Completion::decode(completion.encode()), completion);
        }
    }

    #[test]
    fn memory_of_a_wrong_size_is_rejected() {
        let span = shmem::Area::anonymous(queue_bytes(128)).unwrap().span();
        assert!(OwnMemory::new(span, 128).is_some());
        for entries in [0, 3, 1024, ENTRIES_MAX * 2] {
            assert!(OwnMemory::new(span, entries).is_none());
        }
        assert!(OwnMemory::new(span.skip(2), 64).is_none());
        assert_eq!(queue_bytes(128), 3 * PAGE);
    }
}
