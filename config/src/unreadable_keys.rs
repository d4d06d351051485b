//! Keys of a file that could not be read, and the findings that are only consequences of them.
//!
//! In the configuration, such a key has its default, and a check of that default could report a
//! mistake that the file does not have. The text of a finding names every key on which it depends,
//! as `` `key` `` or `key = `, so the text shows whether the finding is a consequence.

use crate::problem::{ConfigPart, Finding, KeyPositions};
use std::collections::BTreeSet;
use std::mem::discriminant;

/// Keys that could not be read.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    keys: BTreeSet<(ConfigPart, String)>,
    /// Whether the file has a syntax error. Any of its keys may then be unread.
    pub(crate) is_broken: bool,
}

impl Unread {
    pub(crate) fn add(&mut self, part: ConfigPart, key: &str) {
        self.keys.insert((part, key.to_owned()));
    }

    /// Returns whether a key could not be read.
    pub(crate) fn has(&self, part: ConfigPart, key: &str) -> bool {
        self.keys.contains(&(part, key.to_owned()))
    }

    /// Returns whether a finding may be only a consequence of a key that could not be read.
    pub(crate) fn explains(&self, finding: &Finding, lines: &KeyPositions) -> bool {
        let Finding { part, key, .. } = finding;
        let is_near =
            |other: &ConfigPart| other == part || other.is_in(*part) || part.is_in(*other);
        let is_doubtful = self.is_broken || self.keys.iter().any(|(at, _)| is_near(at));
        // In a section that was not read completely, only findings about written keys are certain.
        if is_doubtful && (key.is_empty() || !lines.has(*part, key)) {
            return true;
        }
        if self.is_broken && mentions_others(finding) {
            return true;
        }
        let affects = |at: &ConfigPart| is_near(at) || discriminant(at) != discriminant(part);
        let mut keys = self.keys.iter();
        keys.any(|(at, unread)| {
            (at == part && unread == key)
                || (unread != key && affects(at) && mentions(finding, unread))
        })
    }
}

/// Returns whether a finding names a key.
fn mentions(finding: &Finding, key: &str) -> bool {
    let forms = [format!("`{key}`"), format!("{key} = ")];
    let texts = [&finding.what, &finding.remedy];
    texts
        .iter()
        .any(|text| forms.iter().any(|form| text.contains(form)))
}

/// Returns whether a finding names a key other than the one at which it is reported.
fn mentions_others(finding: &Finding) -> bool {
    let quoted = finding.what.split('`').skip(1).step_by(2);
    let mut keys = quoted.filter(|word| word.bytes().all(|c| c.is_ascii_lowercase() || c == b'_'));
    keys.any(|key| key != finding.key)
}
