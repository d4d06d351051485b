//! Tests of several mistakes in one file: all are reported in the order of lines, without
//! consequences of others.

use super::*;

#[test]
fn all_mistakes_of_a_file_are_reported_in_order() {
    let text = SMALL
        .replacen("kind = \"tap\"", "kind = \"tap\"\nmtu = 100", 1)
        .replacen(
            "addresses = [\"10.0.0.1/24\"]",
            "adresses = [\"10.0.0.1/24\"]",
            1,
        )
        .replacen(
            "netns = \"a\"",
            "netns = \"a\"\nweight = \"two\"\nrate_mbps = -1",
            1,
        )
        .replacen("10.0.0.2/24", "fd00::1", 1)
        .replacen("name = \"b\"", "name = \"b c\"", 1)
        .replacen("port = 7", "port = 0", 1);
    let text = errors(&text);
    let lines: Vec<&str> = text.lines().collect();
    let expected = [
        "f.toml:5: [[nic]] 1: `mtu` is 100; ",
        "f.toml:7: [[nic]] 1: unknown key `adresses`; did you mean `addresses`?",
        "f.toml:15: [[guest]] 1, vif 1: `weight` is \"two\"; ",
        "f.toml:16: [[guest]] 1, vif 1: `rate_mbps` is -1; ",
        "f.toml:17: [[guest]] 1, vif 1: `addresses` is \"fd00::1\"; prefix length missing: write \
         it like fd00::1/64",
        "f.toml:20: [[guest]] 2: `name` is \"b c\"; ",
        "f.toml:28: [[guest]] 2, vif 1, app 1: `port` is 0; ",
    ];
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, begins) in lines.iter().zip(expected) {
        assert!(line.starts_with(begins), "{line}\n{begins}");
    }
}

/// A default that is invalid only because of an invalid value is not a mistake.
#[test]
fn defaults_are_not_reported_as_mistakes() {
    let text = mistake("kind = \"tap\"", "kind = \"tap\"\nmtu = 100000000");
    assert!(text.starts_with("f.toml:5: [[nic]] 1: `mtu` is"), "{text}");
}

/// A syntax error does not hide mistakes in other lines.
#[test]
fn syntax_errors_hide_no_other_mistake() {
    let text = SMALL
        .replacen("netns = \"w\"", "netns = w\nmtu = 100", 1)
        .replacen(
            "netns = \"a\"",
            "netns = \"a\"\nweight = 0\nrate_mbps = = 1",
            1,
        )
        .replacen("port = 7", "prot = 7", 1);
    let text = errors(&text);
    let lines: Vec<&str> = text.lines().collect();
    let begins = [
        "f.toml:5:",
        "f.toml:6: [[nic]] 1: `mtu` is 100",
        "f.toml:15: [[guest]] 1, vif 1: `weight` is 0",
        "f.toml:16:",
        "f.toml:28: [[guest]] 2, vif 1, app 1: unknown key `prot`; did you mean `port`?",
    ];
    for (line, begins) in lines.iter().zip(begins) {
        assert!(line.starts_with(begins), "{text}");
    }
    assert_eq!(lines.len(), begins.len(), "{text}");
}

/// Changes each key of the example in turn with `spoil`. Returns the line of the key and the
/// mistakes.
fn each_key_spoilt(spoil: impl Fn(&str) -> String) -> Vec<(usize, String)> {
    let text = uncommented().replacen("moderation = \"event\"", "moderation = \"tick\"", 1);
    let text = text.replacen("\npdev = \"uplink:1\"", "\n", 1);
    parse("f", &text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let is_key = |line: &str| line.contains(" = ") && line.starts_with(char::is_lowercase);
    let keys = lines.iter().enumerate().filter(|(_, line)| is_key(line));
    let spoilt = keys.map(|(n, line)| {
        let mut all = lines.clone();
        let wrong = spoil(line);
        all[n] = &wrong;
        (n + 1, errors(&all.join("\n")))
    });
    spoilt.collect()
}

/// Returns whether exactly one mistake was found, in this line.
fn is_one((line, found): &(usize, String)) -> bool {
    found.starts_with(&format!("f.toml:{line}: ")) && found.lines().count() == 1
}

/// Every unreadable value of the example is reported as one mistake, even if other keys depend on
/// it.
#[test]
fn an_unreadable_value_is_one_mistake() {
    // No key accepts a date.
    let spoil = |line: &str| format!("{} = 1979-05-27", line.split(" = ").next().unwrap());
    let all = each_key_spoilt(spoil);
    assert!(all.len() > 80, "{all:?}");
    let wrong: Vec<_> = all.iter().filter(|one| !is_one(one)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Every misspelt key of the example is reported as one mistake.
#[test]
fn a_misspelt_key_is_one_mistake() {
    let all = each_key_spoilt(|line| format!("x{line}"));
    let wrong: Vec<_> = all.iter().filter(|one| !is_one(one)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
