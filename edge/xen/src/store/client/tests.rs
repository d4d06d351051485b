use super::super::fake::FakeStore;
use super::*;

fn fake_and_store() -> (FakeStore, Store<FakeStore>) {
    let fake = FakeStore::default();
    (fake.clone(), Store::new(fake))
}

#[test]
fn a_missing_node_is_none_and_not_an_error() {
    let (fake, mut store) = fake_and_store();
    assert_eq!(store.read("a").unwrap(), None);
    assert_eq!(store.list("a").unwrap(), [""; 0]);
    store.remove("a").unwrap();
    fake.set("a/b", "1");
    fake.set("a/c", "2");
    assert_eq!(store.read("a/b").unwrap().as_deref(), Some("1"));
    assert_eq!(store.list("a").unwrap(), ["b", "c"]);
}

#[test]
fn several_nodes_are_written_atomically() {
    let (fake, mut store) = fake_and_store();
    fake.set("be/state", "1");
    let nodes = [("feature-sg", "1".to_owned()), ("state", "2".to_owned())];
    fake.nodes().conflicts = 2;
    assert!(store.write_all("be", &nodes).unwrap());
    assert_eq!(fake.get("be/state").as_deref(), Some("2"));
    assert_eq!(fake.get("be/feature-sg").as_deref(), Some("1"));
    // The toolstack has removed the node, so it is not created again.
    fake.remove("be");
    assert!(!store.write_all("be", &nodes).unwrap());
    assert_eq!(fake.get("be/state"), None);
}

#[test]
fn a_transaction_fails_after_repeated_conflicts() {
    let (fake, mut store) = fake_and_store();
    fake.set("be/state", "1");
    fake.nodes().conflicts = u32::MAX;
    let refused = store.write_all("be", &[("state", "2".to_owned())]);
    assert!(matches!(refused, Err(StoreError::Refused(errno)) if errno == "EAGAIN"));
}

#[test]
fn events_arrive_between_answers() {
    let (fake, mut store) = fake_and_store();
    store.watch("backend/vif").unwrap();
    assert_eq!(
        store.event().unwrap().as_deref(),
        Some("backend/vif"),
        "a new watch causes one event immediately"
    );
    fake.set("backend/vif/3/0/state", "1");
    assert_eq!(store.read("nothing").unwrap(), None);
    let event = store.event().unwrap();
    assert_eq!(event.as_deref(), Some("backend/vif/3/0/state"));
    assert_eq!(store.event().unwrap(), None);
    store.unwatch("backend/vif").unwrap();
    fake.set("backend/vif/3/0/state", "2");
    assert_eq!(store.event().unwrap(), None);
}

#[test]
fn dropped_events_are_reported() {
    let (fake, mut store) = fake_and_store();
    store.watch("n").unwrap();
    for _ in 0..=EVENTS_MAX {
        fake.set("n", "x");
    }
    assert!(store.event().is_err());
    assert_eq!(store.event().unwrap(), None, "once");
}

#[test]
fn a_late_answer_is_dropped() {
    let (fake, mut store) = fake_and_store();
    fake.set("a", "1");
    fake.nodes().silent = true;
    assert!(matches!(store.read("a"), Err(StoreError::Late)));
    fake.nodes().silent = false;
    // The answer to the request that has timed out arrives now, before the answer to the next
    // request.
    let late = Header {
        kind: MessageType::Read as u32,
        request: 1,
        transaction: 0,
        length: 4,
    };
    fake.late(late, b"late");
    assert_eq!(store.read("a").unwrap().as_deref(), Some("1"));
}
