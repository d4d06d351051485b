//! Tests of NICs whose device is a PCI device.

use crate::domain::{DriverConfig, NicKindConfig};
use crate::parse;
use abi::machine::Device;
use abi::pci::{Structure, WINDOW_SLOTS};

const MACHINE: &str = r#"
[[nic]]
name = "wire"
kind = "vfio"
device = "0000:00:03.0"

[[guest]]
name = "a"

[[guest.vif]]
endpoint = "sink"
"#;

#[test]
fn pci_device_accesses_buffers_and_queues() {
    let text = format!("{MACHINE}\n[[nic]]\nname = \"x\"\nkind = \"xdp\"\nnetdev = \"eth1\"\n");
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let driver = &machine.domains[0];
    let [Device::Pci(pci), Device::Xdp(xdp)] = driver.devices.as_slice() else {
        panic!("{:?}", driver.devices)
    };
    assert_eq!(pci.address, "0000:00:03.0");
    let config: DriverConfig = serde_json::from_str(&driver.config).unwrap();
    let nic = &config.nics[0];
    let NicKindConfig::Vfio {
        device,
        registers_slot,
        descriptors,
    } = nic.kind
    else {
        panic!("{:?}", nic.kind)
    };
    assert_eq!(
        (device, registers_slot, descriptors),
        (0, pci.registers_slot, 256)
    );
    assert_eq!((pci.first_frame, pci.entries), (0, 256));
    assert_eq!(pci.frames, nic.settings.buffers / 2 + nic.ring_pages());
    // Each queue of 256 entries takes 2 + 1 pages, and 256 frames in slots of 1530 bytes take 96.
    assert_eq!(nic.ring_pages(), 2 * (2 + 1) + 128);
    assert_eq!(xdp.rings_slot, Structure::ALL.len() as u32 * WINDOW_SLOTS);
    assert!(xdp.first_frame >= pci.frames);
}

#[test]
fn mistakes_of_a_pci_device_have_remedies() {
    for (from, to, line, what, remedy) in [
        (
            "device = \"0000:00:03.0\"",
            "",
            2,
            "`device`",
            "write device",
        ),
        ("0000:00:03.0", "00:03.0", 5, "\"00:03.0\"", "lspci -D"),
        (
            "0000:00:03.0",
            "0000:00:03/0",
            5,
            "0000:00:03/0",
            "lspci -D",
        ),
        (
            "0000:00:03.0\"",
            "0000:00:03.0\"\ndescriptors = 100",
            6,
            "100",
            "write 64",
        ),
        (
            "0000:00:03.0\"",
            "0000:00:03.0\"\nmtu = 2019",
            6,
            "2019",
            "at most 2018",
        ),
        (
            "0000:00:03.0\"",
            "0000:00:03.0\"\nqueues = \"vmq\"",
            6,
            "\"vmq\"",
            "leave it out",
        ),
    ] {
        let text = parse("f.toml", &MACHINE.replacen(from, to, 1)).unwrap_err();
        let text = text.to_string();
        let first = text.lines().next().unwrap();
        assert!(first.starts_with(&format!("f.toml:{line}: ")), "{text}");
        assert!(first.contains(what) && first.contains(remedy), "{text}");
    }
    let second = "[[nic]]\nname = \"b\"\nkind = \"vfio\"\ndevice = \"0000:00:03.0\"\n\n[[guest]]";
    let text = parse("f.toml", &MACHINE.replacen("[[guest]]", second, 1));
    let text = text.unwrap_err().to_string();
    assert!(text.contains("choose another `device`"), "{text}");
    let largest = MACHINE.replacen("kind", "mtu = 2018\nkind", 1);
    parse("f.toml", &largest).unwrap();
}
