//! Call stacks of user code, by the unwind tables of programs.
//!
//! The kernel follows frame pointers, which most libraries and many programs lack. So each sample
//! also has the registers and a copy of the innermost part of the stack, from which the tables
//! (`.eh_frame`) give all callers. A stack is unwound as soon as it has been read, because copies
//! of a whole session would fill the memory.

use super::elf::{self, Sections};
use super::parse::{Address, PerfRecord, RecordKind};
use crate::host::process::{self, CodeMapping};
use framehop::x86_64::{CacheX86_64, Reg, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use std::collections::HashMap;
use std::sync::Arc;

/// The registers in a sample, as bits of the kernel's mask: the general ones and the instruction
/// pointer.
pub(super) const REGISTERS: u64 = 0x00ff_01ff;
/// The kernel's number for registers of 64 bits.
const REGISTERS_64: u64 = 2;
/// Bytes of a word.
const WORD: usize = 8;
/// Position of the length of the call chain in a sample: after thread, time and CPU.
const CHAIN: usize = 3;
/// Position of the instruction pointer among them.
const IP: usize = 8;
/// The others, in the order of the mask.
const ORDER: [Reg; 16] = [
    Reg::RAX,
    Reg::RBX,
    Reg::RCX,
    Reg::RDX,
    Reg::RSI,
    Reg::RDI,
    Reg::RBP,
    Reg::RSP,
    Reg::R8,
    Reg::R9,
    Reg::R10,
    Reg::R11,
    Reg::R12,
    Reg::R13,
    Reg::R14,
    Reg::R15,
];
/// Maximum number of callers in user code.
const CALLERS_MAX: usize = 127;
/// Maximum number of mappings of a process that are used.
const MAPPINGS_MAX: usize = 1024;

/// Registers and a copy of the innermost part of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UserStack {
    registers: UnwindRegsX86_64,
    bytes: Box<[u8]>,
}

impl UserStack {
    /// Splits the body of a sample: returns the part up to its call chain, and the stack after it.
    /// There is none if user code did not run, for example in a kernel thread.
    pub(super) fn split(body: &[u8]) -> (&[u8], Option<Self>) {
        let split = || {
            let callers = usize::try_from(word(body, CHAIN)?).ok()?;
            let chained = CHAIN
                .checked_add(1)?
                .checked_add(callers)?
                .checked_mul(WORD)?;
            body.split_at_checked(chained)
        };
        split().map_or((body, None), |(head, rest)| (head, Self::parse(rest)))
    }

    /// Parses the kind of the registers, the registers, the stack's size, its bytes, and the number
    /// of bytes that were copied.
    fn parse(rest: &[u8]) -> Option<Self> {
        if word(rest, 0)? != REGISTERS_64 {
            return None;
        }
        let register = |number: usize| word(rest, 1 + number);
        let mut registers = UnwindRegsX86_64::new(register(IP)?, 0, 0);
        for (number, name) in (0..).filter(|number| *number != IP).zip(ORDER) {
            registers.set(name, register(number)?);
        }
        let rest = rest.get((2 + ORDER.len()) * WORD..)?;
        let (size, rest) = rest.split_first_chunk()?;
        let size = usize::try_from(u64::from_ne_bytes(*size)).ok()?;
        let (bytes, rest) = rest.split_at_checked(size)?;
        let copied = usize::try_from(word(rest, 0)?).ok()?;
        let bytes = bytes.get(..copied).filter(|bytes| !bytes.is_empty())?;
        Some(Self {
            registers,
            bytes: bytes.into(),
        })
    }

    /// Returns the word at an address of the stack.
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.registers.sp())?).ok()?;
        self.bytes
            .get(at..)?
            .first_chunk()
            .copied()
            .map(u64::from_ne_bytes)
    }
}

/// Returns word `number` of bytes from the kernel.
fn word(bytes: &[u8], number: usize) -> Option<u64> {
    let at = number.checked_mul(WORD)?;
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u64::from_ne_bytes)
}

/// The mapped code of a process.
type MappedCode = UnwinderX86_64<Arc<[u8]>>;

/// Unwinds stacks. It sees all records in time order.
#[derive(Default)]
pub(super) struct Unwinder {
    processes: HashMap<u32, MappedCode>,
    files: elf::Files,
    cache: CacheX86_64,
}

