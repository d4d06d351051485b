//! Tests of rejected configurations and their messages.

use super::*;
use crate::domain::{DriverConfig, GuestConfig};

#[test]
fn mistakes_have_lines_and_remedies() {
    for (from, to, message) in [
        (
            "netns = \"w\"",
            "nets = \"w\"",
            "f.toml:5: [[nic]] 1: unknown key `nets`; did you mean `netns`?",
        ),
        (
            "kind = \"tap\"",
            "kind = \"tun\"",
            "f.toml:4: [[nic]] 1: `kind` is \"tun\"; write \"tap\", \"xdp\", \"sim\", \"soft\", \
             \"vfio\", \"pcap\" or \"local\"",
        ),
        (
            "name = \"b\"",
            "name = \"a\"",
            "f.toml:17: [[guest]] 2: the name \"a\" is also that of [[guest]] 1; choose \
             another one",
        ),
        (
            "name = \"b\"",
            "name = \"driver\"",
            "f.toml:17: [[guest]] 2: the name \"driver\" is reserved for the driver domain; choose \
             another one",
        ),
        (
            "name = \"b\"",
            "name = \"b c\"",
            "f.toml:17: [[guest]] 2: `name` is \"b c\"; use 1 to 32 letters, digits, `-` and `_`",
        ),
        (
            "name = \"b\"\n",
            "",
            "f.toml:16: [[guest]] 2: `name` is missing; give it a name, like \"web\"",
        ),
        (
            "10.0.0.3/24",
            "10.0.0.2/24",
            "f.toml:21: [[guest]] 2, vif 1: the address 10.0.0.2 is also that of [[guest]] 1, \
             vif 1; choose another one",
        ),
        (
            "10.0.0.3/24",
            "10.0.0.3",
            "f.toml:21: [[guest]] 2, vif 1: `addresses` is \"10.0.0.3\"; prefix length \
             missing: write it like 10.0.0.3/24",
        ),
        (
            "netns = \"a\"\n",
            "",
            "f.toml:11: [[guest]] 1, vif 1: `netns` is missing, so the interface would be this \
             system's eth0; write netns = \"…\" (create it with `ip netns add`), or choose an \
             `ifname`",
        ),
        (
            "netns = \"a\"\n",
            "netns = \"a\"\nmac = \"03:00:00:00:00:01\"\n",
            "f.toml:14: [[guest]] 1, vif 1: `mac` 03:00:00:00:00:01 is a multicast address; write \
             one with an even first byte, like 02:00:00:00:00:01",
        ),
        (
            "netns = \"a\"\n",
            "netns = \"a\"\ngateway = \"10.1.0.1\"\n",
            "f.toml:14: [[guest]] 1, vif 1: `gateway` 10.1.0.1 is in none of the networks of \
             `addresses`; choose one that is a neighbour",
        ),
        (
            "netns = \"a\"\n",
            "netns = \"a\"\nrate_mbps = 0\n",
            "f.toml:14: [[guest]] 1, vif 1: `rate_mbps` is 0; write a number above 0 and up to \
             1000000000, or leave `rate_mbps` out for no limit",
        ),
        (
            "netns = \"a\"\n",
            "netns = \"a\"\nweight = -1\n",
            "f.toml:14: [[guest]] 1, vif 1: `weight` is -1; write a whole number that is not \
             negative and not too large",
        ),
        (
            "addresses = [\"10.0.0.1/24\"]\n",
            "offloads = \"tso\"\nqueues = \"vmq\"\n[lro]\nmeta = \"request\"\n",
            "f.toml:7: [[nic]] 1: `queues` is \"vmq\", `offloads` is \"tso\" and `meta` of [lro] \
             is \"request\"; write meta = \"response\" in [lro], or another value of `offloads` \
             here: a segment fills the guest's buffers before the driver domain could reserve one \
             for its size",
        ),
        (
            "port = 7",
            "port = 0",
            "f.toml:25: [[guest]] 2, vif 1, app 1: `port` is 0; write a number from 1 to 65535",
        ),
        (
            "\n[[nic]]",
            "[ring]\nslots = 1000\n[[nic]]",
            "f.toml:2: [ring]: `slots` is 1000; write 256, 512, 1024, 2048 or 4096",
        ),
        (
            "\n[[nic]]",
            "[lro]\nflush = \"da1\"\n[[nic]]",
            "f.toml:2: [lro]: `flush` is \"da1\"; write \"poll\", \"da2\" (every second poll), \
             \"t50\" (after 50 µs) or \"adaptive\"",
        ),
        (
            "\n[[nic]]",
            "[lro]\nsegments = 1\n[[nic]]",
            "f.toml:2: [lro]: `segments` is 1; write a number from 2 to 512",
        ),
        (
            "\n[[nic]]",
            "[rings]\n[[nic]]",
            "f.toml:1: the file's top level: unknown key `rings`; did you mean `ring`?",
        ),
        (
            "\n[[nic]]",
            "[driver]\ncpus = [64]\n[[nic]]",
            "f.toml:2: [driver]: `cpus` has 64; write numbers below 64",
        ),
        (
            "\n[[nic]]",
            "driver = 1\n[[nic]]",
            "f.toml:1: [machine]: `driver` is 1; write a section [driver]",
        ),
    ] {
        assert_eq!(mistake(from, to), message);
    }
}

