//! Firewall rules between configuration and bridge: what they are called.

use super::port::Port;
use config::domain::DriverConfig;
use config::rule;
use net::bridge::{Bridge, DropReason, Prefix, Rule, Way};
use serde_json::{Map, Value, json};

/// The names of all ports' rules.
#[derive(Debug, Default)]
pub struct Firewall {
    /// By port.
    names: Vec<Vec<String>>,
}

impl Firewall {
    /// The rules of a configuration, whose ports are numbered as the driver numbers them.
    #[must_use]
    pub fn of(config: &DriverConfig) -> Self {
        let nics = config.nics.iter().map(|nic| &nic.rules);
        let all = nics.chain(config.vifs.iter().map(|vif| &vif.rules));
        let names = |rules: &Vec<rule::Rule>| rules.iter().map(|rule| rule.name.clone()).collect();
        Self {
            names: all.map(names).collect(),
        }
    }

    fn names(&self, port: usize) -> &[String] {
        self.names.get(port).map_or(&[], Vec::as_slice)
    }

    /// What the rules of a port have decided about, as JSON; none: it has no rules.
    #[must_use]
    pub fn stat(&self, port: usize, bridge: &Bridge) -> Option<Value> {
        let names = self.names(port);
        let counts = names.iter().zip(bridge.rule_counts(port));
        let all: Map<String, Value> = counts
            .map(|(name, count)| {
                let value = json!({ "frames": count.frames, "bytes": count.bytes });
                (name.clone(), value)
            })
            .collect();
        (!names.is_empty()).then_some(Value::Object(all))
    }

    /// In words, the rule that denies a frame with this header that came in by `in_port`.
    #[must_use]
    pub fn denial(
        &self,
        bridge: &Bridge,
        ports: &[Port],
        header: &[u8],
        in_port: usize,
        now_ns: u64,
    ) -> String {
        let why = crate::trace::dropped_by_bridge(DropReason::Firewall);
        match bridge.denied_by(header, in_port, now_ns) {
            Some((port, rule)) => {
                let name = self.names(port).get(rule).map_or("", String::as_str);
                let port = ports.get(port).map_or("", Port::name);
                format!("{why} (rule {name} of {port})")
            }
            None => why,
        }
    }
}

/// The rules of one port, as the bridge takes them.
#[must_use]
pub fn rules(rules: &[rule::Rule]) -> Vec<Rule> {
    let prefix = |cidr: config::Cidr| Prefix::new(cidr.address, cidr.prefix);
    let way = |way: rule::Way| match way {
        rule::Way::In => Way::In,
        rule::Way::Out => Way::Out,
    };
    let rules = rules.iter().map(|rule| Rule {
        allow: rule.allow,
        way: rule.way.map(way),
        ethertype: rule.ethertype.map(|ethertype| ethertype.0),
        protocol: rule.protocol.map(|protocol| protocol.0),
        source: rule.source.map(prefix),
        destination: rule.destination.map(prefix),
        source_ports: rule.source_ports.clone().map(|ports| ports.0),
        destination_ports: rule.destination_ports.clone().map(|ports| ports.0),
    });
    rules.collect()
}
