use super::state::{AttachedGuest, Origin};
use super::*;
use crate::domain::GuestConfig;
use crate::parse::{parse, single_file};

/// Returns a guest that a client attached.
pub(super) fn by_hand(guest: ConfigValue) -> AttachedGuest {
    let origin = Origin {
        user: Some(7),
        ..Origin::default()
    };
    AttachedGuest { guest, origin }
}

const FILE: &str = r#"
[[nic]]
name = "wire"
kind = "sim"
addresses = ["10.0.0.1/24"]

[[guest]]
name = "a"
[[guest.vif]]
endpoint = "stack"
addresses = ["10.0.0.2/24"]

[[guest]]
name = "b"
[[guest.vif]]
endpoint = "stack"
addresses = ["10.0.0.3/24"]
"#;

fn live(file: &str) -> (Machine, LiveConfig) {
    let config = parse("f", file).unwrap();
    let machine = super::machine(&config, &single_file("f", file)).unwrap();
    let live = LiveConfig::of(&machine.live.clone().unwrap().into()).unwrap();
    (machine, live)
}

fn setting(json: &str) -> ConfigValue {
    serde_json::from_str(json).unwrap()
}

fn guest(name: &str, more: &str) -> ConfigValue {
    setting(&format!(
        r#"{{"name": "{name}", "vif": [{{"endpoint": "tap", "netns": "{name}", {more}
        "weight": 2}}]}}"#
    ))
}

#[test]
fn an_attached_guest_equals_one_of_the_file() {
    let (_, mut live) = live(FILE);
    let described = guest(
        "c",
        r#""addresses": ["10.0.0.4/24"], "gateway": "10.0.0.1","#,
    );
    let resolved = live.add(&described).unwrap();
    let section = "\n[[guest]]\nname = \"c\"\n[[guest.vif]]\nendpoint = \"tap\"\nnetns = \"c\"\n\
                   addresses = [\"10.0.0.4/24\"]\ngateway = \"10.0.0.1\"\nweight = 2\n";
    let whole = parse("f", &format!("{FILE}{section}"))
        .unwrap()
        .machine()
        .unwrap();
    assert_eq!(Some(&resolved.domain), whole.domains.last());
    let driver: DriverConfig = serde_json::from_str(&whole.domains[0].config).unwrap();
    let last = driver.vifs.last().unwrap();
    let parsed = VifConfig {
        conn: last.conn,
        first_slot: last.first_slot,
        tables_slot: last.tables_slot,
        ..resolved.vifs[0].clone()
    };
    assert_eq!(&parsed, last);
    assert_eq!(resolved.macs, [MacAddress::derived(1, 2, 0)]);
}

#[test]
fn macs_stay_when_other_guests_change() {
    let (machine, mut config) = live(FILE);
    let mut live = LiveSpec::from(machine.live.unwrap());
    let first = config.add(&guest("c", "")).unwrap();
    live.attached
        .insert("c".into(), by_hand(first.guest.clone()));
    config.check_removable("a").unwrap();
    config.remove("a");
    live.detached.insert("a".into());
    // The number of the removed guest is free again. No other MAC has changed.
    let next = config.add(&guest("d", "")).unwrap();
    assert_eq!(next.macs, [MacAddress::derived(1, 0, 0)]);
    live.attached.insert("d".into(), by_hand(next.guest));
    // Another manager reads the same configuration, but without the addresses of removed guests.
    config.removed_addresses.clear();
    let again = LiveConfig::of(&live).unwrap();
    assert_eq!(again, config);
    let mac = |name: &str| {
        let mut guests = again.config.guests.iter();
        guests.find(|guest| guest.name == name).unwrap().vifs[0].mac
    };
    assert_eq!(mac("b"), Some(MacAddress::derived(1, 1, 0)));
    assert_eq!(mac("c"), Some(MacAddress::derived(1, 2, 0)));
}

