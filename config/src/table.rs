//! Reads TOML tables key by key. Reports unknown keys and invalid values, and continues after each.

use crate::deprecated;
use crate::files::ConfigFile;
use crate::keywords::{choices, nearest, suggestion};
use crate::problem::{ConfigPart, KeyPositions, Problem};
use crate::unreadable_keys::Unread;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::ops::Range;
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Reads the files of a configuration, and collects mistakes and positions.
#[derive(Default)]
pub(crate) struct ConfigFiles {
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    lines: RefCell<KeyPositions>,
    unread: RefCell<Unread>,
    /// Every section and key that was looked up, and whether it is written anywhere. Tests compare
    /// it with the example and the documentation.
    #[cfg(test)]
    known: RefCell<KnownKeys>,
}

/// Whether a key is written in any section of a name, by section and key.
#[cfg(test)]
type KnownKeys = std::collections::BTreeMap<(&'static str, &'static str), bool>;

/// The result of reading.
pub(crate) struct ReadResult {
    pub(crate) problems: Vec<Problem>,
    /// Warnings about valid settings that should be written differently.
    pub(crate) warnings: Vec<Problem>,
    pub(crate) lines: KeyPositions,
    /// Keys that could not be read.
    pub(crate) unread: Unread,
    #[cfg(test)]
    pub(crate) known: KnownKeys,
}

impl ConfigFiles {
    pub(crate) fn new(files: &[ConfigFile]) -> Self {
        Self {
            lines: RefCell::new(KeyPositions::new(files)),
            ..Self::default()
        }
    }

    /// Reports a syntax error with its column, because no key shows the position.
    pub(crate) fn syntax(&self, span: Option<Range<usize>>, what: &str) {
        self.unread.borrow_mut().is_broken = true;
        let mut problem = self.source(span.clone(), what, "write it as TOML (https://toml.io)");
        let lines = self.lines.borrow();
        problem.column = span.and_then(|span| Some(lines.locate(span.start)?.column));
        self.problems.borrow_mut().push(problem);
    }

    pub(crate) fn problem(
        &self,
        span: Option<Range<usize>>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let problem = self.source(span, what, remedy);
        self.problems.borrow_mut().push(problem);
    }

    fn source(
        &self,
        span: Option<Range<usize>>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problem {
        let at = span.map(|span| span.start);
        let lines = self.lines.borrow();
        lines.problem(at, what.into(), remedy.into())
    }

    #[cfg(test)]
    fn add_known(&self, section: &'static str, key: &'static str, is_written: bool) {
        *self.known.borrow_mut().entry((section, key)).or_default() |= is_written;
    }

    pub(crate) fn finish(self) -> ReadResult {
        ReadResult {
            problems: self.problems.into_inner(),
            warnings: self.warnings.into_inner(),
            lines: self.lines.into_inner(),
            unread: self.unread.into_inner(),
            #[cfg(test)]
            known: self.known.into_inner(),
        }
    }
}

/// One table of the file.
pub(crate) struct TomlTable<'r, 't> {
    reader: &'r ConfigFiles,
    table: &'t DeTable<'t>,
    /// The section's name in the documentation: `guest.vif`.
    section: &'static str,
    part: ConfigPart,
    span: Range<usize>,
    known_keys: RefCell<Vec<&'static str>>,
    /// Keys that depend on another key, each with that key.
    dependent: RefCell<Vec<(&'static str, &'static str)>>,
}

impl<'r, 't> TomlTable<'r, 't> {
    /// Starts to read a table, and reports findings at `part`.
    pub(crate) fn new(
        reader: &'r ConfigFiles,
        table: &'t DeTable<'t>,
        span: Range<usize>,
        section: &'static str,
        part: ConfigPart,
    ) -> Self {
        reader.lines.borrow_mut().add(part, "", span.start);
        Self {
            reader,
            table,
            section,
            part,
            span,
            known_keys: RefCell::default(),
            dependent: RefCell::default(),
        }
    }

    /// Returns the value of a key, and records that the key is known.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        let mut known_keys = self.known_keys.borrow_mut();
        if !known_keys.contains(&key) {
            known_keys.push(key);
        }
        let found = self.table.iter().find(|(name, _)| name.get_ref() == key);
        #[cfg(test)]
        self.reader.add_known(self.section, key, found.is_some());
        let (name, value) = found?;
        let mut lines = self.reader.lines.borrow_mut();
        lines.add(self.part, key, name.span().start);
        Some(value)
    }

