//! Function names: those of the kernel from kallsyms, those of programs and libraries from their
//! files.

use super::jit::Map;
use super::numbers::Numbers;
use super::spaces::Place;
use crate::model::{Code, Frame, Location, Module, Space};
use crate::sampler::elf::{self, Foreign, VDSO};
use blazesym::MaybeDefault;
use blazesym::symbolize::source::{Elf, Kernel, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum bytes of the first function of a process.
const START_BYTES: u64 = 64;

/// Looks up function names, with a cache.
pub struct Symbolizer {
    blazesym: Option<blazesym::symbolize::Symbolizer>,
    kallsyms: Option<PathBuf>,
    foreign: Arc<Foreign>,
    /// By location: functions from the outermost to the innermost inlined one.
    known: HashMap<(String, u64), Vec<NamedFrame>>,
    /// The kernel's code for programs, as a file.
    vdso: Option<File>,
}

/// A function at a location.
#[derive(Clone, Debug, Default)]
struct NamedFrame {
    symbol: String,
    inlined: bool,
    code: Option<Code>,
    source: Option<(String, u32)>,
}

/// Frames and their source files, numbered.
#[derive(Debug, Default)]
pub(super) struct Frames {
    pub(super) frames: Numbers<Frame>,
    pub(super) files: Numbers<String>,
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
            foreign: Arc::default(),
            known: HashMap::new(),
            vdso: vdso(),
        }
    }

    /// Adds the files of other mount namespaces.
    pub(crate) fn with_foreign(self, foreign: Arc<Foreign>) -> Self {
        Self { foreign, ..self }
    }

    /// Creates a symbolizer without symbols.
    #[cfg(test)]
    pub(super) fn without_symbols() -> Self {
        Self {
            blazesym: None,
            kallsyms: None,
            foreign: Arc::default(),
            known: HashMap::new(),
            vdso: None,
        }
    }

    /// Adds the names of a location from a domain's profiler: functions from the outermost to the
    /// innermost, and whether each was inlined.
    pub fn know(&mut self, path: &str, offset: u64, names: Vec<(String, bool)>) {
        let name = |(symbol, inlined)| NamedFrame {
            symbol,
            inlined,
            ..NamedFrame::default()
        };
        let names = names.into_iter().map(name).collect();
        self.known.insert((path.to_owned(), offset), names);
    }

    /// Returns the frames of each location, from the outermost to the innermost.
    pub(super) fn frames(
        &mut self,
        modules: &[Module],
        places: &[Place],
        Frames { frames, files }: &mut Frames,
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
            for name in names.into_iter().flatten() {
                let source = name.source.as_ref();
                numbers.push(frames.of(Frame {
                    module: place.module,
                    symbol: name.symbol.clone(),
                    inlined: name.inlined,
                    code: name.code,
                    source: source.map(|(file, line)| Location(files.of(file.clone()), *line)),
                }));
            }
            numbers
        };
        places.iter().map(frames_of).collect()
    }

    /// Returns the build id of a program or library.
    pub(super) fn build_id(&self, module: &Module) -> Option<String> {
        let path = self.file(module)?;
        let id = blazesym::helper::read_elf_build_id(&path).ok()??;
        Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the file of a program or library.
    fn file(&self, module: &Module) -> Option<String> {
        let descriptor = match (&self.vdso, module.path.as_str()) {
            (Some(vdso), VDSO) => Some(vdso.as_raw_fd()),
            (_, path) => self.foreign.file(path).map(File::as_raw_fd),
        };
        let path = match descriptor {
            Some(descriptor) => format!("/proc/self/fd/{descriptor}"),
            None => module.path.clone(),
        };
        let is_file = module.space == Space::User && Path::new(&path).is_file();
        is_file.then_some(path)
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
            Space::User => self.file(module).map(|path| Source::Elf(Elf::new(path))),
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
        let start = is_program
            .then(|| elf::start(&self.file(module)?))
            .flatten();
        let is_start = |offset: u64| {
            let within = start.and_then(|start| offset.checked_sub(start));
            within.is_some_and(|within| within < START_BYTES)
        };
        let jit = Map::of_module(&module.path);
        let of_jit = |offset: u64| jit.as_ref().and_then(|map| map.name(offset));
        for offset in offsets {
            let names = match found.next() {
                Some(Symbolized::Sym(symbol)) => names(&symbol, module.space),
                _ => {
                    let symbol = match of_jit(*offset) {
                        Some(name) => name.to_owned(),
                        None if is_start(*offset) => "_start".to_owned(),
                        // Without a symbol, the name is the offset.
                        None => format!("{offset:#x}"),
                    };
                    vec![NamedFrame {
                        symbol,
                        ..NamedFrame::default()
                    }]
                }
            };
            self.known.insert((module.path.clone(), *offset), names);
        }
    }
}

/// Returns the functions at an address, from the outermost to the innermost inlined one.
fn names(symbol: &Sym<'_>, space: Space) -> Vec<NamedFrame> {
    // The kernel's addresses differ after each boot, and are secret.
    let code = (space == Space::User).then(|| {
        Code(
            symbol.addr.saturating_add(symbol.offset as u64),
            symbol.addr,
        )
    });
    let source = |info: &CodeInfo<'_>| {
        let line = info.line.filter(|line| *line > 0)?;
        Some((info.to_path().to_string_lossy().into_owned(), line))
    };
    let name = |symbol: &str, inlined, info: Option<&CodeInfo<'_>>| NamedFrame {
        symbol: symbol.to_owned(),
        inlined,
        code,
        source: info.and_then(source),
    };
    let inlined = symbol.inlined.iter();
    let inlined = inlined.map(|f| name(&f.name, true, f.code_info.as_ref()));
    std::iter::once(name(&symbol.name, false, symbol.code_info.as_deref()))
        .chain(inlined)
        .collect()
}
