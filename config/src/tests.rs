//! Tests of the whole: examples, documentation, messages, properties.

use crate::domain::{DriverConfig, GrantMode, GuestConfig, NicKind};
use crate::parse::read;
use crate::*;
use abi::machine::{Device, Netdev};
use proptest::prelude::*;
use std::fmt::Write as _;

const EXAMPLE: &str = include_str!("../../examples/two-guests.toml");
const DOCS: &str = include_str!("../../docs/config.md");

/// A small valid file that tests make mistakes in.
const SMALL: &str = r#"
[[nic]]
name = "wire"
kind = "tap"
netns = "w"
addresses = ["10.0.0.1/24"]

[[guest]]
name = "a"

[[guest.vif]]
endpoint = "tap"
netns = "a"
addresses = ["10.0.0.2/24"]

[[guest]]
name = "b"

[[guest.vif]]
endpoint = "stack"
addresses = ["10.0.0.3/24"]

[[guest.vif.app]]
kind = "tcp-echo"
port = 7
"#;

fn errors(text: &str) -> String {
    match parse("f.toml", text) {
        Ok(config) => panic!("no error in {config:?}"),
        Err(problems) => problems.to_string(),
    }
}

/// The one mistake that `SMALL` has when `from` is replaced with `to`.
#[track_caller]
fn mistake(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    let text = errors(&SMALL.replacen(from, to, 1));
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn examples_are_valid() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let config = parse(&path.to_string_lossy(), &text).unwrap_or_else(|e| panic!("{e}"));
            config.machine().unwrap_or_else(|e| panic!("{e}"));
            seen += 1;
        }
    }
    assert!(seen > 0);
}

/// The example as it is when every key that is commented out is a key.
fn uncommented() -> String {
    let is_config = |rest: &str| {
        let word = rest.trim_start();
        word.starts_with('[')
            || word
                .split_once(" = ")
                .is_some_and(|(key, _)| !key.contains(' '))
    };
    let text = EXAMPLE.lines().fold(String::new(), |mut text, line| {
        let rest = line.strip_prefix("# ").filter(|rest| is_config(rest));
        let _ = writeln!(text, "{}", rest.unwrap_or(line));
        text
    });
    // What a release threshold needs.
    text.replacen("grants = \"mapped\"", "grants = \"new\"", 1)
        .replacen("spare = 0", "spare = 64", 1)
}

