//! Firewall rules of a NIC or of a guest's interface, in the form of the file and of the driver
//! domain's configuration.

use crate::address::Cidr;
use crate::findings::Findings;
use crate::keywords::alternatives;
use crate::problem::ConfigPart;
use crate::table::TomlTable;
use crate::text::as_text;
use abi::firewall;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Maximum number of rules of a NIC or an interface.
pub const RULES_MAX: usize = 256;

/// IP protocols by name. Others are written as numbers.
const PROTOCOLS: [(&str, u8); 4] = [("icmp", 1), ("tcp", 6), ("udp", 17), ("icmpv6", 58)];
/// Protocols whose header starts with two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
/// EtherTypes by name.
const ETHERTYPES: [(&str, u16); 3] = [("ipv4", 0x0800), ("arp", 0x0806), ("ipv6", 0x86dd)];

/// Direction of the frames that a rule applies to, as the bridge sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleDirection {
    /// Frames that enter the bridge at the port: from the wire, from the guest.
    In,
    /// Frames that leave the bridge at the port: to the wire, to the guest.
    Out,
}

/// Relation of a frame to the flows of the port, which the condition `state` of a rule checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleState {
    /// The frame may begin a flow.
    New,
    /// The frame belongs to an admitted flow.
    Established,
    /// The frame concerns an admitted flow, like an ICMP error.
    Related,
}

/// Verdict of a stateful firewall on flows that others open to the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Inbound {
    /// Denies them, unless a rule allows them.
    #[default]
    Deny,
    /// Allows them, unless a rule denies them.
    Allow,
}

/// Name of the rule that a stateful firewall adds after all others.
pub const INBOUND: &str = "inbound";

impl Inbound {
    /// Returns the rule that follows all others.
    #[must_use]
    pub fn rule(self) -> FirewallRule {
        FirewallRule {
            direction: Some(RuleDirection::Out),
            state: Some(RuleState::New),
            ..FirewallRule::any(INBOUND, self == Self::Allow)
        }
    }
}

/// Returns whether any rule depends on state, so that its port needs a table of flows.
#[must_use]
pub fn keep_state(rules: &[FirewallRule]) -> bool {
    rules.iter().any(|rule| rule.state.is_some())
}

/// A rule. It decides about frames that match all of its conditions, unless an earlier rule matches
/// them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FirewallRule {
    /// Its name in counters, unique among the rules of its port.
    pub name: String,
    /// Whether matching frames pass; otherwise they are dropped.
    pub allow: bool,
    /// The direction; `None`: both.
    #[serde(rename = "way", skip_serializing_if = "Option::is_none")]
    pub direction: Option<RuleDirection>,
    /// The relation to the port's flows; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RuleState>,
    /// The EtherType after VLAN tags; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<EtherType>,
    /// The IP protocol; `None`: any, and frames without IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<IpProtocol>,
    /// The source; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Cidr>,
    /// The destination; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<Cidr>,
    /// The source ports; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ports: Option<PortRange>,
    /// The destination ports; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_ports: Option<PortRange>,
}

impl FirewallRule {
    /// Returns a rule that matches every frame.
    #[must_use]
    pub fn any(name: impl Into<String>, allow: bool) -> Self {
        Self {
            name: name.into(),
            allow,
            ..Self::default()
        }
    }

    /// Returns whether it applies to frames in this direction.
    #[must_use]
    pub fn applies_to(&self, direction: RuleDirection) -> bool {
        self.direction.is_none_or(|only| only == direction)
    }

    /// Returns the rule in the form that the monitor compiles: without name and direction.
    pub(crate) fn compiled(&self) -> firewall::RuleRecord {
        let prefix = |cidr: Cidr| firewall::RulePrefix {
            address: cidr.address,
            bits: cidr.prefix,
        };
        let ports = |ports: &PortRange| (*ports.0.start(), *ports.0.end());
        firewall::RuleRecord {
            allow: self.allow,
            ethertype: self.ethertype.map(|ethertype| ethertype.0),
            protocol: self.protocol.map(|protocol| protocol.0),
            source: self.source.map(prefix),
            destination: self.destination.map(prefix),
            source_ports: self.source_ports.as_ref().map(ports),
            destination_ports: self.destination_ports.as_ref().map(ports),
        }
    }

