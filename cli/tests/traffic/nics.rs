//! NICs come to a machine that runs, and go again.

use crate::attach::{
    NAMES, address, detach, domains, has_interface, hears, loses_interface, reaches, replace,
    stream,
};
use crate::machine::{Machine, text};
use crate::persistent::signal;
use crate::processes::{descriptors, kill};
use crate::reload::{ask, file_of, file_of_paths, request, socket, start, write};
use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use testing::{PATIENCE, Stops, child_of, require, wait_for, wait_until};

/// The place where the NIC's end in the kernel is.
pub(crate) const WIRE: usize = 2;
pub(crate) const GUESTS: [(usize, &str); 2] = [(0, ""), (1, "")];

/// A NIC whose end in the kernel is in the last namespace, under its usual address.
fn nic(machine: &Machine, keys: &str) -> String {
    let netns = machine.places[WIRE].0.path().display().to_string();
    let (ifname, address) = (NAMES[WIRE], address(WIRE));
    format!(
        "[[nic]]\nname = \"wire\"\nkind = \"tap\"\nifname = \"{ifname}\"\nnetns = \"{netns}\"\n\
         addresses = [\"{address}/24\"]\n{keys}\n"
    )
}

/// The machine's file, with such a NIC and the two guests.
pub(crate) fn with_nic(machine: &Machine, keys: &str) -> String {
    file_of(machine, &GUESTS) + &nic(machine, keys)
}

/// What a reload says that it does, line by line but the last, which says that it is done.
pub(crate) fn reload(machine: &Machine, text_of_file: &str) -> Vec<String> {
    let run = machine.grantway(&["reload", &write(machine, text_of_file)]);
    assert!(run.status.success(), "{run:?}");
    let mut lines: Vec<String> = text(&run.stdout).lines().map(str::to_owned).collect();
    let last = lines.pop().unwrap();
    if last != "nothing to change" {
        assert!(last.contains("is reloaded"), "{last}");
    }
    lines
}

fn link(machine: &Machine) -> String {
    text(
        &machine
            .run(WIRE, "ip", &["link", "show", NAMES[WIRE]])
            .stdout,
    )
}

/// Descriptors of the core and its helpers.
fn held(machine: &Machine) -> [usize; 3] {
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let helper = |name| wait_for("no helper", || child_of(core, name));
    let all = [core, helper("grantway-netd"), helper("grantway-manager")];
    all.map(descriptors)
}

/// The same when it stays so.
fn at_rest(machine: &Machine) -> [usize; 3] {
    wait_for("it never stays the same", || {
        let now = held(machine);
        (0..3).all(|_| held(machine) == now).then_some(now)
    })
}

/// For as many guests as there are.
pub(crate) const QUEUES: &str = "queues = \"vmq\"\nvmq_queues = 2";
const NEW: &str = "start driver again: NIC wire is new";
const GONE: &str = "start driver again: NIC wire is not in the file any more";

#[test]
fn a_nic_comes_and_goes_under_a_stream_of_guests() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    comes_and_goes(machine, &with);
}

#[test]
fn a_nic_on_af_xdp_comes_and_goes_under_a_stream_of_guests() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let with = on_af_xdp(&with_nic(&machine, ""));
    comes_and_goes(machine, &with);
}

#[test]
fn a_nic_with_queues_comes_and_goes_under_a_stream_of_guests() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, QUEUES);
    comes_and_goes(machine, &with);
}

/// The NIC with its end in the last namespace comes and goes again and again.
fn comes_and_goes(machine: Machine, with: &str) {
    let without = file_of(&machine, &GUESTS);
    reaches(&machine, 0, 1);
    let (stop, carried) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let stops = Stops(&stop);
        let streaming = scope.spawn(|| stream(&machine, (0, 1), &stop, &carried));
        let goes_on = || {
            let so_far = carried.load(Ordering::Relaxed);
            wait_until("the stream stands", || {
                carried.load(Ordering::Relaxed) > so_far
            });
        };
        let dry = machine.grantway(&["reload", &write(&machine, with), "--dry-run"]);
        assert_eq!(text(&dry.stdout), format!("{NEW}\n"), "{dry:?}");
        assert!(link(&machine).is_empty(), "a dry run does nothing");
        let mut before = None;
        for _ in 0..4 {
            assert_eq!(reload(&machine, with), [NEW]);
            goes_on();
            for guest in [0, 1] {
                reaches(&machine, WIRE, guest);
            }
            if with.contains(QUEUES) && crate::queues::vmq(&machine).is_some() {
                wait_until("they have no queues", || holders(&machine).len() == 2);
            }
            // Twice is once.
            assert!(reload(&machine, with).is_empty());
            assert_eq!(reload(&machine, &without), [GONE]);
            goes_on();
            loses_interface(&machine, WIRE);
            assert!(reload(&machine, &without).is_empty());
            // As with the first one that came and went.
            match before {
                None => before = Some(at_rest(&machine)),
                Some(before) => wait_until("a descriptor has stayed", || {
                    let mut open = held(&machine).into_iter().zip(before);
                    open.all(|(now, before)| now <= before)
                }),
            }
        }
        assert_eq!(domains(&machine), ["driver", "c0", "c1"]);
        drop(stops);
        streaming.join().unwrap();
    });
    machine.end();
}