#[test]
fn the_example_stays_valid_without_its_comment_marks() {
    let text = uncommented().replacen("moderation = \"event\"", "moderation = \"tick\"", 1);
    // A queue of an AF_XDP wire goes with neither rules nor a release threshold.
    let text = text.replacen("\npdev = \"uplink:1\"", "\n", 1);
    // The wire's route is a neighbour, and files are only checked when they are opened.
    let config = parse("uncommented", &text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((config.nics.len(), config.guests.len()), (5, 4));
}

#[test]
fn every_key_is_in_the_example_and_in_the_documentation() {
    let text = uncommented();
    let (_, reading) = read("example", &text.replacen("\"event\"", "\"tick\"", 1));
    assert!(reading.known.len() > 50, "{:?}", reading.known);
    for (section, key) in &reading.known {
        let header = |key: &str| match section {
            &"" => format!("[{key}]"),
            section => format!("[[{section}.{key}]]"),
        };
        let list = format!("[{}]", header(key));
        let in_text = |line: &str| {
            line.starts_with(&format!("{key} =")) || line == header(key) || line == list
        };
        let in_example = text
            .lines()
            .any(|line| in_text(line.split('#').next().unwrap_or("").trim_end()));
        assert!(in_example, "[{section}] {key} is not in the example");
        let in_docs = DOCS.contains(&format!("`{key}`"))
            || DOCS.contains(&format!("`{}`", header(key)))
            || DOCS.contains(&format!("`{list}`"));
        assert!(in_docs, "[{section}] {key} is not in the documentation");
    }
}

#[test]
fn defaults_are_as_documented() {
    let config = parse("f", SMALL).unwrap();
    let driver = &config.driver;
    assert_eq!(
        (
            driver.poll_budget,
            driver.broadcast_pps,
            driver.mac_ageing_s
        ),
        (64, 10_000, 300)
    );
    assert_eq!((driver.grants, driver.ledger), (GrantMode::Mapped, true));
    assert_eq!((driver.restart, driver.restart_pause_ms), (true, 5_000));
    assert_eq!(
        (
            config.buffers.to_guest,
            config.buffers.from_guest,
            config.buffers.prefetch
        ),
        (512, 256, 64)
    );
    let buffers = config.buffers;
    assert_eq!((buffers.spare, buffers.release_threshold), (0, None));
    assert_eq!((config.ring.slots, config.ring_order()), (1024, 2));
    assert_eq!(config.ring.format, crate::domain::RingFormat::Native);
    let lro = config.lro;
    assert_eq!(
        (lro.at, lro.rules, lro.psh),
        (lro::At::Physical, lro::Rules::Gro, lro::Psh::Flush)
    );
    assert_eq!(
        (lro.buffers, lro.backend, lro.flush),
        (lro::Form::Skb, lro::Backend::Scatter, lro::Flush::Adaptive)
    );
    assert_eq!((lro.hold_us, lro.flows, lro.segments), (200, 1024, 64));
    assert_eq!(lro.meta, lro::Meta::Response);
    assert_eq!(config.nic_ifname(0).as_deref(), Some("wire"));
    assert_eq!(config.vif_ifname(0, 0).as_deref(), Some("eth0"));
    assert_eq!(config.vif_ifname(1, 0), None);
}

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
            "f.toml:4: [[nic]] 1: `kind` is \"tun\"; write \"tap\", \"xdp\", \"sim\", \"pcap\" or \"local\"",
        ),
        (
            "name = \"b\"",
            "name = \"a\"",
            "f.toml:17: [[guest]] 2: the name \"a\" is that of [[guest]] 1 too; give each its own",
        ),
        (
            "name = \"b\"",
            "name = \"driver\"",
            "f.toml:17: [[guest]] 2: the name \"driver\" is that of the driver domain; choose another",
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
            "f.toml:21: [[guest]] 2, vif 1: the address 10.0.0.2 is that of [[guest]] 1, vif 1 too; give each its own",
        ),
        (
            "10.0.0.3/24",
            "10.0.0.3",
            "f.toml:21: [[guest]] 2, vif 1: `addresses` is \"10.0.0.3\"; write it like [\"10.0.0.2/24\"]",
        ),
        (
            "netns = \"a\"\n",
            "",
            "f.toml:11: [[guest]] 1, vif 1: `netns` is missing, so the interface would be this system's eth0; write netns = \"…\" (make it with `ip netns add`), or choose an `ifname`",
        ),
        (
            "netns = \"a\"\n",
            "netns = \"a\"\nmac = \"03:00:00:00:00:01\"\n",
            "f.toml:14: [[guest]] 1, vif 1: `mac` 03:00:00:00:00:01 is a multicast address; write one with an even first byte, like 02:00:00:00:00:01",
        ),
        (
            "netns = \"a\"\n",
            "netns = \"a\"\ngateway = \"10.1.0.1\"\n",
            "f.toml:14: [[guest]] 1, vif 1: `gateway` 10.1.0.1 is in none of the networks of `addresses`; choose one that is a neighbour",
        ),
        (
            "netns = \"a\"\n",
            "netns = \"a\"\nrate_mbps = 0\n",
            "f.toml:14: [[guest]] 1, vif 1: `rate_mbps` is 0; write a number above 0 and up to 1000000000, or leave `rate_mbps` out for no limit",
        ),
        (
            "netns = \"a\"\n",
            "netns = \"a\"\nweight = -1\n",
            "f.toml:14: [[guest]] 1, vif 1: `weight` is -1; write a whole number that is not negative and not too large",
        ),
        (
            "netns = \"w\"\n",
            "netns = \"w\"\noffloads = \"tso\"\n",
            "f.toml:6: [[nic]] 1: `offloads` is \"tso\"; write \"none\" or \"checksum\": frames on a wire are never longer than its MTU",
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
            "f.toml:2: [lro]: `flush` is \"da1\"; write \"poll\", \"da2\" (every second poll), \"t50\" (after 50 µs) or \"adaptive\"",
        ),
        (
            "\n[[nic]]",
            "[lro]\nflush = \"t300\"\n[[nic]]",
            "f.toml:2: [lro]: `flush` waits longer than `hold_us`, 200 µs, allows; write hold_us = 300, or flush = \"t200\" or less",
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
fn queues_for_single_guests_need_what_they_need() {
    let wire = "kind = \"tap\"\nnetns = \"w\"";
    let with = |more: &str| format!("kind = \"tap\"\nqueues = \"vmq\"{more}\nnetns = \"w\"");
    let expect = |to: &str, line: u32, what: &str, remedy: &str| {
        let text = mistake(wire, to);
        assert!(text.starts_with(&format!("f.toml:{line}: ")), "{text}");
        assert!(text.contains(what) && text.contains(remedy), "{text}");
    };
    expect(
        &with("\nvmq_queues = 65"),
        6,
        "`vmq_queues` is 65",
        "from 1 to 64",
    );
    expect(
        &with("\nvmq_rebalance_ms = 60001"),
        6,
        "60001",
        "from 0 to 60000",
    );
    expect(
        &with("\nrate_mbps = 100"),
        5,
        "`rate_mbps`",
        "leave one of them out",
    );
    expect(&with("\nmtu = 2030"), 5, "`mtu` is 2030", "at most 2029");
    let local = with("").replacen("tap", "local", 1);
    expect(&local, 5, "`queues` is \"vmq\"", "\"xdp\" or \"sim\"");
    let unused = "kind = \"tap\"\nvmq_queues = 2\nnetns = \"w\"";
    expect(unused, 5, "vmq_queues", "");
    let copying = format!(
        "[driver]\ngrants = \"copy\"\n{}",
        SMALL.replacen(wire, &with(""), 1)
    );
    let text = errors(&copying);
    assert!(
        text.contains("write another `grants` in [driver]"),
        "{text}"
    );
}

#[test]
fn pages_that_change_hands_are_whole_and_stay_as_many() {
    let with = |guests: &str, buffers: &str| {
        format!("[driver]\ngrants = \"flip\"\n{SMALL}{guests}\n[buffers]\n{buffers}\n")
    };
    let full = "size = \"full\"\nto_guest = 100";
    let config = parse("f", &with("", full)).unwrap();
    let machine = config.machine().unwrap();
    let text: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    assert_eq!(text.grants, GrantMode::Flip);
    // As many of the driver's as of the guest's, behind the slots for its grants.
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
            "write grants = \"new\", \"map\" or \"copy\"",
        ),
    ] {
        let text = errors(&with("", buffers));
        assert!(text.contains(remedy), "{text}");
    }
    let queues = with("", full).replacen("kind = \"tap\"", "kind = \"tap\"\nqueues = \"vmq\"", 1);
    let text = errors(&queues);
    assert!(text.contains("`grants` is \"flip\""), "{text}");
    let guests: String = (0..5)
        .map(|n| format!("[[guest]]\nname = \"more{n}\"\n[[guest.vif]]\nendpoint = \"sink\"\n"))
        .collect();
    let text = errors(&with(&guests, "size = \"full\"\nto_guest = 4096"));
    assert!(text.contains("16384 is the most"), "{text}");
}

