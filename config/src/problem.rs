//! Mistakes in a configuration, each with its part, description and remedy.

use crate::files::ConfigFile;
use std::collections::BTreeMap;
use std::fmt;

/// A part of a configuration. Elements of lists are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigPart {
    /// The machine as a whole.
    Machine,
    /// The driver domain.
    Driver,
    /// The guests' buffers.
    Buffers,
    /// The guests' rings.
    Ring,
    /// Large receive offload.
    Lro,
    /// A NIC.
    Nic(usize),
    /// A program of a NIC's station.
    NicApp(usize, usize),
    /// A NIC's firewall rule.
    NicRule(usize, usize),
    /// A guest.
    Guest(usize),
    /// A guest's interface.
    Vif(usize, usize),
    /// A program of the stack behind a guest's interface.
    VifApp(usize, usize, usize),
    /// A firewall rule of a guest's interface.
    VifRule(usize, usize, usize),
}

impl ConfigPart {
    /// Returns whether it is a part of `other`.
    pub(crate) fn is_in(self, other: Self) -> bool {
        match (self, other) {
            (Self::NicApp(n, _) | Self::NicRule(n, _), Self::Nic(nic)) => n == nic,
            (Self::Vif(g, _), Self::Guest(guest)) => g == guest,
            (Self::VifApp(g, v, _) | Self::VifRule(g, v, _), Self::Vif(guest, vif)) => {
                (g, v) == (guest, vif)
            }
            _ => false,
        }
    }
}

impl fmt::Display for ConfigPart {
    /// Writes numbers from 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Machine => f.write_str("[machine]"),
            Self::Driver => f.write_str("[driver]"),
            Self::Buffers => f.write_str("[buffers]"),
            Self::Ring => f.write_str("[ring]"),
            Self::Lro => f.write_str("[lro]"),
            Self::Nic(n) => write!(f, "[[nic]] {}", n + 1),
            Self::NicApp(n, a) => write!(f, "{}, app {}", Self::Nic(n), a + 1),
            Self::NicRule(n, r) => write!(f, "{}, rule {}", Self::Nic(n), r + 1),
            Self::Guest(g) => write!(f, "[[guest]] {}", g + 1),
            Self::Vif(g, v) => write!(f, "{}, vif {}", Self::Guest(g), v + 1),
            Self::VifApp(g, v, a) => write!(f, "{}, app {}", Self::Vif(g, v), a + 1),
            Self::VifRule(g, v, r) => write!(f, "{}, rule {}", Self::Vif(g, v), r + 1),
        }
    }
}

/// A position in one of the files of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position<'f> {
    file: &'f str,
    /// The line, from 1.
    line: usize,
    /// The column, in bytes from 1.
    pub(crate) column: usize,
}

/// Positions of the parts of a configuration and of their keys, as offsets in the bytes of all
/// files, with one byte between two files. The key `""` is the part itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyPositions {
    /// Each file's name, and the offsets of the starts of its lines.
    files: Vec<(String, Vec<usize>)>,
    offsets: BTreeMap<(ConfigPart, &'static str), usize>,
}

impl KeyPositions {
    pub(crate) fn new(files: &[ConfigFile]) -> Self {
        let mut begin = 0;
        let lines = |file: &ConfigFile| {
            let newlines = file.text.match_indices('\n');
            let behind = newlines.map(|(at, _)| begin + at + 1);
            // A position after the end of the last line belongs to that line.
            let behind = behind.filter(|start| *start < begin + file.text.len());
            let starts = std::iter::once(begin).chain(behind).collect();
            begin += file.text.len() + 1;
            (file.name.clone(), starts)
        };
        Self {
            files: files.iter().map(lines).collect(),
            offsets: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, part: ConfigPart, key: &'static str, offset: usize) {
        self.offsets.entry((part, key)).or_insert(offset);
    }

    /// Returns whether a key is written in a part.
    pub(crate) fn has(&self, part: ConfigPart, key: &'static str) -> bool {
        self.offsets.contains_key(&(part, key))
    }

    pub(crate) fn locate(&self, offset: usize) -> Option<Position<'_>> {
        let begins = |starts: &[usize]| starts.first().is_some_and(|first| *first <= offset);
        let files = self.files.partition_point(|(_, starts)| begins(starts));
        let (file, starts) = self.files.get(files.checked_sub(1)?)?;
        let line = starts.partition_point(|start| *start <= offset);
        let start = starts.get(line.checked_sub(1)?)?;
        Some(Position {
            file,
            line,
            column: offset - start + 1,
        })
    }

