//! Tests of dedicated queues of AF_XDP NICs and of devices in separate domains.

use crate::domain::{BufferSize, DeviceConfig, DriverConfig, GuestConfig};
use crate::parse;
use abi::firewall::{RuleLists, RulePrefix, RuleRecord};
use abi::machine::Device;

const MACHINE: &str = r#"
[driver]
grants = "counted"

[[nic]]
name = "wire"
kind = "xdp"
netns = "w"
queues = "vmq"
vmq_queues = 3

[[guest]]
name = "a"

[[guest.vif]]
endpoint = "sink"
pdev = "wire:2"

[[guest]]
name = "b"

[[guest.vif]]
endpoint = "sink"

[[guest.vif]]
endpoint = "sink"
pdev = "wire:1"
"#;

#[test]
fn a_dedicated_queue_covers_the_receive_pool() {
    for (buffers, size, pages) in [
        ("to_guest = 300", BufferSize::Half, 150),
        ("size = \"full\"\nto_guest = 96", BufferSize::Full, 96),
    ] {
        let text = format!("[buffers]\n{buffers}\n{MACHINE}");
        let machine = parse("f", &text).unwrap().machine().unwrap();
        let [driver, a, b] = machine.domains.as_slice() else {
            panic!("{machine:?}")
        };
        let [
            Device::Xdp(wire),
            Device::XdpQueue(of_a),
            Device::XdpQueue(of_b),
        ] = driver.devices.as_slice()
        else {
            panic!("{:?}", driver.devices)
        };
        assert_eq!(wire.queues, 3);
        assert_eq!((of_a.queue, of_a.guest.as_str()), (2, "a"));
        assert_eq!((of_b.queue, of_b.guest.as_str()), (1, "b"));
        let config: DriverConfig = serde_json::from_str(&driver.config).unwrap();
        assert_eq!(
            config.nics[0].settings.vmq, None,
            "its queues are not assigned by load"
        );
        for (vif, queue, device) in [(0, of_a, 1), (2, of_b, 2)] {
            let own = config.vifs[vif].queue.unwrap();
            assert_eq!((own.nic, own.device), (0, device));
            assert_eq!(own.rings_slot, queue.rings_slot);
            assert_eq!(config.vifs[vif].mac, queue.mac);
            assert_eq!(
                (queue.frames, queue.chunk_bytes),
                (pages, size.bytes() as u32)
            );
            let chunks = pages * size.per_page();
            assert!(queue.entries.is_power_of_two() && queue.entries >= chunks);
        }
        assert_eq!(config.vifs[1].queue, None);
        // The slots of the rings are separate and precede the guests' grants.
        let slots = 2 * abi::xdp::Ring::slots(of_a.entries);
        assert_eq!(of_b.rings_slot, of_a.rings_slot + slots);
        assert_eq!(config.vifs[0].first_slot, of_b.rings_slot + slots);
        // A guest's pool follows its rings and its event page.
        let guests = [a, b].map(|domain| {
            let config: GuestConfig = serde_json::from_str(&domain.config).unwrap();
            config
                .vifs
                .iter()
                .map(|vif| vif.rx_pool)
                .collect::<Vec<_>>()
        });
        assert_eq!(guests[0], [Some(of_a.first_frame)]);
        assert_eq!(guests[1], [None, Some(of_b.first_frame)]);
        assert_eq!(of_a.first_frame, 2 * 4 + 1);
        assert!(of_b.first_frame > 2 * of_a.first_frame + pages);
        assert!(of_b.first_frame + pages <= b.frames);
    }
}

/// The monitor receives only the rules between the wire and the guest, in the order of their
/// evaluation.
#[test]
fn monitor_receives_the_rules_before_a_queue() {
    let rules = "[[nic.rule]]\naction = \"deny\"\ndirection = \"to-wire\"\n\
                 [[nic.rule]]\naction = \"allow\"\nprotocol = \"tcp\"\ndirection = \"from-wire\"\n";
    let text = MACHINE.replacen("[[guest]]", &format!("{rules}[[guest]]"), 1);
    let own = "pdev = \"wire:1\"\n[[guest.vif.rule]]\naction = \"deny\"\nprotocol = \"udp\"\n\
               source = \"10.0.0.0/8\"\ndestination_ports = \"53-54\"\n[[guest.vif.rule]]\n\
               action = \"deny\"\ndirection = \"from-guest\"\n";
    let text = text.replacen("pdev = \"wire:1\"\n", own, 1);
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let rules = machine.domains[0]
        .devices
        .iter()
        .map(|device| match device {
            Device::XdpQueue(queue) => queue.rules.clone(),
            _ => RuleLists::default(),
        });
    let [wire, of_a, of_b] = &rules.collect::<Vec<_>>()[..] else {
        panic!("{machine:?}")
    };
    assert!(wire.is_empty());
    let any = |allow, protocol| RuleRecord {
        allow,
        protocol: Some(protocol),
        ..RuleRecord::default()
    };
    assert_eq!(of_a.from_wire, [any(true, 6)]);
    assert_eq!(of_a.to_guest, []);
    assert_eq!(of_b.from_wire, of_a.from_wire);
    let denied = RuleRecord {
        source: Some(RulePrefix {
            address: [10, 0, 0, 0].into(),
            bits: 8,
        }),
        destination_ports: Some((53, 54)),
        ..any(false, 17)
    };
    assert_eq!(of_b.to_guest, [denied]);
}