#[test]
fn an_af_xdp_wire_is_a_veth_pair_or_an_interface_that_is_there() {
    let wire = "kind = \"tap\"\nnetns = \"w\"\naddresses = [\"10.0.0.1/24\"]";
    let machine = |to: &str| {
        let text = SMALL.replacen(wire, to, 1);
        parse("f", &text).unwrap().machine().unwrap()
    };
    let pair = machine("kind = \"xdp\"\nnetns = \"w\"\nbuffers = 1000");
    let driver = &pair.domains[0];
    let [Device::Xdp(xdp)] = driver.devices.as_slice() else {
        panic!("{:?}", driver.devices)
    };
    let Netdev::Veth(tap) = &xdp.netdev else {
        panic!("{xdp:?}")
    };
    assert_eq!(tap.netns.as_deref(), Some("w"));
    assert!(tap.mac.is_some() && !tap.vnet_header);
    assert_eq!((xdp.first_frame, xdp.frames, xdp.entries), (0, 500, 1024));
    let text: DriverConfig = serde_json::from_str(&driver.config).unwrap();
    // Its rings lie in front of the guests' grants.
    let rings = 4 * abi::xdp::Ring::slots(1024);
    assert_eq!((xdp.rings_slot, text.vifs[0].first_slot), (0, rings));
    assert!(driver.window_slots >= rings + text.vifs[0].slots);

    let two = "kind = \"tap\"\nnetns = \"w\"\n[[nic]]\nname = \"x\"\nkind = \"xdp\"\n\
               netdev = \"eth1\"\nnetns = \"v\"";
    let two = machine(two);
    let Some(Device::Xdp(xdp)) = two.domains[0].devices.last() else {
        panic!("{:?}", two.domains[0].devices)
    };
    let eth1 = Netdev::Existing {
        ifname: "eth1".into(),
        netns: Some("v".into()),
    };
    assert_eq!(xdp.netdev, eth1);
    // Behind the first NIC's buffers and its pages for whole aggregates.
    assert_eq!(xdp.first_frame, 512 + 256);

    for (to, line, what) in [
        ("mtu = 1775", 5, "at most 1774"),
        ("netdev = \"no/slash\"", 5, "1 to 15 letters"),
        (
            "netdev = \"e\"\naddresses = []",
            6,
            "unknown key `addresses`",
        ),
        (
            "queues = \"vmq\"\nvmq_rebalance_ms = 1",
            6,
            "that its `pdev` names, for good",
        ),
    ] {
        let text = mistake(wire, &format!("kind = \"xdp\"\n{to}"));
        assert!(text.starts_with(&format!("f.toml:{line}: ")), "{text}");
        assert!(text.contains(what), "{text}");
    }
    let twice = "kind = \"xdp\"\nnetdev = \"e\"\n[[nic]]\nname = \"x\"\nkind = \"xdp\"\n\
                 netdev = \"e\"";
    assert!(mistake(wire, twice).contains("the interface e is that of"));
}

