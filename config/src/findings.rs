//! Findings, and the checks that many keys share.

use crate::problem::{ConfigPart, Finding};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Number of CPUs that a set can name: the start information stores a set in a word of 64 bits.
const CPUS: usize = 64;
/// The maximum length of a name in a file, bytes.
const NAME_MAX: usize = 32;

/// Findings so far.
#[derive(Default)]
pub(crate) struct Findings(pub(crate) Vec<Finding>);

impl Findings {
    pub(crate) fn add(
        &mut self,
        part: ConfigPart,
        key: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding {
            part,
            key,
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    pub(crate) fn range(
        &mut self,
        part: ConfigPart,
        key: &'static str,
        value: u32,
        good: RangeInclusive<u32>,
    ) {
        if !good.contains(&value) {
            let remedy = format!("write a number from {} to {}", good.start(), good.end());
            self.add(part, key, format!("`{key}` is {value}"), remedy);
        }
    }

    pub(crate) fn rate(&mut self, part: ConfigPart, key: &'static str, rate: Option<f64>) {
        /// The maximum rate, in Mb/s and in frames a second: the limit of a token bucket, faster
        /// than any link.
        const RATE_MAX: f64 = 1e9;
        if let Some(rate) = rate
            && !(rate > 0.0 && rate <= RATE_MAX)
        {
            let remedy = format!(
                "write a number above 0 and up to {RATE_MAX}, or leave `{key}` out for no limit"
            );
            self.add(part, key, format!("`{key}` is {rate}"), remedy);
        }
    }

    pub(crate) fn name(&mut self, part: ConfigPart, name: &str) {
        let good = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(good) {
            let what = format!("`name` is \"{}\"", name.escape_debug());
            let remedy = format!("use 1 to {NAME_MAX} letters, digits, `-` and `_`");
            self.add(part, "name", what, remedy);
        }
    }

    /// Checks that a name is unique among `names`, those of the sections `of` before it.
    pub(crate) fn unique<'n>(
        &mut self,
        part: ConfigPart,
        names: &mut BTreeMap<&'n str, usize>,
        name: &'n str,
        number: usize,
        of: &str,
    ) {
        if let Some(first) = names.insert(name, number) {
            let what = format!("the name \"{name}\" is also that of {of} {}", first + 1);
            self.add(part, "name", what, "choose another one");
        }
    }

    pub(crate) fn cpus(&mut self, part: ConfigPart, cpus: &[usize]) {
        if let Some(cpu) = cpus.iter().find(|&&cpu| cpu >= CPUS) {
            let remedy = format!("write numbers below {CPUS}");
            self.add(part, "cpus", format!("`cpus` has {cpu}"), remedy);
        }
    }

    pub(crate) fn spin_us(&mut self, part: ConfigPart, spin_us: Option<u32>) {
        self.range(part, "spin_us", spin_us.unwrap_or(0), 0..=1_000_000);
    }
}
