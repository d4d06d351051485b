//! A domain's sample buffer: memory that the sampler writes and one domain-level profiler reads.
//!
//! ```text
//!  0        64       4096                                     4096 + 8 × words
//!  ┌────────┬────────┬──────────────────────────────────────────┐
//!  │ head   │ tail   │ words …                                  │
//!  └────────┴────────┴──────────────────────────────────────────┘
//! ```
//! `head` and `tail` count words since the beginning and never wrap; a word lies at its count
//! modulo the size, which is a power of two. Each record is a first word (its length in words, its
//! kind and its CPU) and what belongs to the kind.
//!
//! OWNERSHIP: the sampler writes `head` and the words, the profiler writes `tail`. The profiler is
//! not trusted: of everything it can write the sampler reads `tail` alone, once a record, and a
//! value that cannot be ends the ring for good. The sampler's own `head` lies in its own memory.

use super::SessionError;
use crate::sampler::parse::{Address, Record, RecordKind};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a ring: at 1 kHz and 50 words a sample twenty seconds of one busy CPU.
const WORDS: usize = 1 << 20;
const HEAD: usize = 0;
const TAIL: usize = 8;
const DATA: usize = 512;
/// Stands in a call stack for a part that is not for this reader.
const HIDDEN: u64 = u64::MAX;
/// Addresses from here on are the kernel's: the upper half of x86-64's canonical addresses.
const KERNEL: u64 = 1 << 63;
/// Longest text in a record, bytes.
const TEXT_MAX: usize = 4096;

/// Words that another process can write as well.
#[derive(Debug)]
struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: atomics behind a pointer, mapped until the drop; any thread may use them.
unsafe impl Send for Words {}

impl Words {
    fn map(fd: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
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
        // Callers mask or pass constants; whatever they pass stays inside.
        let index = index.min(self.count - 1);
        // SAFETY: inside the mapping, page-aligned at its start, sealed against shrinking by the
        // side that made it; an atomic may have any value and any concurrent writer.
        unsafe { self.start.add(index).as_ref() }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and no reference outlives `self`. It cannot fail with
        // these arguments.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.count * 8) };
    }
}

/// What became of the samples that were meant for a domain.
///
/// `offered = written + dropped` and `written = read + unread`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Samples of the domain.
    pub offered: u64,
    /// Those that were put into its ring.
    pub written: u64,
    /// Those for which it had no room, or which came after it was ended.
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
    /// Kernel addresses are for those who may profile the machine.
    sees_kernel: bool,
    fate: Fate,
    scratch: Vec<u64>,
}

impl Producer {
    /// A new ring.
    ///
    /// # Errors
    /// What the kernel says: out of memory or descriptors.
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
            fate: Fate::default(),
            scratch: Vec::new(),
        })
    }

    /// The ring's memory, and the eventfd that is the domain's virtual interrupt.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.as_fd(), self.doorbell.as_fd()]
    }

    /// Samples so far.
    #[must_use]
    pub const fn fate(&self) -> Fate {
        self.fate
    }

    /// Whether its reader claimed to have read what was never written.
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    const fn mask(&self) -> u64 {
        (self.words.count - DATA - 1) as u64
    }

    /// Puts a record in, or counts it as dropped. `pid` is the process as the reader knows it.
    pub fn offer(&mut self, record: &Record, pid: u32) {
        let is_sample = matches!(record.kind, RecordKind::Sample { .. });
        self.fate.offered += u64::from(is_sample);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        encode(record, pid, self.sees_kernel, &mut scratch);
        let put = self.put(&scratch);
        self.scratch = scratch;
        if is_sample {
            match put {
                true => self.fate.written += 1,
                false => self.fate.dropped += 1,
            }
        }
    }

    fn put(&mut self, words: &[u64]) -> bool {
        // Acquire: words that were read before the tail moved may be overwritten after it.
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
        // Release: a reader that sees this head sees the words before it.
        self.words.at(HEAD).store(self.head, Ordering::Release);
        if self.head - self.rung > (self.mask() + 1) / 4 {
            self.ring();
        }
        true
    }

    /// Raises the virtual interrupt.
    pub fn ring(&mut self) {
        self.rung = self.head;
        // A counter at its limit is a reader that was told often enough.
        let _full = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }
}

/// The domain's end.
#[derive(Debug)]
pub struct Consumer {
    words: Words,
    doorbell: OwnedFd,
    tail: u64,
    /// Samples taken out.
    pub read: u64,
}