#[test]
fn a_nic_has_no_more_queues_than_there_are_guests() {
    let text = SMALL.replacen("kind = \"tap\"", "kind = \"tap\"\nqueues = \"vmq\"", 1);
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let driver = &machine.domains[0];
    let text: DriverConfig = serde_json::from_str(&driver.config).unwrap();
    let Device::Tap(tap) = &driver.devices[0] else {
        panic!("{:?}", driver.devices)
    };
    let macs: Vec<_> = text.vifs.iter().map(|vif| vif.mac).collect();
    assert_eq!((tap.queues, &tap.steered), (2, &macs));
    assert_eq!(driver.devices[1..], [Device::TapQueue, Device::TapQueue]);
    assert!(
        matches!(&text.nics[0].kind, NicKind::Tap { device: 0, queues, .. } if queues == &[1, 2])
    );
    assert_eq!(text.nics[0].vmq.map(|vmq| vmq.queues), Some(2));
}

#[test]
fn mistakes_of_syntax_have_lines() {
    let text = mistake("netns = \"w\"", "netns = w");
    assert!(
        text.starts_with("f.toml:5: ") && text.contains("TOML"),
        "{text}"
    );
}

#[test]
fn all_mistakes_are_told_at_once() {
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
        ["f.toml:2: ", "f.toml:3: ", "f.toml:14: ", "f.toml:20: "],
        "{text}"
    );
}

#[test]
fn what_is_found_later_has_lines_too() {
    let (_, located) = parse_located("f.toml", SMALL).unwrap();
    assert!(located.check(Vec::new()).is_ok());
    let finding = |place, key| Finding {
        place,
        key,
        what: "w".into(),
        remedy: "r".into(),
    };
    let found = vec![
        finding(Place::Vif(1, 0), ""),
        finding(Place::Nic(0), "netns"),
        finding(Place::Ring, "slots"),
    ];
    assert_eq!(
        located.check(found).unwrap_err().to_string(),
        "f.toml: [ring]: w; r\nf.toml:5: [[nic]] 1: w; r\nf.toml:19: [[guest]] 2, vif 1: w; r"
    );
}

