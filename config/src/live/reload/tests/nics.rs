//! Tests of changed NICs.

use super::*;
use crate::domain::{DriverConfig, NicConfig, NicKindConfig};
use abi::machine::{Device, DomainSpec};

const TAP: &str = "[[nic]]\nname = \"tap\"\nkind = \"tap\"\naddresses = [\"10.0.0.9/24\"]\n";

/// Returns, for each step, the description of its changes and the names of the NICs after it.
fn nic_steps(live: &LiveSpec, file: &str) -> Vec<(String, Vec<String>)> {
    let difference = against(live, file).unwrap();
    assert_eq!(short(&difference), "");
    let steps = difference.nics.iter().map(|step| {
        let nics = crate::parse::read_nics(&step.nics).unwrap();
        let names = nics.into_iter().map(|nic| nic.name).collect();
        (step.changes.join("; "), names)
    });
    steps.collect()
}

#[test]
fn taps_are_added_removed_and_replaced() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let plain = live(FILE);
    assert_eq!(nic_steps(&plain, FILE), []);
    let with = format!("{TAP}{FILE}");
    let is_added = ("NIC tap is new".to_owned(), names(&["wire", "tap"]));
    assert_eq!(nic_steps(&plain, &with), [is_added]);

    // The manager stores the NICs in this form.
    let mut present = plain.clone();
    let step = against(&plain, &with).unwrap().nics.remove(0);
    assert_eq!(step.added, ["tap".to_owned()].into());
    let mut config = LiveConfig::of(&plain).unwrap();
    config.set_nics(&step.nics).unwrap();
    present.nics = Some(step.nics.clone());
    assert_eq!(LiveConfig::of(&present).unwrap(), config);
    assert_eq!(nic_steps(&present, &with), []);
    let removed = "NIC tap is no longer in the file".to_owned();
    assert_eq!(nic_steps(&present, FILE), [(removed, names(&["wire"]))]);
    let slow = format!("{}{FILE}", TAP.replacen("kind", "mtu = 1400\nkind", 1));
    assert_eq!(
        nic_steps(&present, &slow),
        [
            ("NIC tap: `mtu`: unset → 1400".to_owned(), names(&["wire"])),
            ("NIC tap is added again".to_owned(), names(&["wire", "tap"])),
        ]
    );
}

#[test]
fn nics_with_fixed_resources_cannot_change() {
    let queues = "queues = \"vmq\"\n";
    let pcap = "[[nic]]\nname = \"p\"\nkind = \"pcap\"\nwrite = \"f\"\n";
    let fixed = FILE.replacen("[driver]", "[driver]\nrestart = false", 1);
    for (before, now) in [
        (format!("{XDP}{queues}{FILE}"), FILE.to_owned()),
        (
            format!("{XDP}{queues}{FILE}"),
            format!("{TAP}{XDP}{queues}{FILE}"),
        ),
        (FILE.to_owned(), format!("{XDP}{queues}{FILE}")),
        (FILE.to_owned(), format!("{pcap}{FILE}")),
        (fixed.clone(), format!("{TAP}{fixed}")),
    ] {
        let why = against(&live(&before), &now).unwrap_err();
        assert!(why.contains("this cannot change while"), "{why}");
    }
}

