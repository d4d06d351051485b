//! Names that domains choose, for ports, rules, reasons and hops. A collector keeps a name until
//! the data under this name expire, so the number of names of a domain is bounded.

use super::make::Vifs;
use config::rule::RULES_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of names of one kind for each domain. Further names become [`OTHER`].
pub(super) const NAMES_MAX: usize = 64;
/// Maximum number of names of rules of a port, past rules included. Further names become [`OTHER`].
/// The agent of network policies names a pod's rules by direction, kind of peer and number: four
/// groups of fewer than [`RULES_MAX`] names.
pub(super) const RULE_NAMES_MAX: usize = 4 * RULES_MAX;
/// Maximum bytes of a name.
const BYTES_MAX: usize = 64;
/// Name that replaces all further names.
pub(crate) const OTHER: &str = "other";

/// The names so far, by domain.
#[derive(Debug, Default)]
pub(crate) struct SeriesNames(BTreeMap<String, DomainNames>);

/// The names of a domain.
#[derive(Debug, Default)]
struct DomainNames {
    by_kind: BTreeMap<&'static str, BTreeSet<String>>,
    /// Names of rules, by the shown names of their ports.
    rules: BTreeMap<String, BTreeSet<String>>,
}

impl SeriesNames {
    /// Returns the sums of the counts, by shown name.
    pub(crate) fn sum_by_name<'a>(
        &mut self,
        domain: &str,
        kind: &'static str,
        counts: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> BTreeMap<&'a str, u64> {
        let mut sums = BTreeMap::new();
        for (name, count) in counts {
            let name = self.bounded_name(domain, kind, name);
            let sum: &mut u64 = sums.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
        sums
    }

    /// Returns the name, or [`OTHER`] if the name is invalid or exceeds the limit.
    pub(crate) fn bounded_name<'a>(
        &mut self,
        domain: &str,
        kind: &'static str,
        name: &'a str,
    ) -> &'a str {
        let names = self.0.entry(domain.to_owned()).or_default();
        shown_of(names.by_kind.entry(kind).or_default(), NAMES_MAX, name)
    }

    /// Returns the name of a rule, or [`OTHER`] if the name is invalid or exceeds the port's limit.
    pub(super) fn rule<'a>(&mut self, domain: &str, shown_port: &str, name: &'a str) -> &'a str {
        let names = self.0.entry(domain.to_owned()).or_default();
        let of_port = names.rules.entry(shown_port.to_owned()).or_default();
        shown_of(of_port, RULE_NAMES_MAX, name)
    }

    /// Returns the shown name of a port. The core knows the names of guests' interfaces; the domain
    /// chooses the names of other ports.
    pub(super) fn port<'a>(&mut self, domain: &str, vifs: &Vifs, port: &'a str) -> &'a str {
        match vifs.contains(port) {
            true => port,
            false => self.bounded_name(domain, "port", port),
        }
    }

    /// Drops the names of removed domains, and the names of rules of removed guests' interfaces.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool, vifs: &Vifs) {
        self.0.retain(|domain, _| exists(domain));
        for DomainNames { by_kind, rules } in self.0.values_mut() {
            let others = by_kind.get("port");
            let is_other = |port: &str| others.is_some_and(|all| all.contains(port));
            rules.retain(|port, _| port == OTHER || vifs.contains(port) || is_other(port));
        }
    }
}

/// Returns the name, or [`OTHER`] if the name is invalid, or new and beyond the limit of `known`
/// names.
fn shown_of<'a>(known: &mut BTreeSet<String>, max: usize, name: &'a str) -> &'a str {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.len() > BYTES_MAX || !name.chars().all(is_plain) {
        return OTHER;
    }
    if known.contains(name) {
        return name;
    }
    if known.len() >= max {
        return OTHER;
    }
    known.insert(name.to_owned());
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_names_of_a_domain_is_bounded() {
        let mut names = SeriesNames::default();
        let mut shown = BTreeSet::new();
        for n in 0..10 * NAMES_MAX {
            shown.insert(
                names
                    .bounded_name("driver", "reason", &format!("r{n}"))
                    .to_owned(),
            );
        }
        assert_eq!(shown.len(), NAMES_MAX + 1);
        assert!(shown.contains(OTHER));
        assert_eq!(names.bounded_name("driver", "reason", "r1"), "r1");
        assert_eq!(names.bounded_name("web", "reason", "r999"), "r999");
        names.retain(|domain| domain != "driver", &Vifs::new());
        assert_eq!(names.bounded_name("driver", "reason", "r999"), "r999");
    }

    #[test]
    fn the_number_of_rules_of_a_port_is_bounded() {
        let mut names = SeriesNames::default();
        let vifs = Vifs::from(["vif.web-0".to_owned()]);
        let last = format!("r{RULE_NAMES_MAX}");
        for port in ["vif.web-0", "vif.gone-0", "nic.wire", OTHER] {
            names.port("driver", &Vifs::from(["vif.gone-0".to_owned()]), port);
            let mut rule = |n: usize| names.rule("driver", port, &format!("r{n}")) == OTHER;
            assert_eq!((0..=RULE_NAMES_MAX).filter(|n| rule(*n)).count(), 1);
            assert_eq!(names.rule("driver", port, &last), OTHER);
            assert_eq!(names.rule("driver", port, "r1"), "r1");
        }
        names.0.get_mut("driver").unwrap().by_kind.clear();
        names.port("driver", &vifs, "nic.wire");
        names.retain(|_| true, &vifs);
        let mut shown = |port| names.rule("driver", port, &last) == last;
        assert_eq!(
            ["vif.web-0", "vif.gone-0", "nic.wire", OTHER].map(&mut shown),
            [false, true, false, false]
        );
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
        let sums = SeriesNames::default().sum_by_name("d", "reason", counts);
        assert_eq!(sums, BTreeMap::from([("a_b.c-1", 1), (OTHER, 30)]));
        let most = SeriesNames::default().sum_by_name("d", "reason", [("a", u64::MAX), ("a", 1)]);
        assert_eq!(most["a"], u64::MAX);
    }
}