#[test]
fn duplicate_macs_and_interfaces_are_refused() {
    let mac = |text: &str| text.replace("netns = ", "mac = \"02:00:00:00:00:01\"\nnetns = ");
    assert!(errors(&mac(SMALL)).contains("the MAC 02:00:00:00:00:01 is that of [[nic]] 1 too"));
    let text = SMALL.replace("netns = \"a\"", "netns = \"w\"\nifname = \"wire\"");
    assert!(errors(&text).contains("the interface wire is that of [[nic]] 1 too"));
}

#[test]
fn too_many_guests_are_refused_and_many_are_not() {
    let machine = |guests: usize| {
        let vif = || Vif::new(Endpoint::Sink { touch: false });
        let guest = |n| Guest {
            name: format!("g{n}"),
            vifs: vec![vif()],
            ..Guest::default()
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
        text.contains("too many guests: 1025 interfaces in all; 1024 is the most"),
        "{text}"
    );
}

#[test]
fn irreversible_merging_is_refused_before_a_router() {
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
            "f.toml:3: [lro]: `rules` is \"lro\", but a-0 ([[guest]] 1, vif 1) forwards packets, and \
             what is merged so cannot be cut into what it was; write rules = \"gro\", or at = \"none\""
        );
        assert!(parse("f", &text(at, "gro", true)).is_ok());
        assert!(parse("f", &text(at, "lro", false)).is_ok());
    }
    let config = parse("f", &text("none", "lro", true)).unwrap();
    // Both ends of the vif know it: it may be asked for while traffic runs.
    let machine = config.machine().unwrap();
    let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    let guest: GuestConfig = serde_json::from_str(&machine.domains[1].config).unwrap();
    assert_eq!(
        driver.vifs.iter().map(|v| v.forwards).collect::<Vec<_>>(),
        [true, false]
    );
    assert!(guest.vifs[0].forwards);
    assert_eq!((driver.lro, guest.lro), (config.lro, config.lro));
}

#[test]
fn workers_share_taps_and_nothing_else() {
    let text = format!(
        "[driver]\nworkers = 3\ncpus = [4, 5, 6, 7]\nbroadcast_pps = 100\n{}",
        SMALL
            .replacen("name = \"wire\"", "name = \"wire\"\nrate_mbps = 900", 1)
            .replacen(
                "endpoint = \"tap\"",
                "endpoint = \"tap\"\nrate_mbps = 30",
                1
            )
    );
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let names: Vec<_> = machine.domains.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["driver", "driver-1", "driver-2", "a", "b"]);
    let cpus: Vec<_> = machine.domains.iter().map(|d| d.cpus.clone()).collect();
    assert_eq!(cpus[..3], [vec![4, 7], vec![5], vec![6]]);

    // Who comes first makes the TAP, with a queue for each of the others.
    let shares = |devices: &[Device]| match devices {
        [Device::Tap(tap), ..] => tap.shares,
        other => panic!("{other:?}"),
    };
    let share = |ifname: &str, netns: &str| Device::TapShare {
        ifname: ifname.into(),
        netns: Some(netns.into()),
    };
    assert_eq!(shares(&machine.domains[0].devices), 2);
    for worker in &machine.domains[1..3] {
        assert_eq!(worker.devices, [share("wire", "w")]);
    }
    let a = &machine.domains[3];
    assert_eq!(shares(&a.devices), 2);
    assert_eq!(a.devices[1..], [share("eth0", "a"), share("eth0", "a")]);
    let guest: GuestConfig = serde_json::from_str(&a.config).unwrap();
    assert_eq!(guest.vifs[0].conns, [0, 1, 2]);

    // A guest's connections are in the order of its queues, a worker's in that of interfaces.
    let ends: Vec<_> = machine
        .connections
        .iter()
        .map(|c| (c.backend.as_str(), c.frontend.as_str(), c.handle))
        .collect();
    assert_eq!(
        ends,
        [
            ("driver", "a", 0),
            ("driver-1", "a", 0),
            ("driver-2", "a", 0),
            ("driver", "b", 0),
            ("driver-1", "b", 0),
            ("driver-2", "b", 0),
        ]
    );
    let one = parse("f", SMALL).unwrap().machine().unwrap();
    let pages = |machine: &abi::machine::Machine| machine.domains.last().unwrap().frames;
    assert_eq!(pages(&machine) - 64, 3 * (pages(&one) - 64));

    // What is limited is limited for all of them together.
    for worker in &machine.domains[..3] {
        let text: DriverConfig = serde_json::from_str(&worker.config).unwrap();
        assert_eq!(text.broadcast_pps, 34);
        assert_eq!(text.nics[0].rate_mbps, Some(300.0));
        assert_eq!(text.vifs[0].rate_mbps, Some(10.0));
        let conns: Vec<_> = text.vifs.iter().map(|vif| vif.conn).collect();
        assert_eq!(conns, [0, 1]);
    }
}

