//! Tests of the machine of a configuration.

use super::*;
use crate::CONNECTIONS;
use crate::MacAddress;
use crate::domain::{BufferSize, DriverConfig, GuestConfig, NicKindConfig};
use abi::machine::{Device, Forward, Ipv6Settings, Nat, PortProtocol, Uplink};

#[test]
fn workers_share_only_taps() {
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

    // The first worker creates the TAP, with a queue for each of the others.
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

    // A guest's connections are in the order of its queues, those of a worker in the order of
    // interfaces.
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

    // A limit applies to the sum of all workers.
    for worker in &machine.domains[..3] {
        let text: DriverConfig = serde_json::from_str(&worker.config).unwrap();
        assert_eq!((text.driver.broadcast_pps, text.reports_to_all), (34, true));
        assert_eq!(text.nics[0].settings.rate_mbps, Some(300.0));
        assert_eq!(text.vifs[0].settings.rate_mbps, Some(10.0));
        let conns: Vec<_> = text.vifs.iter().map(|vif| vif.conn).collect();
        assert_eq!(conns, [0, 1]);
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
    // The slots of a guest's table follow those of its pages.
    let tables = abi::counted::table_slots(1024);
    assert_eq!(driver.window_slots, 2 * (1024 + tables));
    let text: DriverConfig = serde_json::from_str(&driver.config).unwrap();
    assert_eq!(
        text.vifs
            .iter()
            .map(|v| (v.conn, v.first_slot, v.slots))
            .collect::<Vec<_>>(),
        [(0, 0, 1024), (1, 1024 + tables, 1024)]
    );
    assert!(matches!(
        text.nics[0].kind,
        NicKindConfig::Tap {
            device: 0,
            vnet_header: false,
            checksum: false,
            ..
        }
    ));
    let guest: GuestConfig = serde_json::from_str(&a.config).unwrap();
    assert_eq!(
        (guest.vifs[0].pool_pages, guest.vifs[0].buffers.to_guest),
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
        driver: DriverSection {
            grants: GrantMode::Copy,
            ..DriverSection::default()
        },
        ..config
    };
    assert!(copy.machine().unwrap().domains[0].frames > driver.frames);
}

#[test]
fn the_driver_knows_each_guests_addresses() {
    let text = SMALL.replace(
        "addresses = [\"10.0.0.2/24\"]",
        "addresses = [\"10.0.0.2/24\"]\ngateway = \"10.0.0.254\"",
    );
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    let texts = |addresses: &[std::net::IpAddr]| -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    };
    assert_eq!(texts(&driver.nics[0].addresses), ["10.0.0.1"]);
    assert_eq!(texts(&driver.vifs[0].guard.addresses), ["10.0.0.2"]);
    assert_eq!(texts(&driver.vifs[1].guard.addresses), ["10.0.0.3"]);
}

#[test]
fn spinning_and_waking_follow_from_the_cpus() {
    let spin = |driver: &str, guest: &str| {
        let text = SMALL.replace("\n[[nic]]", &format!("{driver}\n[[nic]]"));
        let text = text.replace("name = \"a\"\n", &format!("name = \"a\"\n{guest}\n"));
        let text = text.replace("name = \"b\"\n", &format!("name = \"b\"\n{guest}\n"));
        let machine = parse("f", &text).unwrap().machine().unwrap();
        let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
        let guest: GuestConfig = serde_json::from_str(&machine.domains[1].config).unwrap();
        let adapts = [(driver.adapts, driver.yields), (guest.adapts, guest.yields)];
        assert!(adapts.iter().all(|(adapts, yields)| adapts == yields));
        let adapts = adapts.map(|(adapts, _)| adapts);
        (
            [driver.driver.spin_us.unwrap(), guest.spin_us],
            adapts,
            driver.notify_us,
        )
    };
    // If the file names no CPUs, each domain adapts its polling time.
    assert_eq!(spin("", ""), ([50, 50], [true, true], 300));
    // Here a guest may run on the driver domain's CPU.
    let pinned = "[driver]\ncpus = [1]";
    assert_eq!(spin(pinned, ""), ([0, 50], [false, true], 300));
    assert_eq!(
        spin(pinned, "cpus = [0, 1, 2]"),
        ([0, 0], [false, false], 300)
    );
    // Here the driver domain has a separate CPU.
    let apart = "cpus = [0, 2]";
    assert_eq!(spin(pinned, apart), ([50, 50], [false, false], 0));
    let given = "[driver]\ncpus = [1]\nspin_us = 5";
    assert_eq!(spin(given, apart), ([5, 50], [false, false], 0));
    let none = "[driver]\nspin_us = 0";
    assert_eq!(spin(none, "spin_us = 0"), ([0, 0], [false, false], 300));
}