impl Unwinder {
    /// Returns the files of other mount namespaces.
    pub(super) fn into_foreign(self) -> elf::Foreign {
        self.files.into_foreign()
    }

    /// Takes a record, and completes the user part of a sample's call chain from its stack.
    pub(super) fn take(&mut self, record: &mut PerfRecord, stack: Option<&UserStack>) {
        match &mut record.kind {
            RecordKind::Sample { pid, chain, .. } => {
                if let Some(stack) = stack {
                    self.complete(*pid, chain, stack);
                }
            }
            RecordKind::Map {
                pid,
                start,
                len,
                offset,
                path,
            } => {
                let mapping = CodeMapping {
                    start: *start,
                    len: *len,
                    offset: *offset,
                    path: path.clone(),
                };
                // The mappings of an unknown process are read with its first sample.
                if let Some(process) = self.processes.get_mut(pid) {
                    map(process, &mut self.files, *pid, &mapping);
                }
            }
            RecordKind::Comm {
                pid, exec: true, ..
            } => {
                self.processes.insert(*pid, UnwinderX86_64::new());
            }
            RecordKind::Fork { pid, parent, .. } if pid != parent => {
                if let Some(parent) = self.processes.get(parent).cloned() {
                    self.processes.insert(*pid, parent);
                }
            }
            RecordKind::Exit { pid, tid } if pid == tid => {
                self.processes.remove(pid);
            }
            _ => {}
        }
    }

    fn complete(&mut self, pid: u32, chain: &mut Box<[Address]>, stack: &UserStack) {
        let process = self.processes.entry(pid).or_insert_with(|| {
            let mut process = UnwinderX86_64::new();
            for mapping in process::mappings(pid).iter().take(MAPPINGS_MAX) {
                map(&mut process, &mut self.files, pid, mapping);
            }
            process
        });
        let mut word = |address| stack.word(address).ok_or(());
        let ip = stack.registers.ip();
        let mut frames = process.iter_frames(ip, stack.registers, &mut self.cache, &mut word);
        let mut callers = Vec::new();
        let is_whole = loop {
            match frames.next() {
                Ok(Some(frame)) if callers.len() < CALLERS_MAX => callers.push(match frame {
                    FrameAddress::InstructionPointer(address) => address,
                    FrameAddress::ReturnAddress(address) => address.get(),
                }),
                Ok(Some(_)) | Err(_) => break false,
                Ok(None) => break true,
            }
        };
        let is_user = |address: &Address| matches!(address, Address::User(_));
        let by_kernel = chain.iter().position(is_user).unwrap_or(chain.len());
        // In code without tables, such as that of a just-in-time compiler, frame pointers may give
        // more.
        if is_whole || callers.len() >= chain.len() - by_kernel {
            let kernel = chain.iter().take(by_kernel).copied();
            *chain = kernel
                .chain(callers.into_iter().map(Address::User))
                .collect();
        }
    }
}

/// Adds a mapping to a process, in place of an earlier one at its start.
fn map(process: &mut MappedCode, files: &mut elf::Files, pid: u32, mapping: &CodeMapping) {
    process.remove_module(mapping.start);
    let sections = files.sections(pid, mapping);
    if let Some(module) = sections.and_then(|sections| module(mapping, &sections)) {
        process.add_module(module);
    }
}

