use super::*;
use config::live::{self, NicsStep};

const FILE: &str = "[driver]\nworkers = 2\n[[guest]]\nname = \"a-1\"\n[[guest.vif]]\n\
                    endpoint = \"echo\"\n";

fn spec() -> (MachineSpec, LiveConfig) {
    let file = config::ConfigFile {
        name: "f".into(),
        text: FILE.into(),
    };
    let config = config::parse("f", FILE).unwrap();
    let machine = live::machine(&config, &[file]).unwrap();
    let domains = machine.domains.into_iter().enumerate().collect();
    let spec = MachineSpec::new(domains, machine.live);
    let config = spec.config().unwrap();
    (spec, config)
}

fn guest(name: &str) -> ConfigValue {
    let json = format!(r#"{{"name":"{name}","vif":[{{"endpoint":"echo"}}]}}"#);
    serde_json::from_str(&json).unwrap()
}

fn json_of(spec: &MachineSpec) -> String {
    serde_json::to_string(spec).unwrap()
}

/// Applies a change to both specifications. The second receives it through the journal's format,
/// like the next manager.
fn apply(both: &mut [MachineSpec; 2], change: SpecChange) {
    let text = serde_json::to_string(&change).unwrap();
    let [spec, next] = both;
    spec.apply(change);
    next.apply(serde_json::from_str(&text).unwrap());
    assert_eq!(spec, next);
}

/// Changes the entry of a guest in both specifications.
fn edit(both: &mut [MachineSpec; 2], name: &str, edit: impl FnOnce(&mut GuestSpec)) {
    let mut guest = both[0].guest(name).unwrap();
    edit(&mut guest);
    apply(both, SpecChange::SetGuest(Box::new(guest)));
}

fn nics_closed() -> SpecChange {
    SpecChange::SetNics {
        nics: None,
        pending: None,
    }
}

#[test]
fn the_next_manager_knows_the_saved_guests() {
    let (spec, mut config) = spec();
    let mut both = [spec.clone(), spec];
    let saved = |name| AttachedGuest {
        guest: guest(name),
        origin: Origin {
            user: Some(7),
            places: [("/n".to_owned(), [1, 2, 3])].into(),
        },
    };
    let guests = ["a", "a", "b"].map(saved).into();
    apply(&mut both, SpecChange::SetSaved(guests));
    assert_eq!(both[0].expected("b", "/n"), Some([1, 2, 3]));
    assert_eq!(both[0].expected("b", "/m"), None);
    let (_, entry) = both[0].admit(&mut config, &guest("a"), Some(9)).unwrap();
    apply(&mut both, SpecChange::SetGuest(entry.into()));
    edit(&mut both, "a", |guest| {
        let origin = guest.origin.as_mut().unwrap();
        origin.places.insert("/n".into(), [4, 5, 6]);
    });
    apply(&mut both, SpecChange::RemoveSaved("a".into()));
    assert_eq!(
        both[0].saved_guests(),
        [saved("b")],
        "both entries of `a` are removed"
    );
    // A new journal restores the same specification.
    let again: MachineSpec = serde_json::from_str(&json_of(&both[0])).unwrap();
    assert_eq!(again, both[0]);
    let origin = again.origin("a").unwrap();
    assert_eq!((origin.user, origin.places["/n"]), (Some(9), [4, 5, 6]));
    apply(&mut both, SpecChange::RemoveGuest("a".into()));
    assert_eq!(both[0].origin("a"), None);
}

#[test]
fn a_returning_guest_is_in_the_state_file_once() {
    let (spec, mut config) = spec();
    let mut both = [spec.clone(), spec];
    let saved = AttachedGuest {
        guest: guest("a"),
        origin: Origin::default(),
    };
    let left = |both: &[MachineSpec; 2]| crate::state_file::guests_to_save(&both[0]).len();
    apply(&mut both, SpecChange::SetSaved(vec![saved]));
    assert_eq!(left(&both), 1);
    let (_, entry) = both[0].admit(&mut config, &guest("a"), None).unwrap();
    apply(&mut both, SpecChange::SetGuest(entry.into()));
    assert_eq!(left(&both), 1);
    edit(&mut both, "a", |guest| guest.is_changing = false);
    assert_eq!(left(&both), 1);
    apply(&mut both, SpecChange::RemoveSaved("a".into()));
    assert_eq!(left(&both), 1);
}

#[test]
fn attach_then_detach_restores_the_specification() {
    let (before, mut config) = spec();
    assert_eq!(before.workers(), [0, 1]);
    let mut both = [before.clone(), before.clone()];
    for name in ["a", "b"] {
        let (admitted, entry) = both[0].admit(&mut config, &guest(name), None).unwrap();
        apply(&mut both, SpecChange::SetGuest(entry.into()));
        assert!(both[0].is_changing(name));
        let ports = both[0].ports(&admitted.vifs).unwrap();
        let (mut ports, conn) = (ports, admitted.place as u32);
        ports.values_mut().for_each(|vifs| vifs[0].conn = conn);
        edit(&mut both, name, |guest| guest.ports = ports);
        edit(&mut both, name, |guest| guest.is_changing = false);
    }
    let spec = &both[0];
    assert_eq!((spec.place("a"), spec.place("b")), (Some(3), Some(4)));
    assert!(!spec.is_changing("a"));
    // Another manager reads the same state.
    assert_eq!(
        &serde_json::from_str::<MachineSpec>(&json_of(spec)).unwrap(),
        spec
    );
    assert_eq!(spec.config().unwrap(), config);
    let driver: DriverConfig = serde_json::from_str(&spec.config_text(1)).unwrap();
    assert_eq!(driver.vifs.len(), 3);
    // The interface `a-1-0` does not belong to guest `a`.
    assert_eq!(spec.served(0, "a"), [3]);
    for name in ["a", "b"] {
        edit(&mut both, name, |guest| guest.is_changing = true);
        assert!(both[0].is_changing(name));
        for worker in both[0].workers() {
            assert_eq!(both[0].served(worker, name).len(), 1);
            edit(&mut both, name, |guest| drop(guest.ports.remove(&worker)));
            assert!(both[0].served(worker, name).is_empty());
        }
        apply(&mut both, SpecChange::RemoveGuest(name.into()));
        config.remove(name);
    }
    assert_eq!(both[0], before);
    // A free place is reused.
    let (admitted, _) = both[0].admit(&mut config, &guest("c"), None).unwrap();
    assert_eq!(admitted.place, 3);
}

/// Returns the step that sets these NICs, and the configuration after it.
fn nics(spec: &MachineSpec, nics: &str) -> (LiveConfig, NicsStep) {
    let file = config::ConfigFile {
        name: "f".into(),
        text: format!("{nics}{FILE}"),
    };
    let mut config = spec.config().unwrap();
    let spec = spec.live().unwrap();
    let difference = live::reload::difference(spec, &config, &[file]);
    let step = difference.unwrap().nics.remove(0);
    config.set_nics(&step.nics).unwrap();
    (config, step)
}

#[test]
fn a_half_done_nic_change_is_undone_by_any_manager() {
    let (before, _) = spec();
    let mut both = [before.clone(), before.clone()];
    let wire = "[[nic]]\nname = \"w\"\nkind = \"tap\"\n";
    let (config, step) = nics(&before, wire);
    // Only the first worker opens the interface.
    let opened = [(0, 0)];
    let settled = |closes: &[(usize, usize)]| {
        Some(PendingNicChange {
            closes: closes.to_vec(),
            ..PendingNicChange::default()
        })
    };
    let nic_change = before.nic_change(&config, &step).unwrap();
    apply(&mut both, nic_change);
    assert_eq!(both[0].pending_nic_change().unwrap().opens, opened);
    // A new journal also has the previous NICs.
    both[1] = serde_json::from_str(&json_of(&both[0])).unwrap();
    let changing = both.clone();
    let change = both[0].end_nic_change(true);
    apply(&mut both, change);
    assert_eq!(both[0].pending_nic_change, settled(&opened));
    // A repeated restore changes nothing.
    let change = both[0].end_nic_change(true);
    apply(&mut both, change);
    assert_eq!(both[0].pending_nic_change, settled(&opened));
    apply(&mut both, nics_closed());
    assert_eq!(both[0], before);

    let mut both = changing;
    let change = both[0].end_nic_change(false);
    apply(&mut both, change);
    assert_eq!(both[0].pending_nic_change, settled(&[]));
    apply(&mut both, nics_closed());
    let spec = both[0].clone();
    assert_eq!(spec.config().unwrap(), config);
    // If the removal of the NIC is reverted, its device is not closed.
    let (config, step) = nics(&spec, "");
    let nic_change = spec.nic_change(&config, &step).unwrap();
    apply(&mut both, nic_change);
    assert_eq!(both[0].pending_nic_change().unwrap().closes, opened);
    let change = both[0].end_nic_change(true);
    apply(&mut both, change);
    assert_eq!(both[0].pending_nic_change, settled(&[]));
    apply(&mut both, nics_closed());
    assert_eq!(both[0], spec);
}

#[test]
fn a_full_machine_refuses_a_guest() {
    let (mut spec, mut config) = spec();
    let one = spec.live.as_ref().unwrap().start.first_slot;
    spec.domains.get_mut(&1).unwrap().window_slots = one + config::live::RINGS_SLOTS + 10;
    let as_read = config.clone();
    let full = spec.admit(&mut config, &guest("c"), None).unwrap_err();
    assert!(full.contains("the machine is full"), "{full}");
    assert_eq!(config, as_read);
}

#[test]
fn a_machine_without_a_file_has_no_edits() {
    let why = MachineSpec::default().config().unwrap_err();
    assert_eq!(
        why,
        "the machine was started without a file, so its guests cannot change"
    );
}

#[test]
fn a_driver_gets_an_invalid_configuration_unchanged() {
    let (spec, mut config) = spec();
    let mut domains = spec.domains.clone();
    for (place, domain) in &mut domains {
        domain.config = match place {
            1 => "{}".to_owned(),
            place => spec.config_text(*place).into_owned(),
        };
    }
    let spec = MachineSpec::new(domains, spec.live.map(|live| live.start));
    assert_eq!(spec.config_text(1), "{}");
    assert_eq!(spec.workers(), [0]);
    let why = spec.admit(&mut config, &guest("c"), None).unwrap_err();
    assert_eq!(why, "domain driver-1: its configuration is invalid");
}

#[test]
fn changed_rules_survive_restarts() {
    let (spec, mut config) = spec();
    let (admitted, entry) = spec.admit(&mut config, &guest("a"), Some(7)).unwrap();
    let mut both = [spec.clone(), spec];
    apply(&mut both, SpecChange::SetGuest(entry.into()));
    let ports = both[0].ports(&admitted.vifs).unwrap();
    edit(&mut both, "a", |guest| guest.ports = ports);
    edit(&mut both, "a", |guest| guest.is_changing = false);
    let request = r#"{"name": "a", "vif": [{"rule": [{"name": "no", "action": "deny"}]}]}"#;
    let request: ConfigValue = serde_json::from_str(request).unwrap();
    let guest = config
        .with_rules(both[0].live().unwrap(), &request)
        .unwrap();
    let changed = config.change(&guest).unwrap();
    for worker in both[0].workers() {
        let has = |text: &str| text.matches(r#""name":"no""#).count();
        assert_eq!(has(&both[0].config_text(worker)), 0);
        let ports = &both[0].changed_ports(&changed.vifs)[&worker];
        assert_eq!(ports[0].settings.rules, changed.vifs[0].settings.rules);
    }
    edit(&mut both, "a", |entry| {
        let ports = entry.ports.values_mut().flatten();
        ports.for_each(|vif| vif.apply_changes(&changed.vifs[0]));
        entry.section = Some(guest);
    });
    // The next driver domain, the next manager and the next machine have the rules.
    for worker in both[0].workers() {
        assert!(both[0].config_text(worker).contains(r#""name":"no""#));
    }
    assert_eq!(both[1].config().unwrap(), config);
    let left = crate::state_file::guests_to_save(&both[0]);
    assert!(serde_json::to_string(&left).unwrap().contains(r#""no""#));
}
