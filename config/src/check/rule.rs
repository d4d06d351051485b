//! Checks of a port's firewall rules.

use super::findings::Findings;
use crate::problem::ConfigPart;
use crate::rule::{FirewallRule, RULES_MAX};
use std::collections::BTreeMap;

pub(super) fn rules(
    found: &mut Findings,
    part: ConfigPart,
    rules: &[FirewallRule],
    rule_part: impl Fn(usize) -> ConfigPart,
) {
    if rules.len() > RULES_MAX {
        let what = format!("it has {} rules", rules.len());
        found.add(part, "", what, format!("the limit is {RULES_MAX}"));
        return;
    }
    let mut names = BTreeMap::new();
    for (r, rule) in rules.iter().enumerate() {
        let part = rule_part(r);
        found.name(part, &rule.name);
        found.unique(part, &mut names, &rule.name, r, "rule");
        if let Some((key, what, remedy)) = rule.contradiction() {
            found.add(part, key, what, remedy);
        }
    }
}
