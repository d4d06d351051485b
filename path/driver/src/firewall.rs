//! Firewall rules between configuration and bridge: what they are called, and which of them the
//! kernel asks before anything of a frame is here.

use crate::numbered::Numbered;
use config::rule;
use net::bridge::{Bridge, Count, Prefix, Rule, Way};
use serde_json::{Map, Value, json};

/// The names of all ports' rules.
#[derive(Debug, Default)]
pub struct Firewall {
    /// By port.
    names: Vec<Vec<String>>,
    /// Rules that deny what comes by a dedicated queue.
    denying: Vec<Denying>,
}

/// A rule that the kernel asks about what comes by a guest's dedicated queue, and that denies.
#[derive(Clone, Copy, Debug)]
pub struct Denying {
    /// The guest's port.
    pub queue: usize,
    /// The rule's number there ([`abi::firewall::Rules`]).
    pub number: u32,
    /// The port whose rule it is.
    port: usize,
    /// Its place among that port's.
    place: usize,
}

impl Firewall {
    /// The rules of a configuration.
    #[must_use]
    pub fn of(numbered: &Numbered<'_>) -> Self {
        let nics = numbered.nics().map(|(port, nic)| (port, &nic.rules));
        let vifs = numbered.vifs().map(|(port, vif)| (port, &vif.rules));
        let mut firewall = Self {
            names: Vec::new(),
            denying: denying(numbered),
        };
        for (port, rules) in nics.chain(vifs) {
            firewall.set(port, rules);
        }
        firewall
    }

    /// A port has these rules from now on, none of which the kernel asks.
    pub fn set(&mut self, port: usize, rules: &[rule::Rule]) {
        if self.names.len() <= port {
            self.names.resize(port + 1, Vec::new());
        }
        if let Some(names) = self.names.get_mut(port) {
            *names = rules.iter().map(|rule| rule.name.clone()).collect();
        }
    }

    /// The rules that the kernel asks, and that deny.
    #[must_use]
    pub fn denying(&self) -> &[Denying] {
        &self.denying
    }

    fn names(&self, port: usize) -> &[String] {
        self.names.get(port).map_or(&[], Vec::as_slice)
    }

    /// What the rules of a port have decided about, as JSON; none: it has no rules. `kernel`: what
    /// each of [`Self::denying`] has denied.
    #[must_use]
    pub fn stat(&self, port: usize, bridge: &Bridge, kernel: &[Count]) -> Option<Value> {
        let names = self.names(port);
        let counts = names.iter().zip(bridge.rule_counts(port)).enumerate();
        let all: Map<String, Value> = counts
            .map(|(place, (name, mut count))| {
                for (rule, more) in self.denying.iter().zip(kernel) {
                    if (rule.port, rule.place) == (port, place) {
                        count.frames += more.frames;
                        count.bytes += more.bytes;
                    }
                }
                let value = json!({ "frames": count.frames, "bytes": count.bytes });
                (name.clone(), value)
            })
            .collect();
        (!names.is_empty()).then_some(Value::Object(all))
    }

    /// The port and name of the rule that denies a frame with this header that came in by
    /// `in_port`, if one does.
    #[must_use]
    pub fn denied_by(
        &self,
        bridge: &Bridge,
        header: &[u8],
        in_port: usize,
        now_ns: u64,
    ) -> Option<(usize, &str)> {
        let (port, rule) = bridge.denied_by(header, in_port, now_ns)?;
        let name = self.names(port).get(rule).map_or("", String::as_str);
        Some((port, name))
    }
}

/// The rules that the kernel asks about what comes by dedicated queues, and that deny, numbered as
/// the configuration has told them to the monitor.
#[must_use]
pub fn denying(numbered: &Numbered<'_>) -> Vec<Denying> {
    let mut all = Vec::new();
    for (vif, config) in numbered.vifs() {
        let Some((nic, wire)) = config.queue.and_then(|queue| numbered.nic(queue.nic)) else {
            continue;
        };
        let from_wire = rule::for_way(&wire.rules, rule::Way::In).map(|found| (nic, found));
        let to_guest = rule::for_way(&config.rules, rule::Way::Out).map(|found| (vif, found));
        let numbered = (0..).zip(from_wire.chain(to_guest));
        let denying = numbered.filter(|(_, (_, (_, rule)))| !rule.allow);
        all.extend(denying.map(|(number, (port, (place, _)))| Denying {
            queue: vif,
            number,
            port,
            place,
        }));
    }
    all
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

#[cfg(test)]
mod tests {
    use super::*;
    use abi::machine::Device;
    use config::domain::DriverConfig;

    /// XDP-20: a number says the same to the monitor and here.
    #[test]
    fn numbers_are_those_that_the_monitor_was_told() {
        let rule = |of: &str, action: &str, way: &str| {
            format!(
                "[[{of}.rule]]\nname = \"{action}-{way}\"\naction = \"{action}\"\n\
                 direction = \"{way}\"\n"
            )
        };
        let text = [
            "[driver]\ngrants = \"counted\"\n[[nic]]\nname = \"wire\"\nkind = \"xdp\"\n\
             netns = \"w\"\nqueues = \"vmq\"\nvmq_queues = 2\n",
            &rule("nic", "deny", "to-wire"),
            &rule("nic", "allow", "from-wire"),
            &rule("nic", "deny", "from-wire"),
            "[[guest]]\nname = \"a\"\n[[guest.vif]]\nendpoint = \"sink\"\n",
            &rule("guest.vif", "deny", "to-guest"),
            "[[guest]]\nname = \"b\"\n[[guest.vif]]\nendpoint = \"sink\"\npdev = \"wire:2\"\n",
            &rule("guest.vif", "allow", "from-guest"),
            &rule("guest.vif", "allow", "to-guest"),
            &rule("guest.vif", "deny", "to-guest"),
        ]
        .concat();
        let machine = config::parse("f", &text).unwrap().machine().unwrap();
        let driver = machine.domains.first().unwrap();
        let config: DriverConfig = serde_json::from_str(&driver.config).unwrap();
        let rules = driver.devices.iter().find_map(|device| match device {
            Device::XdpQueue(queue) => Some(&queue.rules),
            _ => None,
        });
        let rules = rules.unwrap();
        let told: Vec<_> = rules.from_wire.iter().chain(&rules.to_guest).collect();
        let allow: Vec<_> = told.iter().map(|rule| rule.allow).collect();
        assert_eq!(allow, [true, false, true, false]);
        // The wire is port 0, the guests are 1 and 2.
        let found: Vec<_> = denying(&Numbered::new(&config, &[0], &[1, 2]))
            .iter()
            .map(|rule| (rule.queue, rule.number, rule.port, rule.place))
            .collect();
        assert_eq!(found, [(2, 1, 0, 2), (2, 3, 2, 2)]);
        // Which numbers ports have does not matter.
        let found: Vec<_> = denying(&Numbered::new(&config, &[7], &[4, 0]))
            .iter()
            .map(|rule| (rule.queue, rule.number, rule.port, rule.place))
            .collect();
        assert_eq!(found, [(0, 1, 7, 2), (0, 3, 0, 2)]);
    }
}
