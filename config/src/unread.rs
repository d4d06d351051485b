//! Keys of a file that could not be read, and which findings only follow from that.
//!
//! A key that could not be read has its default in the configuration. What is found wrong with that
//! default would name keys that nobody wrote. A finding names every key that it depends on, as
//! `` `key` `` or `key = `, so its text tells whether it is such a follow-up.

use crate::problem::{Finding, Lines, Place};
use std::collections::BTreeSet;
use std::mem::discriminant;

/// Keys that could not be read.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    keys: BTreeSet<(Place, String)>,
    /// Whether a file is no TOML somewhere: any key may be one of these.
    pub(crate) is_broken: bool,
}

impl Unread {
    pub(crate) fn add(&mut self, place: Place, key: &str) {
        self.keys.insert((place, key.to_owned()));
    }

    /// Whether a key could not be read.
    pub(crate) fn has(&self, place: Place, key: &str) -> bool {
        self.keys.contains(&(place, key.to_owned()))
    }

    /// Whether a finding may only follow from a key that could not be read.
    pub(crate) fn explains(&self, finding: &Finding, lines: &Lines) -> bool {
        let Finding { place, key, .. } = finding;
        let is_near = |other: &Place| other == place || other.is_in(*place) || place.is_in(*other);
        let is_doubtful = self.is_broken || self.keys.iter().any(|(at, _)| is_near(at));
        // In a section that is not read as a whole, only what is written there is wrong by itself.
        if is_doubtful && (key.is_empty() || !lines.has(*place, key)) {
            return true;
        }
        if self.is_broken && mentions_others(finding) {
            return true;
        }
        let affects = |at: &Place| is_near(at) || discriminant(at) != discriminant(place);
        let mut keys = self.keys.iter();
        keys.any(|(at, unread)| {
            (at == place && unread == key)
                || (unread != key && affects(at) && mentions(finding, unread))
        })
    }
}

/// Whether a finding names a key.
fn mentions(finding: &Finding, key: &str) -> bool {
    let forms = [format!("`{key}`"), format!("{key} = ")];
    let texts = [&finding.what, &finding.remedy];
    texts
        .iter()
        .any(|text| forms.iter().any(|form| text.contains(form)))
}

/// Whether a finding names any key but the one that it is about.
fn mentions_others(finding: &Finding) -> bool {
    let quoted = finding.what.split('`').skip(1).step_by(2);
    let mut keys = quoted.filter(|word| word.bytes().all(|c| c.is_ascii_lowercase() || c == b'_'));
    keys.any(|key| key != finding.key)
}
