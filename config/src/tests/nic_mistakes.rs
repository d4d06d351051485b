//! Tests of rejected configurations of NICs, queues and uplinks, and their messages.

use super::*;
use crate::domain::{DriverConfig, NicKindConfig};
use abi::machine::{Device, Netdev};

#[test]
fn dedicated_queues_have_requirements() {
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
    expect(
        &local,
        5,
        "`queues` is \"vmq\"",
        "\"xdp\", \"sim\" or \"soft\"",
    );
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
fn an_af_xdp_wire_is_a_veth_or_an_existing_interface() {
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
    // Its rings precede the guests' grants.
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
    // The buffers follow those of the first NIC and its pages for linearized aggregates.
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
            "a guest permanently has the queue",
        ),
    ] {
        let text = mistake(wire, &format!("kind = \"xdp\"\n{to}"));
        assert!(text.starts_with(&format!("f.toml:{line}: ")), "{text}");
        assert!(text.contains(what), "{text}");
    }
    let twice = "kind = \"xdp\"\nnetdev = \"e\"\n[[nic]]\nname = \"x\"\nkind = \"xdp\"\n\
                 netdev = \"e\"";
    assert!(mistake(wire, twice).contains("the interface e is also that of"));
}

#[test]
fn a_nic_has_the_written_number_of_queues() {
    let text = SMALL.replacen(
        "kind = \"tap\"",
        "kind = \"tap\"\nqueues = \"vmq\"\nvmq_queues = 5",
        1,
    );
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let driver = &machine.domains[0];
    let text: DriverConfig = serde_json::from_str(&driver.config).unwrap();
    let Device::Tap(tap) = &driver.devices[0] else {
        panic!("{:?}", driver.devices)
    };
    assert!(text.vifs.len() < 5);
    assert_eq!(tap.queues, 5);
    assert_eq!(driver.devices[1..], [const { Device::TapQueue }; 5]);
    let NicKindConfig::Tap { device, queues, .. } = &text.nics[0].kind else {
        panic!("{:?}", text.nics)
    };
    assert_eq!((*device, &queues[..]), (0, &[1, 2, 3, 4, 5][..]));
    assert_eq!(text.nics[0].settings.vmq.map(|vmq| vmq.queues), Some(5));
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
            "the driver has 2 `workers`, but this NIC has one queue",
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
        text.contains("\"driver-2\" is reserved for the driver domain"),
        "{text}"
    );
    assert!(parse("f", &with("2", guest, "name = \"driver-2\"")).is_ok());
    for workers in ["0", "17"] {
        let text = errors(&with(workers, guest, guest));
        assert!(text.contains("write a number from 1 to 16"), "{text}");
    }
}