#[test]
fn guests_that_outnumber_cpus_yield() {
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

/// The kernel's end and the driver domain have the same settings. A segment fits the guests'
/// buffers even if these are half pages.
#[test]
fn a_wire_may_pass_unsegmented_packets() {
    for (word, [header, checksum, tso]) in [
        ("none", [false, false, false]),
        ("checksum", [true, true, false]),
        ("tso", [true, true, true]),
    ] {
        let keys = format!("kind = \"tap\"\noffloads = \"{word}\"\nqueues = \"vmq\"");
        let text = SMALL.replacen("kind = \"tap\"", &keys, 1);
        let machine = parse("f", &text).unwrap().machine().unwrap();
        let driver = &machine.domains[0];
        let Device::Tap(tap) = &driver.devices[0] else {
            panic!("{:?}", driver.devices)
        };
        let kernel = [tap.vnet_header, tap.checksum, tap.tso];
        assert_eq!(kernel, [header, checksum, tso], "{word}");
        let parsed: DriverConfig = serde_json::from_str(&driver.config).unwrap();
        let NicKindConfig::Tap {
            vnet_header,
            checksum,
            tso,
            ..
        } = parsed.nics[0].kind
        else {
            panic!("{:?}", parsed.nics[0])
        };
        assert_eq!([vnet_header, checksum, tso], kernel, "{word}");
    }
}

/// Every worker's queue has a thread, because the first worker's device creates all queues.
#[test]
fn a_wire_may_have_napi_threads() {
    for (keys, wanted) in [
        ("", false),
        ("napi_threads = false", false),
        ("napi_threads = true", true),
    ] {
        let text = SMALL.replacen("kind = \"tap\"", &format!("kind = \"tap\"\n{keys}"), 1);
        let machine = parse("f", &text).unwrap().machine().unwrap();
        let Device::Tap(tap) = &machine.domains[0].devices[0] else {
            panic!("{:?}", machine.domains[0].devices)
        };
        assert_eq!(tap.napi_threads, wanted, "{keys}");
        let json = serde_json::to_string(tap).unwrap();
        assert_eq!(json.contains("napi_threads"), wanted, "{json}");
    }
    for kind in ["kind = \"local\"", "kind = \"xdp\"", "kind = \"sim\""] {
        let text = SMALL.replacen("kind = \"tap\"", &format!("{kind}\nnapi_threads = true"), 1);
        let error = parse("f", &text).unwrap_err().to_string();
        assert!(error.contains("`napi_threads`"), "{kind}: {error}");
    }
}

/// Buffers are whole pages for segments between kernels, and half pages for frames of wires and of
/// user space.
#[test]
fn buffer_size_follows_from_the_endpoints() {
    let guest = |name: &str, keys: &str| {
        format!("[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nnetns = \"{name}\"\n{keys}\n")
    };
    let tap = |name: &str| guest(name, "endpoint = \"tap\"");
    let local = "[[nic]]\nname = \"l\"\nkind = \"local\"\n";
    let wire = "[[nic]]\nname = \"w\"\nkind = \"tap\"\noffloads = \"tso\"\n";
    let sink = "[[guest]]\nname = \"s\"\n[[guest.vif]]\nendpoint = \"sink\"\n";
    let (a, b) = (tap("a"), tap("b"));
    let plain = guest("p", "endpoint = \"tap\"\noffloads = \"checksum\"");
    let (half, full) = (BufferSize::Half, BufferSize::Full);
    for (text, size) in [
        (format!("{a}{b}"), full),
        (format!("{local}{a}"), full),
        (format!("{wire}{a}{b}"), half),
        (format!("{local}{wire}{a}"), half),
        (format!("{a}{sink}"), half),
        (format!("{a}{plain}"), half),
        (local.to_owned(), half),
        (format!("[driver]\noffloads = \"none\"\n{a}{b}"), half),
        (format!("[buffers]\nsize = \"half\"\n{a}{b}"), half),
        (format!("[buffers]\nsize = \"full\"\n{wire}{a}"), full),
    ] {
        let config = parse("f", &text).unwrap();
        assert_eq!(config.buffers.size, size, "{text}");
        let machine = config.machine().unwrap();
        for domain in machine.domains.iter().filter(|d| d.name == "a") {
            let parsed: GuestConfig = serde_json::from_str(&domain.config).unwrap();
            assert_eq!(parsed.vifs[0].buffers.size, size, "{text}");
        }
    }
}

/// An uplink passes segments by default. Only the device of the TAP has the uplink.
#[test]
fn an_uplink_belongs_to_its_tap() {
    let of = |keys: &str| {
        let text = format!("[[nic]]\nname = \"up\"\nkind = \"tap\"\n{keys}\n");
        let config = parse("f", &text).unwrap();
        let machine = config.machine().unwrap();
        let Device::Tap(tap) = machine.domains[0].devices[0].clone() else {
            panic!("{machine:?}")
        };
        tap
    };
    let tap = of("uplink = \"br0\"");
    assert_eq!(tap.uplink, Some(Uplink::Bridge("br0".into())));
    assert!(tap.tso && tap.checksum && tap.vnet_header);
    let tap = of("uplink = \"br0\"\noffloads = \"none\"");
    assert!(!tap.vnet_header);
    let tap = of("addresses = [\"10.7.0.1/24\"]\n[nic.uplink]\nnat = true\n\
         forward = [\"tcp:80=10.7.0.2:8080\"]");
    let forward = Forward {
        transport: PortProtocol::Tcp,
        port: 80,
        to: "10.7.0.2:8080".parse().unwrap(),
    };
    let forward = vec![forward];
    let nat = Nat {
        forward,
        connections: CONNECTIONS,
    };
    assert_eq!(tap.uplink, Some(Uplink::Nat(nat)));
    assert!(tap.tso);
    let tap = of("addresses = [\"10.7.0.1/24\"]\n[nic.uplink]\nnat = true\nconnections = 0");
    assert_eq!(tap.uplink, Some(Uplink::Nat(Nat::default())));
    let written = serde_json::to_string(&tap).unwrap();
    assert_eq!(
        serde_json::from_str::<abi::machine::Tap>(&written).unwrap(),
        tap
    );
}

#[test]
fn ipv6_settings_default_from_addresses() {
    let parsed = |keys: &str| {
        let text = format!(
            "[[guest]]\nname = \"a\"\n[[guest.vif]]\nendpoint = \"tap\"\nnetns = \"a\"\n{keys}"
        );
        let machine = parse("f", &text).unwrap().machine().unwrap();
        match &machine.domains[1].devices[..] {
            [Device::Tap(tap)] => (tap.ipv6.unwrap(), tap.allow_overlap),
            other => panic!("{other:?}"),
        }
    };
    let with = "addresses = [\"10.0.0.2/24\"]\n";
    assert_eq!(parsed(""), (Ipv6Settings::default(), false));
    assert_eq!(parsed(with), (Ipv6Settings::NO_SOLICITATION, false));
    let given = parsed(&format!("{with}accept_ra = 2\nallow_overlap = true\n"));
    let accepts = Ipv6Settings {
        accept_ra: Some(2),
        ..Ipv6Settings::NO_SOLICITATION
    };
    assert_eq!(given, (accepts, true));
    let wrong = errors(&SMALL.replacen("netns = \"a\"", "netns = \"a\"\naccept_dad = 3", 1));
    assert!(
        wrong.contains("accept_dad") && wrong.contains("0 to 2"),
        "{wrong}"
    );
    let nic = errors(&SMALL.replacen("netns = \"w\"", "netns = \"w\"\naccept_ra = 1", 1));
    assert!(nic.contains("accept_ra"), "{nic}");
}

/// The device of a NIC is a domain, to which the driver domain's first connection leads.
#[test]
fn device_of_a_nic_is_a_domain() {
    let wire = "kind = \"tap\"\nnetns = \"w\"\n";
    let of = |keys: &str| {
        let text = SMALL.replacen(wire, &format!("kind = \"soft\"\n{keys}"), 1);
        parse("f", &text).unwrap().machine().unwrap()
    };
    for mbps in [1000, 10_000, 25_000] {
        let machine = of(&format!("rate_mbps = {mbps}\ndescriptors = 512\n"));
        let names: Vec<_> = machine.domains.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["driver", "a", "b", "device-wire"]);
        let last = machine.connections.last().unwrap();
        assert_eq!((&*last.backend, &*last.frontend), ("device-wire", "driver"));
        let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
        assert_eq!(
            driver.vifs.iter().map(|v| v.conn).collect::<Vec<_>>(),
            [1, 2]
        );
        let NicKindConfig::Device {
            conn, descriptors, ..
        } = driver.nics[0].kind
        else {
            panic!("{:?}", driver.nics[0].kind);
        };
        assert_eq!((conn, descriptors), (0, 512));
        let device = &machine.domains[3];
        let device_config: crate::domain::DeviceConfig =
            serde_json::from_str(&device.config).unwrap();
        assert_eq!(device_config.rate_mbps, Some(f64::from(mbps)));
        assert!(machine.domains[0].grant_entries >= device_config.pages);
        assert!(device.window_slots > device_config.pages && device.devices.is_empty());
    }
    let machine = of("device = \"driver\"\n");
    assert_eq!(machine.domains.len(), 3);
}

