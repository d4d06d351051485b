use super::*;
use crate::netif::features::{EventPorts, backend_offer};
use crate::store::fake::FakeStore;
use config::domain::Offloads;

const MAC: &str = "00:16:3e:00:00:2a";
const BE: &str = "backend/vif/3/0";
const FE: &str = "/local/domain/3/device/vif/0";

/// Returns a xenstore in the state in which libxl leaves it after creating an interface of domain
/// 3.
fn toolstack(domid: &str) -> FakeStore {
    let fake = FakeStore::default();
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

fn state(fake: &FakeStore) -> String {
    fake.get(&format!("{BE}/state")).unwrap_or_default()
}

/// Writes the nodes that a stock netfront writes in state InitWait.
fn front_connects(fake: &FakeStore) {
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

fn served(fake: &FakeStore) -> Interfaces<FakeStore> {
    let mut interfaces = Interfaces::new(Store::new(fake.clone())).unwrap();
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Added(ConnId(0)))
    );
    interfaces
}

const CONN: ConnId = ConnId(0);

/// Executes the driver's part of the handshake.
fn connected(fake: &FakeStore) -> Interfaces<FakeStore> {
    let mut interfaces = served(fake);
    let offer = backend_offer(Offloads::Tso);
    interfaces
        .set(CONN, XenbusState::InitWait, Some(&offer))
        .unwrap();
    front_connects(fake);
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.published_state(CONN),
        Some(XenbusState::Initialised)
    );
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
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.published_state(CONN),
        Some(XenbusState::Connected)
    );
    assert_eq!(interfaces.next_change(), None);
}

#[test]
fn in_dom0_the_toolstack_removes_the_nodes() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    fake.set(&format!("{BE}/online"), "0");
    fake.set(&format!("{BE}/state"), "5");
    interfaces.read_changes(0).unwrap();
    assert_eq!(interfaces.published_state(CONN), Some(XenbusState::Closing));
    interfaces.set(CONN, XenbusState::Closed, None).unwrap();
    assert_eq!(state(&fake), "6");
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Removed(CONN))
    );
    // Then libxl removes the interface; the driver ignores the remains.
    fake.remove(BE);
    interfaces.read_changes(0).unwrap();
    assert_eq!(interfaces.next_change(), None);
    assert_eq!(fake.get(&format!("{BE}/state")), None);
}

#[test]
fn a_driver_domain_removes_the_nodes() {
    let fake = toolstack("5");
    let mut interfaces = connected(&fake);
    fake.set(&format!("{BE}/online"), "0");
    fake.set(&format!("{BE}/state"), "5");
    interfaces.read_changes(0).unwrap();
    interfaces.set(CONN, XenbusState::Closed, None).unwrap();
    let left: Vec<_> = fake.nodes().tree.keys().cloned().collect();
    assert!(
        !left.iter().any(|node| node.starts_with("backend")),
        "{left:?}"
    );
}

#[test]
fn a_destroyed_guest_loses_its_nodes() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    fake.remove("/local/domain/3");
    interfaces.read_changes(0).unwrap();
    assert_eq!(interfaces.published_state(CONN), Some(XenbusState::Unknown));
    fake.remove(BE);
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Removed(CONN))
    );
    assert_eq!(interfaces.published_state(CONN), None);
    // Later states of the driver have no effect.
    interfaces.set(CONN, XenbusState::Closed, None).unwrap();
    assert_eq!(fake.get(&format!("{BE}/state")), None);
}

#[test]
fn a_frontend_reconnects() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    fake.set(&format!("{FE}/state"), "5");
    interfaces.read_changes(0).unwrap();
    assert_eq!(interfaces.published_state(CONN), Some(XenbusState::Closing));
    interfaces.set(CONN, XenbusState::Closed, None).unwrap();
    assert_eq!(state(&fake), "6");
    assert_eq!(
        interfaces.next_change(),
        None,
        "the toolstack keeps the interface"
    );
    fake.set(&format!("{FE}/state"), "1");
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.published_state(CONN),
        Some(XenbusState::Initialising)
    );
    let offer = backend_offer(Offloads::Tso);
    interfaces
        .set(CONN, XenbusState::InitWait, Some(&offer))
        .unwrap();
    assert_eq!(state(&fake), "2");
}

