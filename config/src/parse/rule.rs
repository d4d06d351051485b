//! Reads the firewall rules of a port.

use crate::keywords::alternatives;
use crate::rule::{ETHERTYPES, FirewallRule, PROTOCOLS, RuleDirection, RuleState};
use crate::table::TomlTable;

/// Directions of a NIC's rules, by name.
pub(crate) const NIC_DIRECTIONS: [(&str, RuleDirection); 2] = [
    ("from-wire", RuleDirection::In),
    ("to-wire", RuleDirection::Out),
];
/// Directions of a guest interface's rules, by name.
pub(crate) const VIF_DIRECTIONS: [(&str, RuleDirection); 2] = [
    ("from-guest", RuleDirection::In),
    ("to-guest", RuleDirection::Out),
];

/// States, by name.
const STATES: [(&str, RuleState); 3] = [
    ("new", RuleState::New),
    ("established", RuleState::Established),
    ("related", RuleState::Related),
];

/// Reads rule number `n` of a port whose directions have these names.
pub(crate) fn read(
    n: usize,
    t: TomlTable<'_, '_>,
    directions: &[(&str, RuleDirection)],
) -> FirewallRule {
    let actions = [("allow", true), ("deny", false)];
    let remedy = "write action = \"allow\" or \"deny\"";
    let allow = t.required("action", |t, key| t.choice(key, &actions), remedy);
    let ports = "write a port or a range of ports, like 22 or \"1024-65535\"";
    let rule = FirewallRule {
        name: t.text("name").unwrap_or_else(|| (n + 1).to_string()),
        allow: allow.unwrap_or(false),
        direction: t.choice("direction", directions),
        state: t.choice("state", &STATES),
        ethertype: t.parsed_any("ethertype", &by_name(&ETHERTYPES)),
        protocol: t.parsed_any("protocol", &by_name(&PROTOCOLS)),
        source: t.cidr("source"),
        destination: t.cidr("destination"),
        source_ports: t.parsed_any("source_ports", ports),
        destination_ports: t.parsed_any("destination_ports", ports),
    };
    t.finish();
    rule
}

fn by_name<T>(names: &[(&str, T)]) -> String {
    let mut words: Vec<String> = names
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    words.push("its number".to_owned());
    format!("write {}", alternatives(&words))
}
