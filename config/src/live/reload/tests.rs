mod nics;

use super::*;
use crate::live::machine;
use crate::parse::{one, parse};

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

fn live(file: &str) -> Live {
    let config = parse("f", file).unwrap();
    machine(&config, &one("f", file)).unwrap().live.unwrap()
}

/// As the manager notes a guest that has come.
fn attach(live: &mut Live, guest: Setting) {
    let came = LiveConfig::of(live).unwrap().add(&guest).unwrap();
    live.attached.insert(came.domain.name, came.guest);
}

fn against(live: &Live, file: &str) -> Result<Difference, String> {
    difference(live, &LiveConfig::of(live).unwrap(), &one("new", file))
}

/// `-` guests that go, `+` those that come, `!` those that go and come again, `=` those that stay
/// and become others.
fn short(difference: &Difference) -> String {
    let gone = difference.gone.iter().map(|name| format!("-{name}"));
    let coming = difference
        .coming
        .iter()
        .map(|coming| match &coming.changes {
            None => format!("+{}", coming.name),
            Some(changes) => {
                let sign = if coming.in_place { '=' } else { '!' };
                format!("{sign}{} {}", coming.name, changes.join(", "))
            }
        });
    gone.chain(coming).collect::<Vec<_>>().join("; ")
}

#[test]
fn guests_that_differ_are_told_and_no_others() {
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
        // Other words for the same.
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
        // Guests that come and go.
        (format!("{FILE}{GUEST_C}"), "+c"),
        (format!("{head}[[guest]]{}", guests[1]), "-a"),
        (head.to_owned(), "-a; -b"),
        (replaced("name = \"b\"", "name = \"d\""), "-b; +d"),
        // Guests that are described otherwise.
        (
            with("mtu = 1400"),
            "!a vif 1: `mtu` is 1400 and was left out",
        ),
        (
            replaced("10.0.0.3/24", "10.0.0.4/24"),
            "!b vif 1: `addresses` is [\"10.0.0.4/24\"] instead of [\"10.0.0.3/24\"]",
        ),
        (
            with("mac = \"02:00:00:00:00:07\""),
            "!a vif 1: `mac` is \"02:00:00:00:00:07\" instead of \"02:67:01:00:00:00\"",
        ),
        (
            replaced("ports = 25", "ports = 26"),
            "=b vif 1: rule 1: `destination_ports` is 26 instead of 25",
        ),
        (
            replaced("destination_ports = 25", ""),
            "=b vif 1: rule 1: `destination_ports` is left out and was 25",
        ),
        (
            format!("{FILE}[[guest.vif]]\nendpoint = \"echo\"\n"),
            "!b vif 2 is new",
        ),
        (
            replaced("name = \"a\"", "name = \"a\"\nrestart = false"),
            "!a `restart` is false and was left out",
        ),
    ] {
        let difference = against(&live, &file).unwrap();
        assert_eq!(short(&difference), expected, "{file}");
        assert_eq!(difference.stays, [""; 0]);
    }
}