#[test]
fn old_names_are_accepted_with_a_warning() {
    for (old, new, mode) in [
        ("new", "counted", GrantMode::Counted),
        ("shared", "unchecked", GrantMode::Unchecked),
        ("mapped", "persistent", GrantMode::Persistent),
    ] {
        let text = |name: &str| format!("[driver]\ngrants = \"{name}\"\n{SMALL}");
        let (config, source) = parse_with_source(&single_file("f.toml", &text(old))).unwrap();
        assert_eq!(config.driver.grants, mode);
        let [warning] = source.warnings() else {
            panic!("{source:?}")
        };
        assert_eq!(
            warning.to_string(),
            format!(
                "f.toml:2: [driver]: `grants` is \"{old}\", the old name of \"{new}\"; write \
                 grants = \"{new}\""
            )
        );
        let (same, source) = parse_with_source(&single_file("f.toml", &text(new))).unwrap();
        assert_eq!((same, source.warnings()), (config, &[][..]));
    }
    let text = errors(&format!("[driver]\ngrants = \"old\"\n{SMALL}"));
    assert_eq!(
        text,
        "f.toml:2: [driver]: `grants` is \"old\"; write \"copy\", \"map\", \"flip\", \
         \"flip-copy\", \"persistent\", \"counted\" or \"unchecked\""
    );
}

#[test]
fn removed_keys_are_rejected_with_an_explanation() {
    for (section, key, says) in [
        ("driver", "tick_us", "moderation = \"tick\""),
        ("driver", "empty_ticks", "spins for `spin_us`"),
        ("driver", "poll_budget", "64 frames"),
        ("driver", "notify_us", "every 300 µs"),
        ("lro", "hold_us", "flush = \"t500\""),
    ] {
        let text = errors(&format!("[{section}]\n{key} = 1\n{SMALL}"));
        let begins = format!("f.toml:2: [{section}]: the key `{key}` was removed; leave it out: ");
        assert!(text.starts_with(&begins) && text.contains(says), "{text}");
    }
    for key in ["tick_us", "empty_ticks"] {
        let text = mistake("name = \"a\"", &format!("name = \"a\"\n{key} = 1"));
        let begins = format!("f.toml:10: [[guest]] 1: the key `{key}` was removed; ");
        assert!(text.starts_with(&begins), "{text}");
    }
}

