//! A domain's sample buffer: memory to which the sampler writes and which the domain's profiler
//! reads.
//!
//! ```text
//!  0        64       4096                                     4096 + 8 × words
//!  ┌────────┬────────┬──────────────────────────────────────────┐
//!  │ head   │ tail   │ words …                                  │
//!  └────────┴────────┴──────────────────────────────────────────┘
//! ```
//! `head` and `tail` count words since the start and never wrap. A word's index is its count modulo
//! the size, a power of two. Each record consists of a first word (its length in words, its kind
//! and its CPU) and the contents of the kind.
//!
//! OWNERSHIP: the sampler writes `head` and the words, the profiler writes `tail`. The profiler is
//! not trusted. Of the memory that it can write, the sampler reads only `tail`, once per record; an
//! impossible value closes the ring permanently. The sampler's authoritative `head` is in private
//! memory.

use super::SessionError;
use crate::sampler::parse::{Address, PerfRecord, RecordKind};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of words of a ring. At 1 kHz and 50 words per sample, they hold twenty seconds of one
/// busy CPU.
const WORDS: usize = 1 << 20;
const HEAD: usize = 0;
const TAIL: usize = 8;
const DATA: usize = 512;
/// Placeholder for a part of a call stack that the reader may not see.
const HIDDEN: u64 = u64::MAX;
/// This address and all higher ones are kernel addresses: the upper half of x86-64's canonical
/// addresses.
const KERNEL: u64 = 1 << 63;
/// Maximum length of a text in a record, bytes.
const TEXT_MAX: usize = 4096;

/// Words in memory that another process can also write.
#[derive(Debug)]
struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the pointer leads to atomics, which stay mapped until the drop and which any thread may
// use.
unsafe impl Send for Words {}

impl Words {
    fn map(fd: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: creates a new mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                count * 8,
                flags,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, count })
    }

    fn at(&self, index: usize) -> &AtomicU64 {
        // Callers mask the index or pass constants; any other value also stays in bounds.
        let index = index.min(self.count - 1);
        // SAFETY: the word lies within the mapping and is aligned, because the mapping is
        // page-aligned. The side that created the memory has sealed it against shrinking. An atomic
        // may have any value and any concurrent writer.
        unsafe { self.start.add(index).as_ref() }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: this is exactly the mapped range, and no reference outlives `self`. The call
        // cannot fail with these arguments.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.count * 8) };
    }
}

/// Counts of a domain's samples.
///
/// `offered = written + dropped` and `written = read + unread` always hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Samples of the domain.
    pub offered: u64,
    /// Samples written to its ring.
    pub written: u64,
    /// Samples for which the ring had no space, or that were offered after it was closed.
    pub dropped: u64,
}

/// The sampler's end.
#[derive(Debug)]
pub struct Producer {
    words: Words,
    memory: OwnedFd,
    doorbell: OwnedFd,
    head: u64,
    rung: u64,
    broken: bool,
    /// Whether the reader may profile the machine, and so may see kernel addresses.
    sees_kernel: bool,
    counts: RingCounts,
    scratch: Vec<u64>,
}

impl Producer {
    /// Creates a ring.
    ///
    /// # Errors
    /// Returns an error if memory or descriptors are exhausted.
    pub fn new(sees_kernel: bool) -> io::Result<Self> {
        Self::with_words(WORDS, sees_kernel)
    }

    fn with_words(count: usize, sees_kernel: bool) -> io::Result<Self> {
        let count = count.next_power_of_two();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("xenoprof-ring", flags)?;
        ftruncate(&memory, ((DATA + count) * 8) as u64)?;
        fcntl_add_seals(
            &memory,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )?;
        Ok(Self {
            words: Words::map(memory.as_fd(), DATA + count)?,
            doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            memory,
            head: 0,
            rung: 0,
            broken: false,
            sees_kernel,
            counts: RingCounts::default(),
            scratch: Vec::new(),
        })
    }

