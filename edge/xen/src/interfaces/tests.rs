use super::*;
use crate::netif::features::{Ports, offered};
use crate::store::fake::Fake;
use config::domain::Offloads;

const MAC: &str = "00:16:3e:00:00:2a";
const BE: &str = "backend/vif/3/0";
const FE: &str = "/local/domain/3/device/vif/0";

/// A xenstore as libxl leaves it when it has made an interface of domain 3.
fn toolstack(domid: &str) -> Fake {
    let fake = Fake::default();
    fake.set("domid", domid);
    for (node, value) in [
        ("frontend", FE),
        ("frontend-id", "3"),
        ("online", "1"),
        ("state", "1"),
        ("mac", MAC),
        ("handle", "0"),
    ] {
        fake.set(&format!("{BE}/{node}"), value);
    }
    fake.set(&format!("{FE}/state"), "1");
    fake
}

fn state(fake: &Fake) -> String {
    fake.get(&format!("{BE}/state")).unwrap_or_default()
}

/// What a stock netfront writes when it sees InitWait.
fn front_connects(fake: &Fake) {
    for (node, value) in [
        ("tx-ring-ref", "8"),
        ("rx-ring-ref", "9"),
        ("event-channel", "15"),
        ("request-rx-copy", "1"),
        ("feature-sg", "1"),
        ("state", "4"),
    ] {
        fake.set(&format!("{FE}/{node}"), value);
    }
}

fn served(fake: &Fake) -> Interfaces<Fake> {
    let mut interfaces = Interfaces::new(Store::new(fake.clone())).unwrap();
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), Some(News::Came(ConnId(0))));
    interfaces
}

const CONN: ConnId = ConnId(0);

/// Goes through the hand-shake as the driver does.
fn connected(fake: &Fake) -> Interfaces<Fake> {
    let mut interfaces = served(fake);
    let offer = offered(Offloads::Tso);
    interfaces
        .set(CONN, XenbusState::InitWait, Some(&offer))
        .unwrap();
    front_connects(fake);
    interfaces.look().unwrap();
    assert_eq!(interfaces.shown(CONN), Some(XenbusState::Initialised));
    interfaces.choose(CONN).unwrap();
    interfaces
        .set(CONN, XenbusState::Connected, Some(&offer))
        .unwrap();
    interfaces
}

#[test]
fn the_hand_shake_of_a_stock_frontend() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    assert_eq!(state(&fake), "4");
    assert_eq!(
        fake.get(&format!("{BE}/hotplug-status")).as_deref(),
        Some("connected")
    );
    assert_eq!(
        fake.get(&format!("{BE}/feature-gso-tcpv4")).as_deref(),
        Some("1")
    );
    interfaces.look().unwrap();
    assert_eq!(interfaces.shown(CONN), Some(XenbusState::Connected));
    assert_eq!(interfaces.news(), None);
}

#[test]
fn detached_in_dom0_the_nodes_are_the_toolstacks() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    fake.set(&format!("{BE}/online"), "0");
    fake.set(&format!("{BE}/state"), "5");
    interfaces.look().unwrap();
    assert_eq!(interfaces.shown(CONN), Some(XenbusState::Closing));
    interfaces.set(CONN, XenbusState::Closed, None).unwrap();
    assert_eq!(state(&fake), "6");
    assert_eq!(interfaces.news(), Some(News::Gone(CONN)));
    // libxl removes it then; nothing comes back, and nothing is made of the remains.
    fake.remove(BE);
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), None);
    assert_eq!(fake.get(&format!("{BE}/state")), None);
}

#[test]
fn detached_in_a_driver_domain_nothing_is_left() {
    let fake = toolstack("5");
    let mut interfaces = connected(&fake);
    fake.set(&format!("{BE}/online"), "0");
    fake.set(&format!("{BE}/state"), "5");
    interfaces.look().unwrap();
    interfaces.set(CONN, XenbusState::Closed, None).unwrap();
    let left: Vec<_> = fake.nodes().tree.keys().cloned().collect();
    assert!(
        !left.iter().any(|node| node.starts_with("backend")),
        "{left:?}"
    );
}