#[test]
fn rejected_guests_change_nothing() {
    let (_, mut live) = live(FILE);
    let before = live.clone();
    let long = "x".repeat(300);
    for (guest, says) in [
        (guest("a", ""), "the name \"a\" is also that of guest a"),
        (guest("driver", ""), "reserved for the driver domain"),
        (guest("../c", ""), "use 1 to 32 letters"),
        (guest("c\\nd", ""), "use 1 to 32 letters"),
        (guest(&long, ""), "use 1 to 32 letters"),
        (
            guest("c", r#""addresses": ["10.0.0.1/24"],"#),
            "also that of [[nic]] 1",
        ),
        (
            guest("c", r#""addresses": ["10.0.0.3/24"],"#),
            "also that of guest b, vif 1",
        ),
        (guest("c", r#""mac": "02:67:01:00:01:00","#), "the MAC"),
        (guest("c", r#""mac": "01:00:00:00:00:00","#), "multicast"),
        (guest("c", r#""mtu": 10,"#), "`mtu` is 10"),
        (guest("c", r#""speed": 10,"#), "`speed`"),
        (guest("c", r#""pdev": "wire:1","#), "`pdev`"),
        (setting(r#"{"name": "c"}"#), "0 interfaces"),
        (setting(r#"{"name": "c", "vif": 3}"#), "`vif`"),
        (
            setting(r#"{"name": "c\"\u0007", "vif": []}"#),
            "use 1 to 32 letters",
        ),
        (setting("7"), "[[guest]]"),
        (
            setting(r#"{"name": "c", "vif": [{"endpoint": "tap", "netns": ".."}]}"#),
            "`netns` is \"..\"",
        ),
        (
            setting(r#"{"name": "c", "vif": [{"endpoint": "tap", "netns": "a\nb"}]}"#),
            "`netns` is \"a\\nb\"",
        ),
        (
            setting(&format!(
                r#"{{"name": "c", "vif": [{{"endpoint": "tap", "netns": "{long}"}}]}}"#
            )),
            "`netns` is",
        ),
    ] {
        let why = live.add(&guest).unwrap_err();
        assert!(why.contains(says), "{says}: {why}");
        assert_eq!(live, before, "{why}");
    }
    let why = before.check_removable("absent").unwrap_err();
    assert_eq!(why, "no guest is named absent");
}

/// Other stations may have cached the MAC of the address's previous owner.
#[test]
fn an_inherited_address_is_announced() {
    let (_, mut live) = live(FILE);
    let with =
        |name: &str, address: &str| guest(name, &format!("\"addresses\": [\"{address}/24\"],"));
    let c = live.add(&with("c", "10.0.0.4")).unwrap();
    assert!(!c.vifs[0].announces, "no guest has had the address");
    for name in ["a", "b"] {
        live.remove(name);
    }
    // `d` inherits the address of `a`.
    let d = live.add(&with("d", "10.0.0.3")).unwrap();
    assert!(d.vifs[0].announces);
    live.remove("c");
    live.add(&with("e", "10.0.0.5")).unwrap();
    let f = live.add(&with("f", "10.0.0.4")).unwrap();
    assert_eq!((f.vifs[0].mac, f.vifs[0].announces), (c.vifs[0].mac, false));
}

/// A guest may lose a queue that is assigned by load, but owns one that its `pdev` names.
#[test]
fn the_owner_of_a_queue_cannot_be_removed() {
    let given = FILE.replace(
        "kind = \"sim\"",
        "kind = \"sim\"\nqueues = \"vmq\"\nvmq_queues = 2",
    );
    let (_, mut live) = self::live(&given);
    live.add(&guest("c", "")).unwrap();
    for name in ["a", "c"] {
        live.check_removable(name).unwrap();
    }
    let written = FILE
        .replace("kind = \"sim\"", "kind = \"xdp\"\nqueues = \"vmq\"")
        .replacen("[[guest.vif]]", "[[guest.vif]]\npdev = \"wire:2\"", 1);
    let (_, live) = self::live(&written);
    live.check_removable("b").unwrap();
    let why = live.check_removable("a").unwrap_err();
    assert!(why.starts_with("guest a owns queue 2 of NIC wire"), "{why}");
}

#[test]
fn copy_grants_prevent_attaching() {
    let (_, mut live) = live(&format!("[driver]\ngrants = \"copy\"\n{FILE}"));
    let why = live.add(&guest("c", "")).unwrap_err();
    assert!(why.contains("\"copy\""), "{why}");
}

#[test]
fn allocated_slots_never_overlap() {
    let (machine, mut live) = live(FILE);
    let first = machine.live.as_ref().unwrap().first_slot;
    let domain = &machine.domains[0];
    let mut driver: DriverConfig = serde_json::from_str(&domain.config).unwrap();
    let mut count = 0;
    let mut names = Vec::new();
    while let Ok(resolved) = live.add(&guest(&format!("g{count}"), "")) {
        let mut vifs = resolved.vifs;
        if !allocate_slots(&driver, first, domain.window_slots, &mut vifs) {
            break;
        }
        names.extend(vifs.iter().map(|vif| vif.name.clone()));
        driver.vifs.append(&mut vifs);
        count += 1;
    }
    assert!(count >= EXTRA_GUESTS, "{count}");
    assert_disjoint(&driver, first, guests_end(domain.window_slots));
    // Removed guests leave slots for the same number of new ones.
    for removed in ["g7-0", "g8-0", "a-0"] {
        driver.vifs.retain(|vif| vif.name != removed);
    }
    let free = live.add(&guest("late", "")).unwrap().vifs;
    for _ in 0..3 {
        let mut vifs = free.clone();
        assert!(allocate_slots(
            &driver,
            first,
            domain.window_slots,
            &mut vifs
        ));
        driver.vifs.append(&mut vifs);
        assert_disjoint(&driver, first, guests_end(domain.window_slots));
    }
    assert!(!allocate_slots(
        &driver,
        first,
        domain.window_slots,
        &mut free.clone()
    ));
}

fn assert_disjoint(driver: &DriverConfig, first: u32, end: u32) {
    let range = |vif: &VifConfig| {
        (
            vif.first_slot,
            vif.tables_slot + following_slots(driver.driver.grants, vif),
        )
    };
    let mut all: Vec<_> = driver.vifs.iter().map(range).collect();
    all.sort_unstable();
    assert!(all[0].0 >= first && all[all.len() - 1].1 <= end, "{all:?}");
    for pair in all.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:?}");
    }
}

#[test]
fn guests_can_be_attached_to_an_empty_machine() {
    let (machine, mut live) = live("");
    let resolved = live.add(&guest("first", "")).unwrap();
    let parsed: GuestConfig = serde_json::from_str(&resolved.domain.config).unwrap();
    assert_eq!(parsed.vifs[0].conns, [0]);
    let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    let mut vifs = resolved.vifs;
    assert!(allocate_slots(
        &driver,
        0,
        machine.domains[0].window_slots,
        &mut vifs
    ));
    assert_eq!(vifs[0].first_slot, 0);
}