#[test]
fn what_cannot_change_is_told_key_by_key_with_its_line() {
    let live = live(FILE);
    for (from, to, expected) in [
        (
            "workers = 1",
            "workers = 1\nspin_us = 7\nmac_ageing_s = 8",
            &[
                "new:6: [driver]: `spin_us` is 7 and was left out; that cannot",
                "new:7: [driver]: `mac_ageing_s` is 8 and was left out; that cannot",
            ][..],
        ),
        (
            "workers = 1",
            "grants = \"unchecked\"",
            &[
                "[driver]: `grants` is \"unchecked\" and was left out",
                "[driver]: `workers` is left out and was 1",
            ][..],
        ),
        (
            "name = \"office\"",
            "name = \"office\"\nlook_group = \"games\"\nmetrics_port = 9000",
            &[
                "new:4: [machine]: `look_group` is \"games\" and was left out",
                "new:5: [machine]: `metrics_port` is 9000 and was left out",
            ][..],
        ),
        (
            "kind = \"sim\"\ndelay_us = 4",
            "kind = \"xdp\"\nqueues = \"vmq\"",
            &[
                "[[nic]] 1: `delay_us` is left out and was 4",
                "new:8: [[nic]] 1: `kind` is \"xdp\" instead of \"sim\"",
                "new:9: [[nic]] 1: `queues` is \"vmq\" and was left out; that cannot change \
                 while the machine runs: restart the machine, or write it as it was",
            ][..],
        ),
        (
            "name = \"wire\"\nkind = \"sim\"\ndelay_us = 4",
            "name = \"other\"\nkind = \"xdp\"\nqueues = \"vmq\"",
            &["NIC wire is not there any more", "NIC other is new"][..],
        ),
        (
            "[[nic]]",
            "[ring]\nslots = 512\n[buffers]\nto_guest = 256\nsize = \"full\"\n[lro]\n\
             flush = \"poll\"\n[[nic]]",
            &[
                "[ring]: `slots` is 512",
                "[buffers]: `size` is \"full\"",
                "[buffers]: `to_guest` is 256",
                "[lro]: `flush`",
            ][..],
        ),
    ] {
        let file = FILE.replacen(from, to, 1);
        // Nothing is done about guests either.
        let why = against(&live, &format!("{file}{GUEST_C}")).unwrap_err();
        let lines: Vec<&str> = why.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{why}");
        for expected in expected {
            assert!(why.contains(expected), "{expected}: {why}");
        }
    }
}

#[test]
fn a_file_that_is_wrong_is_told_as_when_a_machine_is_started() {
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

/// The size of buffers goes by the guests of the start, unless it is written.
#[test]
fn a_size_that_nobody_has_written_stays_as_it_is() {
    let file = "[[guest]]\nname = \"a\"\n[[guest.vif]]\nendpoint = \"tap\"\nnetns = \"a\"\n";
    let live = live(file);
    let sizes = [file.to_owned(), format!("{file}{GUEST_C}")];
    let sizes = sizes.map(|file| parse("f", &file).unwrap().buffers.size);
    assert_ne!(sizes[0], sizes[1]);
    let difference = against(&live, &format!("{file}{GUEST_C}")).unwrap();
    assert_eq!(short(&difference), "+c");
}

#[test]
fn guests_that_were_attached_one_by_one_stay_until_a_file_names_them() {
    let mut live = live(FILE);
    let read = |text: &str| crate::live::setting(text).unwrap();
    attach(
        &mut live,
        read("name = \"c\"\nvif = [{endpoint = \"echo\"}]"),
    );
    let difference = against(&live, FILE).unwrap();
    assert_eq!(
        (short(&difference), difference.stays),
        (String::new(), vec!["c".into()])
    );
    // A file may name it as it is, with the MAC that it was given, or otherwise.
    let with_c = format!("{FILE}{GUEST_C}");
    assert_eq!(short(&against(&live, &with_c).unwrap()), "");
    let slower = against(&live, &format!("{with_c}rate_mbps = 5.5\n")).unwrap();
    assert_eq!(
        short(&slower),
        "=c vif 1: `rate_mbps` is 5.5 and was left out"
    );
    // From then on it is that file's.
    live.of_files.extend(["a", "b", "c"].map(str::to_owned));
    let difference = against(&live, FILE).unwrap();
    assert_eq!(
        (short(&difference), difference.stays.len()),
        ("-c".to_owned(), 0)
    );
}

#[test]
fn who_was_detached_comes_back_and_who_comes_again_keeps_its_mac() {
    let mut live = live(FILE);
    live.detached.insert("a".into());
    assert_eq!(short(&against(&live, FILE).unwrap()), "+a");
    let slower = FILE.replacen("10.0.0.3/24", "10.0.0.4/24", 1);
    let difference = against(&live, &slower).unwrap();
    let [first, second] = &difference.coming[..] else {
        panic!("{difference:?}");
    };
    assert_eq!((&first.name[..], &second.name[..]), ("a", "b"));
    let mut running = LiveConfig::of(&live).unwrap();
    running.remove("b");
    // The number of `a` is free, and yet `b` has its own again.
    let came = running.add(&second.guest).unwrap();
    assert_eq!(came.macs, [Mac::derived(1, 1, 0)]);
    live.detached.insert("b".into());
    attach(&mut live, second.guest.clone());
    attach(&mut live, first.guest.clone());
    assert_eq!(short(&against(&live, &slower).unwrap()), "");
}
