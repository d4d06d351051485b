//! Function names: those of the kernel from kallsyms, those of programs and libraries from their
//! files.

use super::numbers::Numbers;
use super::spaces::Place;
use crate::model::{Frame, Module, Space};
use crate::sampler::elf::{self, VDSO};
use blazesym::MaybeDefault;
use blazesym::symbolize::source::{Elf, Kernel, Source};
use blazesym::symbolize::{Input, Symbolized};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Maximum bytes of the first function of a process.
const START_BYTES: u64 = 64;

/// Looks up function names, with a cache.
pub struct Symbolizer {
    blazesym: Option<blazesym::symbolize::Symbolizer>,
    kallsyms: Option<PathBuf>,
    /// By location: functions from the outermost to the innermost inlined one.
    known: HashMap<(String, u64), Vec<(String, bool)>>,
    /// The kernel's code for programs, as a file.
    vdso: Option<File>,
}

/// Returns a copy of the vDSO, whose functions are then read as those of any other file.
fn vdso() -> Option<File> {
    let (memory, range) = elf::vdso()?;
    let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
    memory.read_exact_at(&mut bytes, range.start).ok()?;
    let mut copy = File::from(memfd_create("vdso", MemfdFlags::CLOEXEC).ok()?);
    copy.write_all(&bytes).ok()?;
    Some(copy)
}

impl Symbolizer {
    /// Creates a symbolizer for this host. With `kallsyms`, kernel symbols are read from that file,
    /// a copy of another kernel's `/proc/kallsyms`.
    #[must_use]
    pub fn new(kallsyms: Option<PathBuf>) -> Self {
        let blazesym = blazesym::symbolize::Symbolizer::builder()
            .enable_code_info(true)
            .enable_inlined_fns(true)
            .enable_demangling(true)
            .build();
        Self {
            blazesym: Some(blazesym),
            kallsyms,
            known: HashMap::new(),
            vdso: vdso(),
        }
    }

    /// Creates a symbolizer without symbols.
    #[cfg(test)]
    pub(super) fn without_symbols() -> Self {
        Self {
            blazesym: None,
            kallsyms: None,
            known: HashMap::new(),
            vdso: None,
        }
    }

    /// Adds the names of a location from a domain's profiler: functions from the outermost to the
    /// innermost, and whether each was inlined.
    pub fn know(&mut self, path: &str, offset: u64, names: Vec<(String, bool)>) {
        self.known.insert((path.to_owned(), offset), names);
    }

    /// Returns the frames of each location, from the outermost to the innermost.
    pub(super) fn frames(
        &mut self,
        modules: &[Module],
        places: &[Place],
        frames: &mut Numbers<Frame>,
    ) -> Vec<Vec<u32>> {
        for (number, module) in (0u32..).zip(modules) {
            let offsets: Vec<u64> = places
                .iter()
                .filter(|place| place.module == number)
                .map(|place| place.offset)
                .filter(|offset| !self.known.contains_key(&(module.path.clone(), *offset)))
                .collect();
            if !offsets.is_empty() {
                self.learn(module, &offsets);
            }
        }
        let frames_of = |place: &Place| {
            let module = modules.get(place.module as usize);
            let path = module.map_or_else(String::new, |module| module.path.clone());
            let names = self.known.get(&(path, place.offset));
            let mut numbers: Vec<u32> = Vec::new();
            for (symbol, inlined) in names.into_iter().flatten() {
                numbers.push(frames.of(Frame {
                    module: place.module,
                    symbol: symbol.clone(),
                    inlined: *inlined,
                }));
            }
            numbers
        };
        places.iter().map(frames_of).collect()
    }

    fn learn(&mut self, module: &Module, offsets: &[u64]) {
        let source = match module.space {
            Space::Kernel => {
                let mut kernel = Kernel {
                    vmlinux: MaybeDefault::None,
                    debug_syms: false,
                    ..Kernel::default()
                };
                if let Some(path) = &self.kallsyms {
                    kernel.kallsyms = MaybeDefault::Some(path.clone());
                }
                Some(Source::Kernel(kernel))
            }
            Space::User => {
                let path = match (&self.vdso, module.path.as_str()) {
                    (Some(vdso), VDSO) => format!("/proc/self/fd/{}", vdso.as_raw_fd()),
                    (_, path) => path.to_owned(),
                };
                let is_file = Path::new(&path).is_file();
                is_file.then(|| Source::Elf(Elf::new(&path)))
            }
        };
        let input = match module.space {
            Space::Kernel => Input::AbsAddr(offsets),
            Space::User => Input::FileOffset(offsets),
        };
        let found = match (&self.blazesym, &source) {
            (Some(blazesym), Some(source)) => blazesym.symbolize(source, input).unwrap_or_default(),
            _ => Vec::new(),
        };
        let mut found = found.into_iter();
        // The first function of a stripped program has no name, but the file has its address.
        let is_program = module.space == Space::User && source.is_some();
        let start = is_program.then(|| elf::start(&module.path)).flatten();
        let is_start = |offset: u64| {
            let within = start.and_then(|start| offset.checked_sub(start));
            within.is_some_and(|within| within < START_BYTES)
        };
        for offset in offsets {
            let names = match found.next() {
                Some(Symbolized::Sym(symbol)) => {
                    let inlined = symbol.inlined.iter().map(|f| (f.name.to_string(), true));
                    std::iter::once((symbol.name.to_string(), false))
                        .chain(inlined)
                        .collect()
                }
                _ if is_start(*offset) => vec![("_start".to_owned(), false)],
                // Without a symbol, the name is the offset.
                _ => vec![(format!("{offset:#x}"), false)],
            };
            self.known.insert((module.path.clone(), *offset), names);
        }
    }
}