    /// Returns a mistake at an offset. One without an offset belongs to the first file.
    pub(crate) fn problem(&self, at: Option<usize>, what: String, remedy: String) -> Problem {
        let position = at.and_then(|offset| self.locate(offset));
        let first = self.files.first().map(|(name, _)| name.as_str());
        Problem {
            file: position.map(|of| of.file).or(first).map(str::to_owned),
            line: position.map(|position| position.line),
            column: None,
            what,
            remedy,
        }
    }
}

/// A mistake in the meaning of a configuration, without its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The part.
    pub part: ConfigPart,
    /// The key; empty: the part as a whole.
    pub key: &'static str,
    /// Description.
    pub what: String,
    /// Remedy.
    pub remedy: String,
}

/// Positions of the parts of a file, to report mistakes that are found later, and warnings for its
/// author.
#[derive(Clone, Debug)]
pub struct SourceInfo {
    pub(crate) lines: KeyPositions,
    pub(crate) warnings: Vec<Problem>,
}

impl SourceInfo {
    /// Returns the name of a part's key as a static text; empty if the file does not contain the
    /// key.
    pub(crate) fn key(&self, part: ConfigPart, key: &str) -> &'static str {
        let mut known = self.lines.offsets.keys();
        let found = known.find(|(at, known)| (*at, *known) == (part, key));
        found.map_or("", |(_, known)| known)
    }

    /// Returns the warnings, each with its line.
    #[must_use]
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Converts findings to mistakes with their lines.
    ///
    /// # Errors
    ///
    /// Returns the findings as mistakes, if any exist.
    pub fn check(&self, found: Vec<Finding>) -> Result<(), Problems> {
        let problem = |finding| Problem::new(finding, &self.lines);
        Problems::unless_any(found.into_iter().map(problem).collect(), ())
    }
}

/// A mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as the caller named it; `None`: the configuration is not from a file.
    pub file: Option<String>,
    /// The line, from 1, if known.
    pub line: Option<usize>,
    /// The column, in bytes from 1. Set only if no key marks the position.
    pub column: Option<usize>,
    /// Description.
    pub what: String,
    /// Remedy.
    pub remedy: String,
}

impl Problem {
    pub(crate) fn new(finding: Finding, lines: &KeyPositions) -> Self {
        let Finding { part, key, .. } = finding;
        let offsets = [key, ""].map(|key| lines.offsets.get(&(part, key)));
        let at = offsets.into_iter().flatten().next().copied();
        lines.problem(at, format!("{part}: {}", finding.what), finding.remedy)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line, self.column) {
            (Some(file), Some(line), Some(column)) => write!(f, "{file}:{line}:{column}: ")?,
            (Some(file), Some(line), None) => write!(f, "{file}:{line}: ")?,
            (Some(file), None, _) => write!(f, "{file}: ")?,
            (None, ..) => {}
        }
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// All mistakes in a configuration, at least one, sorted by file name and line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Returns `value` if the list is empty, otherwise the mistakes.
    pub(crate) fn unless_any<T>(mut list: Vec<Problem>, value: T) -> Result<T, Self> {
        if list.is_empty() {
            return Ok(value);
        }
        list.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        list.dedup();
        Err(Self(list))
    }

    /// Returns `value`, or the findings as mistakes without positions.
    pub(crate) fn from_findings<T>(all: Vec<Finding>, value: T) -> Result<T, Self> {
        let lines = KeyPositions::default();
        let all = all.into_iter().map(|one| Problem::new(one, &lines));
        Self::unless_any(all.collect(), value)
    }

    /// Returns the mistakes.
    #[must_use]
    pub fn list(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