    /// Returns the key, the description and the remedy of a contradiction that keeps the rule from
    /// ever matching.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String, &'static str)> {
        let versions = [("source", self.source), ("destination", self.destination)];
        let is_v4 = |prefix: Cidr| prefix.address.is_ipv4();
        if let [(_, Some(from)), (key, Some(to))] = versions
            && is_v4(from) != is_v4(to)
        {
            let what = format!("`source` is {from} and `{key}` is {to}");
            return Some((key, what, "write two of one IP version"));
        }
        let ethertype = self.ethertype.map(|ethertype| ethertype.0);
        for (key, prefix) in versions {
            let Some(prefix) = prefix else { continue };
            let fits = if is_v4(prefix) { 0x0800 } else { 0x86dd };
            if ethertype.is_some_and(|given| given != fits) {
                let what = format!("`{key}` is {prefix}, which no frame of this `ethertype` has");
                return Some((key, what, "leave `ethertype` out"));
            }
        }
        let has_ports = self.source_ports.is_some() || self.destination_ports.is_some();
        let is_ip = ethertype.is_none_or(|given| matches!(given, 0x0800 | 0x86dd));
        if !is_ip && (self.protocol.is_some() || has_ports) {
            let what = "it has a protocol or ports, which no frame of this `ethertype` has";
            return Some(("ethertype", what.to_owned(), "leave one of them out"));
        }
        if !is_ip && self.state.is_some() {
            let what = "it has a `state`, which no frame of this `ethertype` has";
            return Some(("ethertype", what.to_owned(), "leave one of them out"));
        }
        match self.protocol {
            Some(protocol) if has_ports && !WITH_PORTS.contains(&protocol.0) => {
                let what = format!("it has ports, which protocol {protocol} does not have");
                Some((
                    "protocol",
                    what,
                    "write \"tcp\" or \"udp\", or leave the ports out",
                ))
            }
            _ => None,
        }
    }
}

/// Returns a port's rules for one direction, with their indices.
pub fn for_direction(
    rules: &[FirewallRule],
    direction: RuleDirection,
) -> impl Iterator<Item = (usize, &FirewallRule)> {
    let all = rules.iter().enumerate();
    all.filter(move |(_, rule)| rule.applies_to(direction))
}

/// Directions of a NIC's rules, by name.
pub(crate) const OF_NIC: [(&str, RuleDirection); 2] = [
    ("from-wire", RuleDirection::In),
    ("to-wire", RuleDirection::Out),
];
/// Directions of a guest interface's rules, by name.
pub(crate) const OF_VIF: [(&str, RuleDirection); 2] = [
    ("from-guest", RuleDirection::In),
    ("to-guest", RuleDirection::Out),
];

/// Reads rule number `n` of a port whose directions have these names.
pub(crate) fn read(
    n: usize,
    t: TomlTable<'_, '_>,
    directions: &[(&str, RuleDirection)],
) -> FirewallRule {
    t.needs("action", "write action = \"allow\" or \"deny\"");
    let allow = t.choice("action", &[("allow", true), ("deny", false)]);
    let direction = t.choice("direction", directions);
    // The driver's form of a rule has the other names of these keys.
    let mut rule = FirewallRule {
        allow: allow.unwrap_or(false),
        direction,
        ..t.fields_except(&["allow", "way"])
    };
    if t.get("name").is_none() {
        rule.name = (n + 1).to_string();
    }
    t.finish();
    rule
}

/// Checks the rules of a port.
pub(crate) fn check(
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

/// Effect of rules on a guest that could have a dedicated queue of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirewallPlace {
    /// The guest may have one. The driver writes a frame's header into the guest's page only after
    /// the rules have allowed the frame.
    #[default]
    Split,
    /// The guest has none, so no byte of a frame is in its pages before the rules have allowed the
    /// frame.
    Shared,
}

impl FirewallPlace {
    /// Returns whether it is the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Parses a name or a number.
fn named<T: Copy + FromStr>(names: &[(&str, T)], text: &str) -> Option<T> {
    let known = names.iter().find(|(name, _)| *name == text);
    known.map(|(_, value)| *value).or_else(|| text.parse().ok())
}

/// Writes a name, or the number if it has none.
fn write_named<T: PartialEq + fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    names: &[(&str, T)],
    value: T,
) -> fmt::Result {
    match names.iter().find(|(_, other)| *other == value) {
        Some((name, _)) => f.write_str(name),
        None => value.fmt(f),
    }
}

/// An invalid text. The message is the expected form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not {0}")]
pub struct InvalidValue(&'static str);

/// An EtherType, at least 1536 (smaller values are lengths); written as a name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtherType(pub u16);

impl FromStr for EtherType {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let number = named(&ETHERTYPES, text).filter(|number| *number >= 1536);
        number.map(Self).ok_or(InvalidValue("an EtherType"))
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_named(f, &ETHERTYPES, self.0)
    }
}

/// An IP protocol, written as a name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpProtocol(pub u8);