#[test]
fn flipped_pages_are_whole_and_constant_in_number() {
    let with = |guests: &str, buffers: &str| {
        format!("[driver]\ngrants = \"flip\"\n{SMALL}{guests}\n[buffers]\n{buffers}\n")
    };
    let full = "size = \"full\"\nto_guest = 100";
    let config = parse("f", &with("", full)).unwrap();
    let machine = config.machine().unwrap();
    let text: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    assert_eq!(text.driver.grants, GrantMode::Flip);
    // The driver has the same number of pages as the guest, after the slots for the guest's grants.
    let mut next = 0;
    for (vif, guest) in text.vifs.iter().zip(&machine.domains[1..]) {
        assert_eq!((vif.first_slot, vif.flip_pages), (next, 100));
        assert_eq!(vif.tables_slot, next + vif.slots);
        next = vif.tables_slot + 100;
        assert_eq!(guest.window_slots, 100);
    }
    assert_eq!(machine.domains[0].window_slots, next);
    for (buffers, remedy) in [
        ("to_guest = 100", "write size = \"full\""),
        ("size = \"full\"\nspare = 8", "leave them out"),
        (
            "size = \"full\"\nspare = 8\nrelease_threshold = 4",
            "write grants = \"counted\", \"map\" or \"copy\"",
        ),
        ("size = \"full\"\nheadroom = 2", "exchanged for each frame"),
    ] {
        let text = errors(&with("", buffers));
        assert!(text.contains(remedy), "{text}");
    }
    let queues = with("", full).replacen("kind = \"tap\"", "kind = \"tap\"\nqueues = \"vmq\"", 1);
    let text = errors(&queues);
    assert!(text.contains("`grants` is \"flip\""), "{text}");
    // A device writes only to its own buffers.
    let soft = with("", full).replacen("kind = \"tap\"\nnetns = \"w\"", "kind = \"soft\"", 1);
    let text = errors(&soft);
    assert!(text.contains("write grants = \"flip-copy\""), "{text}");
    parse("f", &soft.replacen("\"flip\"", "\"flip-copy\"", 1)).unwrap();
    let guests: String = (0..5)
        .map(|n| format!("[[guest]]\nname = \"more{n}\"\n[[guest.vif]]\nendpoint = \"sink\"\n"))
        .collect();
    let text = errors(&with(&guests, "size = \"full\"\nto_guest = 4096"));
    assert!(text.contains("the limit is 16384"), "{text}");
}

#[test]
fn headroom_needs_whole_pages_that_no_queue_fills() {
    let with = |buffers: &str| format!("{SMALL}[buffers]\n{buffers}\n");
    let text = with("size = \"full\"\nheadroom = 1024");
    let config = parse("f", &text).unwrap();
    assert_eq!(config.buffers.headroom, 1024);
    let queues = text.replacen("kind = \"tap\"", "kind = \"tap\"\nqueues = \"vmq\"", 1);
    for (text, remedy) in [
        (
            with("size = \"half\"\nheadroom = 2"),
            "write size = \"full\"",
        ),
        (with("size = \"full\"\nheadroom = 1025"), "1024"),
        (queues, "the start of a buffer"),
    ] {
        let text = errors(&text);
        assert!(text.contains(remedy), "{text}");
    }
}

#[test]
fn mistakes_of_syntax_have_lines() {
    let text = mistake("netns = \"w\"", "netns = w");
    assert!(
        text.starts_with("f.toml:5:9: ") && text.contains("TOML"),
        "{text}"
    );
}

#[test]
fn a_missing_end_is_reported_at_the_last_line() {
    for open in ["x = [\n", "x = 1\ny = {\n", "x = \"\"\"\n\n"] {
        let text = errors(open);
        let lines = open.lines().count();
        let line = |reported: &str| reported.split(':').nth(1)?.parse::<usize>().ok();
        let reported: Vec<usize> = text.lines().filter_map(line).collect();
        assert!(
            !reported.is_empty() && reported.iter().all(|line| *line <= lines),
            "{text}"
        );
    }
}