/// The same with a socket in the NIC's place.
pub(crate) fn on_af_xdp(file: &str) -> String {
    file.replacen("kind = \"tap\"", "kind = \"xdp\"", 1)
}

/// Its buffers lie behind those of the ones before it.
#[test]
fn a_nic_on_af_xdp_stays_when_one_before_it_goes() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let cable = |n| {
        format!("[[nic]]\nname = \"cable{n}\"\nkind = \"sim\"\naddresses = [\"10.0.0.7{n}/24\"]\n")
    };
    let guests = file_of(&machine, &GUESTS);
    let cables = format!("{guests}{}{}", cable(1), cable(2));
    let with = on_af_xdp(&nic(&machine, ""));
    reload(&machine, &cables);
    assert_eq!(reload(&machine, &format!("{cables}{with}")), [NEW]);
    reaches(&machine, WIRE, 0);
    // "7: c2@if6: …": another interface has another number.
    let index = || link(&machine).split(':').next().map(str::to_owned);
    let before = index();
    for (victim, goes, stay) in [("manager", 1, cable(2)), ("driver", 2, String::new())] {
        let gone = format!("start driver again: NIC cable{goes} is not in the file any more");
        assert_eq!(reload(&machine, &format!("{guests}{stay}{with}")), [gone]);
        reaches(&machine, WIRE, 1);
        replace(&machine, victim);
        reaches(&machine, WIRE, 0);
        assert_eq!(index(), before, "its interface was made again");
    }
    let comes = ["start driver again: NIC cable1 is new"];
    let both = format!("{guests}{}{with}", cable(1));
    assert_eq!(reload(&machine, &both), comes);
    reaches(&machine, WIRE, 1);
    assert_eq!(index(), before, "its interface was made again");
    assert_eq!(reload(&machine, &format!("{guests}{}", cable(1))), [GONE]);
    loses_interface(&machine, WIRE);
    machine.end();
}

/// It goes and comes: its interface has the name of the one before.
#[test]
fn a_nic_on_af_xdp_that_is_described_otherwise_again_and_again_is_there() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let with = |mtu| on_af_xdp(&with_nic(&machine, &format!("mtu = {mtu}")));
    assert_eq!(reload(&machine, &with(1300)), [NEW]);
    for mtu in (1301..1313).rev() {
        let steps = reload(&machine, &with(mtu));
        let comes = "start driver again: NIC wire is there again";
        assert_eq!(steps.last().map(String::as_str), Some(comes), "{steps:?}");
        let now = link(&machine);
        assert!(now.contains(&format!("mtu {mtu}")), "{now}");
    }
    reaches(&machine, WIRE, 1);
    machine.end();
}

#[test]
fn the_next_manager_and_the_next_driver_have_the_nics_of_the_last_reload() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    assert_eq!(reload(&machine, &with), [NEW]);
    for victim in ["manager", "driver", "manager"] {
        replace(&machine, victim);
        assert!(reload(&machine, &with).is_empty(), "{victim}");
        reaches(&machine, WIRE, 0);
    }
    // One that is described otherwise goes and comes again, with its MAC.
    let mac = |link: String| link.lines().nth(1).unwrap_or_default().to_owned();
    let before = mac(link(&machine));
    let slower = with_nic(&machine, "mtu = 1400");
    let steps = reload(&machine, &slower);
    let expected = [
        "start driver again: NIC wire: `mtu` is 1400 and was left out",
        "start driver again: NIC wire is there again",
    ];
    assert_eq!(steps, expected);
    let now = link(&machine);
    assert!(now.contains("mtu 1400"), "{now}");
    assert_eq!(mac(now), before);
    reaches(&machine, WIRE, 1);
    replace(&machine, "manager");
    assert_eq!(reload(&machine, &file_of(&machine, &GUESTS)), [GONE]);
    loses_interface(&machine, WIRE);
    reaches(&machine, 0, 1);
    machine.end();
}

