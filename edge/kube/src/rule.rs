//! Firewall rules of a pod's interface, as the control socket accepts them.

use crate::policy::PolicyPort;
use crate::prefix::AddressBlock;
use abi::machine::ConfigValue;
use std::collections::BTreeMap;

/// Limit of rules of an interface.
pub const RULES_MAX: usize = 256;

/// The direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyDirection {
    /// Ingress.
    ToPod,
    /// Egress.
    FromPod,
}

impl PolicyDirection {
    /// Returns its name among a policy's types, in lower case.
    #[must_use]
    pub const fn policy_type(self) -> &'static str {
        match self {
            Self::ToPod => "ingress",
            Self::FromPod => "egress",
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRule {
    name: String,
    is_allow: bool,
    direction: PolicyDirection,
    /// Whether it decides only about packets that begin a flow, or belong to none.
    is_for_new: bool,
    ports: Option<PolicyPort>,
    /// The other station; `None`: any.
    peer: Option<AddressBlock>,
}

impl PodRule {
    /// Returns a rule that allows flows.
    pub(crate) fn allow(
        name: String,
        direction: PolicyDirection,
        ports: Option<PolicyPort>,
        peer: Option<AddressBlock>,
    ) -> Self {
        Self {
            name,
            is_allow: true,
            direction,
            // Segments to an allowed port pass although a flood has filled the table of flows.
            is_for_new: direction == PolicyDirection::FromPod,
            ports,
            peer,
        }
    }

    /// Returns the rule that denies all other flows.
    pub(crate) fn deny(direction: PolicyDirection) -> Self {
        Self {
            name: direction.policy_type().to_owned(),
            is_allow: false,
            direction,
            is_for_new: true,
            ports: None,
            peer: None,
        }
    }

    /// Returns the rule as a section of a configuration file.
    fn section(&self) -> ConfigValue {
        let text = |text: &str| ConfigValue::Text(text.to_owned());
        let mut keys = BTreeMap::from([
            ("name".to_owned(), text(&self.name)),
            (
                "action".to_owned(),
                text(if self.is_allow { "allow" } else { "deny" }),
            ),
        ]);
        let mut put = |key: &str, value: ConfigValue| drop(keys.insert(key.to_owned(), value));
        let (direction, peer) = match self.direction {
            PolicyDirection::ToPod => ("to-guest", "source"),
            PolicyDirection::FromPod => ("from-guest", "destination"),
        };
        put("direction", text(direction));
        if self.is_for_new {
            put("state", text("new"));
        }
        if let Some(prefix) = self.peer {
            put(peer, ConfigValue::Text(prefix.to_string()));
        }
        if let Some(ports) = &self.ports {
            put(
                "protocol",
                ConfigValue::Number(ports.protocol().number().into()),
            );
        }
        // Names of ports have been replaced by numbers.
        if let Some(PolicyPort::Range(_, first, last)) = &self.ports {
            put(
                "destination_ports",
                ConfigValue::Text(format!("{first}-{last}")),
            );
        }
        ConfigValue::Section(keys)
    }
}

/// All rules of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRules {
    rules: Vec<PodRule>,
    /// The number of rules beyond the limit, which are omitted: their traffic is denied.
    pub left_out: usize,
}

impl PodRules {
    /// Returns the rules of a pod from those that allow traffic; `None` for a direction in which
    /// everything passes. Each direction may use half of the limit, and the part of the other half
    /// that the other direction does not use.
    pub(crate) fn of(to_pod: Option<Vec<PodRule>>, from_pod: Option<Vec<PodRule>>) -> Self {
        let mut all = Self::default();
        // One rule of each direction denies.
        let half = RULES_MAX / 2 - 1;
        let length = |rules: &Option<Vec<PodRule>>| rules.as_ref().map_or(0, Vec::len);
        let free = |other: usize| half + half.saturating_sub(other);
        let limits = [free(length(&from_pod)), free(length(&to_pod))];
        let directions = [
            (PolicyDirection::ToPod, to_pod),
            (PolicyDirection::FromPod, from_pod),
        ];
        for ((direction, rules), limit) in directions.into_iter().zip(limits) {
            let Some(mut rules) = rules else { continue };
            all.left_out += rules.len().saturating_sub(limit);
            rules.truncate(limit);
            all.rules.append(&mut rules);
            all.rules.push(PodRule::deny(direction));
        }
        all
    }

    /// Returns the interface's section of a request to the control socket.
    #[must_use]
    pub fn section(&self) -> ConfigValue {
        let rules = self.rules.iter().map(PodRule::section);
        let rules = ConfigValue::List(rules.collect());
        ConfigValue::Section(BTreeMap::from([("rule".to_owned(), rules)]))
    }

    /// Returns whether the pod is isolated in a direction.
    #[must_use]
    pub fn isolate(&self) -> bool {
        !self.rules.is_empty()
    }
}
