//! Checks of a port's firewall rules.

use super::findings::Findings;
use crate::problem::Place;
use crate::rule::{RULES_MAX, Rule};
use std::collections::BTreeMap;

pub(super) fn rules(
    found: &mut Findings,
    place: Place,
    rules: &[Rule],
    rule_place: impl Fn(usize) -> Place,
) {
    if rules.len() > RULES_MAX {
        let what = format!("it has {} rules", rules.len());
        found.add(place, "", what, format!("the limit is {RULES_MAX}"));
        return;
    }
    let mut names = BTreeMap::new();
    for (r, rule) in rules.iter().enumerate() {
        let place = rule_place(r);
        found.name(place, &rule.name);
        found.unique(place, &mut names, &rule.name, r, "rule");
        if let Some((key, what, remedy)) = rule.contradiction() {
            found.add(place, key, what, remedy);
        }
    }
}
