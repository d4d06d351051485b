//! Instructions of a function, from the program's file.

use super::counts::{FunctionCounts, TimeShare};
use crate::host::files;
use crate::model::Code;
use crate::resolve::program::{CopyBudget, ProgramFile};
use crate::sampler::elf;
use blazesym::symbolize::{CodeInfo, Sym, Symbolizer};
use iced_x86::{Decoder, DecoderOptions, FastFormatter};
use rustix::fs::OFlags;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;

/// Instructions before and after a sampled one.
const CONTEXT_INSTRUCTIONS: usize = 4;
/// Maximum bytes of a function.
const BYTES_MAX: u64 = 1 << 20;
/// Bits of an address.
const BITS: u32 = 64;

/// An instruction.
#[derive(Debug, Serialize)]
pub struct Instruction {
    /// Address in the file.
    pub address: u64,
    /// Shares by domain; empty without samples.
    pub shares: Vec<TimeShare>,
    /// Text, if the file is readable.
    pub text: Option<String>,
    /// Source file and line.
    pub source: Option<(String, u32)>,
}

/// Returns the sampled instructions of a file with those around them.
///
/// # Errors
/// Returns the reason why the file's code cannot be shown.
pub(super) fn instructions(
    path: &str,
    build_id: Option<&str>,
    counts: &[FunctionCounts<'_>],
) -> Result<Vec<Instruction>, String> {
    if !path.starts_with('/') {
        return Err(format!("no instructions: {path} is not a file"));
    }
    let failed = |error: &dyn std::fmt::Display| format!("no instructions: {path}: {error}");
    // The path is from the session, whose author may be hostile.
    let file = files::open(path, OFlags::empty()).map_err(|error| failed(&error))?;
    let file = Instructions::new(path, file).ok_or_else(|| failed(&"it cannot be read"))?;
    if build_id.is_some() && build_id != file.program.build_id.as_deref() {
        return Err(format!(
            "no instructions: {path} is another build than the one that was profiled"
        ));
    }
    let sampled = sampled_code(counts);
    let starts: BTreeSet<u64> = sampled.iter().map(|code| code.1).collect();
    let mut shown = Vec::new();
    for start in starts {
        let within = |address: u64| shares(counts, Code(address, start));
        let code = file.function(start).ok_or_else(|| {
            format!("no instructions: {path} has no code of a function at {start:#x}")
        })?;
        let hits = code.iter().enumerate();
        let hits = hits.filter(|(_, (address, _))| sampled.contains(&Code(*address, start)));
        let near: BTreeSet<usize> = hits
            .flat_map(|(at, _)| {
                at.saturating_sub(CONTEXT_INSTRUCTIONS)..=at.saturating_add(CONTEXT_INSTRUCTIONS)
            })
            .collect();
        let near: Vec<&(u64, String)> = near.iter().filter_map(|at| code.get(*at)).collect();
        let addresses: Vec<u64> = near.iter().map(|(address, _)| *address).collect();
        let sources = file.sources(&addresses);
        for ((address, text), source) in near.into_iter().zip(sources) {
            shown.push(Instruction {
                address: *address,
                shares: within(*address),
                text: Some(text.clone()),
                source,
            });
        }
    }
    Ok(shown)
}

/// Returns the sampled instructions without their texts.
pub(super) fn sampled(counts: &[FunctionCounts<'_>]) -> Vec<Instruction> {
    let instruction = |code: Code| Instruction {
        address: code.0,
        shares: shares(counts, code),
        text: None,
        source: None,
    };
    sampled_code(counts).into_iter().map(instruction).collect()
}

fn sampled_code(counts: &[FunctionCounts<'_>]) -> BTreeSet<Code> {
    let codes = counts.iter().flat_map(|counts| counts.code.keys());
    codes.copied().collect()
}

fn shares(counts: &[FunctionCounts<'_>], code: Code) -> Vec<TimeShare> {
    let of = |counts: &FunctionCounts<'_>| counts.code.get(&code).copied().unwrap_or(0);
    if counts.iter().all(|counts| of(counts) == 0) {
        return Vec::new();
    }
    let share = |counts: &FunctionCounts<'_>| counts.share([of(counts); 2]);
    counts.iter().map(share).collect()
}

/// The instructions of a program or library.
struct Instructions {
    file: File,
    symbolizer: Symbolizer,
    program: ProgramFile,
}

impl Instructions {
    fn new(path: &str, file: File) -> Option<Self> {
        Some(Self {
            symbolizer: Symbolizer::new(),
            program: ProgramFile::of_host(&file, path, &mut CopyBudget::default())?,
            file,
        })
    }

    fn symbol(&self, address: u64) -> Option<Sym<'_>> {
        self.program.at_address(&self.symbolizer, address)
    }

    /// Returns the addresses and texts of a function's instructions.
    fn function(&self, start: u64) -> Option<Vec<(u64, String)>> {
        let len = self.symbol(start)?.size.filter(|size| *size > 0)? as u64;
        let range = start..start.checked_add(len.min(BYTES_MAX))?;
        let bytes = elf::code(&self.file, &range)?;
        let mut decoder = Decoder::with_ip(BITS, &bytes, start, DecoderOptions::NONE);
        let mut formatter = FastFormatter::new();
        let options = formatter.options_mut();
        options.set_use_hex_prefix(true);
        options.set_uppercase_hex(false);
        options.set_space_after_operand_separator(true);
        let mut shown = Vec::new();
        while decoder.can_decode() {
            let instruction = decoder.decode();
            let mut text = String::new();
            formatter.format(&instruction, &mut text);
            let target = instruction.near_branch_target();
            if target != 0
                && !range.contains(&target)
                && let Some(symbol) = self.symbol(target)
            {
                let _infallible = write!(text, " # {}", figures::clean::line(&symbol.name));
            }
            shown.push((instruction.ip(), text));
        }
        Some(shown)
    }

    /// Returns the source lines of addresses.
    fn sources(&self, addresses: &[u64]) -> Vec<Option<(String, u32)>> {
        let source = |info: &CodeInfo<'_>| {
            let path = info.to_path().to_string_lossy().into_owned();
            Some((figures::clean::line(&path).into_owned(), info.line?))
        };
        let of = |address: &u64| {
            let symbol = self.symbol(*address)?;
            match symbol.inlined.last() {
                Some(inlined) => inlined.code_info.as_ref().and_then(source),
                None => symbol.code_info.as_deref().and_then(source),
            }
        };
        addresses.iter().map(of).collect()
    }
}