/// The device of a TAP is followed by those of its queues.
#[test]
fn a_nic_is_added_and_removed_with_its_queues() {
    const QUEUES: &str = "queues = \"vmq\"\nvmq_queues = 3\n";
    let with = format!("{TAP}{QUEUES}{FILE}");
    let tap = |worker: &DomainSpec, driver_config: &DriverConfig, name: &str| {
        let nic = driver_config
            .nics
            .iter()
            .find(|nic| nic.name == name)
            .unwrap();
        let NicKindConfig::Tap { device, queues, .. } = &nic.kind else {
            panic!("{nic:?}");
        };
        let devices = &worker.devices[*device as usize..];
        assert!(matches!(devices[0], Device::Tap(_)), "{devices:?}");
        for (at, queue) in (1..).zip(queues) {
            assert_eq!(
                (*queue, &devices[at]),
                (device + at as u32, &Device::TapQueue)
            );
        }
        (*device, queues.len())
    };
    let (first_worker, first_config, _) = running(FILE);
    let (present, worker, driver_config) =
        reloaded_worker(&live(FILE), (&first_worker, &first_config), &with);
    let first = tap(&worker, &driver_config, "tap");
    assert_eq!(first.1, 3);
    // The NIC after the removed one keeps its place. A new NIC fills the gap, or is placed at the
    // end.
    let second = TAP
        .replace("\"tap\"\nkind", "\"second\"\nkind")
        .replace(".9/", ".8/");
    let both = format!("{second}{with}");
    let (present, worker, driver_config) =
        reloaded_worker(&present, (&worker, &driver_config), &both);
    let behind = tap(&worker, &driver_config, "second");
    assert_eq!(behind, (first.0 + 4, 0));
    let alone = format!("{second}{FILE}");
    let (present, worker, driver_config) =
        reloaded_worker(&present, (&worker, &driver_config), &alone);
    let gap = &worker.devices[first.0 as usize..behind.0 as usize];
    assert_eq!(*gap, [const { Device::Nothing }; 4]);
    let more = both.replace("vmq_queues = 3", "vmq_queues = 4");
    let (present, worker, driver_config) =
        reloaded_worker(&present, (&worker, &driver_config), &more);
    assert_eq!(tap(&worker, &driver_config, "second"), behind);
    assert_eq!(tap(&worker, &driver_config, "tap"), (behind.0 + 1, 4));
    let (present, worker, driver_config) =
        reloaded_worker(&present, (&worker, &driver_config), &alone);
    let (_, worker, driver_config) = reloaded_worker(&present, (&worker, &driver_config), &both);
    assert_eq!(tap(&worker, &driver_config, "tap"), first);
    assert_eq!(tap(&worker, &driver_config, "second"), behind);

    // A gap at the end is reused.
    let (present, worker, driver_config) =
        reloaded_worker(&live(FILE), (&first_worker, &first_config), &with);
    let (present, worker, driver_config) =
        reloaded_worker(&present, (&worker, &driver_config), FILE);
    let more = with.replace("vmq_queues = 3", "vmq_queues = 7");
    let (_, worker, driver_config) = reloaded_worker(&present, (&worker, &driver_config), &more);
    assert_eq!(tap(&worker, &driver_config, "tap"), (first.0, 7));
}

#[test]
fn other_devices_keep_their_numbers() {
    let local = TAP
        .replace("\"tap\"", "\"local\"")
        .replace("10.0.0.9", "10.0.0.8");
    let two = format!("{TAP}{local}{FILE}");
    let config = parse("f", &two).unwrap();
    let file = ConfigFile {
        name: "f".into(),
        text: two.clone(),
    };
    let machine = crate::live::machine(&config, &[file]).unwrap();
    let before = &machine.domains[0];
    let driver_config: DriverConfig = serde_json::from_str(&before.config).unwrap();
    let live = LiveSpec::from(machine.live.unwrap());
    let mut running = LiveConfig::of(&live).unwrap();
    let step = against(&live, &format!("{local}{FILE}"))
        .unwrap()
        .nics
        .remove(0);
    running.set_nics(&step.nics).unwrap();
    let without = running
        .worker_with_nics(0, before, &driver_config, &step.added)
        .unwrap();
    assert_eq!(without.domain.devices[0], Device::Nothing);
    assert_eq!(without.domain.devices[1], before.devices[1]);
    assert!(without.domain.frames < before.frames);
    let local_kind = driver_config.nics[1].kind.clone();
    assert!(matches!(local_kind, NicKindConfig::Local { device: 1, .. }));
    assert_eq!(without.nics[0].kind, local_kind);

    // A new NIC is assigned the free number, and the machine has its former size.
    let live = LiveSpec {
        nics: Some(step.nics),
        ..live
    };
    let back = against(&live, &two).unwrap().nics.remove(0);
    running.set_nics(&back.nics).unwrap();
    let told_without = DriverConfig {
        nics: without.nics,
        ..driver_config.clone()
    };
    let with = running.worker_with_nics(0, &without.domain, &told_without, &back.added);
    let with = with.unwrap();
    assert_eq!(with.domain.frames, before.frames);
    assert_eq!(with.domain.devices, before.devices);
    assert_eq!(with.nics.len(), driver_config.nics.len());
    let tap = with.nics.iter().find(|nic| nic.name == "tap").unwrap();
    assert!(matches!(tap.kind, NicKindConfig::Tap { device: 0, .. }));
}

