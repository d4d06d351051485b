mod nics;

use super::*;
use crate::live::machine;
use crate::live::tests::by_hand;
use crate::parse::{parse, single_file};

const FILE: &str = r#"
[machine]
name = "office"
[driver]
workers = 1
[[nic]]
name = "wire"
kind = "sim"
delay_us = 4
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
[[guest.vif.rule]]
action = "deny"
destination_ports = 25
"#;

const GUEST_C: &str = "[[guest]]\nname = \"c\"\n[[guest.vif]]\nendpoint = \"echo\"\n";

fn live(file: &str) -> LiveSpec {
    let config = parse("f", file).unwrap();
    let machine = machine(&config, &single_file("f", file)).unwrap();
    machine.live.unwrap().into()
}

/// Records an attached guest, as the manager does.
fn attach(live: &mut LiveSpec, guest: ConfigValue) {
    let resolved = LiveConfig::of(live).unwrap().add(&guest).unwrap();
    let (name, guest) = (resolved.domain.name, by_hand(resolved.guest));
    live.attached.insert(name, guest);
}

fn against(live: &LiveSpec, file: &str) -> Result<Difference, String> {
    difference(
        live,
        &LiveConfig::of(live).unwrap(),
        &single_file("new", file),
    )
}

/// Formats a difference: `-` removed guests, `+` added ones, `!` removed and added again, `=`
/// changed in place.
fn short(difference: &Difference) -> String {
    let detached = difference.to_detach.iter().map(|name| format!("-{name}"));
    let attached = difference
        .to_attach
        .iter()
        .map(|attached| match &attached.changes {
            None => format!("+{}", attached.name),
            Some(changes) => {
                let sign = if attached.in_place { '=' } else { '!' };
                format!("{sign}{} {}", attached.name, changes.join(", "))
            }
        });
    detached.chain(attached).collect::<Vec<_>>().join("; ")
}

#[test]
fn only_changed_guests_are_reported() {
    let live = live(FILE);
    let replaced = |from: &str, to: &str| {
        assert!(FILE.contains(from), "{from}");
        FILE.replacen(from, to, 1)
    };
    let (head, guests) = FILE.split_once("[[guest]]").unwrap();
    let guests: Vec<&str> = guests.split("[[guest]]").collect();
    let first = "endpoint = \"stack\"\naddresses = [\"10.0.0.2/24\"]\n";
    let with = |more: &str| replaced(first, &format!("{first}{more}\n"));
    for (file, expected) in [
        (FILE.to_owned(), ""),
        // The same values, written differently.
        (replaced("workers = 1", "ledger = true"), ""),
        (replaced("name = \"office\"", "name = \"other\""), ""),
        (with("mtu = 1500\nweight = 1"), ""),
        (with("mac = \"02:67:01:00:00:00\""), ""),
        (
            replaced("[\"10.0.0.2/24\"]", "[\n \"10.0.0.2/24\", # own\n]"),
            "",
        ),
        (
            format!("{head}[[guest]]{}[[guest]]{}", guests[1], guests[0]),
            "",
        ),
        // Added and removed guests.
        (format!("{FILE}{GUEST_C}"), "+c"),
        (format!("{head}[[guest]]{}", guests[1]), "-a"),
        (head.to_owned(), "-a; -b"),
        (replaced("name = \"b\"", "name = \"d\""), "-b; +d"),
        // Changed guests.
        (with("mtu = 1400"), "!a vif 1: `mtu`: unset → 1400"),
        (
            replaced("10.0.0.3/24", "10.0.0.4/24"),
            "!b vif 1: `addresses`: [\"10.0.0.3/24\"] → [\"10.0.0.4/24\"]",
        ),
        (
            with("mac = \"02:00:00:00:00:07\""),
            "!a vif 1: `mac`: \"02:67:01:00:00:00\" → \"02:00:00:00:00:07\"",
        ),
        (
            replaced("ports = 25", "ports = 26"),
            "=b vif 1: rule 1: `destination_ports`: 25 → 26",
        ),
        (
            replaced("destination_ports = 25", ""),
            "=b vif 1: rule 1: `destination_ports`: 25 → unset",
        ),
        (
            format!("{FILE}[[guest.vif]]\nendpoint = \"echo\"\n"),
            "!b vif 2 is new",
        ),
        (
            replaced("name = \"a\"", "name = \"a\"\nrestart = false"),
            "!a `restart`: unset → false",
        ),
    ] {
        let difference = against(&live, &file).unwrap();
        assert_eq!(short(&difference), expected, "{file}");
        assert_eq!(difference.kept, [""; 0]);
    }
}

