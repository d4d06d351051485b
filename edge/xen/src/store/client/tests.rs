use super::super::fake::Fake;
use super::*;

fn both() -> (Fake, Store<Fake>) {
    let fake = Fake::default();
    (fake.clone(), Store::new(fake))
}

#[test]
fn what_is_gone_is_none_and_no_error() {
    let (fake, mut store) = both();
    assert_eq!(store.read("a").unwrap(), None);
    assert_eq!(store.list("a").unwrap(), [""; 0]);
    store.remove("a").unwrap();
    fake.set("a/b", "1");
    fake.set("a/c", "2");
    assert_eq!(store.read("a/b").unwrap().as_deref(), Some("1"));
    assert_eq!(store.list("a").unwrap(), ["b", "c"]);
}

#[test]
fn several_nodes_are_written_at_once_or_not_at_all() {
    let (fake, mut store) = both();
    fake.set("be/state", "1");
    let nodes = [("feature-sg", "1".to_owned()), ("state", "2".to_owned())];
    fake.nodes().conflicts = 2;
    assert!(store.write_all("be", &nodes).unwrap());
    assert_eq!(fake.get("be/state").as_deref(), Some("2"));
    assert_eq!(fake.get("be/feature-sg").as_deref(), Some("1"));
    // The toolstack has removed it: nothing comes back.
    fake.remove("be");
    assert!(!store.write_all("be", &nodes).unwrap());
    assert_eq!(fake.get("be/state"), None);
}

#[test]
fn a_transaction_that_never_ends_well_is_given_up() {
    let (fake, mut store) = both();
    fake.set("be/state", "1");
    fake.nodes().conflicts = u32::MAX;
    let refused = store.write_all("be", &[("state", "2".to_owned())]);
    assert!(matches!(refused, Err(StoreError::Refused(errno)) if errno == "EAGAIN"));
}

#[test]
fn changes_come_between_answers() {
    let (fake, mut store) = both();
    store.watch("backend/vif").unwrap();
    assert_eq!(
        store.event().unwrap().as_deref(),
        Some("backend/vif"),
        "once at once"
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
fn of_more_changes_than_can_wait_it_is_known_that_there_were_some() {
    let (fake, mut store) = both();
    store.watch("n").unwrap();
    for _ in 0..=EVENTS_MAX {
        fake.set("n", "x");
    }
    assert!(store.event().is_err());
    assert_eq!(store.event().unwrap(), None, "once");
}

#[test]
fn an_answer_that_comes_late_is_thrown_away() {
    let (fake, mut store) = both();
    fake.set("a", "1");
    fake.nodes().silent = true;
    assert!(matches!(store.read("a"), Err(StoreError::Late)));
    fake.nodes().silent = false;
    // The answer to the request that was given up comes now, before the next one's.
    let late = Header {
        kind: Kind::Read as u32,
        request: 1,
        transaction: 0,
        length: 4,
    };
    fake.late(late, b"late");
    assert_eq!(store.read("a").unwrap().as_deref(), Some("1"));
}