/// Each guest that has a queue of the NIC, and whether headers come last there.
fn holders(machine: &Machine) -> Vec<(String, bool)> {
    let vmq = crate::queues::vmq(machine).unwrap_or_default();
    let queues = vmq["queues"].as_array().into_iter().flatten();
    let active = queues.filter(|queue| queue["phase"] == "active");
    let holder =
        |queue: &Value| Some((queue["guest"].as_str()?.to_owned(), queue["split"] == true));
    let mut holders: Vec<_> = active.filter_map(holder).collect();
    holders.sort();
    holders
}

/// Guests get queues of a NIC when they come, and leave them to others when they go.
#[test]
fn who_comes_has_a_queue_of_a_nic_and_who_goes_leaves_it() {
    let Some(machine) = start(1) else { return };
    let of = |guests: &[(usize, &str)]| file_of(&machine, guests) + &nic(&machine, QUEUES);
    assert_eq!(reload(&machine, &of(&GUESTS[..1])), [NEW]);
    let direct = || {
        let vmq = crate::queues::vmq(&machine)?;
        Some(crate::queues::count(&vmq["direct_packets"]))
    };
    if direct().is_none() {
        machine.end();
        return;
    }
    let have = |guests: &[(&str, bool)]| {
        let expected = guests
            .iter()
            .map(|(name, split)| (format!("vif.{name}-0"), *split));
        let expected: Vec<_> = expected.collect();
        wait_until("others have queues", || holders(&machine) == expected);
        for (name, _) in guests {
            let (place, before) = (NAMES.iter().position(|one| one == name), direct());
            reaches(&machine, WIRE, place.unwrap());
            assert!(direct() > before, "{name}: nothing has come by its queue");
        }
    };
    have(&[("c0", false)]);
    reload(&machine, &of(&GUESTS));
    have(&[("c0", false), ("c1", false)]);
    // Rules are asked before a header is there.
    let rule = "[[guest.vif.rule]]\naction = \"deny\"\nprotocol = \"tcp\"\n";
    reload(&machine, &of(&[(0, rule), (1, "")]));
    have(&[("c0", true), ("c1", false)]);
    for victim in ["driver", "manager", "netd"] {
        replace(&machine, victim);
        have(&[("c0", true), ("c1", false)]);
    }
    reload(&machine, &of(&[(0, rule)]));
    have(&[("c0", true)]);
    detach(&machine, 0);
    have(&[]);
    reload(&machine, &of(&GUESTS[1..]));
    have(&[("c1", false)]);
    // What is copied after it has been counted cannot lie in pages before.
    reload(&machine, &of(&[(1, "rate_to_guest_mbps = 100\n")]));
    have(&[]);
    reaches(&machine, WIRE, 1);
    machine.end();
}

#[test]
fn a_nic_that_cannot_come_leaves_the_machine_as_it_was() {
    let Some(machine) = start(2) else { return };
    reaches(&machine, 0, 1);
    let netns = machine.places[WIRE].0.path().display().to_string();
    let nowhere = with_nic(&machine, "").replace(&netns, "/no/such/namespace");
    let pid = || machine.ask(&["status"])["domains"][0]["pid"].clone();
    let driver = pid();
    for _ in 0..2 {
        let outcome = ask(&socket(&machine), &request(&nowhere));
        assert_eq!(outcome["done"], 0, "{outcome}");
        let failed = outcome["failed"].as_str().unwrap();
        assert!(
            failed.starts_with("NICs of driver: ") && failed.contains("/no/such/namespace"),
            "{failed}"
        );
        assert_eq!(pid(), driver, "nothing was started again");
        reaches(&machine, 0, 1);
    }
    for (changed, says) in [
        (
            on_af_xdp(&with_nic(&machine, "queues = \"vmq\"")),
            "NIC wire is new; that cannot change while the machine runs: restart the machine",
        ),
        (
            with_nic(&machine, "").replace("tap\"\nifname = \"c2", "sim\"\nifname = \"c2"),
            "ifname",
        ),
        (with_nic(&machine, "mtu = 3"), "`mtu` is 3"),
        (
            with_nic(&machine, "").replace(&address(WIRE), &address(0)),
            &address(0),
        ),
    ] {
        let refused = ask(&socket(&machine), &request(&changed));
        let why = refused["error"].as_str().unwrap_or_default();
        assert!(why.contains(says), "{says}: {refused}");
    }
    assert_eq!(reload(&machine, &with_nic(&machine, "")), [NEW]);
    reaches(&machine, WIRE, 0);
    machine.end();
}

