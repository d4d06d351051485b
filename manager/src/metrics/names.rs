//! Names that domains choose, for ports, reasons and hops. A collector keeps a name until the data
//! under this name expire, so the number of names of a domain is bounded.

use super::make::Vifs;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of names of one kind for each domain. Further names become [`OTHER`].
const NAMES_MAX: usize = 64;
/// Maximum bytes of a name.
const BYTES_MAX: usize = 64;
/// Name that replaces all further names.
pub(crate) const OTHER: &str = "other";

/// The names so far, by domain and kind.
#[derive(Debug, Default)]
pub(crate) struct SeriesNames(BTreeMap<String, BTreeMap<&'static str, BTreeSet<String>>>);

impl SeriesNames {
    /// Returns the sums of the counts, by shown name.
    pub(crate) fn sums<'a>(
        &mut self,
        domain: &str,
        kind: &'static str,
        counts: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> BTreeMap<&'a str, u64> {
        let mut sums = BTreeMap::new();
        for (name, count) in counts {
            let name = self.shown(domain, kind, name);
            let sum: &mut u64 = sums.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
        sums
    }

    /// Returns the name, or [`OTHER`] if the name is invalid or exceeds the limit.
    pub(crate) fn shown<'a>(&mut self, domain: &str, kind: &'static str, name: &'a str) -> &'a str {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.len() > BYTES_MAX || !name.chars().all(is_plain) {
            return OTHER;
        }
        let known = self.0.entry(domain.to_owned()).or_default();
        let known = known.entry(kind).or_default();
        if known.contains(name) {
            return name;
        }
        if known.len() >= NAMES_MAX {
            return OTHER;
        }
        known.insert(name.to_owned());
        name
    }

    /// Returns the shown name of a port. The core knows the names of guests' interfaces; the domain
    /// chooses the names of other ports.
    pub(super) fn port<'a>(&mut self, domain: &str, vifs: &Vifs, port: &'a str) -> &'a str {
        match vifs.contains(port) {
            true => port,
            false => self.shown(domain, "port", port),
        }
    }

    /// Drops the names of removed domains.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|domain, _| exists(domain));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_names_of_a_domain_is_bounded() {
        let mut names = SeriesNames::default();
        let mut shown = BTreeSet::new();
        for n in 0..10 * NAMES_MAX {
            shown.insert(names.shown("driver", "reason", &format!("r{n}")).to_owned());
        }
        assert_eq!(shown.len(), NAMES_MAX + 1);
        assert!(shown.contains(OTHER));
        assert_eq!(names.shown("driver", "reason", "r1"), "r1");
        assert_eq!(names.shown("web", "reason", "r999"), "r999");
        names.retain(|domain| domain != "driver");
        assert_eq!(names.shown("driver", "reason", "r999"), "r999");
    }

    #[test]
    fn invalid_names_count_as_other() {
        let long = "x".repeat(BYTES_MAX + 1);
        let counts = [
            ("a_b.c-1", 1),
            ("a\nb", 2),
            ("\"", 4),
            ("ü", 8),
            (&long, 16),
        ];
        let sums = SeriesNames::default().sums("d", "reason", counts);
        assert_eq!(sums, BTreeMap::from([("a_b.c-1", 1), (OTHER, 30)]));
        let most = SeriesNames::default().sums("d", "reason", [("a", u64::MAX), ("a", 1)]);
        assert_eq!(most["a"], u64::MAX);
    }
}