#[test]
fn device_domain_has_its_wires_tap() {
    let wire = "kind = \"tap\"\nnetns = \"w\"\n";
    let soft = "kind = \"soft\"\nwire = \"tap\"\nnetns = \"w\"\ncpus = [1]\n";
    let text = SMALL.replacen(wire, soft, 1);
    let machine = parse("f", &text).unwrap().machine().unwrap();
    assert!(machine.domains[0].devices.is_empty());
    let mut domains = machine.domains.iter();
    let device = domains.find(|domain| domain.name == "device-wire").unwrap();
    assert_eq!(device.cpus, [1]);
    let [Device::Tap(tap)] = device.devices.as_slice() else {
        panic!("{:?}", device.devices);
    };
    let (netns, offloads) = (tap.netns.as_deref(), tap.vnet_header);
    assert_eq!((&*tap.ifname, netns, offloads), ("wire", Some("w"), false));
    let device_config: crate::domain::DeviceConfig = serde_json::from_str(&device.config).unwrap();
    assert_eq!(
        device_config.wire,
        crate::domain::WireConfig::Tap { device: 0 }
    );
}

#[test]
fn device_domain_generates_frames() {
    let wire = "kind = \"tap\"\nnetns = \"w\"\naddresses = [\"10.0.0.1/24\"]\n";
    let soft = "kind = \"soft\"\nwire = \"source\"\nto = \"02:00:00:00:00:07\"\nsize = 64\n";
    let text = SMALL.replacen(wire, soft, 1);
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let mut domains = machine.domains.iter();
    let device = domains.find(|domain| domain.name == "device-wire").unwrap();
    assert!(device.devices.is_empty());
    let device_config: crate::domain::DeviceConfig = serde_json::from_str(&device.config).unwrap();
    let source = crate::domain::FrameSource {
        to: MacAddress([2, 0, 0, 0, 0, 7]),
        size: 64,
    };
    assert_eq!(
        (device_config.wire, device_config.buffers),
        (crate::domain::WireConfig::Source(source), 0)
    );
}

#[test]
fn guest_cannot_have_a_devices_name() {
    let wire = "kind = \"tap\"\nnetns = \"w\"\n";
    let text = SMALL.replacen(wire, "kind = \"soft\"\n", 1);
    let text = text.replacen("name = \"a\"", "name = \"device-wire\"", 1);
    let wrong = parse("f", &text).unwrap_err().to_string();
    assert!(wrong.contains("the device of NIC wire"), "{wrong}");
}