/// Returns a mapping with the tables of its file.
fn module(mapping: &CodeMapping, sections: &Sections) -> Option<Module<Arc<[u8]>>> {
    let base = mapping
        .start
        .wrapping_sub(sections.segments.address_of(mapping.offset)?);
    let (header, header_at) = sections.header.clone().unzip();
    let (frames, frames_at) = sections.frames.clone().unzip();
    let info = ExplicitModuleSectionInfo {
        eh_frame_hdr: header,
        eh_frame_hdr_svma: header_at,
        eh_frame: frames,
        eh_frame_svma: frames_at,
        ..ExplicitModuleSectionInfo::default()
    };
    let range = mapping.start..mapping.start.saturating_add(mapping.len);
    Some(Module::new(mapping.path.clone(), range, base, info))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Returns a sample with two callers, all registers, and 16 copied bytes of the stack.
    fn sample() -> Vec<u8> {
        let mut words = vec![1, 2, 3, 2, 0x10, 0x20, REGISTERS_64];
        words.extend(100..117);
        words.extend([24, 7, 8, 0, 16]);
        bytes(&words)
    }

    #[test]
    fn samples_are_split_behind_their_call_chain() {
        let sample = sample();
        let (head, stack) = UserStack::split(&sample);
        assert_eq!(head, &sample[..6 * WORD]);
        let stack = stack.unwrap();
        assert_eq!(*stack.bytes, bytes(&[7, 8]));
        let registers = stack.registers;
        assert_eq!(
            (registers.ip(), registers.sp(), registers.bp()),
            (108, 107, 106)
        );
        assert_eq!(
            [Reg::RAX, Reg::R8, Reg::R15].map(|r| registers.get(r)),
            [100, 109, 116]
        );
        assert_eq!(
            [107, 115, 116, 106].map(|at| stack.word(at)),
            [Some(7), Some(8), None, None]
        );
    }

    #[test]
    fn samples_without_user_code_have_no_stack() {
        let kernel = bytes(&[1, 2, 3, 1, 0x10, 0, 0]);
        assert_eq!(UserStack::split(&kernel), (&kernel[..5 * WORD], None));
    }

    proptest! {
        #[test]
        fn arbitrary_samples_are_split(
            body in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0usize..200,
            at in 0usize..29,
            word in any::<u64>(),
        ) {
            let _either = UserStack::split(&body);
            let mut sample = sample();
            sample[at * WORD..(at + 1) * WORD].copy_from_slice(&word.to_ne_bytes());
            let (head, _) = UserStack::split(&sample);
            prop_assert!(head.len() <= sample.len());
            let _either = UserStack::split(sample.get(..cut).unwrap_or_default());
        }

        /// The tables, the stack and the registers belong to the profiled process.
        #[test]
        fn stacks_end_whatever_the_tables_contain(
            damage in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..2000),
            stack in proptest::collection::vec(any::<u64>(), 64),
            at in any::<u64>(),
        ) {
            let pid = std::process::id();
            let own = process::mappings(pid);
            let code = own.iter().find(|mapping| mapping.path.starts_with('/')).unwrap();
            let sections = elf::Files::default().sections(pid, code).unwrap();
            let mut sections = Sections::clone(&sections);
            for table in [&mut sections.frames, &mut sections.header] {
                let bytes = Arc::make_mut(&mut table.as_mut().unwrap().0);
                for (place, byte) in &damage {
                    let place = *place as usize % bytes.len();
                    bytes[place] = *byte;
                }
            }
            let mut unwinder = Unwinder::default();
            let mut own = MappedCode::new();
            own.add_module(module(code, &sections).unwrap());
            unwinder.processes.insert(pid, own);
            for step in 0..50 {
                let ip = code.start + at.wrapping_mul(step) % code.len;
                let mut registers = UnwindRegsX86_64::new(ip, 0x1000, 0x1080);
                registers.set(Reg::RBX, at);
                let stack = UserStack {
                    registers,
                    bytes: bytes(&stack).into(),
                };
                unwinder.complete(pid, &mut [].into(), &stack);
            }
        }

        /// The stack and the registers belong to the profiled process.
        #[test]
        fn arbitrary_stacks_end(
            words in proptest::collection::vec(any::<u64>(), 20..40),
            ip in any::<u64>(),
        ) {
            let mut words = words;
            let own = process::mappings(std::process::id());
            let code = own.iter().find(|mapping| mapping.path.starts_with('/'));
            let code = code.expect("code of this program");
            words[IP] = code.start + ip % code.len;
            words[7] = 0x1000;
            words.splice(0..0, [1, 2, 3, 0, REGISTERS_64]);
            let stack = words.split_off(22);
            words.push(stack.len() as u64 * 8);
            words.extend(&stack);
            words.push(stack.len() as u64 * 8);
            let body = bytes(&words);
            let (_, stack) = UserStack::split(&body);
            let (mut unwinder, mut chain) = (Unwinder::default(), [].into());
            unwinder.complete(std::process::id(), &mut chain, &stack.expect("a stack"));
            prop_assert!((1..=CALLERS_MAX).contains(&chain.len()));
        }
    }
}