    /// Returns the ring's memory, and the eventfd that is the domain's virtual interrupt.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.as_fd(), self.doorbell.as_fd()]
    }

    /// Returns the counts so far.
    #[must_use]
    pub const fn counts(&self) -> RingCounts {
        self.counts
    }

    /// Returns whether the reader acknowledged words that were never written.
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    const fn mask(&self) -> u64 {
        (self.words.count - DATA - 1) as u64
    }

    /// Writes a record, or counts it as dropped. `pid` is the process id in the reader's namespace.
    pub fn offer(&mut self, record: &PerfRecord, pid: u32) {
        let is_sample = matches!(record.kind, RecordKind::Sample { .. });
        self.counts.offered += u64::from(is_sample);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        encode(record, pid, self.sees_kernel, &mut scratch);
        let put = self.put(&scratch);
        self.scratch = scratch;
        if is_sample {
            match put {
                true => self.counts.written += 1,
                false => self.counts.dropped += 1,
            }
        }
    }

    fn put(&mut self, words: &[u64]) -> bool {
        // Acquire: the reader has read the words before it moved the tail, so they may be
        // overwritten.
        let tail = self.words.at(TAIL).load(Ordering::Acquire);
        let Some(used) = self
            .head
            .checked_sub(tail)
            .filter(|used| *used <= self.mask() + 1)
        else {
            self.broken = true;
            return false;
        };
        let room = self.mask() + 1 - used;
        if self.broken || words.is_empty() || words.len() as u64 > room {
            return false;
        }
        for word in words {
            let index = DATA + (self.head & self.mask()) as usize;
            self.words.at(index).store(*word, Ordering::Relaxed);
            self.head += 1;
        }
        // Release: a reader that sees this head also sees the words before it.
        self.words.at(HEAD).store(self.head, Ordering::Release);
        if self.head - self.rung > (self.mask() + 1) / 4 {
            self.ring();
        }
        true
    }

    /// Raises the virtual interrupt.
    pub fn ring(&mut self) {
        self.rung = self.head;
        // Fails only if the counter is at its limit, and then it wakes the reader anyway.
        let _full = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }
}

/// The domain's end.
#[derive(Debug)]
pub struct Consumer {
    words: Words,
    doorbell: OwnedFd,
    tail: u64,
    /// Samples read.
    pub read: u64,
}

impl Consumer {
    /// Maps the ring from the descriptors of the reservation.
    ///
    /// # Errors
    /// Returns an error if the descriptors are not those of a ring.
    pub fn new(memory: &OwnedFd, doorbell: OwnedFd) -> Result<Self, SessionError> {
        let seals = fcntl_get_seals(memory).map_err(io::Error::from)?;
        let bytes = rustix::fs::fstat(memory).map_err(io::Error::from)?.st_size;
        let count = usize::try_from(bytes).unwrap_or(0) / 8;
        let is_ring =
            seals.contains(SealFlags::SHRINK) && count > DATA && (count - DATA).is_power_of_two();
        if !is_ring {
            return Err(SessionError::Nonsense("an invalid ring"));
        }
        Ok(Self {
            words: Words::map(memory.as_fd(), count)?,
            doorbell,
            tail: 0,
            read: 0,
        })
    }

    /// Returns a descriptor that is readable when the ring has records.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Reads all records.
    ///
    /// # Errors
    /// Returns an error if the ring contains malformed records.
    pub fn drain(&mut self, records: &mut Vec<PerfRecord>) -> Result<(), SessionError> {
        let mut count = [0u8; 8];
        // Without a signal this read fails, but the ring is read in any case.
        let _silent = rustix::io::read(&self.doorbell, &mut count);
        let mask = (self.words.count - DATA - 1) as u64;
        let nonsense = SessionError::Nonsense("a ring with malformed records");
        // Acquire: pairs with the release in `put`.
        let head = self.words.at(HEAD).load(Ordering::Acquire);
        let word = |at: u64| {
            let index = DATA + (at & mask) as usize;
            self.words.at(index).load(Ordering::Relaxed)
        };
        if head.wrapping_sub(self.tail) > mask + 1 {
            return Err(nonsense);
        }
        let mut words = Vec::new();
        while self.tail < head {
            let len = word(self.tail) & 0xffff;
            if len == 0 || len > head - self.tail {
                return Err(nonsense);
            }
            words.clear();
            words.extend((self.tail..self.tail + len).map(word));
            let Some(record) = decode(&words) else {
                return Err(nonsense);
            };
            self.read += u64::from(matches!(record.kind, RecordKind::Sample { .. }));
            records.push(record);
            self.tail += len;
        }
        // Release: the words were read before their space is released.
        self.words.at(TAIL).store(self.tail, Ordering::Release);
        Ok(())
    }
}