/// Returns the first worker of a file's machine, its configuration, and the current configuration.
fn running(file: &str) -> (DomainSpec, DriverConfig, LiveConfig) {
    let config = parse("f", file).unwrap();
    let files = [ConfigFile {
        name: "f".into(),
        text: file.into(),
    }];
    let mut machine = crate::live::machine(&config, &files).unwrap();
    let worker = machine.domains.remove(0);
    let driver_config = serde_json::from_str(&worker.config).unwrap();
    let config = LiveConfig::of(&machine.live.unwrap().into()).unwrap();
    (worker, driver_config, config)
}

const XDP: &str = "[[nic]]\nname = \"x\"\nkind = \"xdp\"\nbuffers = 512\n";

/// Returns the worker after the only step of a reload with `file`.
fn reloaded_worker(
    live: &LiveSpec,
    (domain, driver): (&DomainSpec, &DriverConfig),
    file: &str,
) -> (LiveSpec, DomainSpec, DriverConfig) {
    let step = against(live, file).unwrap().nics.remove(0);
    let mut config = LiveConfig::of(live).unwrap();
    config.set_nics(&step.nics).unwrap();
    let reloaded_worker = config
        .worker_with_nics(0, domain, driver, &step.added)
        .unwrap();
    let nics = reloaded_worker.nics;
    let driver = DriverConfig {
        nics,
        ..driver.clone()
    };
    let nics = Some(step.nics);
    let live = LiveSpec {
        nics,
        ..live.clone()
    };
    (live, reloaded_worker.domain, driver)
}

/// Returns the slots of the rings of the NIC `x` and its first frame; asserts that the driver's
/// configuration and the device agree.
fn socket(domain: &DomainSpec, driver: &DriverConfig) -> (u32, u32) {
    let nic = driver.nics.iter().find(|nic| nic.name == "x").unwrap();
    let NicKindConfig::Xdp {
        device, rings_slot, ..
    } = nic.kind
    else {
        panic!("{nic:?}");
    };
    let Device::Xdp(xdp) = &domain.devices[device as usize] else {
        panic!("{domain:?}");
    };
    assert_eq!(xdp.rings_slot, rings_slot);
    (rings_slot, xdp.first_frame)
}

#[test]
fn rings_of_an_added_socket_follow_the_guests() {
    let before = format!("{TAP}{FILE}");
    let (worker, driver_config, _) = running(&before);
    let present = live(&before);
    let end = crate::live::guests_end(worker.window_slots);
    let with = format!("{TAP}{FILE}{XDP}");
    let (present, worker, driver_config) =
        reloaded_worker(&present, (&worker, &driver_config), &with);
    let (rings, behind_two) = socket(&worker, &driver_config);
    assert_eq!(rings, end);

    // A remaining NIC keeps its rings. Its buffers follow those of the NICs before it.
    let (present, worker, driver_config) =
        reloaded_worker(&present, (&worker, &driver_config), &format!("{FILE}{XDP}"));
    let (rings, behind_one) = socket(&worker, &driver_config);
    assert_eq!(rings, end);
    assert!(behind_one < behind_two, "{behind_one} {behind_two}");
    let (present, worker, driver_config) =
        reloaded_worker(&present, (&worker, &driver_config), &with);
    assert_eq!(socket(&worker, &driver_config), (end, behind_one));

    // The socket is removed, and a new one replaces it.
    let (present, worker, driver_config) =
        reloaded_worker(&present, (&worker, &driver_config), &before);
    let is_xdp = |device: &Device| matches!(device, Device::Xdp(_));
    assert!(!worker.devices.iter().any(is_xdp));
    let (_, worker, driver_config) = reloaded_worker(&present, (&worker, &driver_config), &with);
    assert_eq!(socket(&worker, &driver_config).0, end);
}