#[test]
fn workers_need_nics_that_spread_flows() {
    let with = |workers: &str, from: &str, to: &str| {
        assert!(SMALL.contains(from), "{from}");
        format!(
            "[driver]\nworkers = {workers}\n{}",
            SMALL.replacen(from, to, 1)
        )
    };
    let wire = "kind = \"tap\"\nnetns = \"w\"\naddresses = [\"10.0.0.1/24\"]";
    for (to, what) in [
        (
            "kind = \"sim\"\naddresses = [\"10.0.0.1/24\"]",
            "the driver has 2 `workers`, and this NIC has one queue",
        ),
        ("kind = \"pcap\"\nread = \"f\"", "has one queue"),
        ("kind = \"xdp\"\nnetns = \"w\"", "has one queue"),
        (
            "kind = \"tap\"\nqueues = \"vmq\"",
            "`queues` is \"vmq\", and the driver has 2 `workers`",
        ),
    ] {
        let text = errors(&with("2", wire, to));
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains(what) && text.contains("workers = 1"),
            "{text}"
        );
        assert!(parse("f", &with("1", wire, to)).is_ok());
    }
    let guest = "name = \"b\"";
    let text = errors(&with("3", guest, "name = \"driver-2\""));
    assert!(
        text.contains("\"driver-2\" is that of the driver domain"),
        "{text}"
    );
    assert!(parse("f", &with("2", guest, "name = \"driver-2\"")).is_ok());
    for workers in ["0", "17"] {
        let text = errors(&with(workers, guest, guest));
        assert!(text.contains("write a number from 1 to 16"), "{text}");
    }
}

#[test]
fn sizes_follow_from_the_configuration() {
    let config = parse("f", SMALL).unwrap();
    let machine = config.machine().unwrap();
    let [driver, a, b] = &machine.domains[..] else {
        panic!("{machine:?}")
    };
    // 384 pages of buffers and two rings of four pages each, in one table.
    assert!(a.frames >= 384 + 8 && a.grant_entries == 1024 && a.window_slots == 0);
    assert_eq!(driver.window_slots, 2048);
    let text: DriverConfig = serde_json::from_str(&driver.config).unwrap();
    assert_eq!(
        text.vifs
            .iter()
            .map(|v| (v.conn, v.first_slot, v.slots))
            .collect::<Vec<_>>(),
        [(0, 0, 1024), (1, 1024, 1024)]
    );
    assert!(matches!(
        text.nics[0].kind,
        NicKind::Tap {
            device: 0,
            vnet_header: false,
            checksum: false,
            ..
        }
    ));
    let guest: GuestConfig = serde_json::from_str(&a.config).unwrap();
    assert_eq!(
        (guest.vifs[0].pool_pages, guest.vifs[0].to_guest_buffers),
        (384, 512)
    );
    let Device::Tap(tap) = &a.devices[0] else {
        panic!("{:?}", a.devices)
    };
    assert_eq!(
        (tap.ifname.as_str(), tap.netns.as_deref()),
        ("eth0", Some("a"))
    );
    assert_eq!(tap.mac, Some(text.vifs[0].mac));
    assert!(tap.vnet_header && tap.checksum && tap.tso && tap.addresses == ["10.0.0.2/24"]);
    assert!(b.devices.is_empty());

    let copy = Config {
        driver: Driver {
            grants: GrantMode::Copy,
            ..Driver::default()
        },
        ..config
    };
    assert!(copy.machine().unwrap().domains[0].frames > driver.frames);
}

