//! Function names: those of the kernel from kallsyms, those of programs and libraries from their
//! files.

use super::address_spaces::Place;
use super::interner::Interner;
use super::jit::{self, MapBudget};
use super::program::{CopyBudget, ProgramFile, symbols};
use crate::model::{Code, Location, Module, Space, StackFrame};
use crate::sampler::elf::{self, Foreign, VDSO};
use blazesym::MaybeDefault;
use blazesym::symbolize::source::{Kernel, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of notes. Profiled processes cause them.
const NOTES_MAX: usize = 16;
/// Maximum bytes of the first function of a process.
const START_BYTES: u64 = 64;

/// Looks up function names, with a cache.
pub struct Symbolizer {
    blazesym: Option<blazesym::symbolize::Symbolizer>,
    kallsyms: Option<PathBuf>,
    foreign: Arc<Foreign>,
    /// For each location, the functions from the outermost to the innermost inlined one.
    known: HashMap<(String, u64), Vec<NamedFrame>>,
    /// Programs and libraries by path.
    programs: HashMap<String, Option<Rc<ProgramFile>>>,
    budget: CopyBudget,
    /// Notes for the user about missing or incomplete names.
    notes: Vec<String>,
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
    pub(super) frames: Interner<StackFrame>,
    pub(super) files: Interner<String>,
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
            programs: HashMap::new(),
            budget: CopyBudget::default(),
            notes: Vec::new(),
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
            ..Self::new(None)
        }
    }

    /// Adds the names of a location from a domain's profiler: functions from the outermost to the
    /// innermost, and whether each was inlined.
    pub fn add_names(&mut self, path: &str, offset: u64, names: Vec<(String, bool)>) {
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
        // `prof top` calls this for each screen, and reads the maps again.
        let mut maps = MapBudget::default();
        for (number, module) in (0u32..).zip(modules) {
            let offsets: Vec<u64> = places
                .iter()
                .filter(|place| place.module == number)
                .map(|place| place.offset)
                .filter(|offset| !self.known.contains_key(&(module.path.clone(), *offset)))
                .collect();
            if !offsets.is_empty() {
                self.learn(module, &offsets, &mut maps);
            }
        }
        let frames_of = |place: &Place| {
            let module = modules.get(place.module as usize);
            let path = module.map_or_else(String::new, |module| module.path.clone());
            let names = self.known.get(&(path, place.offset));
            let mut numbers: Vec<u32> = Vec::new();
            for name in names.into_iter().flatten() {
                let source = name.source.as_ref();
                numbers.push(frames.intern(StackFrame {
                    module: place.module,
                    symbol: name.symbol.clone(),
                    inlined: name.inlined,
                    code: name.code,
                    source: source.map(|(file, line)| Location(files.intern(file.clone()), *line)),
                }));
            }
            numbers
        };
        places.iter().map(frames_of).collect()
    }

    /// Returns notes about maps of just-in-time compilers and about programs that could not be used
    /// as a whole.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes
            .iter()
            .cloned()
            .chain(self.budget.note())
            .collect()
    }

    /// Returns the build id of a program or library.
    pub(super) fn build_id(&mut self, module: &Module) -> Option<String> {
        self.program(module)?.build_id.clone()
    }

    /// Returns a program or library.
    fn program(&mut self, module: &Module) -> Option<Rc<ProgramFile>> {
        let path = module.path.as_str();
        if let Some(known) = self.programs.get(path) {
            return known.clone();
        }
        let (foreign, budget) = (&self.foreign, &mut self.budget);
        let opened = match (module.space, foreign.file(path)) {
            (Space::Kernel, _) => None,
            (_, Some((pid, inner, file))) => ProgramFile::of_process(pid, inner, file, budget),
            _ if path == VDSO => vdso().and_then(|file| ProgramFile::of_memory(&file, budget)),
            _ if path.starts_with('/') => ProgramFile::open(path, budget),
            _ => None,
        };
        let opened = opened.map(Rc::new);
        self.programs.insert(path.to_owned(), opened.clone());
        opened
    }

    /// Returns the symbols at addresses of the kernel.
    fn in_kernel(&self, addresses: &[u64]) -> Vec<Option<Sym<'_>>> {
        let mut kernel = Kernel {
            vmlinux: MaybeDefault::None,
            debug_syms: false,
            ..Kernel::default()
        };
        if let Some(path) = &self.kallsyms {
            kernel.kallsyms = MaybeDefault::Some(path.clone());
        }
        let find = |blazesym| symbols(blazesym, &Source::Kernel(kernel), Input::AbsAddr(addresses));
        self.blazesym.as_ref().map(find).unwrap_or_default()
    }

    fn learn(&mut self, module: &Module, offsets: &[u64], maps: &mut MapBudget) {
        let program = match self.blazesym {
            Some(_) => self.program(module),
            None => None,
        };
        let (jit, note) = jit::of_module(&module.path, maps);
        if self.notes.len() < NOTES_MAX {
            self.notes.extend(note);
        }
        let found = match (module.space, &program, &self.blazesym) {
            (Space::Kernel, ..) => self.in_kernel(offsets),
            (_, Some(program), Some(blazesym)) => program.at_offsets(blazesym, offsets),
            _ => Vec::new(),
        };
        let mut found = found.into_iter();
        // The first function of a stripped program has no name, but the file has its address.
        let start = program.as_ref().and_then(|program| program.start);
        let is_start = |offset: u64| {
            let within = start.and_then(|start| offset.checked_sub(start));
            within.is_some_and(|within| within < START_BYTES)
        };
        let of_jit = |offset: u64| jit.as_ref().and_then(|map| map.name(offset));
        let names = offsets.iter().map(|offset| match found.next().flatten() {
            Some(symbol) => names(&symbol, module.space),
            None => {
                let symbol = match of_jit(*offset) {
                    Some(name) => name.to_owned(),
                    None if is_start(*offset) => "_start".to_owned(),
                    None => unknown_name(module, *offset),
                };
                vec![NamedFrame {
                    symbol,
                    ..NamedFrame::default()
                }]
            }
        });
        let names: Vec<Vec<NamedFrame>> = names.collect();
        for (offset, names) in offsets.iter().zip(names) {
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

/// Returns the name of a function without a symbol.
fn unknown_name(module: &Module, offset: u64) -> String {
    match module.is_agent() {
        true => "agent".to_owned(),
        false => format!("{offset:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_without_a_symbol_have_a_name() {
        for (path, name) in [
            ("/proc/7/root/memfd:grantway-agent (deleted)", "agent"),
            ("/usr/bin/memfd", "0x48"),
        ] {
            let module = Module {
                path: path.to_owned(),
                space: Space::User,
                build_id: None,
            };
            assert_eq!(unknown_name(&module, 0x48), name);
        }
    }
}
