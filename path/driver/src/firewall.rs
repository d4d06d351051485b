//! Firewall rules: converts the rules of the configuration for the bridge, and tracks the rules
//! that the kernel enforces before a frame reaches the driver.

use crate::ports::BridgePort;
use config::domain::{NicConfig, VifConfig};
use config::rule;
use net::bridge::{Bridge, Direction, Prefix, Rule, RuleCount};
use net::flows::FlowState;
use serde_json::{Map, Value, json};

/// Rules that the kernel enforces. The names of all rules are in the ports.
#[derive(Debug, Default)]
pub struct KernelFirewall {
    /// Deny rules for frames of dedicated queues.
    denying: Vec<DenyRule>,
}

/// A deny rule that the kernel enforces for a guest's dedicated queue.
#[derive(Clone, Copy, Debug)]
pub struct DenyRule {
    /// The port of the guest.
    pub queue: usize,
    /// The rule's number in the queue's [`abi::firewall::RuleLists`].
    pub number: u32,
    /// The port to which the rule belongs.
    port: usize,
    /// The rule's index at this port.
    index: usize,
}

impl KernelFirewall {
    /// Adds rules of a dedicated queue that the kernel also enforces.
    pub fn add_deny_rules(&mut self, rules: &[DenyRule]) {
        self.denying.extend(rules);
    }

    /// Removes the rules that the kernel enforces for a port's dedicated queue.
    pub fn remove(&mut self, port: usize) {
        self.denying.retain(|rule| rule.queue != port);
    }

    /// Returns the deny rules that the kernel enforces.
    #[must_use]
    pub fn deny_rules(&self) -> &[DenyRule] {
        &self.denying
    }

    /// Returns the counts of a port's rules as JSON, or `None` if the port has no rules. `kernel`
    /// has the kernel's counts of the rules in [`Self::deny_rules`].
    #[must_use]
    pub fn stat(
        &self,
        (number, port): (usize, &BridgePort),
        bridge: &Bridge,
        kernel: &[RuleCount],
    ) -> Option<Value> {
        let names = &port.common().rule_names;
        let counts = names.iter().zip(bridge.rule_counts(number)).enumerate();
        let all: Map<String, Value> = counts
            .map(|(index, (name, mut count))| {
                for (rule, more) in self.denying.iter().zip(kernel) {
                    if (rule.port, rule.index) == (number, index) {
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
}

/// Returns the deny rules that the kernel enforces for a guest's dedicated queue, with the numbers
/// by which the configuration and the monitor identify them. `wire` and `guest` each are a port
/// number and its configuration.
#[must_use]
pub fn kernel_deny_rules(wire: (usize, &NicConfig), guest: (usize, &VifConfig)) -> Vec<DenyRule> {
    let ((nic, wire), (vif, config)) = (wire, guest);
    let from_wire = rule::for_direction(&wire.settings.rules, rule::RuleDirection::In)
        .map(|found| (nic, found));
    let to_guest = rule::for_direction(&config.settings.rules, rule::RuleDirection::Out)
        .map(|found| (vif, found));
    let numbered = (0..).zip(from_wire.chain(to_guest));
    let denying = numbered.filter(|(_, (_, (_, rule)))| !rule.allow);
    let denying = denying.map(|(number, (port, (index, _)))| DenyRule {
        queue: vif,
        number,
        port,
        index,
    });
    denying.collect()
}

/// Returns the names of these rules.
#[must_use]
pub fn rule_names(rules: &[rule::FirewallRule]) -> Vec<String> {
    rules.iter().map(|rule| rule.name.clone()).collect()
}

/// Converts the rules of one port for the bridge.
#[must_use]
pub fn bridge_rules(rules: &[rule::FirewallRule]) -> Vec<Rule> {
    let prefix = |cidr: config::Cidr| Prefix::new(cidr.address, cidr.prefix);
    let direction = |direction: rule::RuleDirection| match direction {
        rule::RuleDirection::In => Direction::In,
        rule::RuleDirection::Out => Direction::Out,
    };
    let state = |state: rule::RuleState| match state {
        rule::RuleState::New => FlowState::New,
        rule::RuleState::Established => FlowState::Established,
        rule::RuleState::Related => FlowState::Related,
    };
    let rules = rules.iter().map(|rule| Rule {
        allow: rule.allow,
        direction: rule.direction.map(direction),
        state: rule.state.map(state),
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

    /// XDP-20: the monitor and the driver use the same rule numbers.
    #[test]
    fn rule_numbers_match_the_monitor() {
        let rule = |of: &str, action: &str, direction: &str| {
            format!(
                "[[{of}.rule]]\nname = \"{action}-{direction}\"\naction = \"{action}\"\n\
                 direction = \"{direction}\"\n"
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
        let numbered: Vec<_> = rules.from_wire.iter().chain(&rules.to_guest).collect();
        let allow: Vec<_> = numbered.iter().map(|rule| rule.allow).collect();
        assert_eq!(allow, [true, false, true, false]);
        let [_, guest] = &config.vifs[..] else {
            panic!("two guests");
        };
        let found = |wire: usize, port: usize| {
            let all = kernel_deny_rules((wire, &config.nics[0]), (port, guest)).into_iter();
            let all = all.map(|rule| (rule.queue, rule.number, rule.port, rule.index));
            all.collect::<Vec<_>>()
        };
        assert_eq!(found(0, 2), [(2, 1, 0, 2), (2, 3, 2, 2)]);
        // Rule numbers do not depend on port numbers.
        assert_eq!(found(7, 0), [(0, 1, 7, 2), (0, 3, 0, 2)]);
    }

    #[test]
    fn removing_a_port_removes_its_rules() {
        let mut firewall = KernelFirewall::default();
        for port in [0, 1] {
            firewall.add_deny_rules(&[DenyRule {
                queue: port,
                number: 0,
                port,
                index: 0,
            }]);
        }
        firewall.remove(0);
        let left: Vec<_> = firewall
            .deny_rules()
            .iter()
            .map(|rule| rule.queue)
            .collect();
        assert_eq!(left, [1]);
    }
}