#[test]
fn each_fixed_key_is_reported_with_its_line() {
    let live = live(FILE);
    for (from, to, expected) in [
        (
            "workers = 1",
            "workers = 1\nspin_us = 7\nmac_ageing_s = 8",
            &[
                "new:6: [driver]: `spin_us`: unset → 7; this cannot",
                "new:7: [driver]: `mac_ageing_s`: unset → 8; this cannot",
            ][..],
        ),
        (
            "workers = 1",
            "grants = \"unchecked\"",
            &[
                "[driver]: `grants`: unset → \"unchecked\"",
                "[driver]: `workers`: 1 → unset",
            ][..],
        ),
        (
            "name = \"office\"",
            "name = \"office\"\nlook_group = \"games\"\nmetrics_port = 9000",
            &[
                "new:4: [machine]: `look_group`: unset → \"games\"",
                "new:5: [machine]: `metrics_port`: unset → 9000",
            ][..],
        ),
        (
            "kind = \"sim\"\ndelay_us = 4",
            "kind = \"xdp\"\nqueues = \"vmq\"",
            &[
                "[[nic]] 1: `delay_us`: 4 → unset",
                "new:8: [[nic]] 1: `kind`: \"sim\" → \"xdp\"",
                "new:9: [[nic]] 1: `queues`: unset → \"vmq\"; this cannot change \
                 while the machine runs: restart the machine, or write it as it was",
            ][..],
        ),
        (
            "name = \"wire\"\nkind = \"sim\"\ndelay_us = 4",
            "name = \"other\"\nkind = \"xdp\"\nqueues = \"vmq\"",
            &["NIC wire is removed", "NIC other is new"][..],
        ),
        (
            "[[nic]]",
            "[ring]\nslots = 512\n[buffers]\nto_guest = 256\nsize = \"full\"\n[lro]\n\
             flush = \"poll\"\n[[nic]]",
            &[
                "[ring]: `slots`: unset → 512",
                "[buffers]: `size`: unset → \"full\"",
                "[buffers]: `to_guest`: unset → 256",
                "[lro]: `flush`",
            ][..],
        ),
    ] {
        let file = FILE.replacen(from, to, 1);
        // Guests do not change either.
        let why = against(&live, &format!("{file}{GUEST_C}")).unwrap_err();
        let lines: Vec<&str> = why.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{why}");
        for expected in expected {
            assert!(why.contains(expected), "{expected}: {why}");
        }
    }
}

#[test]
fn reload_reports_mistakes_of_the_files() {
    let live = live(FILE);
    for (file, expected) in [
        (format!("{FILE}[[guest]]\n"), "`name` is missing"),
        (FILE.replacen("mac", "[mac", 1), "new:2:"),
        (
            FILE.replacen("workers", "worker", 1),
            "did you mean `workers`?",
        ),
        (FILE.replacen("10.0.0.3", "10.0.0.2", 1), "10.0.0.2"),
    ] {
        let why = against(&live, &file).unwrap_err();
        assert!(why.contains(expected), "{expected}: {why}");
    }
}

/// An unset buffer size depends on the guests at the start.
#[test]
fn unset_buffer_size_does_not_change() {
    let file = "[[guest]]\nname = \"a\"\n[[guest.vif]]\nendpoint = \"tap\"\nnetns = \"a\"\n";
    let live = live(file);
    let sizes = [file.to_owned(), format!("{file}{GUEST_C}")];
    let sizes = sizes.map(|file| parse("f", &file).unwrap().buffers.size);
    assert_ne!(sizes[0], sizes[1]);
    let difference = against(&live, &format!("{file}{GUEST_C}")).unwrap();
    assert_eq!(short(&difference), "+c");
}

#[test]
fn attached_guests_remain_until_a_file_names_them() {
    let mut live = live(FILE);
    let read = |text: &str| crate::live::setting(text).unwrap();
    attach(
        &mut live,
        read("name = \"c\"\nvif = [{endpoint = \"echo\"}]"),
    );
    let difference = against(&live, FILE).unwrap();
    assert_eq!(
        (short(&difference), difference.kept),
        (String::new(), vec!["c".into()])
    );
    // A file may name the attached guest unchanged, with its assigned MAC, or changed.
    let with_c = format!("{FILE}{GUEST_C}");
    assert_eq!(short(&against(&live, &with_c).unwrap()), "");
    let slower = against(&live, &format!("{with_c}rate_mbps = 5.5\n")).unwrap();
    assert_eq!(short(&slower), "=c vif 1: `rate_mbps`: unset → 5.5");
    // Afterwards the guest belongs to that file.
    live.attached.get_mut("c").unwrap().origin.user = None;
    let difference = against(&live, FILE).unwrap();
    assert_eq!(
        (short(&difference), difference.kept.len()),
        ("-c".to_owned(), 0)
    );
}

#[test]
fn readded_guest_keeps_its_mac() {
    let mut live = live(FILE);
    live.detached.insert("a".into());
    assert_eq!(short(&against(&live, FILE).unwrap()), "+a");
    let slower = FILE.replacen("10.0.0.3/24", "10.0.0.4/24", 1);
    let difference = against(&live, &slower).unwrap();
    let [first, second] = &difference.to_attach[..] else {
        panic!("{difference:?}");
    };
    assert_eq!((&first.name[..], &second.name[..]), ("a", "b"));
    let mut running = LiveConfig::of(&live).unwrap();
    running.remove("b");
    // The number of `a` is free, but `b` keeps its number.
    let resolved = running.add(&second.guest).unwrap();
    assert_eq!(resolved.macs, [MacAddress::derived(1, 1, 0)]);
    live.detached.insert("b".into());
    attach(&mut live, second.guest.clone());
    attach(&mut live, first.guest.clone());
    assert_eq!(short(&against(&live, &slower).unwrap()), "");
}
