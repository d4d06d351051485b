//! Adds NICs to a running machine, and removes them.

use crate::attach::{NAMES, address, detach, domains, loses_interface, reaches, replace, stream};
use crate::machine::{Machine, text};
use crate::processes::descriptors;
use crate::reload::{file_of, start, write};
use serde_json::Value;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use testing::{StopOnDrop, child_of, require, wait_for, wait_until};

/// The index of the namespace that holds the NIC's kernel end.
pub(crate) const WIRE: usize = 2;
pub(crate) const GUESTS: [(usize, &str); 2] = [(0, ""), (1, "")];

/// Returns a NIC whose kernel end is in the last namespace, with that namespace's usual address.
fn nic(machine: &Machine, keys: &str) -> String {
    let netns = machine.places[WIRE].0.path().display().to_string();
    let (ifname, address) = (NAMES[WIRE], address(WIRE));
    format!(
        "[[nic]]\nname = \"wire\"\nkind = \"tap\"\nifname = \"{ifname}\"\nnetns = \"{netns}\"\n\
         addresses = [\"{address}/24\"]\n{keys}\n"
    )
}

/// Returns the machine's file with such a NIC and the two guests.
pub(crate) fn with_nic(machine: &Machine, keys: &str) -> String {
    file_of(machine, &GUESTS) + &nic(machine, keys)
}

/// Reloads, and returns the printed steps without the last line, which reports completion.
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

/// Returns the numbers of descriptors that the core and its helpers have open.
pub(crate) fn open_descriptors(machine: &Machine) -> [usize; 3] {
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let helper = |name| wait_for("no helper", || child_of(core, name));
    let all = [core, helper("grantway-netd"), helper("grantway-manager")];
    all.map(descriptors)
}

/// Returns these numbers when they are stable.
pub(crate) fn when_stable(machine: &Machine) -> [usize; 3] {
    wait_for("the numbers are never stable", || {
        let now = open_descriptors(machine);
        (0..3)
            .all(|_| open_descriptors(machine) == now)
            .then_some(now)
    })
}

/// Keys for a queue for each guest of the machine.
pub(crate) const QUEUES: &str = "queues = \"vmq\"\nvmq_queues = 2";
pub(crate) const NIC_ADDED: &str = "restart driver: NIC wire is new";
pub(crate) const NIC_REMOVED: &str = "restart driver: NIC wire is no longer in the file";

#[test]
fn a_tap_is_added_and_removed_under_a_stream() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    check_repeated_changes(machine, &with);
}

#[test]
fn an_xdp_nic_is_added_and_removed_under_a_stream() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let with = on_af_xdp(&with_nic(&machine, ""));
    check_repeated_changes(machine, &with);
}

#[test]
fn queues_are_added_and_removed_under_a_stream() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, QUEUES);
    check_repeated_changes(machine, &with);
}

