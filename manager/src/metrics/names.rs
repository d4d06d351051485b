//! Names that domains have chosen: of ports, of reasons, of hops. A collector keeps each for as
//! long as it keeps data, so a domain that says others with every answer must not fill it.

use std::collections::{BTreeMap, BTreeSet};

/// Names of one kind that a domain is known by. Whatever it says beyond is [`OTHER`].
const NAMES_MAX: usize = 64;
/// Bytes of a name.
const BYTES_MAX: usize = 64;
/// What stands for every other name.
pub(crate) const OTHER: &str = "other";

/// The names that were heard so far.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<String, BTreeMap<&'static str, BTreeSet<String>>>);

impl Names {
    /// Counts by name, with the names that may be shown.
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

    /// The name, if it may be shown.
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

    /// Forgets domains that there are no more.
    pub(crate) fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|domain, _| is_there(domain));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_does_not_fill_a_collector_with_names() {
        let mut names = Names::default();
        let mut shown = BTreeSet::new();
        for n in 0..10 * NAMES_MAX {
            shown.insert(names.shown("driver", "reason", &format!("r{n}")).to_owned());
        }
        assert_eq!(shown.len(), NAMES_MAX + 1);
        assert!(shown.contains(OTHER));
        assert_eq!(names.shown("driver", "reason", "r1"), "r1");
        assert_eq!(names.shown("web", "reason", "r999"), "r999");
        names.keep(|domain| domain != "driver");
        assert_eq!(names.shown("driver", "reason", "r999"), "r999");
    }

    #[test]
    fn what_is_no_name_is_counted_with_the_others() {
        let long = "x".repeat(BYTES_MAX + 1);
        let counts = [
            ("a_b.c-1", 1),
            ("a\nb", 2),
            ("\"", 4),
            ("ü", 8),
            (&long, 16),
        ];
        let sums = Names::default().sums("d", "reason", counts);
        assert_eq!(sums, BTreeMap::from([("a_b.c-1", 1), (OTHER, 30)]));
        let most = Names::default().sums("d", "reason", [("a", u64::MAX), ("a", 1)]);
        assert_eq!(most["a"], u64::MAX);
    }
}