#[test]
fn uplinks_require_and_exclude_keys() {
    let nic = |keys: &str| format!("[[nic]]\nname = \"up\"\n{keys}\n");
    let nat = "uplink = { nat = true }";
    let net = "addresses = [\"10.7.0.1/24\"]";
    for (keys, message) in [
        (
            format!("kind = \"xdp\"\n{net}\n{nat}"),
            "5: [[nic]] 1: `kind` is \"xdp\" and `uplink` is set; write kind = \"tap\"",
        ),
        (
            format!("kind = \"tap\"\n{nat}"),
            "4: [[nic]] 1: `uplink` has `nat`, but `addresses` is empty",
        ),
        (
            format!("kind = \"tap\"\n{net}\ngateway = \"10.7.0.9\"\n{nat}"),
            "5: [[nic]] 1: `uplink` has `nat`, and `gateway` is set",
        ),
        (
            format!("kind = \"tap\"\n{net}\nuplink = \"br0\""),
            "5: [[nic]] 1: `uplink` is the bridge br0, but the NIC has addresses",
        ),
        (
            "kind = \"tap\"\nuplink = \"a bridge\"".into(),
            "4: [[nic]] 1: `uplink` is \"a bridge\"; use 1 to 15 letters",
        ),
        (
            "kind = \"tap\"\nuplink = 7".into(),
            "4: [[nic]] 1: `uplink` is 7; write a text in quotes or a section [nic.uplink]",
        ),
        (
            "kind = \"sim\"\nuplink = \"br0\"".into(),
            "4: [[nic]] 1: unknown key `uplink`",
        ),
        (
            format!("kind = \"tap\"\n{net}\nuplink = {{ forward = [] }}"),
            "5: [[nic]] 1: `nat` is missing; write nat = true, or uplink = \"br0\"",
        ),
        (
            format!("kind = \"tap\"\n{net}\nuplink = {{ nat = true, forward = [\"80\"] }}"),
            "5: [[nic]] 1: `forward` is \"80\"; write it like [\"tcp:8080=10.0.0.2:80\"]",
        ),
    ] {
        let text = errors(&nic(&keys));
        assert!(text.starts_with(&format!("f.toml:{message}")), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    for (forward, what) in [
        ("\"tcp:0=10.7.0.2:80\"", "but 0 is not a port"),
        (
            "\"tcp:80=10.8.0.2:80\"",
            "but this address is in none of the networks",
        ),
        (
            "\"tcp:80=10.7.0.2:80\", \"tcp:80=10.7.0.3:80\"",
            "but this port is already forwarded",
        ),
    ] {
        let keys =
            format!("kind = \"tap\"\n{net}\nuplink = {{ nat = true, forward = [{forward}] }}");
        let text = errors(&nic(&keys));
        assert!(text.contains(what), "{text}");
    }
}

/// The size of the rings must fit the buffers, and interrupt moderation requires a driver that
/// sleeps.
#[test]
fn rings_of_a_device_are_checked() {
    let wire = "kind = \"tap\"\nnetns = \"w\"\n";
    let good = "kind = \"soft\"\ndevice = \"driver\"\nqueues = \"vmq\"\nrate_mbps = 1000\n";
    assert!(parse("f.toml", &SMALL.replacen(wire, good, 1)).is_ok());
    for (keys, what, remedy) in [
        ("descriptors = 100", "`descriptors` is 100", "64, 128, 256"),
        (
            "descriptors = 8192",
            "`descriptors` is 8192",
            "64, 128, 256",
        ),
        (
            "descriptors = 1024",
            "`descriptors` is 1024 and `buffers` is 1024",
            "`buffers` of at least 2048",
        ),
        (
            "interrupt_us = 10001",
            "`interrupt_us` is 10001",
            "from 0 to 10000",
        ),
        (
            "interrupt_frames = 5000",
            "`interrupt_frames` is 5000",
            "from 0 to 4096",
        ),
        (
            "vmq_rebalance_ms = 1\nqueues = \"vmq\"",
            "`vmq_rebalance_ms` is set",
            "a guest permanently has the queue",
        ),
        (
            "interrupt_us = 50\nmoderation = \"spin\"",
            "`interrupt_us` is set and `moderation` is not \"event\"",
            "leave one of them out",
        ),
    ] {
        let text = mistake(wire, &format!("kind = \"soft\"\n{keys}\n"));
        assert!(text.starts_with("f.toml:5: [[nic]] 1: "), "{text}");
        assert!(text.contains(what) && text.contains(remedy), "{text}");
    }
    for (keys, wrong) in [
        ("wire = \"cable\"", "`wire`"),
        (
            "wire = \"tap\"\ndevice = \"driver\"",
            "`device` is \"driver\"",
        ),
        ("wire = \"tap\"\nnetns = \"w\"\ndelay_us = 5", "`delay_us`"),
        ("wire = \"memory\"\nnetns = \"w\"", "`netns`"),
        ("wire = \"memory\"\nallow_overlap = true", "`allow_overlap`"),
        ("wire = \"tap\"\nuplink = \"br0\"", "`uplink`"),
        ("cpus = [0]\ndevice = \"driver\"", "`cpus` is set"),
        ("cpus = [100000]", "`cpus` has 100000"),
        ("lro = true\ndevice = \"driver\"", "`lro` is true"),
        (
            "header_split = true\ndevice = \"driver\"",
            "`header_split` is true and `device` is \"driver\"",
        ),
        (
            "header_split = true\nlro = true",
            "`header_split` is true and `lro` is true",
        ),
        ("header_split = true\nmtu = 2048", "at most 2029"),
    ] {
        let text = mistake(wire, &format!("kind = \"soft\"\n{keys}\n"));
        assert!(text.contains(wrong), "{text}");
    }
    let text = mistake(wire, "kind = \"sim\"\ndescriptors = 256\n");
    assert!(text.contains("`descriptors`"), "{text}");
}

#[test]
fn generator_of_frames_is_checked() {
    let wire = "kind = \"tap\"\nnetns = \"w\"\naddresses = [\"10.0.0.1/24\"]\n";
    let to = "to = \"02:00:00:00:00:01\"";
    for (keys, wrong) in [
        ("", "`to` is missing; write the MAC"),
        ("to = \"00:00:00:00:00:00\"", "`to` is 00:00:00:00:00:00"),
        (&format!("{to}\nsize = 59"), "`size` is 59"),
        (&format!("{to}\nsize = 1515"), "`size` is 1515"),
        (&format!("{to}\ndelay_us = 5"), "`delay_us`"),
        (
            &format!("{to}\naddresses = [\"10.0.0.1/24\"]"),
            "`addresses`",
        ),
        (
            &format!("{to}\ndevice = \"driver\""),
            "`wire` is \"source\" and `device` is \"driver\"",
        ),
    ] {
        let text = mistake(
            wire,
            &format!("kind = \"soft\"\nwire = \"source\"\n{keys}\n"),
        );
        assert!(text.contains(wrong), "{text}");
    }
    let text = mistake(wire, &format!("kind = \"soft\"\n{to}\n"));
    assert!(text.contains("`to`"), "{text}");
}
