use super::*;
use crate::live::machine;
use crate::live::tests::by_hand;
use crate::parse::{parse, single_file};

const FILE: &str = r#"
[[guest]]
name = "a"
[[guest.vif]]
endpoint = "echo"
[[guest]]
name = "b"
[[guest.vif]]
endpoint = "echo"
"#;

fn setting(json: &str) -> ConfigValue {
    serde_json::from_str(json).unwrap()
}

/// Returns the machine of the file with two attached guests: `c` with one interface, `d` with two.
fn attached() -> (LiveSpec, LiveConfig) {
    let config = parse("f", FILE).unwrap();
    let machine = machine(&config, &single_file("f", FILE)).unwrap();
    let mut live = LiveSpec::from(machine.live.unwrap());
    let mut running = LiveConfig::of(&live).unwrap();
    for guest in [
        r#"{"name": "c", "vif": [{"endpoint": "echo", "rate_mbps": 5,
            "rule": [{"name": "old", "action": "deny"}]}]}"#,
        r#"{"name": "d", "vif": [{"endpoint": "echo", "firewall": "stateful"},
            {"endpoint": "echo", "firewall": "shared"}]}"#,
    ] {
        let resolved = running.add(&setting(guest)).unwrap();
        let (name, guest) = (resolved.domain.name, by_hand(resolved.guest));
        live.attached.insert(name, guest);
    }
    (live, running)
}

/// Returns the names of the rules of each interface.
fn names(running: &LiveConfig, guest: &ConfigValue) -> Vec<String> {
    let changed = running.clone().change(guest).unwrap();
    let names = |vif: &crate::domain::VifConfig| {
        let names = vif.settings.rules.iter().map(|rule| rule.name.clone());
        names.collect::<Vec<_>>().join(" ")
    };
    changed.vifs.iter().map(names).collect()
}

#[test]
fn only_rules_are_replaced() {
    let (live, running) = attached();
    for (wanted, expected) in [
        (
            r#"{"name": "c", "vif": [{"firewall": "stateful",
                "rule": [{"name": "web", "action": "allow", "destination_ports": 80}]}]}"#,
            &["web inbound"][..],
        ),
        (r#"{"name": "c", "vif": [{}]}"#, &[""]),
        (r#"{"name": "c", "vif": []}"#, &["old"]),
        (
            r#"{"name": "d", "vif": [{"rule": [{"action": "deny"}]}]}"#,
            &["1", ""],
        ),
        (
            r#"{"name": "d", "vif": [{}, {"firewall": "shared", "rule": [{"action": "deny"}]}]}"#,
            &["", "1"],
        ),
    ] {
        let guest = running.with_rules(&live, &setting(wanted)).unwrap();
        assert_eq!(names(&running, &guest), expected, "{wanted}");
        // The next manager reads the same rules from the description.
        let mut later = live.clone();
        let name = state::name_of(&guest).unwrap().to_owned();
        later.attached.insert(name, by_hand(guest.clone()));
        let later = LiveConfig::of(&later).unwrap();
        assert_eq!(names(&later, &guest), expected, "{wanted}");
    }
    let wanted = setting(r#"{"name": "c", "vif": [{}]}"#);
    let guest = running.with_rules(&live, &wanted).unwrap();
    let changed = running.clone().change(&guest).unwrap();
    assert_eq!(changed.vifs[0].settings.rate_mbps, Some(5.0));
    assert_eq!(
        changed.macs,
        running
            .clone()
            .change(&live.attached["c"].guest)
            .unwrap()
            .macs
    );
}

#[test]
fn mistakes_change_nothing_and_name_the_guest() {
    let (mut live, running) = attached();
    live.attached.get_mut("d").unwrap().origin.user = None;
    for (wanted, why) in [
        (
            r#"{"name": "a", "vif": [{}]}"#,
            "guest a belongs to the machine's files",
        ),
        (
            r#"{"name": "d", "vif": [{}]}"#,
            "guest d belongs to the machine's files",
        ),
        (r#"{"name": "x", "vif": [{}]}"#, "no guest is named x"),
        (r#"{"vif": [{}]}"#, "no `name`"),
        ("[]", "no `name`"),
        (r#"{"name": "c"}"#, "`vif` is not a list"),
        (
            r#"{"name": "c", "vif": [{}, {}]}"#,
            "2 sections, and the guest has 1 interfaces",
        ),
        (
            r#"{"name": "c", "vif": [1]}"#,
            "interface 1 is not a section",
        ),
        (
            r#"{"name": "c", "spin_us": 1, "vif": [{}]}"#,
            "`spin_us` cannot change",
        ),
        (
            r#"{"name": "c", "vif": [{"mtu": 1400}]}"#,
            "interface 1: `mtu` cannot change",
        ),
        (
            r#"{"name": "c", "vif": [{"firewall": "shared"}]}"#,
            "detach the guest",
        ),
        (r#"{"name": "c", "vif": [{"rule": [{}]}]}"#, "guest c"),
        (
            r#"{"name": "c", "vif": [{"rule": [{"action": "maybe"}]}]}"#,
            "guest c",
        ),
    ] {
        let error = running.with_rules(&live, &setting(wanted)).unwrap_err();
        assert!(error.contains(why), "{wanted}: {error}");
    }
    // Some mistakes are found only in the whole machine.
    let rules: Vec<String> = (0..257)
        .map(|n| format!(r#"{{"name": "r{n}", "action": "deny"}}"#))
        .collect();
    let wanted = format!(
        r#"{{"name": "c", "vif": [{{"rule": [{}]}}]}}"#,
        rules.join(",")
    );
    let guest = running.with_rules(&live, &setting(&wanted)).unwrap();
    let error = running.clone().change(&guest).unwrap_err();
    assert!(
        error.contains("guest c") && error.contains("257"),
        "{error}"
    );
}