/// Adds and removes the NIC in the last namespace repeatedly.
fn check_repeated_changes(machine: Machine, with: &str) {
    let without = file_of(&machine, &GUESTS);
    reaches(&machine, 0, 1);
    let (stop, carried) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        let streaming = scope.spawn(|| stream(&machine, (0, 1), &stop, &carried));
        let goes_on = || {
            let so_far = carried.load(Ordering::Relaxed);
            wait_until("the stream is stalled", || {
                carried.load(Ordering::Relaxed) > so_far
            });
        };
        let dry = machine.grantway(&["reload", &write(&machine, with), "--dry-run"]);
        assert_eq!(text(&dry.stdout), format!("{NIC_ADDED}\n"), "{dry:?}");
        assert!(link(&machine).is_empty(), "a dry run changes nothing");
        let mut before = None;
        for _ in 0..4 {
            assert_eq!(reload(&machine, with), [NIC_ADDED]);
            goes_on();
            for guest in [0, 1] {
                reaches(&machine, WIRE, guest);
            }
            if with.contains(QUEUES) && crate::queues::vmq(&machine).is_some() {
                wait_until("the guests have no queues", || holders(&machine).len() == 2);
            }
            // A second reload changes nothing.
            assert!(reload(&machine, with).is_empty());
            assert_eq!(reload(&machine, &without), [NIC_REMOVED]);
            goes_on();
            loses_interface(&machine, WIRE);
            assert!(reload(&machine, &without).is_empty());
            // Each round must leave the same descriptors as the first one.
            match before {
                None => before = Some(when_stable(&machine)),
                Some(before) => wait_until("a descriptor is still open", || {
                    let mut open = open_descriptors(&machine).into_iter().zip(before);
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

/// Returns the file with an AF_XDP NIC instead of a TAP.
pub(crate) fn on_af_xdp(file: &str) -> String {
    file.replacen("kind = \"tap\"", "kind = \"xdp\"", 1)
}

/// The buffers of the remaining NIC followed those of the removed NIC.
#[test]
fn an_xdp_nic_stays_when_one_before_it_is_removed() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let cable = |n| {
        format!("[[nic]]\nname = \"cable{n}\"\nkind = \"sim\"\naddresses = [\"10.0.0.7{n}/24\"]\n")
    };
    let guests = file_of(&machine, &GUESTS);
    let cables = format!("{guests}{}{}", cable(1), cable(2));
    let with = on_af_xdp(&nic(&machine, ""));
    reload(&machine, &cables);
    assert_eq!(reload(&machine, &format!("{cables}{with}")), [NIC_ADDED]);
    reaches(&machine, WIRE, 0);
    // The output is "7: c2@if6: …", and a new interface would have a new number.
    let index = || link(&machine).split(':').next().map(str::to_owned);
    let before = index();
    for (victim, goes, stay) in [("manager", 1, cable(2)), ("driver", 2, String::new())] {
        let expected = format!("restart driver: NIC cable{goes} is no longer in the file");
        assert_eq!(
            reload(&machine, &format!("{guests}{stay}{with}")),
            [expected]
        );
        reaches(&machine, WIRE, 1);
        replace(&machine, victim);
        reaches(&machine, WIRE, 0);
        assert_eq!(index(), before, "the interface was recreated");
    }
    let comes = ["restart driver: NIC cable1 is new"];
    let both = format!("{guests}{}{with}", cable(1));
    assert_eq!(reload(&machine, &both), comes);
    reaches(&machine, WIRE, 1);
    assert_eq!(index(), before, "the interface was recreated");
    assert_eq!(
        reload(&machine, &format!("{guests}{}", cable(1))),
        [NIC_REMOVED]
    );
    loses_interface(&machine, WIRE);
    machine.end();
}

/// Each change removes and adds the NIC. Its new interface has the name of the previous one.
#[test]
fn an_xdp_nic_survives_repeated_changes() {
    require!(af_xdp);
    let Some(machine) = start(2) else { return };
    let with = |mtu| on_af_xdp(&with_nic(&machine, &format!("mtu = {mtu}")));
    assert_eq!(reload(&machine, &with(1300)), [NIC_ADDED]);
    for mtu in (1301..1313).rev() {
        let steps = reload(&machine, &with(mtu));
        let comes = "restart driver: NIC wire is added again";
        assert_eq!(steps.last().map(String::as_str), Some(comes), "{steps:?}");
        let now = link(&machine);
        assert!(now.contains(&format!("mtu {mtu}")), "{now}");
    }
    reaches(&machine, WIRE, 1);
    machine.end();
}

#[test]
fn reloaded_nics_survive_manager_and_driver() {
    let Some(machine) = start(2) else { return };
    let with = with_nic(&machine, "");
    assert_eq!(reload(&machine, &with), [NIC_ADDED]);
    for victim in ["manager", "driver", "manager"] {
        replace(&machine, victim);
        assert!(reload(&machine, &with).is_empty(), "{victim}");
        reaches(&machine, WIRE, 0);
    }
    // A changed NIC is removed and added again with the same MAC.
    let mac = |link: String| link.lines().nth(1).unwrap_or_default().to_owned();
    let before = mac(link(&machine));
    let slower = with_nic(&machine, "mtu = 1400");
    let steps = reload(&machine, &slower);
    let expected = [
        "restart driver: NIC wire: `mtu`: unset → 1400",
        "restart driver: NIC wire is added again",
    ];
    assert_eq!(steps, expected);
    let now = link(&machine);
    assert!(now.contains("mtu 1400"), "{now}");
    assert_eq!(mac(now), before);
    reaches(&machine, WIRE, 1);
    replace(&machine, "manager");
    assert_eq!(reload(&machine, &file_of(&machine, &GUESTS)), [NIC_REMOVED]);
    loses_interface(&machine, WIRE);
    reaches(&machine, 0, 1);
    machine.end();
}

/// Returns the guests that have a queue of the NIC, and for each whether headers are written last.
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

/// Guests get queues of a NIC when they are attached, and release them when they are detached.
#[test]
fn queues_follow_attached_and_detached_guests() {
    let Some(machine) = start(1) else { return };
    let of = |guests: &[(usize, &str)]| file_of(&machine, guests) + &nic(&machine, QUEUES);
    assert_eq!(reload(&machine, &of(&GUESTS[..1])), [NIC_ADDED]);
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
        wait_until("the wrong guests have queues", || {
            holders(&machine) == expected
        });
        for (name, _) in guests {
            let (place, before) = (NAMES.iter().position(|one| one == name), direct());
            reaches(&machine, WIRE, place.unwrap());
            // The driver may have counted the frame only a moment after its answer.
            wait_until("no frame has arrived in a guest's queue", || {
                reaches(&machine, WIRE, place.unwrap());
                direct() > before
            });
        }
    };
    have(&[("c0", false)]);
    reload(&machine, &of(&GUESTS));
    have(&[("c0", false), ("c1", false)]);
    // With rules, the header is written last, after their evaluation.
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
    // A rate limit counts frames before they are copied, so they cannot arrive directly in the
    // guest's pages.
    reload(&machine, &of(&[(1, "rate_to_guest_mbps = 100\n")]));
    have(&[]);
    reaches(&machine, WIRE, 1);
    machine.end();
}

#[test]
fn an_in_memory_cable_is_added_changed_and_removed() {
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
        let comes = "restart driver: NIC sim is new";
        assert_eq!(reload(&machine, &with("")), [comes]);
        wait_until("the far end does not answer", answers);
        let steps = [
            "restart driver: NIC sim: `delay_us`: unset → 7",
            "restart driver: NIC sim is added again",
        ];
        assert_eq!(reload(&machine, &with("delay_us = 7\n")), steps);
        wait_until("the far end does not answer", answers);
        let goes = "restart driver: NIC sim is no longer in the file";
        assert_eq!(reload(&machine, &file_of(&machine, &GUESTS)), [goes]);
        reaches(&machine, 0, 1);
        assert!(!answers());
    }
    machine.end();
}

#[test]
fn an_uplink_is_added_and_removed_with_its_nic() {
    let Some(machine) = start(2) else { return };
    let forwards = || {
        let read = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        let text = machine.places[WIRE].0.enter(read).unwrap();
        text.trim().to_owned()
    };
    let as_made = forwards();
    let up = with_nic(&machine, "uplink = { nat = true }");
    for _ in 0..2 {
        assert_eq!(reload(&machine, &up), [NIC_ADDED]);
        assert_eq!(forwards(), "1");
        reaches(&machine, 0, WIRE);
        assert_eq!(reload(&machine, &file_of(&machine, &GUESTS)), [NIC_REMOVED]);
        wait_until("forwarding is still enabled", || forwards() == as_made);
        loses_interface(&machine, WIRE);
    }
    let stat = machine.ask(&["stat"]);
    assert_eq!(stat.to_string().matches("nic.wire").count(), 0, "{stat}");
    assert_ne!(stat, Value::Null);
    machine.end();
}