#[test]
fn the_driver_knows_whose_addresses_are_whose() {
    let text = SMALL.replace(
        "addresses = [\"10.0.0.2/24\"]",
        "addresses = [\"10.0.0.2/24\"]\ngateway = \"10.0.0.254\"",
    );
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    let texts = |addresses: &[std::net::IpAddr]| -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    };
    // A gateway that is nobody's in the file is somewhere behind a NIC.
    assert_eq!(texts(&driver.nics[0].addresses), ["10.0.0.1", "10.0.0.254"]);
    assert_eq!(texts(&driver.vifs[0].addresses), ["10.0.0.2"]);
    assert_eq!(texts(&driver.vifs[1].addresses), ["10.0.0.3"]);
    let text = text.replace("10.0.0.254", "10.0.0.3");
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    assert_eq!(texts(&driver.nics[0].addresses), ["10.0.0.1"]);
}

#[test]
fn domains_spin_and_wake_each_other_at_once_only_when_the_driver_has_a_cpu_of_its_own() {
    let spin = |driver: &str, guest: &str| {
        let text = SMALL.replace("\n[[nic]]", &format!("{driver}\n[[nic]]"));
        let text = text.replace("name = \"a\"\n", &format!("name = \"a\"\n{guest}\n"));
        let text = text.replace("name = \"b\"\n", &format!("name = \"b\"\n{guest}\n"));
        let machine = parse("f", &text).unwrap().machine().unwrap();
        let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
        let guest: GuestConfig = serde_json::from_str(&machine.domains[1].config).unwrap();
        (driver.spin_us, guest.spin_us, driver.notify_us)
    };
    assert_eq!(spin("", ""), (0, 0, 300));
    assert_eq!(spin("[driver]\ncpus = [1]", ""), (0, 0, 300));
    assert_eq!(spin("[driver]\ncpus = [1]", "cpus = [0, 1]"), (0, 0, 300));
    assert_eq!(spin("[driver]\ncpus = [1]", "cpus = [0]"), (50, 50, 0));
    assert_eq!(
        spin(
            "[driver]\ncpus = [1]\nspin_us = 5\nnotify_us = 7",
            "cpus = [0]"
        ),
        (5, 50, 7)
    );
}