#[test]
fn a_few_sockets_can_be_added_to_those_of_the_file() {
    let file = format!("{XDP}{FILE}");
    let (worker, driver_config, _) = running(&file);
    assert_eq!(socket(&worker, &driver_config), (0, 0));
    let more = |count: usize, buffers: u32| {
        let one = |n| format!("[[nic]]\nname = \"y{n}\"\nkind = \"xdp\"\nbuffers = {buffers}\n");
        (0..count).map(one).collect::<String>() + &file
    };
    let (_, worker, driver_config) =
        reloaded_worker(&live(&file), (&worker, &driver_config), &more(8, 4096));
    assert_eq!(socket(&worker, &driver_config), (0, 0));
    let rings = worker.devices.iter().filter_map(|device| match device {
        Device::Xdp(xdp) => Some(xdp.rings_slot),
        _ => None,
    });
    let places: std::collections::BTreeSet<u32> = rings.collect();
    assert_eq!(places.len(), 9, "each has a separate place: {places:?}");

    let (worker, driver_config, mut config) = running(&file);
    let step = against(&live(&file), &more(1, 65_536))
        .unwrap()
        .nics
        .remove(0);
    config.set_nics(&step.nics).unwrap();
    let why = config
        .worker_with_nics(0, &worker, &driver_config, &step.added)
        .unwrap_err();
    assert!(
        why.starts_with("NIC y0: its rings need 1028 slots"),
        "{why}"
    );
}

#[test]
fn cables_can_be_added_pcap_only_removed() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let slower = FILE.replacen("delay_us = 4", "delay_us = 5", 1);
    let changed = "NIC wire: `delay_us`: 4 → 5".to_owned();
    let again = "NIC wire is added again".to_owned();
    let steps = [(changed, names(&[])), (again, names(&["wire"]))];
    assert_eq!(nic_steps(&live(FILE), &slower), steps);

    let pcap = "[[nic]]\nname = \"p\"\nkind = \"pcap\"\nread = \"r\"\nwrite = \"w\"\n";
    let with = format!("{pcap}{FILE}");
    // The `pcap` NIC remains when others are added.
    let is_added = ("NIC tap is new".to_owned(), names(&["p", "wire", "tap"]));
    assert_eq!(nic_steps(&live(&with), &format!("{TAP}{with}")), [is_added]);
    let step = against(&live(&with), FILE).unwrap().nics.remove(0);
    let (worker, driver_config, mut config) = running(&with);
    assert!(matches!(worker.devices[1], Device::Write(_)));
    config.set_nics(&step.nics).unwrap();
    let without = config
        .worker_with_nics(0, &worker, &driver_config, &step.added)
        .unwrap();
    assert_eq!(without.domain.devices, [Device::Nothing, Device::Nothing]);
    assert!(matches!(
        without.nics[..],
        [NicConfig {
            kind: NicKindConfig::Sim(_),
            ..
        }]
    ));
}

#[test]
fn too_many_nics_for_a_domain_are_rejected() {
    let (worker, driver_config, config) = running(FILE);
    let tap = |name: String, buffers: i64| {
        let keys = [
            ("name", ConfigValue::Text(name)),
            ("kind", ConfigValue::Text("tap".into())),
            ("buffers", ConfigValue::Number(buffers)),
        ];
        let keys = keys.map(|(key, value)| (key.to_owned(), value));
        ConfigValue::Section(keys.into())
    };
    for (number, buffers, why) in [
        (
            40,
            65_536,
            "[driver]: domain driver needs 1326208 page frames; the limit is 1048576: ",
        ),
        (
            600,
            64,
            "[driver]: domain driver needs 600 devices; the limit is 496: ",
        ),
    ] {
        let taps: Vec<ConfigValue> = (0..number).map(|n| tap(format!("t{n}"), buffers)).collect();
        let mut config = config.clone();
        config.set_nics(&taps).unwrap();
        let refused = config.worker_with_nics(0, &worker, &driver_config, &BTreeSet::new());
        let refused = refused.unwrap_err();
        assert!(refused.starts_with(why), "{refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
}