impl FromStr for IpProtocol {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let number = named(&PROTOCOLS, text);
        number.map(Self).ok_or(InvalidValue("an IP protocol"))
    }
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_named(f, &PROTOCOLS, self.0)
    }
}

/// A port, or a range of them, written `22` or `1024-65535`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRange(pub RangeInclusive<u16>);

impl FromStr for PortRange {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let wrong = InvalidValue("a port or a range of ports");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong);
        let range = number(first)?..=number(last)?;
        match range.is_empty() {
            true => Err(wrong),
            false => Ok(Self(range)),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.0.start(), self.0.end());
        match first == last {
            true => write!(f, "{first}"),
            false => write!(f, "{first}-{last}"),
        }
    }
}

as_text!(EtherType, |_| by_name(&ETHERTYPES));
as_text!(IpProtocol, |_| by_name(&PROTOCOLS));
as_text!(
    PortRange,
    |_| "write a port or a range of ports, like 22 or \"1024-65535\""
);

fn by_name<T>(names: &[(&str, T)]) -> String {
    let words = names.iter().map(|(name, _)| format!("\"{name}\""));
    let words: Vec<String> = words.chain(["its number".to_owned()]).collect();
    format!("write {}", alternatives(&words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_written_by_name_or_number() {
        for (text, number) in [("tcp", 6), ("icmpv6", 58), ("89", 89)] {
            let protocol: IpProtocol = text.parse().unwrap();
            assert_eq!((protocol.0, protocol.to_string().as_str()), (number, text));
        }
        for (text, number) in [("ipv6", 0x86dd), ("arp", 0x0806), ("35020", 0x88cc)] {
            let ethertype: EtherType = text.parse().unwrap();
            assert_eq!(
                (ethertype.0, ethertype.to_string().as_str()),
                (number, text)
            );
        }
        for (text, range) in [
            ("22", 22..=22),
            ("0-65535", 0..=65_535),
            ("1024-2048", 1024..=2048),
        ] {
            let ports: PortRange = text.parse().unwrap();
            assert_eq!((ports.0.clone(), ports.to_string().as_str()), (range, text));
        }
        for text in ["", "-", "2-1", "1-", "65536", "http", "1-2-3", "-1"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
        for text in ["", "256", "TCP", "-1", "6.0"] {
            assert!(text.parse::<IpProtocol>().is_err(), "{text}");
        }
        for text in ["", "1535", "65536", "vlan"] {
            assert!(text.parse::<EtherType>().is_err(), "{text}");
        }
    }

    #[test]
    fn rules_that_never_match_are_found() {
        let rule = FirewallRule {
            source: Some("10.0.0.0/8".parse().unwrap()),
            ..FirewallRule::any("r", false)
        };
        assert_eq!(rule.contradiction(), None);
        let key = |rule: FirewallRule| rule.contradiction().map(|(key, ..)| key);
        let six = Some("fd00::/8".parse().unwrap());
        assert_eq!(
            key(FirewallRule {
                destination: six,
                ..rule.clone()
            }),
            Some("destination")
        );
        let ethertype = |number| Some(EtherType(number));
        assert_eq!(
            key(FirewallRule {
                ethertype: ethertype(0x86dd),
                ..rule.clone()
            }),
            Some("source")
        );
        assert_eq!(
            key(FirewallRule {
                ethertype: ethertype(0x0800),
                ..rule.clone()
            }),
            None
        );
        let arp = FirewallRule {
            ethertype: ethertype(0x0806),
            ..FirewallRule::any("r", false)
        };
        assert_eq!(key(arp.clone()), None);
        let protocol = |number| Some(IpProtocol(number));
        assert_eq!(
            key(FirewallRule {
                protocol: protocol(6),
                ..arp
            }),
            Some("ethertype")
        );
        let ports = |number| FirewallRule {
            protocol: protocol(number),
            source_ports: Some(PortRange(1..=2)),
            ..FirewallRule::any("r", false)
        };
        assert_eq!(key(ports(1)), Some("protocol"));
        assert_eq!((key(ports(17)), key(ports(132))), (None, None));
    }

    #[test]
    fn a_rule_survives_json_without_defaults() {
        let rule = FirewallRule {
            direction: Some(RuleDirection::Out),
            protocol: Some(IpProtocol(17)),
            destination_ports: Some(PortRange(53..=54)),
            ..FirewallRule::any("dns", false)
        };
        let text = serde_json::to_string(&rule).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"name":"dns","allow":false,"way":"out","protocol":"udp","#,
                r#""destination_ports":"53-54"}"#
            )
        );
        assert_eq!(serde_json::from_str::<FirewallRule>(&text).unwrap(), rule);
        assert!(rule.applies_to(RuleDirection::Out) && !rule.applies_to(RuleDirection::In));
    }
}