#[test]
fn guests_offer_their_cpu_where_there_are_more_of_them_than_cpus() {
    let yields = |first: &str, second: &str| {
        let text = SMALL.replace("\n[[nic]]", "[driver]\ncpus = [9]\n[[nic]]");
        let text = text.replace("name = \"a\"\n", &format!("name = \"a\"\ncpus = {first}\n"));
        let text = text.replace(
            "name = \"b\"\n",
            &format!("name = \"b\"\ncpus = {second}\n"),
        );
        let machine = parse("f", &text).unwrap().machine().unwrap();
        let guests = machine.domains[1..].iter();
        let configs =
            guests.map(|guest| serde_json::from_str::<GuestConfig>(&guest.config).unwrap());
        configs.map(|config| config.yields).collect::<Vec<_>>()
    };
    assert_eq!(yields("[0]", "[0]"), [true, true]);
    assert_eq!(yields("[0]", "[1]"), [false, false]);
    assert_eq!(yields("[0, 1]", "[0, 1]"), [false, false]);
    assert_eq!(yields("[0]", "[0, 1]"), [true, false]);
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,400}") {
        let _ = parse("f", &text);
    }

    /// Damage to a good file: still no panic, and every complaint has a place.
    #[test]
    fn no_damage_panics(at in 0..SMALL.len(), cut in 0..40usize, insert in "[\\[\\]\"={}#\\-.a0-9\n ]{0,6}") {
        let mut bytes = SMALL.as_bytes().to_vec();
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, insert.bytes());
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match parse("f", &text) {
            Ok(config) => prop_assert!(config.machine().is_ok()),
            Err(problems) => for problem in problems.list() {
                prop_assert!(!problem.what.is_empty() && !problem.remedy.is_empty());
                prop_assert_eq!(problem.file.as_deref(), Some("f"));
            },
        }
    }

    #[test]
    fn no_values_panic(value in prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()), any::<f64>().prop_map(|x| format!("{x:?}")),
        "\"[^\"\\\\]{0,20}\"", Just("nan".to_owned()), Just("inf".to_owned()), Just("[]".to_owned()), Just("{}".to_owned())], key in 0..40usize)
    {
        // One value of the example, replaced with anything.
        let mut n = 0;
        let text = uncommented().lines().fold(String::new(), |mut text, line| {
            let line = match line.split_once(" = ") {
                Some((name, _)) if !line.starts_with('#') => {
                    n += 1;
                    if n == key { format!("{name} = {value}") } else { line.to_owned() }
                }
                _ => line.to_owned(),
            };
            let _ = writeln!(text, "{line}");
            text
        });
        if let Ok(config) = parse("f", &text) {
            prop_assert!(config.machine().is_ok());
        }
    }

    /// What is written down is what is read.
    #[test]
    fn generated_files_are_read_as_meant(
        grants in 0..5usize, offloads in 0..3usize, slots in 0..5u32, buffers in 32..4096u32,
        workers in 1..4u32,
        guests in proptest::collection::vec((1..5usize, proptest::option::of(1..100_000u32), 1..1000u32, any::<bool>()), 0..6),
    ) {
        // Each worker has a window for all of them, and a window has an end.
        let guests = &guests[..guests.len().min(6 / workers as usize)];
        let grant_words = ["copy", "map", "mapped", "new", "shared"];
        let offload_words = ["none", "checksum", "tso"];
        let slots = 256 << slots;
        let mut text = format!(
            "[driver]\nworkers = {workers}\ngrants = \"{}\"\noffloads = \"{}\"\n[ring]\nslots = {slots}\n\
             [buffers]\nto_guest = {buffers}\n[[nic]]\nname = \"n\"\nkind = \"tap\"\n",
            grant_words[grants], offload_words[offloads],
        );
        for (n, (vifs, rate, weight, touch)) in guests.iter().enumerate() {
            let _ = writeln!(text, "[[guest]]\nname = \"g{n}\"");
            for _ in 0..*vifs {
                let _ = writeln!(text, "[[guest.vif]]\nendpoint = \"sink\"\ntouch = {touch}\nweight = {weight}");
                if let Some(rate) = rate {
                    let _ = writeln!(text, "rate_mbps = {rate}");
                }
            }
        }
        let config = parse("f", &text).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let modes = [GrantMode::Copy, GrantMode::Map, GrantMode::Mapped, GrantMode::New, GrantMode::Shared];
        prop_assert_eq!(config.driver.grants, modes[grants]);
        prop_assert_eq!(config.driver.workers, workers);
        prop_assert_eq!(config.ring.slots, slots);
        prop_assert_eq!(config.buffers.to_guest, buffers);
        prop_assert_eq!(config.guests.len(), guests.len());
        for (read, (vifs, rate, weight, touch)) in config.guests.iter().zip(guests) {
            prop_assert_eq!(read.vifs.len(), *vifs);
            for vif in &read.vifs {
                let want = Vif { rate_mbps: rate.map(f64::from), weight: *weight, ..Vif::new(Endpoint::Sink { touch: *touch }) };
                prop_assert_eq!(vif, &want);
            }
        }
        let machine = config.machine().map_err(|e| TestCaseError::fail(e.to_string()))?;
        // Slots of the window are each kept for one vif.
        for worker in machine.domains.iter().take(workers as usize) {
            let driver: DriverConfig = serde_json::from_str(&worker.config).unwrap();
            let mut next = 0;
            for (vif, conn) in driver.vifs.iter().zip(0..) {
                prop_assert_eq!((vif.conn, vif.first_slot), (conn, next));
                next += vif.slots;
                // The sub-tables of the new mechanism lie behind its pages.
                prop_assert_eq!(vif.tables_slot, next);
                if config.driver.grants.is_new() {
                    next += abi::ngm::table_slots(vif.slots);
                }
            }
            prop_assert_eq!(worker.window_slots, next);
        }
        for domain in &machine.domains {
            prop_assert!(domain.grant_entries.is_power_of_two());
        }
    }
}