/// A connection to the machine.
fn connect(machine: &Machine) -> UnixStream {
    let stream = UnixStream::connect(socket(machine)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Has the machine become what a file says, and waits for what is said, if anything is.
fn asks(mut stream: UnixStream, file: &str) {
    let _ = writeln!(stream, "{}", request(file));
    let _ = stream.read(&mut [0; 4096]);
}

/// Whether the NIC of this file is there as a whole, or not at all; none: neither, for now.
fn is_whole(machine: &Machine, with: &str) -> Option<bool> {
    let dry = machine.grantway(&["reload", &write(machine, with), "--dry-run"]);
    let said = text(&dry.stdout);
    let is_there = said == "nothing to change\n";
    let is_known = is_there || said == format!("{NEW}\n");
    let fits = is_known && has_interface(machine, WIRE) == is_there;
    let works = || hears(machine, 0, 1) && (!is_there || hears(machine, WIRE, 0));
    (fits && works()).then_some(is_there)
}

#[test]
fn who_dies_while_nics_come_or_go_leaves_no_half() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    dies_while_it_comes_or_goes(machine, with);
}

#[test]
fn who_dies_while_nics_on_af_xdp_come_or_go_leaves_no_half() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let with = on_af_xdp(&with_nic(&machine, ""));
    dies_while_it_comes_or_goes(machine, with);
}

/// Manager, netd or driver die while the NIC comes or goes: the same files again make the machine
/// what they say.
fn dies_while_it_comes_or_goes(machine: Machine, with: String) {
    let files = [with, file_of(&machine, &GUESTS)];
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    for (turn, victim) in (0..).zip(["manager", "netd", "driver"].repeat(4)) {
        let there = turn % 2 == 0;
        let file = &files[turn % 2];
        let pid = match victim {
            "driver" => machine.ask(&["status"])["domains"][0]["pid"].as_u64(),
            helper => {
                let program = format!("grantway-{helper}");
                Some(wait_for("no helper", || child_of(core, &program)))
            }
        };
        thread::scope(|scope| {
            // Who kills the manager hears nothing.
            scope.spawn(|| asks(connect(&machine), file));
            thread::sleep(Duration::from_millis(turn as u64 * 3));
            kill(pid.unwrap());
        });
        wait_until("it is neither there nor gone", || {
            is_whole(&machine, &files[0]).is_some()
        });
        wait_until("it does not become what its file says", || {
            let run = machine.grantway(&["reload", &write(&machine, file)]);
            text(&run.stdout).ends_with("nothing to change\n")
        });
        if there {
            reaches(&machine, WIRE, 0);
        } else {
            loses_interface(&machine, WIRE);
        }
        reaches(&machine, 0, 1);
    }
    machine.end();
}

#[test]
fn a_nic_that_comes_while_its_manager_dies_has_not_come() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    has_not_come(machine, &with);
}

#[test]
fn a_nic_on_af_xdp_that_comes_while_its_manager_dies_has_not_come() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let with = on_af_xdp(&with_nic(&machine, ""));
    has_not_come(machine, &with);
}

/// The manager dies while netd opens the interface, which it does after that, or cannot do.
fn has_not_come(machine: Machine, with: &str) {
    let netns = machine.places[WIRE].0.path().display().to_string();
    let nowhere = with.replace(&netns, "/no/such/namespace");
    reaches(&machine, 0, 1);
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let helper = |name| wait_for("no helper", || child_of(core, name));
    let before = at_rest(&machine);
    for file in [with, &nowhere, with] {
        let (manager, netd) = (helper("grantway-manager"), helper("grantway-netd"));
        // It serves this one: what waits for the socket the next manager would be asked.
        let mut stream = connect(&machine);
        writeln!(stream, "{{\"op\":\"status\"}}").unwrap();
        assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
        thread::scope(|scope| {
            signal(netd, "-STOP");
            scope.spawn(|| asks(stream, file));
            // Until it waits for netd; if it does not yet, nothing has begun.
            thread::sleep(Duration::from_millis(300));
            kill(manager);
            signal(netd, "-CONT");
        });
        wait_until("it has come, or is half there", || {
            is_whole(&machine, with) == Some(false)
        });
    }
    wait_until("a descriptor has stayed", || {
        let mut open = held(&machine).into_iter().zip(before);
        open.all(|(now, before)| now <= before)
    });
    assert_eq!(reload(&machine, with), [NEW]);
    reaches(&machine, WIRE, 0);
    machine.end();
}

/// An empty capture file.
fn capture(at: &Path) {
    let words: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    fs::write(at, bytes).unwrap();
}