#[test]
fn all_mistakes_are_reported() {
    let text = SMALL
        .replace("10.0.0.2/24", "nowhere")
        .replace("\"stack\"", "\"heap\"")
        .replace("name = \"wire\"", "nam = \"wire\"");
    let text = errors(&text);
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.split_inclusive(": ").next().unwrap())
        .collect();
    assert_eq!(
        lines,
        ["f.toml:3: ", "f.toml:14: ", "f.toml:20: "],
        "{text}"
    );
}

#[test]
fn later_findings_have_lines_too() {
    let (_, source) = parse_with_source(&single_file("f.toml", SMALL)).unwrap();
    assert!(source.check(Vec::new()).is_ok());
    let finding = |part, key| Finding {
        part,
        key,
        what: "w".into(),
        remedy: "r".into(),
    };
    let found = vec![
        finding(ConfigPart::Vif(1, 0), ""),
        finding(ConfigPart::Nic(0), "netns"),
        finding(ConfigPart::Ring, "slots"),
    ];
    assert_eq!(
        source.check(found).unwrap_err().to_string(),
        "f.toml: [ring]: w; r\nf.toml:5: [[nic]] 1: w; r\nf.toml:19: [[guest]] 2, vif 1: w; r"
    );
}

#[test]
fn duplicate_macs_and_interfaces_are_rejected() {
    let mac = |text: &str| text.replace("netns = ", "mac = \"02:00:00:00:00:01\"\nnetns = ");
    assert!(errors(&mac(SMALL)).contains("the MAC 02:00:00:00:00:01 is also that of [[nic]] 1"));
    let text = SMALL.replace("netns = \"a\"", "netns = \"w\"\nifname = \"wire\"");
    assert!(errors(&text).contains("the interface wire is also that of [[nic]] 1"));
}

#[test]
fn guests_above_the_limit_are_rejected() {
    let machine = |guests: usize| {
        let vif = || Vif::new(Endpoint::Sink { touch: false });
        let guest = |n| GuestSection {
            name: format!("g{n}"),
            vifs: vec![vif()],
            ..GuestSection::default()
        };
        Config {
            guests: (0..guests).map(guest).collect(),
            ..Config::default()
        }
        .machine()
    };
    let machine64 = machine(64).unwrap();
    assert_eq!(
        (machine64.domains.len(), machine64.connections.len()),
        (65, 64)
    );
    let text = machine(1025).unwrap_err().to_string();
    assert!(
        text.contains("too many guests: 1025 interfaces in all; the limit is 1024"),
        "{text}"
    );
}

#[test]
fn irreversible_merging_is_rejected_for_routers() {
    let text = |at: &str, rules: &str, forwards: bool| {
        SMALL
            .replace(
                "\n[[nic]]",
                &format!("[lro]\nat = \"{at}\"\nrules = \"{rules}\"\n[[nic]]"),
            )
            .replace(
                "endpoint = \"tap\"",
                &format!("endpoint = \"tap\"\nforwards = {forwards}"),
            )
    };
    for at in ["physical", "virtual", "both"] {
        assert_eq!(
            errors(&text(at, "lro", true)),
            "f.toml:3: [lro]: `rules` is \"lro\", but a-0 ([[guest]] 1, vif 1) forwards, \
             and its aggregates cannot be segmented again; write rules = \"gro\", or at = \
             \"none\""
        );
        assert!(parse("f", &text(at, "gro", true)).is_ok());
        assert!(parse("f", &text(at, "lro", false)).is_ok());
    }
    let config = parse("f", &text("none", "lro", true)).unwrap();
    // Both ends of the vif receive the setting, because merging can be enabled while traffic runs.
    let machine = config.machine().unwrap();
    let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    let guest: GuestConfig = serde_json::from_str(&machine.domains[1].config).unwrap();
    assert_eq!(
        driver
            .vifs
            .iter()
            .map(|v| v.settings.forwards)
            .collect::<Vec<_>>(),
        [true, false]
    );
    assert!(guest.vifs[0].forwards);
    assert_eq!((driver.lro, guest.lro), (config.lro, config.lro));
}