#[test]
fn a_guest_that_is_destroyed_takes_its_nodes_with_it() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    fake.remove("/local/domain/3");
    interfaces.look().unwrap();
    assert_eq!(interfaces.shown(CONN), Some(XenbusState::Unknown));
    fake.remove(BE);
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), Some(News::Gone(CONN)));
    assert_eq!(interfaces.shown(CONN), None);
    // What the driver says of it now goes nowhere.
    interfaces.set(CONN, XenbusState::Closed, None).unwrap();
    assert_eq!(fake.get(&format!("{BE}/state")), None);
}

#[test]
fn a_frontend_comes_back_by_itself() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    fake.set(&format!("{FE}/state"), "5");
    interfaces.look().unwrap();
    assert_eq!(interfaces.shown(CONN), Some(XenbusState::Closing));
    interfaces.set(CONN, XenbusState::Closed, None).unwrap();
    assert_eq!(state(&fake), "6");
    assert_eq!(interfaces.news(), None, "the toolstack keeps it");
    fake.set(&format!("{FE}/state"), "1");
    interfaces.look().unwrap();
    assert_eq!(interfaces.shown(CONN), Some(XenbusState::Initialising));
    let offer = offered(Offloads::Tso);
    interfaces
        .set(CONN, XenbusState::InitWait, Some(&offer))
        .unwrap();
    assert_eq!(state(&fake), "2");
}

#[test]
fn the_next_process_takes_over_without_a_word() {
    let fake = toolstack("0");
    drop(connected(&fake));
    let before = fake.nodes().tree.clone();
    let mut next = served(&fake);
    assert!(next.get(CONN).unwrap().resumes);
    let offer = offered(Offloads::None);
    next.set(CONN, XenbusState::InitWait, Some(&offer)).unwrap();
    assert_eq!(next.shown(CONN), Some(XenbusState::Initialised));
    let ports = next.choose(CONN).unwrap().unwrap().queues[0].ports;
    assert_eq!(ports, Ports::Shared(15));
    next.set(CONN, XenbusState::Connected, Some(&offer))
        .unwrap();
    assert_eq!(fake.nodes().tree, before, "a frontend would notice");
    assert!(!next.get(CONN).unwrap().resumes, "once");
}

#[test]
fn what_was_detached_while_nobody_served_it_is_finished() {
    for (domid, left) in [("0", Some("6")), ("5", None)] {
        let fake = toolstack(domid);
        drop(connected(&fake));
        fake.set(&format!("{BE}/online"), "0");
        fake.set(&format!("{BE}/state"), "5");
        let mut next = Interfaces::new(Store::new(fake.clone())).unwrap();
        next.look().unwrap();
        assert_eq!(next.news(), None);
        assert_eq!(
            fake.get(&format!("{BE}/state")).as_deref(),
            left,
            "domain {domid}"
        );
    }
}

#[test]
fn a_frontend_chooses_its_groups_whenever_it_likes() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    let node = format!("{FE}/request-multicast-control");
    let mut chooses = || {
        interfaces.look().unwrap();
        interfaces.get(CONN).unwrap().chooses_groups
    };
    assert!(!chooses());
    for (value, is_on) in [
        ("1", true),
        ("0", false),
        ("2", true),
        ("x", false),
        ("", false),
    ] {
        fake.set(&node, value);
        assert_eq!(chooses(), is_on, "{value:?}");
    }
    fake.set(&node, "1");
    assert!(chooses());
    fake.remove(&node);
    assert!(!chooses());
    // Who takes over asks, too.
    fake.set(&node, "1");
    assert!(served(&fake).get(CONN).unwrap().chooses_groups);
}

#[test]
fn interfaces_whose_numbers_begin_alike_are_told_apart() {
    let fake = toolstack("0");
    let frontend = |device: u32| format!("/local/domain/3/device/vif/{device}");
    for device in [1, 10] {
        let backend = format!("backend/vif/3/{device}");
        fake.set(&format!("{backend}/frontend"), &frontend(device));
        fake.set(&format!("{backend}/state"), "1");
        fake.set(&format!("{backend}/mac"), MAC);
    }
    let mut interfaces = served(&fake);
    let all: Vec<_> = interfaces
        .iter()
        .map(|(conn, served)| (conn, served.key.device))
        .collect();
    assert_eq!(all.len(), 3);
    fake.set(&format!("{}/state", frontend(10)), "4");
    interfaces.look().unwrap();
    for (conn, device) in all {
        let connected = interfaces.shown(conn) == Some(XenbusState::Connected);
        assert_eq!(connected, device == 10, "{device}");
    }
}

