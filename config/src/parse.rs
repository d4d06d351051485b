//! Parses a file's text to a [`Config`].

use crate::driver::{DriverSection, VifBuffers};
use crate::files::{ConfigFile, merge, written};
use crate::guest::{self, GuestSection};
use crate::model::Config;
use crate::nic::{self, NicSection};
use crate::problem::{ConfigPart, Finding, KeyPositions, Problem, Problems, SourceInfo};
use crate::table::{ConfigFiles, ReadResult, TomlTable};
use abi::machine::ConfigValue;
use std::collections::{BTreeMap, BTreeSet};
use toml::de::DeTable;

/// Parses a configuration: `file` is its name for messages, `text` its content.
///
/// # Errors
///
/// Returns all mistakes, each with its line and a remedy.
pub fn parse(file: &str, text: &str) -> Result<Config, Problems> {
    read(&single_file(file, text)).0
}

/// Parses several files, of which later ones extend the first: sections key by key, where the later
/// value replaces the earlier; lists of sections (`[[guest]]`) by appending. Also returns the
/// warnings and the positions of all keys. Checks that need more than the text, such as whether a
/// namespace exists, report their findings at these positions.
///
/// # Errors
///
/// Returns the errors of [`parse`].
pub fn parse_with_source(files: &[ConfigFile]) -> Result<(Config, SourceInfo), Problems> {
    let (config, reading) = read(files);
    let config = config?;
    let (lines, mut warnings) = (reading.lines, reading.warnings);
    let found = config.warnings().into_iter();
    warnings.extend(found.map(|finding| Problem::new(finding, &lines)));
    Ok((config, SourceInfo { lines, warnings }))
}

/// Returns a configuration in one file.
pub(crate) fn single_file(name: &str, text: &str) -> [ConfigFile; 1] {
    let (name, text) = (name.to_owned(), text.to_owned());
    [ConfigFile { name, text }]
}

/// Parses files like [`parse_with_source`], and also returns the reader's results.
pub(crate) fn read(files: &[ConfigFile]) -> (Result<Config, Problems>, ReadResult) {
    let reader = ConfigFiles::new(files);
    let texts = shifted(files);
    let mut root = DeTable::new();
    for text in &texts {
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            reader.syntax(error.span(), error.message());
        }
        merge(&mut root, table.into_inner());
    }
    let root = TomlTable::new(&reader, &root, 0..0, "", ConfigPart::Machine);
    let config = machine(&root);
    root.finish();
    let mut reading = reader.finish();
    let mut problems = std::mem::take(&mut reading.problems);
    let found = match problems.is_empty() {
        true => config.findings(),
        false => {
            let mut found = config.findings_of_parts();
            found.retain(|finding| !reading.unread.explains(finding, &reading.lines));
            found
        }
    };
    let found = without_defaults(found, &reading.lines);
    problems.extend(found.into_iter().map(|f| Problem::new(f, &reading.lines)));
    (
        Problems::unless_any(first_error_per_line(problems), config),
        reading,
    )
}

/// Returns the texts to parse. Each begins with one newline per byte of the earlier texts and the
/// byte after each, so that its spans are offsets in all files.
fn shifted(files: &[ConfigFile]) -> Vec<String> {
    let mut begin = 0;
    let shift = |file: &ConfigFile| {
        let text = "\n".repeat(begin) + &file.text;
        begin += file.text.len() + 1;
        text
    };
    files.iter().map(shift).collect()
}

/// Omits mistakes of default values in a section that also has a mistake in a written value. The
/// default may be valid after that value is corrected.
fn without_defaults(mut found: Vec<Finding>, lines: &KeyPositions) -> Vec<Finding> {
    let is_written = |finding: &Finding| lines.has(finding.part, finding.key);
    let own = found
        .iter()
        .filter(|of| !of.key.is_empty() && is_written(of));
    let places: BTreeSet<ConfigPart> = own.map(|finding| finding.part).collect();
    found.retain(|finding| is_written(finding) || !places.contains(&finding.part));
    found
}

/// Keeps only the first syntax error of each line.
fn first_error_per_line(mut problems: Vec<Problem>) -> Vec<Problem> {
    let mut broken = BTreeMap::new();
    for problem in &problems {
        if let Some(column) = problem.column {
            let first = broken.entry((problem.file.clone(), problem.line));
            let first = first.or_insert(column);
            *first = column.min(*first);
        }
    }
    problems.retain(|problem| {
        let first = broken.get(&(problem.file.clone(), problem.line));
        first.is_none_or(|first| problem.column == Some(*first))
    });
    problems
}

/// Parses the descriptions of NICs.
pub(crate) fn read_nics(nics: &[ConfigValue]) -> Result<Vec<NicSection>, Problems> {
    let text = format!("nic = {}\n", written(&ConfigValue::List(nics.to_vec())));
    read_alone(&text, "write the keys of a section [[nic]]", self::nics)
}

fn nics(root: &TomlTable<'_, '_>) -> Vec<NicSection> {
    root.tables("nic", "nic", ConfigPart::Nic, nic::read)
}

/// Parses the description of a guest, as guest number `g`.
pub(crate) fn read_guest(g: usize, guest: &ConfigValue) -> Result<GuestSection, Problems> {
    let text = format!("guest = [{}]\n", written(guest));
    let read = |root: &TomlTable<'_, '_>| {
        let part = |_| ConfigPart::Guest(g);
        let mut guests = root.tables("guest", "guest", part, |_, table| guest::read(g, table));
        guests.pop().unwrap_or_default()
    };
    read_alone(&text, "write the keys of a section [[guest]]", read)
}

/// Returns the result of `read` for a text that is not from a file.
fn read_alone<T: Default>(
    text: &str,
    remedy: &str,
    read: impl FnOnce(&TomlTable<'_, '_>) -> T,
) -> Result<T, Problems> {
    let reader = ConfigFiles::new(&single_file("", text));
    let (root, errors) = DeTable::parse_recoverable(text);
    let root = root.into_inner();
    for error in &errors {
        reader.problem(error.span(), error.message(), remedy);
    }
    let mut found = T::default();
    if errors.is_empty() {
        let root = TomlTable::new(&reader, &root, 0..0, "", ConfigPart::Machine);
        found = read(&root);
        root.finish();
    }
    let mut problems = reader.finish().problems;
    for problem in &mut problems {
        // The text is not from a file, so it has no position.
        (problem.file, problem.line) = (None, None);
    }
    Problems::unless_any(problems, found)
}

fn machine(root: &TomlTable<'_, '_>) -> Config {
    let mut config = Config {
        driver: section(root, "driver", ConfigPart::Driver, DriverSection::read),
        buffers: section(root, "buffers", ConfigPart::Buffers, VifBuffers::read),
        ring: section(root, "ring", ConfigPart::Ring, |t| t.fields()),
        lro: section(root, "lro", ConfigPart::Lro, |t| t.fields()),
        nics: nics(root),
        guests: root.tables("guest", "guest", ConfigPart::Guest, guest::read),
        ..section(root, "machine", ConfigPart::Machine, |t| t.fields())
    };
    if !root.is_written(ConfigPart::Buffers, "size") {
        config.buffers.size = config.default_buffer_size();
    }
    config
}

/// Reads an optional section.
fn section<T: Default>(
    root: &TomlTable<'_, '_>,
    name: &'static str,
    part: ConfigPart,
    read: impl Fn(&TomlTable<'_, '_>) -> T,
) -> T {
    let Some(table) = root.table(name, name, part, "") else {
        return T::default();
    };
    let value = read(&table);
    table.finish();
    value
}
