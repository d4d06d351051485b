//! Tests of firewalls that keep state.

use super::*;
use crate::domain::DriverConfig;
use crate::rule::{FirewallRule, Inbound, RuleDirection, RuleState, keep_state};

/// Keys that tests insert after those of the interface of guest `a`.
const ADDRESSES: &str = "addresses = [\"10.0.0.2/24\"]\n";

fn driver_config(keys: &str) -> DriverConfig {
    let text = SMALL.replacen(ADDRESSES, &format!("{ADDRESSES}{keys}\n"), 1);
    let machine = parse("f", &text).unwrap().machine().unwrap();
    serde_json::from_str(&machine.domains[0].config).unwrap()
}

#[test]
fn stateful_firewall_adds_a_last_rule() {
    let inbound = |allow| FirewallRule {
        direction: Some(RuleDirection::Out),
        state: Some(RuleState::New),
        ..FirewallRule::any("inbound", allow)
    };
    assert!(driver_config("").vifs[0].settings.rules.is_empty());
    assert_eq!(Inbound::default(), Inbound::Deny);
    for (keys, allow) in [
        ("", false),
        ("inbound = \"deny\"", false),
        ("inbound = \"allow\"", true),
    ] {
        let keys = format!(
            "firewall = \"stateful\"\n{keys}\n[[guest.vif.rule]]\naction = \"deny\"\n\
             name = \"first\"\nstate = \"established\""
        );
        let vif = &driver_config(&keys).vifs[0];
        let first = FirewallRule {
            state: Some(RuleState::Established),
            ..FirewallRule::any("first", false)
        };
        assert_eq!(vif.settings.rules, [first, inbound(allow)]);
        assert!(vif.settings.firewall.is_default() && keep_state(&vif.settings.rules));
    }
}

#[test]
fn flow_tables_have_frames() {
    let frames = |keys: &str| {
        let machine = parse("f", &format!("[driver]\n{keys}\n{SMALL}"))
            .unwrap()
            .machine();
        machine.unwrap().domains[0].frames
    };
    let none = frames("flow_tables = 0");
    // Each flow takes 64 bytes, and so does the header.
    assert_eq!(frames("") - none, 64 * 65);
    assert_eq!(frames("flows = 64\nflow_tables = 3") - none, 3 * 2);
}

#[test]
fn state_needs_one_worker_and_no_dedicated_queue() {
    let stateful = "firewall = \"stateful\"\n";
    let rule = "[[guest.vif.rule]]\naction = \"allow\"\nstate = \"new\"\n";
    let workers = |text: &str| {
        let text = SMALL.replacen(ADDRESSES, &format!("{ADDRESSES}{text}"), 1);
        errors(&format!("[driver]\nworkers = 2\n{text}"))
    };
    for text in [stateful, rule] {
        let why = workers(text);
        assert!(
            why.contains("rules keep state, and `workers` is 2"),
            "{why}"
        );
        assert!(why.contains("write workers = 1"), "{why}");
    }
    for (wire, guest) in [
        ("", "firewall = \"stateful\"\n"),
        ("[[nic.rule]]\naction = \"deny\"\nstate = \"new\"\n", ""),
    ] {
        let why = errors(&format!(
            "[driver]\ngrants = \"counted\"\n[[nic]]\nname = \"wire\"\nkind = \"xdp\"\n\
             netns = \"w\"\nqueues = \"vmq\"\n{wire}[[guest]]\nname = \"a\"\n[[guest.vif]]\n\
             endpoint = \"sink\"\npdev = \"wire:1\"\n{guest}"
        ));
        assert!(why.contains("the rules before it keep state"), "{why}");
        assert_eq!(why.lines().count(), 1, "{why}");
    }
}

#[test]
fn stateful_firewall_contradictions_are_rejected() {
    let in_guest = |keys: &str| mistake(ADDRESSES, &format!("{ADDRESSES}{keys}\n"));
    for (keys, why) in [
        ("inbound = \"deny\"", "`firewall` is not \"stateful\""),
        (
            "firewall = \"statefull\"",
            "\"split\", \"shared\" or \"stateful\"",
        ),
        ("firewall = \"stateful\"\ninbound = \"drop\"", "deny"),
        (
            "firewall = \"stateful\"\n[[guest.vif.rule]]\naction = \"allow\"\nname = \"inbound\"",
            "choose another",
        ),
        (
            "[[guest.vif.rule]]\naction = \"allow\"\nethertype = \"arp\"\nstate = \"new\"",
            "it has a `state`",
        ),
    ] {
        let text = in_guest(keys);
        assert!(text.contains(why), "{text}");
    }
    for (keys, why) in [
        ("flows = 4095", "a power of two from 64 to 65536"),
        ("flows = 32", "a power of two"),
        ("flow_tables = 1025", "1024"),
    ] {
        let text = errors(&format!("[driver]\n{keys}\n{SMALL}"));
        assert!(text.contains(why), "{text}");
    }
    let text = SMALL.replacen(
        "netns = \"a\"\n",
        "netns = \"a\"\nfirewall = \"stateful\"\n",
        1,
    );
    let text = errors(&format!("[driver]\nflow_tables = 0\n{text}"));
    assert!(text.contains("keep state: 1; `flow_tables` is 0"), "{text}");
}