#[test]
fn the_next_process_takes_over_silently() {
    let fake = toolstack("0");
    drop(connected(&fake));
    let before = fake.nodes().tree.clone();
    let mut next = served(&fake);
    assert!(next.get(CONN).unwrap().resumes);
    let offer = backend_offer(Offloads::None);
    next.set(CONN, XenbusState::InitWait, Some(&offer)).unwrap();
    assert_eq!(next.published_state(CONN), Some(XenbusState::Initialised));
    let ports = next.choose(CONN).unwrap().unwrap().queues[0].ports;
    assert_eq!(ports, EventPorts::Shared(15));
    next.set(CONN, XenbusState::Connected, Some(&offer))
        .unwrap();
    assert_eq!(
        fake.nodes().tree,
        before,
        "a frontend would notice a change"
    );
    assert!(!next.get(CONN).unwrap().resumes, "once");
}

#[test]
fn an_unserved_detached_interface_is_finished() {
    for (domid, left) in [("0", Some("6")), ("5", None)] {
        let fake = toolstack(domid);
        drop(connected(&fake));
        fake.set(&format!("{BE}/online"), "0");
        fake.set(&format!("{BE}/state"), "5");
        let mut next = Interfaces::new(Store::new(fake.clone())).unwrap();
        next.read_changes(0).unwrap();
        assert_eq!(next.next_change(), None);
        assert_eq!(
            fake.get(&format!("{BE}/state")).as_deref(),
            left,
            "domain {domid}"
        );
    }
}

#[test]
fn a_frontend_changes_its_groups_at_any_time() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    let node = format!("{FE}/request-multicast-control");
    let mut chooses = || {
        interfaces.read_changes(0).unwrap();
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
    // A process that takes over also reads the node.
    fake.set(&node, "1");
    assert!(served(&fake).get(CONN).unwrap().chooses_groups);
}

#[test]
fn interfaces_with_a_common_prefix_are_distinct() {
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
    interfaces.read_changes(0).unwrap();
    for (conn, device) in all {
        let connected = interfaces.published_state(conn) == Some(XenbusState::Connected);
        assert_eq!(connected, device == 10, "{device}");
    }
}

#[test]
fn changes_during_a_request_are_not_lost() {
    let fake = toolstack("0");
    let mut interfaces = served(&fake);
    interfaces.read_changes(0).unwrap();
    assert!(!interfaces.has_changes());
    front_connects(&fake);
    // The changes arrive before the answers, and nothing arrives after them.
    let offer = backend_offer(Offloads::Tso);
    interfaces
        .set(CONN, XenbusState::InitWait, Some(&offer))
        .unwrap();
    while interfaces.has_changes() {
        interfaces.read_changes(0).unwrap();
    }
    assert_eq!(
        interfaces.published_state(CONN),
        Some(XenbusState::Initialised)
    );
}

#[test]
fn an_unserved_interface_has_the_reason() {
    let fake = toolstack("0");
    fake.set(&format!("{BE}/mac"), "ff:ff:ff:ff:ff:ff");
    let mut interfaces = Interfaces::new(Store::new(fake.clone())).unwrap();
    interfaces.read_changes(0).unwrap();
    assert_eq!(interfaces.next_change(), None);
    let why = fake.get(&format!("{BE}/hotplug-error")).unwrap();
    assert!(why.contains("ff:ff"), "{why}");
}

#[test]
fn a_rejected_interface_rests_until_it_changes() {
    let fake = toolstack("0");
    let mut interfaces = Interfaces::new(Store::new(fake.clone())).unwrap();
    let mut refused = 0;
    for _ in 0..20 {
        interfaces.read_changes(0).unwrap();
        while let Some(InterfaceChange::Added(conn)) = interfaces.next_change() {
            interfaces.refuse(conn, "its MAC is taken").unwrap();
            refused += 1;
        }
    }
    assert!((1..=2).contains(&refused), "{refused} times");
    fake.set(&format!("{BE}/mac"), MAC);
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Added(ConnId(0)))
    );
    // The interface was served meanwhile, so its rejection is reported again.
    fake.set(&format!("{BE}/hotplug-status"), "connected");
    interfaces.refuse(ConnId(0), "its MAC is taken").unwrap();
    let status = fake.get(&format!("{BE}/hotplug-status"));
    assert_eq!(status.as_deref(), Some("error"));
}