#[test]
fn what_changes_while_the_xenstore_is_asked_is_not_lost() {
    let fake = toolstack("0");
    let mut interfaces = served(&fake);
    interfaces.look().unwrap();
    assert!(!interfaces.has_news());
    front_connects(&fake);
    // The changes come before the answers to this, and nothing comes after them.
    let offer = offered(Offloads::Tso);
    interfaces
        .set(CONN, XenbusState::InitWait, Some(&offer))
        .unwrap();
    while interfaces.has_news() {
        interfaces.look().unwrap();
    }
    assert_eq!(interfaces.shown(CONN), Some(XenbusState::Initialised));
}

#[test]
fn what_cannot_be_served_says_why() {
    let fake = toolstack("0");
    fake.set(&format!("{BE}/mac"), "ff:ff:ff:ff:ff:ff");
    let mut interfaces = Interfaces::new(Store::new(fake.clone())).unwrap();
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), None);
    let why = fake.get(&format!("{BE}/hotplug-error")).unwrap();
    assert!(why.contains("ff:ff"), "{why}");
}

#[test]
fn what_is_refused_is_left_alone_until_it_changes() {
    let fake = toolstack("0");
    let mut interfaces = Interfaces::new(Store::new(fake.clone())).unwrap();
    let mut refused = 0;
    for _ in 0..20 {
        interfaces.look().unwrap();
        while let Some(News::Came(conn)) = interfaces.news() {
            interfaces.refuse(conn, "its MAC is taken").unwrap();
            refused += 1;
        }
    }
    assert!((1..=2).contains(&refused), "{refused} times");
    fake.set(&format!("{BE}/mac"), MAC);
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), Some(News::Came(ConnId(0))));
    // It was served meanwhile: that it is refused again is told again.
    fake.set(&format!("{BE}/hotplug-status"), "connected");
    interfaces.refuse(ConnId(0), "its MAC is taken").unwrap();
    let status = fake.get(&format!("{BE}/hotplug-status"));
    assert_eq!(status.as_deref(), Some("error"));
}

/// Two guests want one MAC: who has lost it is tried again when the other one has gone.
#[test]
fn who_was_refused_is_tried_again_when_another_goes() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    for (node, value) in [
        ("frontend", "/local/domain/4/device/vif/0"),
        ("mac", MAC),
        ("state", "1"),
    ] {
        fake.set(&format!("backend/vif/4/0/{node}"), value);
    }
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), Some(News::Came(ConnId(1))));
    interfaces.refuse(ConnId(1), "its MAC is taken").unwrap();
    while interfaces.has_news() {
        interfaces.look().unwrap();
        if let Some(News::Came(conn)) = interfaces.news() {
            interfaces.refuse(conn, "its MAC is taken").unwrap();
        }
    }
    fake.remove(BE);
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), Some(News::Gone(ConnId(0))));
    assert!(interfaces.has_news());
    interfaces.look().unwrap();
    assert!(matches!(interfaces.news(), Some(News::Came(_))));
}

#[test]
fn two_guests_are_two_connections_and_places_are_used_again() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    for (node, value) in [
        ("frontend", "/local/domain/4/device/vif/0"),
        ("mac", MAC),
        ("state", "1"),
    ] {
        fake.set(&format!("backend/vif/4/0/{node}"), value);
    }
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), Some(News::Came(ConnId(1))));
    fake.remove("backend/vif/3");
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), Some(News::Gone(ConnId(0))));
    for (node, value) in [
        ("frontend", "/local/domain/9/device/vif/0"),
        ("mac", MAC),
        ("state", "1"),
    ] {
        fake.set(&format!("backend/vif/9/0/{node}"), value);
    }
    interfaces.look().unwrap();
    assert_eq!(interfaces.news(), Some(News::Came(ConnId(0))));
}