    /// Reports a value that cannot be read.
    pub(crate) fn wrong(&self, key: &str, value: &Spanned<DeValue<'_>>, remedy: impl Into<String>) {
        let shown = match value.get_ref() {
            DeValue::String(text) => format!("`{key}` is \"{text}\""),
            DeValue::Integer(number) => format!("`{key}` is {number}"),
            DeValue::Float(number) => format!("`{key}` is {}", number.as_str()),
            other => format!("`{key}` is of type {}", other.type_str()),
        };
        let what = format!("{}: {shown}", self.part);
        self.reader.problem(Some(value.span()), what, remedy);
        self.unread(key);
    }

    /// Returns the message for a missing required key.
    fn missing(&self, key: &str) -> String {
        format!("{}: `{key}` is missing", self.part)
    }

    /// Returns whether a key could not be read.
    fn is_unread(&self, key: &str) -> bool {
        self.reader.unread.borrow().has(self.part, key)
    }

    /// Records that a key keeps its default because its value could not be read.
    fn unread(&self, key: &str) {
        self.reader.unread.borrow_mut().add(self.part, key);
    }

    /// Reads a required key, and reports it if it is missing.
    pub(crate) fn required<T: DeserializeOwned>(
        &self,
        key: &'static str,
        remedy: &str,
    ) -> Option<T> {
        self.needs(key, remedy);
        self.value(key)
    }

    /// Reports a required key if it is missing.
    pub(crate) fn needs(&self, key: &'static str, remedy: &str) {
        if self.get(key).is_some() {
            return;
        }
        // If the file has syntax errors, the missing key may be in the unreadable part.
        if !self.reader.unread.borrow().is_broken {
            let span = Some(self.span.clone());
            self.reader.problem(span, self.missing(key), remedy);
        }
        self.unread(key);
    }

    /// Returns whether a key of another part of the files is written.
    pub(crate) fn is_written(&self, part: ConfigPart, key: &'static str) -> bool {
        self.reader.lines.borrow().has(part, key)
    }

    /// Reads a value with `of`, which returns a remedy for a value that it rejects.
    fn read<T, R: Into<String>>(
        &self,
        key: &'static str,
        of: impl FnOnce(&'t Spanned<DeValue<'t>>) -> Result<T, R>,
    ) -> Option<T> {
        let value = self.get(key)?;
        of(value)
            .map_err(|remedy| self.wrong(key, value, remedy))
            .ok()
    }

    /// Reads a text that parses to a value of a type of another crate, such as an address.
    pub(crate) fn parsed<T: FromStr>(&self, key: &'static str, like: &str) -> Option<T> {
        self.read(key, |value| {
            let text = value.get_ref().as_str();
            let parsed = text.and_then(|text| text.parse().ok());
            parsed.ok_or_else(|| format!("write it like \"{like}\""))
        })
    }