impl Consumer {
    /// From the descriptors that came with the reservation.
    ///
    /// # Errors
    /// If they are not a ring.
    pub fn new(memory: &OwnedFd, doorbell: OwnedFd) -> Result<Self, SessionError> {
        let seals = fcntl_get_seals(memory).map_err(io::Error::from)?;
        let bytes = rustix::fs::fstat(memory).map_err(io::Error::from)?.st_size;
        let count = usize::try_from(bytes).unwrap_or(0) / 8;
        let is_ring =
            seals.contains(SealFlags::SHRINK) && count > DATA && (count - DATA).is_power_of_two();
        if !is_ring {
            return Err(SessionError::Nonsense("a ring that is none"));
        }
        Ok(Self {
            words: Words::map(memory.as_fd(), count)?,
            doorbell,
            tail: 0,
            read: 0,
        })
    }

    /// What is readable when there is something to read.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Takes out everything that is there.
    ///
    /// # Errors
    /// If what lies in the ring is no record.
    pub fn drain(&mut self, records: &mut Vec<Record>) -> Result<(), SessionError> {
        let mut count = [0u8; 8];
        // Empty if nobody rang since: the ring is looked at all the same.
        let _silent = rustix::io::read(&self.doorbell, &mut count);
        let mask = (self.words.count - DATA - 1) as u64;
        let nonsense = SessionError::Nonsense("a ring whose records make no sense");
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
        // Release: the words were read before their place is given back.
        self.words.at(TAIL).store(self.tail, Ordering::Release);
        Ok(())
    }
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Nothing for a record that belongs to no process.
fn encode(record: &Record, pid: u32, sees_kernel: bool, out: &mut Vec<u64>) {
    out.extend([0, record.time_ns]);
    let kind = match &record.kind {
        RecordKind::Sample { tid, chain, .. } => {
            out.push(two(pid, *tid));
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
            out.extend([two(pid, *tid), u64::from(*exec)]);
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
            out.extend([two(pid, 0), *start, *len, *offset]);
            text(path, out);
            3
        }
        RecordKind::Fork { parent, tid, .. } => {
            out.extend([two(pid, *tid), u64::from(*parent)]);
            4
        }
        RecordKind::Exit { tid, .. } => {
            out.push(two(pid, *tid));
            5
        }
        RecordKind::Lost(_) => {
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

fn decode(words: &[u64]) -> Option<Record> {
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
    Some(Record {
        time_ns,
        cpu: (first >> 32) as u32,
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
        /// Whatever comes, and however seldom it is read: what is read is what was written, in
        /// order, and every sample is either written or dropped.
        #[test]
        fn nothing_is_lost_unseen(
            ops in proptest::collection::vec((kind(), any::<u16>(), any::<bool>()), 1..200),
        ) {
            let (mut producer, mut consumer) = pair(256, true);
            let mut expected = Vec::new();
            let mut records = Vec::new();
            for (kind, cpu, read) in ops {
                let record = Record { time_ns: 5, cpu: cpu.into(), kind };
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
            let fate = producer.fate();
            prop_assert_eq!(records, expected);
            prop_assert_eq!(fate.offered, fate.written + fate.dropped);
            prop_assert_eq!(consumer.read, fate.written);
            prop_assert!(!producer.is_broken());
        }

        /// A reader that writes what it likes, also over the words, gets nothing out of the
        /// sampler.
        #[test]
        fn a_lying_tail_ends_the_ring(
            tail in any::<u64>(),
            word in 0usize..600,
            value in any::<u64>(),
        ) {
            let (mut producer, consumer) = pair(64, true);
            let record = Record { time_ns: 1, cpu: 0, kind: RecordKind::Exit { pid: 7, tid: 7 } };
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
        fn any_words_are_a_record_or_none(words in proptest::collection::vec(any::<u64>(), 0..30)) {
            let _either = decode(&words);
        }
    }

    #[test]
    fn kernel_addresses_are_hidden_from_who_may_not_see_them() {
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
            &Record {
                time_ns: 1,
                cpu: 0,
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
    fn memory_that_can_shrink_is_no_ring() {
        let (producer, _) = pair(64, false);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("x", flags).unwrap();
        ftruncate(&memory, ((DATA + 64) * 8) as u64).unwrap();
        let [_, doorbell] = producer.descriptors();
        let doorbell = doorbell.try_clone_to_owned().unwrap();
        assert!(Consumer::new(&memory, doorbell).is_err());
    }
}