#[test]
fn a_driver_that_does_not_come_back_gets_the_nics_again_that_it_had() {
    does_not_come_back(str::to_owned);
}

#[test]
fn a_driver_that_does_not_come_back_has_no_nic_on_af_xdp() {
    require!(af_xdp);
    does_not_come_back(on_af_xdp);
}

/// The driver cannot start with the NIC that is to come, whose kind is what `of_kind` makes of it.
fn does_not_come_back(of_kind: fn(&str) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let read = folder.path().join("in.pcap");
    capture(&read);
    let pcap = format!(
        "[[nic]]\nname = \"p\"\nkind = \"pcap\"\nread = \"{}\"\n",
        read.display()
    );
    let mut own = String::new();
    let machine = Machine::start(&["ping", "ip"], &NAMES, |paths| {
        own = file_of_paths(paths, &GUESTS) + &pcap;
        own.clone()
    });
    let Some(machine) = machine else { return };
    let with = of_kind(&with_nic(&machine, "")) + &pcap;
    reaches(&machine, 0, 1);
    // No driver can start without it.
    fs::remove_file(&read).unwrap();
    let outcome = ask(&socket(&machine), &request(&with));
    let failed = outcome["failed"].as_str().unwrap();
    for says in ["did not start", "in.pcap", "the NICs again that it had"] {
        assert!(failed.contains(says), "{says}: {failed}");
    }
    loses_interface(&machine, WIRE);
    let dry = machine.grantway(&["reload", &write(&machine, &with), "--dry-run"]);
    assert_eq!(text(&dry.stdout), format!("{NEW}\n"), "{dry:?}");
    capture(&read);
    reaches(&machine, 0, 1);
    assert_eq!(reload(&machine, &with), [NEW]);
    reaches(&machine, WIRE, 1);
    assert_eq!(reload(&machine, &own), [GONE]);
    // What is in files goes, and comes with the next start.
    let without = file_of(&machine, &GUESTS);
    let gone = "start driver again: NIC p is not in the file any more";
    assert_eq!(reload(&machine, &without), [gone]);
    reaches(&machine, 0, 1);
    let refused = ask(&socket(&machine), &request(&own));
    let why = refused["error"].as_str().unwrap_or_default();
    assert!(why.contains("NIC p is new; that cannot change"), "{why}");
    machine.end();
}

#[test]
fn a_cable_in_memory_comes_changes_and_goes() {
    let Some(machine) = start(2) else { return };
    let with = |more: &str| {
        let sim = "[[nic]]\nname = \"sim\"\nkind = \"sim\"\naddresses = [\"10.0.0.77/24\"]\n";
        file_of(&machine, &GUESTS) + sim + more
    };
    let answers = || {
        let ping = ["-c", "1", "-W", "1", "10.0.0.77"];
        machine.run(0, "ping", &ping).status.success()
    };
    reaches(&machine, 0, 1);
    for _ in 0..2 {
        let comes = "start driver again: NIC sim is new";
        assert_eq!(reload(&machine, &with("")), [comes]);
        wait_until("the far end does not answer", answers);
        let steps = [
            "start driver again: NIC sim: `delay_us` is 7 and was left out",
            "start driver again: NIC sim is there again",
        ];
        assert_eq!(reload(&machine, &with("delay_us = 7\n")), steps);
        wait_until("the far end does not answer", answers);
        let goes = "start driver again: NIC sim is not in the file any more";
        assert_eq!(reload(&machine, &file_of(&machine, &GUESTS)), [goes]);
        reaches(&machine, 0, 1);
        assert!(!answers());
    }
    machine.end();
}

#[test]
fn an_uplink_is_set_up_and_taken_away_with_its_nic() {
    let Some(machine) = start(2) else { return };
    let forwards = || {
        let read = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        let text = machine.places[WIRE].0.enter(read).unwrap();
        text.trim().to_owned()
    };
    let as_made = forwards();
    let up = with_nic(&machine, "uplink = { nat = true }");
    for _ in 0..2 {
        assert_eq!(reload(&machine, &up), [NEW]);
        assert_eq!(forwards(), "1");
        reaches(&machine, 0, WIRE);
        assert_eq!(reload(&machine, &file_of(&machine, &GUESTS)), [GONE]);
        wait_until("it still forwards", || forwards() == as_made);
        loses_interface(&machine, WIRE);
    }
    let stat = machine.ask(&["stat"]);
    assert_eq!(stat.to_string().matches("nic.wire").count(), 0, "{stat}");
    assert_ne!(stat, Value::Null);
    machine.end();
}