    /// Returns a word, or its new name with a warning; empty if the value is not a text.
    pub(crate) fn current_word(&self, key: &str, value: &'t Spanned<DeValue<'t>>) -> &'t str {
        let word = value.get_ref().as_str().unwrap_or_default();
        let Some(new) = deprecated::renamed(self.section, key, word) else {
            return word;
        };
        let part = self.part;
        let what = format!("{part}: `{key}` is \"{word}\", the old name of \"{new}\"");
        let remedy = format!("write {key} = \"{new}\"");
        let warning = self.reader.source(Some(value.span()), what, remedy);
        self.reader.warnings.borrow_mut().push(warning);
        new
    }

    /// Reads one of several words that are not a type's variants.
    pub(crate) fn choice<T: Copy>(&self, key: &'static str, of: &[(&str, T)]) -> Option<T> {
        self.read(key, |value| {
            let word = value.get_ref().as_str().unwrap_or_default();
            let found = of.iter().find(|(name, _)| *name == word);
            let found = found.map(|(_, value)| *value);
            found.ok_or_else(|| choices(of.iter().map(|(name, _)| *name)))
        })
    }

    /// Reads a nested table. `or` is the part of the remedy for another form of the value.
    pub(crate) fn table(
        &self,
        key: &'static str,
        section: &'static str,
        part: ConfigPart,
        or: &str,
    ) -> Option<TomlTable<'r, 't>> {
        self.read(key, |value| {
            let table = self.inner(value, section, part);
            table.ok_or_else(|| format!("write {or}a section [{section}]"))
        })
    }

    /// Returns a value that is a table.
    fn inner(
        &self,
        value: &'t Spanned<DeValue<'t>>,
        section: &'static str,
        part: ConfigPart,
    ) -> Option<TomlTable<'r, 't>> {
        let table = value.get_ref().as_table()?;
        Some(TomlTable::new(
            self.reader,
            table,
            value.span(),
            section,
            part,
        ))
    }

    /// Returns whether the value of a key is a text.
    pub(crate) fn is_text(&self, key: &'static str) -> bool {
        self.get(key).is_some_and(|value| value.get_ref().is_str())
    }

    /// Reads a list of nested tables, each with `read`, which receives its number.
    pub(crate) fn tables<T>(
        &self,
        key: &'static str,
        section: &'static str,
        part: impl Fn(usize) -> ConfigPart,
        read: impl Fn(usize, TomlTable<'r, 't>) -> T,
    ) -> Vec<T> {
        let Some(value) = self.get(key) else {
            return Vec::new();
        };
        let remedy = format!("write a section [[{section}]] for each");
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(key, value, remedy);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for one in array.iter() {
            match self.inner(one, section, part(tables.len())) {
                Some(table) => tables.push(read(tables.len(), table)),
                None => self.wrong(key, one, remedy.clone()),
            }
        }
        tables
    }

    /// Records that `keys` are valid only with some values of `on`. If `on` cannot be read, they
    /// are not reported as unknown.
    pub(crate) fn depend(&self, keys: &[&'static str], on: &'static str) {
        let pairs = keys.iter().map(|key| (*key, on));
        self.dependent.borrow_mut().extend(pairs);
    }

    /// Finishes the table, and reports keys that were not read as unknown.
    pub(crate) fn finish(self) {
        self.close(|_| true);
    }

    /// Finishes a table whose `kind` could not be read. Its other keys depend on `kind`, so only a
    /// misspelt `kind` is reported as unknown.
    pub(crate) fn finish_unknown(self, kind: &'static str) {
        self.close(|meant| meant == Some(kind));
    }

    /// Reports the unknown keys that `is_wrong` selects, given the key that the user probably
    /// meant.
    fn close(self, is_wrong: impl Fn(Option<&'static str>) -> bool) {
        let known_keys = self.known_keys.borrow();
        let unknown = self.table.iter().map(|(name, _)| name);
        let unknown =
            unknown.filter(|name| !known_keys.iter().any(|known| known == name.get_ref()));
        let unknown = unknown.map(|name| (name, nearest(&known_keys, name.get_ref())));
        let (unknown, other): (Vec<_>, Vec<_>) = unknown.partition(|(_, meant)| is_wrong(*meant));
        for (name, _) in other {
            self.unread(name.get_ref());
        }
        for meant in unknown.iter().filter_map(|(_, meant)| *meant) {
            // The misspelt key replaces the message that the required key is missing.
            let missing = self.missing(meant);
            let mut problems = self.reader.problems.borrow_mut();
            problems.retain(|problem| problem.what != missing);
            self.unread(meant);
        }
        let part = match self.section {
            "" => "the file's top level".to_owned(),
            _ => self.part.to_string(),
        };
        for (name, meant) in unknown {
            let key: &str = name.get_ref();
            let dependent = self.dependent.borrow();
            let may_be_right = |(own, on): &(&str, &str)| *own == key && self.is_unread(on);
            if dependent.iter().any(may_be_right) {
                continue;
            }
            let (what, remedy) = match deprecated::removed(self.section, key) {
                Some(explanation) => (format!("the key `{key}` was removed"), explanation.into()),
                None => {
                    let what = format!("unknown key `{}`", key.escape_debug());
                    (what, suggestion(&known_keys, meant))
                }
            };
            self.unread(key);
            let what = format!("{part}: {what}");
            self.reader.problem(Some(name.span()), what, remedy);
        }
    }
}