fn packed(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Encodes a record. A record without a process has no encoding.
fn encode(record: &PerfRecord, pid: u32, sees_kernel: bool, out: &mut Vec<u64>) {
    out.extend([0, record.time_ns]);
    let kind = match &record.kind {
        RecordKind::Sample { tid, chain, .. } => {
            out.push(packed(pid, *tid));
            for address in chain {
                match *address {
                    Address::User(address) => out.push(address & !KERNEL),
                    Address::Kernel(address) if sees_kernel => out.push(address | KERNEL),
                    Address::Kernel(_) if out.last() == Some(&HIDDEN) => {}
                    Address::Kernel(_) => out.push(HIDDEN),
                }
            }
            1
        }
        RecordKind::Comm {
            tid, name, exec, ..
        } => {
            out.extend([packed(pid, *tid), u64::from(*exec)]);
            text(name, out);
            2
        }
        RecordKind::Map {
            start,
            len,
            offset,
            path,
            ..
        } => {
            out.extend([packed(pid, 0), *start, *len, *offset]);
            text(path, out);
            3
        }
        RecordKind::Fork { parent, tid, .. } => {
            out.extend([packed(pid, *tid), u64::from(*parent)]);
            4
        }
        RecordKind::Exit { tid, .. } => {
            out.push(packed(pid, *tid));
            5
        }
        RecordKind::Lost(_) | RecordKind::Throttle { .. } => {
            out.clear();
            return;
        }
    };
    let len = out.len() as u64;
    if let Some(first) = out.first_mut() {
        *first = len | kind << 16 | u64::from(record.cpu) << 32;
    }
}

fn text(text: &str, out: &mut Vec<u64>) {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = text.get(..end).unwrap_or_default().as_bytes();
    out.push(bytes.len() as u64);
    for part in bytes.chunks(8) {
        let mut word = [0u8; 8];
        for (to, from) in word.iter_mut().zip(part) {
            *to = *from;
        }
        out.push(u64::from_le_bytes(word));
    }
}

fn untext(words: &[u64]) -> Option<String> {
    let (len, words) = words.split_first()?;
    let len = usize::try_from(*len).ok().filter(|len| *len <= TEXT_MAX)?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Some(String::from_utf8_lossy(bytes.get(..len)?).into_owned())
}

fn decode(words: &[u64]) -> Option<PerfRecord> {
    let (&[first, time_ns, who], rest) = words.split_first_chunk()?;
    let (pid, tid) = (who as u32, (who >> 32) as u32);
    let kind = match (first >> 16) & 0xffff {
        1 => RecordKind::Sample {
            pid,
            tid,
            chain: rest
                .iter()
                .map(|&address| match address & KERNEL {
                    0 => Address::User(address),
                    _ => Address::Kernel(address),
                })
                .collect(),
        },
        2 => RecordKind::Comm {
            pid,
            tid,
            exec: *rest.first()? != 0,
            name: untext(rest.get(1..)?)?,
        },
        3 => RecordKind::Map {
            pid,
            start: *rest.first()?,
            len: *rest.get(1)?,
            offset: *rest.get(2)?,
            path: untext(rest.get(3..)?)?,
        },
        4 => RecordKind::Fork {
            pid,
            parent: *rest.first()? as u32,
            tid,
        },
        5 => RecordKind::Exit { pid, tid },
        _ => return None,
    };
    Some(PerfRecord {
        time_ns,
        cpu: (first >> 32) as u32,
        event: 0,
        kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(words: usize, sees_kernel: bool) -> (Producer, Consumer) {
        let producer = Producer::with_words(words, sees_kernel).unwrap();
        let [memory, doorbell] = producer.descriptors();
        let memory = memory.try_clone_to_owned().unwrap();
        let consumer = Consumer::new(&memory, doorbell.try_clone_to_owned().unwrap()).unwrap();
        (producer, consumer)
    }

    fn kind() -> impl Strategy<Value = RecordKind> {
        let (tid, long) = (any::<u32>(), any::<u64>());
        let address = prop_oneof![
            (0..KERNEL).prop_map(Address::User),
            (KERNEL..HIDDEN).prop_map(Address::Kernel),
        ];
        let chain = proptest::collection::vec(address, 0..40);
        prop_oneof![
            (tid, chain).prop_map(|(tid, chain)| RecordKind::Sample {
                pid: 7,
                tid,
                chain: chain.into()
            }),
            (any::<u32>(), ".{0,20}", any::<bool>()).prop_map(|(tid, name, exec)| {
                RecordKind::Comm {
                    pid: 7,
                    tid,
                    name,
                    exec,
                }
            }),
            (long, any::<u64>(), any::<u64>(), "(/[a-z]{1,9}){0,4}").prop_map(
                |(start, len, offset, path)| RecordKind::Map {
                    pid: 7,
                    start,
                    len,
                    offset,
                    path
                }
            ),
            (any::<u32>(), any::<u32>()).prop_map(|(parent, tid)| RecordKind::Fork {
                pid: 7,
                parent,
                tid
            }),
            any::<u32>().prop_map(|tid| RecordKind::Exit { pid: 7, tid }),
        ]
    }

    proptest! {
        /// For any records and any frequency of reading, records are read as written and in order,
        /// and every sample is either written or dropped.
        #[test]
        fn every_sample_is_written_or_dropped(
            ops in proptest::collection::vec((kind(), any::<u16>(), any::<bool>()), 1..200),
        ) {
            let (mut producer, mut consumer) = pair(256, true);
            let mut expected = Vec::new();
            let mut records = Vec::new();
            for (kind, cpu, read) in ops {
                let record = PerfRecord { time_ns: 5, cpu: cpu.into(), event: 0, kind };
                let before = producer.head;
                producer.offer(&record, 7);
                if producer.head > before {
                    expected.push(record);
                }
                if read {
                    consumer.drain(&mut records).unwrap();
                }
            }
            consumer.drain(&mut records).unwrap();
            let counts = producer.counts();
            prop_assert_eq!(records, expected);
            prop_assert_eq!(counts.offered, counts.written + counts.dropped);
            prop_assert_eq!(consumer.read, counts.written);
            prop_assert!(!producer.is_broken());
        }

        /// A reader that writes arbitrary values, even over the words, gains nothing.
        #[test]
        fn an_invalid_tail_closes_the_ring(
            tail in any::<u64>(),
            word in 0usize..600,
            value in any::<u64>(),
        ) {
            let (mut producer, consumer) = pair(64, true);
            let kind = RecordKind::Exit { pid: 7, tid: 7 };
            let record = PerfRecord { time_ns: 1, cpu: 0, event: 0, kind };
            producer.offer(&record, 7);
            let head = producer.head;
            consumer.words.at(word).store(value, Ordering::Relaxed);
            consumer.words.at(HEAD).store(0, Ordering::Relaxed);
            consumer.words.at(TAIL).store(tail, Ordering::Relaxed);
            for _ in 0..40 {
                producer.offer(&record, 7);
            }
            prop_assert_eq!(producer.is_broken(), tail > head);
            prop_assert!(producer.head <= 64 + 40 * 3);
        }

        #[test]
        fn arbitrary_words_decode_or_fail(words in proptest::collection::vec(any::<u64>(), 0..30)) {
            let _either = decode(&words);
        }
    }

    #[test]
    fn kernel_addresses_are_hidden_from_the_unprivileged() {
        let (mut producer, mut consumer) = pair(64, false);
        let chain = [
            Address::Kernel(KERNEL + 1),
            Address::Kernel(KERNEL + 2),
            Address::User(3),
        ];
        let kind = RecordKind::Sample {
            pid: 7,
            tid: 7,
            chain: chain.into(),
        };
        producer.offer(
            &PerfRecord {
                time_ns: 1,
                cpu: 0,
                event: 0,
                kind,
            },
            7,
        );
        let mut records = Vec::new();
        consumer.drain(&mut records).unwrap();
        let RecordKind::Sample { chain, .. } = &records[0].kind else {
            panic!("{records:?}");
        };
        assert_eq!(**chain, [Address::Kernel(HIDDEN), Address::User(3)]);
    }

    #[test]
    fn unsealed_memory_is_no_ring() {
        let (producer, _) = pair(64, false);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("x", flags).unwrap();
        ftruncate(&memory, ((DATA + 64) * 8) as u64).unwrap();
        let [_, doorbell] = producer.descriptors();
        let doorbell = doorbell.try_clone_to_owned().unwrap();
        assert!(Consumer::new(&memory, doorbell).is_err());
    }
}