/// Two guests have the same MAC: the rejected one is retried when the other is removed.
#[test]
fn a_rejected_guest_is_retried_when_another_ends() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    for (node, value) in [
        ("frontend", "/local/domain/4/device/vif/0"),
        ("mac", MAC),
        ("state", "1"),
    ] {
        fake.set(&format!("backend/vif/4/0/{node}"), value);
    }
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Added(ConnId(1)))
    );
    interfaces.refuse(ConnId(1), "its MAC is taken").unwrap();
    while interfaces.has_changes() {
        interfaces.read_changes(0).unwrap();
        if let Some(InterfaceChange::Added(conn)) = interfaces.next_change() {
            interfaces.refuse(conn, "its MAC is taken").unwrap();
        }
    }
    fake.remove(BE);
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Removed(ConnId(0)))
    );
    assert!(interfaces.has_changes());
    interfaces.read_changes(0).unwrap();
    assert!(matches!(
        interfaces.next_change(),
        Some(InterfaceChange::Added(_))
    ));
}

#[test]
fn connections_of_removed_guests_are_reused() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    for (node, value) in [
        ("frontend", "/local/domain/4/device/vif/0"),
        ("mac", MAC),
        ("state", "1"),
    ] {
        fake.set(&format!("backend/vif/4/0/{node}"), value);
    }
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Added(ConnId(1)))
    );
    fake.remove("backend/vif/3");
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Removed(ConnId(0)))
    );
    for (node, value) in [
        ("frontend", "/local/domain/9/device/vif/0"),
        ("mac", MAC),
        ("state", "1"),
    ] {
        fake.set(&format!("backend/vif/9/0/{node}"), value);
    }
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Added(ConnId(0)))
    );
}

/// Adds an interface of another domain.
fn another(fake: &FakeStore, domain: u16) {
    let frontend = format!("/local/domain/{domain}/device/vif/0");
    for (node, value) in [("frontend", &*frontend), ("mac", MAC), ("state", "1")] {
        fake.set(&format!("backend/vif/{domain}/0/{node}"), value);
    }
}

/// The xenstore refuses a watch, for example because it limits a domain to 128 watches. Later
/// domains are still served.
#[test]
fn a_store_error_of_one_interface_delays_no_other() {
    let fake = toolstack("5");
    let mut interfaces = connected(&fake);
    fake.nodes().unwatchable = Some("/local/domain/4/device/vif/0".to_owned());
    another(&fake, 4);
    another(&fake, 9);
    for _ in 0..3 {
        interfaces.read_changes(0).unwrap();
    }
    assert_eq!(
        interfaces.next_change(),
        Some(InterfaceChange::Added(ConnId(1)))
    );
    assert_eq!(interfaces.get(ConnId(1)).unwrap().key.domain, 9);
    assert_eq!(interfaces.next_change(), None);
    let why = fake.get("backend/vif/4/0/hotplug-error").unwrap();
    assert!(why.contains("E2BIG"), "{why}");
    assert_eq!(interfaces.due_ns(0), None, "it is not retried for ever");
}

#[test]
fn a_flooding_guest_is_read_at_a_limited_rate() {
    let fake = toolstack("0");
    let mut interfaces = connected(&fake);
    another(&fake, 4);
    interfaces.read_changes(0).unwrap();
    while interfaces.next_change().is_some() {}
    let flood = |interfaces: &mut Interfaces<FakeStore>, now_ns| {
        let before = fake.nodes().asked;
        for _ in 0..1000 {
            fake.set(&format!("{FE}/anything"), "1");
            interfaces.read_changes(now_ns).unwrap();
        }
        fake.nodes().asked - before
    };
    assert!(flood(&mut interfaces, 0) <= 32 * 5);
    assert_eq!(flood(&mut interfaces, 0), 0);
    // Another guest's change is read immediately.
    fake.set("/local/domain/4/device/vif/0/state", "4");
    interfaces.read_changes(0).unwrap();
    assert_eq!(
        interfaces.published_state(ConnId(1)),
        Some(XenbusState::Connected)
    );
    // The last write of the flooding guest is not lost.
    fake.set(&format!("{FE}/state"), "6");
    interfaces.read_changes(0).unwrap();
    assert_ne!(interfaces.published_state(CONN), Some(XenbusState::Closed));
    let due = interfaces.due_ns(0).unwrap();
    assert!((1..=20_000_000).contains(&due), "{due}");
    interfaces.read_changes(due).unwrap();
    assert_eq!(interfaces.published_state(CONN), Some(XenbusState::Closed));
    assert_eq!(interfaces.due_ns(due), None);
}