#[test]
fn invalid_queues_have_a_line_and_a_remedy() {
    for (from, to, line, what, remedy) in [
        ("wire:2", "wire", 17, "\"wire\"", "write it like \"wire:1\""),
        ("wire:2", "wire:-1", 17, "\"wire:-1\"", "write it like"),
        ("wire:2", "other:1", 17, "no NIC is named other", "[[nic]]"),
        ("wire:2", "wire:4", 17, "wire:4", "1 to 3"),
        ("wire:2", "wire:0", 17, "wire:0", "1 to 3"),
        ("wire:2", "wire:1", 27, "is also that of", "another queue"),
        (
            "\"counted\"",
            "\"persistent\"",
            17,
            "not \"counted\"",
            "grants = \"counted\"",
        ),
        (
            "kind = \"xdp\"",
            "kind = \"tap\"",
            17,
            "no dedicated queues",
            "leave it out",
        ),
        (
            "queues = \"vmq\"\nvmq_queues = 3",
            "",
            16,
            "no dedicated queues",
            "\"vmq\"",
        ),
        (
            "[driver]",
            "[buffers]\nspare = 8\n[driver]",
            19,
            "`spare`",
            "leave one",
        ),
    ] {
        assert!(MACHINE.contains(from), "{from}");
        let text = parse("f.toml", &MACHINE.replacen(from, to, 1)).unwrap_err();
        let text = text.to_string();
        let first = text.lines().next().unwrap();
        assert!(first.starts_with(&format!("f.toml:{line}: ")), "{text}");
        assert!(first.contains(what) && first.contains(remedy), "{text}");
    }
}

/// Returns the machine with a device domain as its wire.
fn with_soft_wire() -> String {
    let wire = "kind = \"soft\"\naddresses = [\"10.0.0.9/24\"]";
    MACHINE.replacen("kind = \"xdp\"\nnetns = \"w\"", wire, 1)
}

/// The window of a device domain has a part for each guest with a queue. These parts follow the
/// driver domain's pages.
#[test]
fn device_window_fits_the_grants_of_guests() {
    let spare = format!("[buffers]\nto_guest = 300\nspare = 8\n{}", with_soft_wire());
    let machine = parse("f", &spare).unwrap().machine().unwrap();
    let [driver, .., device] = machine.domains.as_slice() else {
        panic!("{machine:?}")
    };
    let driver: DriverConfig = serde_json::from_str(&driver.config).unwrap();
    let device_config: DeviceConfig = serde_json::from_str(&device.config).unwrap();
    assert_eq!(device_config.queues, 3);
    let [Some(of_a), None, Some(of_b)] = [0, 1, 2].map(|vif| driver.vifs[vif].device_queue) else {
        panic!("{:?}", driver.vifs)
    };
    assert_eq!((of_a.queue, of_b.queue), (2, 1));
    assert_eq!((of_a.nic, of_a.conn, of_a.buffers), (0, 0, 300));
    assert_eq!(of_a.first_slot, device_config.guests_slot);
    assert_eq!(of_b.first_slot, of_a.first_slot + driver.vifs[0].slots);
    let all = driver.vifs[0].slots + driver.vifs[2].slots;
    assert_eq!(device_config.guests_slots, all);
    assert_eq!(device.window_slots, device_config.guests_slot + all);
    assert!(device_config.guests_slot > device_config.pages);
}

/// A device writes a frame into the guest's page before any rule is evaluated.
#[test]
fn rules_before_a_device_queue_are_rejected() {
    let soft = with_soft_wire();
    assert!(parse("f", &soft).is_ok());
    let of_nic = "[[nic.rule]]\naction = \"deny\"\nprotocol = \"udp\"\n[[guest]]";
    let of_vif = "pdev = \"wire:1\"\n[[guest.vif.rule]]\naction = \"deny\"\nprotocol = \"udp\"\n";
    for (from, to) in [("[[guest]]", of_nic), ("pdev = \"wire:1\"\n", of_vif)] {
        let text = parse("f", &soft.replacen(from, to, 1)).unwrap_err();
        assert!(text.to_string().contains("rules apply to frames"), "{text}");
    }
    let sent = of_vif.replace("\"udp\"", "\"udp\"\ndirection = \"from-guest\"");
    assert!(parse("f", &soft.replacen("pdev = \"wire:1\"\n", &sent, 1)).is_ok());
}
