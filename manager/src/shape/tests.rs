use super::*;
use config::live::{self, NicsStep};

const FILE: &str = "[driver]\nworkers = 2\n[[guest]]\nname = \"a-1\"\n[[guest.vif]]\n\
                    endpoint = \"echo\"\n";

fn shape() -> (Shape, LiveConfig) {
    let file = config::File {
        name: "f".into(),
        text: FILE.into(),
    };
    let config = config::parse("f", FILE).unwrap();
    let machine = live::machine(&config, &[file]).unwrap();
    let domains = machine.domains.into_iter().enumerate().collect();
    let shape = Shape::new(domains, machine.live);
    let config = shape.config().unwrap();
    (shape, config)
}

fn guest(name: &str) -> Setting {
    let json = format!(r#"{{"name":"{name}","vif":[{{"endpoint":"echo"}}]}}"#);
    serde_json::from_str(&json).unwrap()
}

fn written(shape: &Shape) -> String {
    serde_json::to_string(shape).unwrap()
}

/// Makes a change, and the same as the next manager would, who reads of it.
fn become_so(both: &mut [Shape; 2], change: ShapeChange) {
    let text = serde_json::to_string(&change).unwrap();
    let [shape, next] = both;
    shape.apply(change);
    next.apply(serde_json::from_str(&text).unwrap());
    assert_eq!(shape, next);
}

#[test]
fn the_next_manager_knows_who_is_to_come_back_and_from_where() {
    let (shape, mut config) = shape();
    let mut both = [shape.clone(), shape];
    let returning = |name| Returning {
        guest: guest(name),
        origin: Origin {
            user: Some(7),
            places: [("/n".to_owned(), [1, 2, 3])].into(),
        },
    };
    let guests = ["a", "a", "b"].map(returning).into();
    become_so(&mut both, ShapeChange::Return { guests });
    assert_eq!(both[0].expected("b", "/n"), Some([1, 2, 3]));
    assert_eq!(both[0].expected("b", "/m"), None);
    let (_, comes) = both[0].admit(&mut config, &guest("a")).unwrap();
    become_so(&mut both, comes);
    let (name, user) = ("a".to_owned(), Some(9));
    become_so(&mut both, ShapeChange::Asked { name, user });
    let found = ShapeChange::Found {
        guest: "a".into(),
        netns: "/n".into(),
        place: [4, 5, 6],
    };
    become_so(&mut both, found);
    let name = "a".to_owned();
    become_so(&mut both, ShapeChange::Returned { name });
    assert_eq!(both[0].all_returning(), [returning("b")], "both of them");
    // A file that is begun anew says the same.
    let again: Shape = serde_json::from_str(&written(&both[0])).unwrap();
    assert_eq!(again, both[0]);
    let origin = again.origin("a").unwrap();
    assert_eq!((origin.user, origin.places["/n"]), (Some(9), [4, 5, 6]));
    become_so(&mut both, ShapeChange::Gone { name: "a".into() });
    assert_eq!(both[0].origin("a"), None);
}

#[test]
fn who_comes_back_is_left_to_the_next_core_once_at_every_moment() {
    let (mut shape, mut config) = shape();
    let returning = Returning {
        guest: guest("a"),
        origin: Origin::default(),
    };
    let guests = vec![returning];
    shape.apply(ShapeChange::Return { guests });
    let (_, comes) = shape.admit(&mut config, &guest("a")).unwrap();
    let name = || "a".to_owned();
    let (up, returned) = (
        ShapeChange::Up { name: name() },
        ShapeChange::Returned { name: name() },
    );
    for change in [comes, up, returned] {
        assert_eq!(crate::state::left(&shape).len(), 1);
        shape.apply(change);
    }
    assert_eq!(crate::state::left(&shape).len(), 1);
}

#[test]
fn who_came_and_went_leaves_the_machine_as_it_was() {
    let (before, mut config) = shape();
    assert_eq!(before.workers(), [0, 1]);
    let mut both = [before.clone(), before.clone()];
    for name in ["a", "b"] {
        let (came, comes) = both[0].admit(&mut config, &guest(name)).unwrap();
        become_so(&mut both, comes);
        assert!(both[0].is_changing(name));
        for (worker, mut vifs) in came.vifs {
            vifs[0].conn = came.place as u32;
            become_so(&mut both, ShapeChange::Serves { worker, vifs });
        }
        let name = name.to_owned();
        become_so(&mut both, ShapeChange::Up { name });
    }
    let there = &both[0];
    assert_eq!((there.place("a"), there.place("b")), (Some(3), Some(4)));
    assert!(!there.is_changing("a"));
    // Another manager reads the same, and goes on alike.
    assert_eq!(
        &serde_json::from_str::<Shape>(&written(there)).unwrap(),
        there
    );
    assert_eq!(there.config().unwrap(), config);
    let told: DriverConfig = serde_json::from_str(&there.told(1)).unwrap();
    assert_eq!(told.vifs.len(), 3);
    // `a-1-0` is no interface of `a`'s.
    assert_eq!(there.served(0, "a"), [3]);
    for name in ["a", "b"] {
        let leaves = name.to_owned();
        become_so(&mut both, ShapeChange::Leaves { name: leaves });
        assert!(both[0].is_changing(name));
        for worker in both[0].workers() {
            let [conn] = both[0].served(worker, name)[..] else {
                panic!("one interface");
            };
            become_so(&mut both, ShapeChange::Unserves { worker, conn });
            assert!(both[0].served(worker, name).is_empty());
        }
        let gone = name.to_owned();
        become_so(&mut both, ShapeChange::Gone { name: gone });
        config.remove(name);
    }
    assert_eq!(both[0], before);
    // A place that is free is taken again.
    let (came, _) = both[0].admit(&mut config, &guest("c")).unwrap();
    assert_eq!(came.place, 3);
}

/// The step to these NICs, beside those that are there.
fn nics(shape: &Shape, nics: &str) -> (LiveConfig, NicsStep) {
    let file = config::File {
        name: "f".into(),
        text: format!("{nics}{FILE}"),
    };
    let mut config = shape.config().unwrap();
    let there = shape.live().unwrap();
    let difference = live::reload::difference(there, &config, &[file]);
    let step = difference.unwrap().nics.remove(0);
    config.set_nics(&step.nics).unwrap();
    (config, step)
}

#[test]
fn nics_that_came_half_go_again_also_with_the_next_manager() {
    let (before, _) = shape();
    let mut both = [before.clone(), before.clone()];
    let wire = "[[nic]]\nname = \"w\"\nkind = \"tap\"\n";
    let (config, step) = nics(&before, wire);
    // Only the first worker opens the interface.
    let opened = [(0, 0)];
    let settled = |closes: &[(usize, usize)]| {
        Some(Refitting {
            closes: closes.to_vec(),
            ..Refitting::default()
        })
    };
    let refits = before.refits(&config, &step).unwrap();
    become_so(&mut both, ShapeChange::Refits(refits));
    assert_eq!(both[0].refitting().unwrap().opens, opened);
    // A file that is begun anew has the way back, too.
    both[1] = serde_json::from_str(&written(&both[0])).unwrap();
    let there = both.clone();
    become_so(&mut both, ShapeChange::Refitted { back: true });
    assert_eq!(both[0].refitting, settled(&opened));
    // What was taken back already is not taken back once more, and the same is closed.
    become_so(&mut both, ShapeChange::Refitted { back: true });
    assert_eq!(both[0].refitting, settled(&opened));
    become_so(&mut both, ShapeChange::HasRefitted);
    assert_eq!(both[0], before);

    let mut both = there;
    become_so(&mut both, ShapeChange::Refitted { back: false });
    assert_eq!(both[0].refitting, settled(&[]));
    become_so(&mut both, ShapeChange::HasRefitted);
    let there = both[0].clone();
    assert_eq!(there.config().unwrap(), config);
    // Nothing is closed of what was to go and stays.
    let (config, step) = nics(&there, "");
    let refits = there.refits(&config, &step).unwrap();
    become_so(&mut both, ShapeChange::Refits(refits));
    assert_eq!(both[0].refitting().unwrap().closes, opened);
    become_so(&mut both, ShapeChange::Refitted { back: true });
    assert_eq!(both[0].refitting, settled(&[]));
    become_so(&mut both, ShapeChange::HasRefitted);
    assert_eq!(both[0], there);
}

#[test]
fn a_full_machine_says_so_and_stays_as_it_is() {
    let (mut shape, mut config) = shape();
    let one = shape.live.as_ref().unwrap().first_slot;
    shape.domains.get_mut(&1).unwrap().window_slots = one + config::live::RINGS_SLOTS + 10;
    let as_read = config.clone();
    let full = shape.admit(&mut config, &guest("c")).unwrap_err();
    assert!(full.contains("the machine is full"), "{full}");
    assert_eq!(config, as_read);
}

#[test]
fn a_machine_without_a_file_stays_as_it_is() {
    let why = Shape::default().config().unwrap_err();
    assert_eq!(why, "its guests are those that it was started with");
}

#[test]
fn a_driver_that_cannot_be_read_is_told_what_it_was_to_be_told() {
    let (shape, mut config) = shape();
    let mut written: serde_json::Value = serde_json::to_value(&shape).unwrap();
    written["domains"]["1"]["config"] = "{}".into();
    let shape: Shape = serde_json::from_value(written).unwrap();
    assert_eq!(shape.told(1), "{}");
    assert_eq!(shape.workers(), [0]);
    let why = shape.admit(&mut config, &guest("c")).unwrap_err();
    assert_eq!(why, "domain driver-1: its configuration makes no sense");
}
