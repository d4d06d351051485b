//! The steps of a reload. The manager first checks all steps against a copy of the specification,
//! and then carries them out. If a step fails, it undoes the earlier steps.
//!
//! A guest whose rules or rate limits change keeps running. Any other changed guest is detached and
//! immediately attached again, unless it needs a resource that another guest still has, for example
//! an address.

use crate::edit::Edit;
use crate::spec::{MachineSpec, SpecChange};
use abi::reload::{ReloadStep, StepKind, StepReason};
use config::live::reload::{Difference, FileGuest, current_guest, current_nics};
use config::live::state::name_of;
use config::live::{LiveConfig, NicsStep};
use std::collections::VecDeque;

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReloadRequest {
    /// The step in the form that clients receive.
    pub(crate) public: ReloadStep,
    pub(crate) edit: Edit,
}

impl ReloadRequest {
    pub(crate) fn new(edit: Edit, domain: &str, why: StepReason, changes: Vec<String>) -> Self {
        let public = ReloadStep {
            step: edit.kind(),
            domain: domain.to_owned(),
            why,
            changes,
        };
        Self { public, edit }
    }

    /// Returns the step that undoes this one, computed before this one is carried out. Returns
    /// `None` if there is nothing to undo.
    fn undo(&self, spec: &MachineSpec, config: &LiveConfig) -> Option<Self> {
        let (live, name) = (spec.live()?, &self.public.domain);
        let present = || current_guest(live, config, name);
        let edit = match &self.edit {
            Edit::Attach(..) => Edit::Detach(name.clone()),
            Edit::Detach(_) => {
                let user = spec.origin(name).and_then(|origin| origin.user);
                Edit::Attach(present()?, user)
            }
            Edit::Change(_) => Edit::Change(present()?),
            Edit::Nics(step) => {
                let nics = current_nics(live, config)?;
                let removed = nics.iter().filter_map(name_of);
                let remains = |name: &&str| step.nics.iter().any(|nic| name_of(nic) == Some(name));
                let added = removed.filter(|name| !remains(name)).map(str::to_owned);
                Edit::Nics(NicsStep {
                    added: added.collect(),
                    nics,
                    changes: Vec::new(),
                })
            }
            Edit::Restart(..) => return None,
        };
        Some(Self::new(edit, name, StepReason::Changed, Vec::new()))
    }

    /// Returns the error of the step, with the step's name in front.
    fn failure(&self, why: &str) -> String {
        let what = match self.public.step {
            StepKind::Detach => "detach",
            StepKind::Attach => "attach",
            StepKind::Change => "change",
            StepKind::Nics => "NICs of",
            StepKind::Restart => "restart",
        };
        format!("{what} {}: {why}", self.public.domain)
    }
}

/// The progress of a reload. Either all steps are carried out, or the steps before a failed step
/// are undone.
#[derive(Debug, Default)]
pub(crate) struct ReloadProgress {
    left: VecDeque<ReloadRequest>,
    /// The current step, and the step that undoes it.
    current_step: Option<(ReloadRequest, Option<ReloadRequest>)>,
    /// The steps that undo the completed steps, in reverse order.
    undo: VecDeque<ReloadRequest>,
    /// The number of completed steps.
    pub(crate) done: usize,
    /// Reason why a step failed.
    pub(crate) failed: Option<String>,
    /// Reasons why steps could not be undone.
    pub(crate) not_undone: Vec<String>,
}

impl ReloadProgress {
    pub(crate) fn new(steps: Vec<ReloadRequest>) -> Self {
        Self {
            left: steps.into(),
            ..Self::default()
        }
    }

    /// Returns whether the next step can begin.
    pub(crate) fn is_due(&self) -> bool {
        self.current_step.is_none()
    }

    /// Begins the next step, and computes from the current machine how to undo the step.
    pub(crate) fn next(
        &mut self,
        spec: &MachineSpec,
        config: &LiveConfig,
    ) -> Option<ReloadRequest> {
        let step = self.left.pop_front()?;
        let undo = step.undo(spec, config);
        self.current_step = Some((step.clone(), undo));
        Some(step)
    }

    /// Records the outcome of the current step.
    pub(crate) fn complete_step(&mut self, outcome: Result<(), String>) {
        let Some((step, undo)) = self.current_step.take() else {
            return;
        };
        match (outcome.map_err(|why| step.failure(&why)), &self.failed) {
            (Err(why), Some(_)) => self.not_undone.push(why),
            (Ok(()), Some(_)) => {}
            (outcome, None) => {
                // Some workers may have carried out the failed change.
                let is_done = outcome.is_ok() || step.public.step == StepKind::Change;
                let undo = undo.into_iter().filter(|_| is_done);
                undo.for_each(|undo| self.undo.push_front(undo));
                self.done += 1;
                self.failed = outcome.err();
                if self.failed.is_some() {
                    (self.left, self.done) = (std::mem::take(&mut self.undo), 0);
                }
            }
        }
    }

    /// Returns whether the next step changes NICs.
    pub(crate) fn changes_nics_next(&self) -> bool {
        let next = self.left.front().map(|step| &step.edit);
        matches!(next, Some(Edit::Nics(_)))
    }
}

/// Returns the steps that adapt the machine to the files.
///
/// # Errors
/// Returns all obstacles to the steps, one per line.
pub(crate) fn steps(
    spec: &MachineSpec,
    config: &LiveConfig,
    difference: Difference,
) -> Result<Vec<ReloadRequest>, String> {
    let mut trial = Trial::new(spec, config);
    for name in difference.to_detach {
        trial.add(
            Edit::Detach(name.clone()),
            &name,
            StepReason::Gone,
            Vec::new(),
        );
    }
    for step in difference.nics {
        let changes = step.changes.clone();
        trial.add(Edit::Nics(step), "driver", StepReason::Changed, changes);
    }
    let mut late = Vec::new();
    for FileGuest {
        name,
        guest,
        changes,
        in_place,
    } in difference.to_attach
    {
        let why = match changes {
            Some(_) => StepReason::Changed,
            None => StepReason::New,
        };
        let changes = changes.unwrap_or_default();
        if in_place {
            trial.add(Edit::Change(guest), &name, why, changes);
            continue;
        }
        if why == StepReason::Changed && !trial.add(Edit::Detach(name.clone()), &name, why, changes)
        {
            continue;
        }
        let edit = Edit::Attach(guest, None);
        match trial.apply(&edit) {
            Ok(()) => trial.push(edit, &name, why, Vec::new()),
            Err(_) => late.push((edit, name, why)),
        }
    }
    // By now, every removed guest has released its resources.
    for (edit, name, why) in late {
        match trial.apply(&edit) {
            Ok(()) => trial.push(edit, &name, why, Vec::new()),
            Err(wrong) => {
                let lines = wrong.lines().map(|line| format!("guest {name}: {line}"));
                trial.wrong.extend(lines);
            }
        }
    }
    match trial.wrong.is_empty() {
        true => Ok(trial.steps),
        false => Err(trial.wrong.join("\n")),
    }
}

/// The machine after the steps so far.
struct Trial {
    spec: MachineSpec,
    config: LiveConfig,
    steps: Vec<ReloadRequest>,
    wrong: Vec<String>,
}

impl Trial {
    fn new(spec: &MachineSpec, config: &LiveConfig) -> Self {
        Self {
            spec: spec.clone(),
            config: config.clone(),
            steps: Vec::new(),
            wrong: Vec::new(),
        }
    }

    fn push(&mut self, edit: Edit, domain: &str, why: StepReason, changes: Vec<String>) {
        let step = ReloadRequest::new(edit, domain, why, changes);
        self.steps.push(step);
    }

    /// Adds a step, or the obstacle to it. Returns whether the step is possible.
    fn add(&mut self, edit: Edit, domain: &str, why: StepReason, changes: Vec<String>) -> bool {
        if let Err(wrong) = self.apply(&edit) {
            self.wrong.push(wrong);
            return false;
        }
        self.push(edit, domain, why, changes);
        true
    }

    /// Applies an edit to the copies.
    fn apply(&mut self, edit: &Edit) -> Result<(), String> {
        let Self { spec, config, .. } = self;
        match edit {
            Edit::Attach(guest, user) => {
                let (admitted, mut entry) = spec.admit(config, guest, *user)?;
                entry.ports = admitted.ports;
                spec.apply(SpecChange::SetGuest(entry.into()));
            }
            Edit::Detach(name) => {
                config.check_removable(name)?;
                config.remove(name);
                spec.apply(SpecChange::RemoveGuest(name.clone()));
            }
            Edit::Change(guest) => {
                // A guest that owns a queue of a NIC cannot change.
                config.check_removable(name_of(guest).unwrap_or_default())?;
                let changed = config.change(guest)?;
                if let Some(mut entry) = spec.guest(&changed.domain.name) {
                    entry.section = Some(changed.guest);
                    spec.apply(SpecChange::SetGuest(entry.into()));
                }
            }
            Edit::Nics(step) => {
                config.set_nics(&step.nics)?;
                let nic_change = spec.nic_change(config, step)?;
                spec.apply(nic_change);
            }
            Edit::Restart(..) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::machine::Machine;
    use config::live::{self, reload};
    use config::{ConfigFile, parse};
    use std::collections::BTreeSet;

    /// Returns a section `[[guest]]` with the further keys `more`.
    fn guest(name: &str, more: &str) -> String {
        let endpoint = if more.contains("addresses") {
            "stack"
        } else {
            "echo"
        };
        format!("[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"{endpoint}\"\n{more}\n")
    }

    fn file(text: &str) -> [ConfigFile; 1] {
        let (name, text) = ("f".to_owned(), text.to_owned());
        [ConfigFile { name, text }]
    }

    fn machine(text: &str) -> Machine {
        let config = parse("f", text).unwrap();
        live::machine(&config, &file(text)).unwrap()
    }

    fn spec(text: &str) -> MachineSpec {
        spec_of(machine(text))
    }

    fn spec_of(machine: Machine) -> MachineSpec {
        MachineSpec::new(
            machine.domains.into_iter().enumerate().collect(),
            machine.live,
        )
    }

    fn steps_to(spec: &MachineSpec, text: &str) -> Result<Vec<ReloadRequest>, String> {
        let config = spec.config()?;
        let live = spec.live().unwrap();
        let difference = reload::difference(live, &config, &file(text))?;
        steps(spec, &config, difference)
    }

    /// Returns the steps as text: `-NAME` detaches, `+NAME` attaches, `=NAME` changes.
    fn planned(spec: &MachineSpec, text: &str) -> Result<String, String> {
        let steps = steps_to(spec, text)?;
        let sign = |step: &ReloadRequest| match step.public.step {
            StepKind::Detach => format!("-{}", step.public.domain),
            StepKind::Attach => format!("+{}", step.public.domain),
            StepKind::Change => format!("={}", step.public.domain),
            StepKind::Nics | StepKind::Restart => {
                format!("nics {}", step.public.changes.join("; "))
            }
        };
        Ok(steps.iter().map(sign).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_changed_guest_is_reattached_immediately() {
        let own = |n: u8| format!("addresses = [\"10.0.0.{n}/24\"]");
        let all = |of: &[(&str, String)]| -> String {
            of.iter().map(|(name, more)| guest(name, more)).collect()
        };
        let before = spec(&all(&[("a", own(1)), ("b", own(2)), ("c", own(3))]));
        let slow = |n: u8| format!("{}\nweight = 2", own(n));
        let limited = |n: u8| format!("{}\nrate_mbps = 5.0", own(n));
        for (now, steps) in [
            (all(&[("a", own(1)), ("b", own(2)), ("c", own(3))]), ""),
            (all(&[("a", slow(1)), ("b", slow(2))]), "-c -a +a -b +b"),
            (all(&[("d", own(4)), ("a", own(1))]), "-b -c +d"),
            (
                all(&[("a", own(1)), ("b", limited(2)), ("c", own(3))]),
                "=b",
            ),
            // `a` needs the address of `b`.
            (
                all(&[("a", own(2)), ("b", own(1)), ("c", slow(3))]),
                "-a -b +b -c +c +a",
            ),
            (
                all(&[("d", own(3)), ("a", own(1)), ("b", own(2)), ("c", own(5))]),
                "-c +c +d",
            ),
            (String::new(), "-a -b -c"),
        ] {
            assert_eq!(planned(&before, &now).unwrap(), steps, "{now}");
        }
    }

    #[test]
    fn a_refused_step_undoes_the_steps_before_it() {
        let nic = |mtu: u32| format!("[[nic]]\nname = \"w\"\nkind = \"tap\"\nmtu = {mtu}\n");
        let address = "addresses = [\"10.0.0.1/24\"]";
        let old = format!("{}{}{}", nic(1500), guest("a", address), guest("b", ""));
        let new = [
            nic(1400),
            guest("b", "rate_mbps = 5.0"),
            guest("h", "weight = 2"),
            guest("d", address),
        ];
        let new = new.concat();
        let before = spec(&old);
        let mut before = Trial::new(&before, &before.config().unwrap());
        let by_hand = r#"{"name":"h","vif":[{"endpoint":"echo"}]}"#;
        let by_hand = Edit::Attach(serde_json::from_str(by_hand).unwrap(), Some(7));
        before.apply(&by_hand).unwrap();
        let steps = steps_to(&before.spec, &new).unwrap();
        assert_eq!(steps.len(), 7, "{steps:?}");
        for refused in 0..=steps.len() {
            let mut trial = Trial::new(&before.spec, &before.config);
            let mut progress = ReloadProgress::new(steps.clone());
            let mut number = 0;
            while let Some(step) = progress.next(&trial.spec, &trial.config) {
                let outcome = match number == refused {
                    true => Err("refused".to_owned()),
                    false => {
                        trial.apply(&step.edit).unwrap();
                        Ok(())
                    }
                };
                progress.complete_step(outcome);
                number += 1;
            }
            assert_eq!(progress.not_undone, Vec::<String>::new());
            let Trial { spec, config, .. } = trial;
            if refused == steps.len() {
                assert_eq!((progress.done, progress.failed), (steps.len(), None));
                assert_eq!(planned(&spec, &new).unwrap(), "");
                continue;
            }
            assert_eq!((progress.done, progress.failed.is_some()), (0, true));
            assert_eq!(planned(&spec, &old).unwrap(), "", "{refused}");
            assert_eq!(spec.origin("h").unwrap().user, Some(7));
            // Guests in the file remain guests of the file.
            let (live, without) = (spec.live().unwrap(), file(&nic(1500)));
            let difference = reload::difference(live, &config, &without).unwrap();
            let detached: BTreeSet<_> = difference.to_detach.iter().map(String::as_str).collect();
            assert_eq!(detached, BTreeSet::from(["a", "b"]), "{refused}");
            assert_eq!(difference.kept, ["h"]);
        }
    }

    #[test]
    fn a_step_that_is_not_undone_is_reported() {
        let before = spec(&[guest("a", ""), guest("b", ""), guest("c", "")].concat());
        let config = before.config().unwrap();
        let mut progress = ReloadProgress::new(steps_to(&before, "").unwrap());
        let outcomes = [Ok(()), Ok(()), Err("in use"), Err("no room"), Ok(())];
        let mut taken = Vec::new();
        for outcome in outcomes {
            let step = progress.next(&before, &config).unwrap();
            taken.push((step.public.step, step.public.domain));
            progress.complete_step(outcome.map_err(str::to_owned));
        }
        assert!(progress.next(&before, &config).is_none());
        let (detach, attach) = (StepKind::Detach, StepKind::Attach);
        let expected = [
            (detach, "a"),
            (detach, "b"),
            (detach, "c"),
            (attach, "b"),
            (attach, "a"),
        ];
        assert_eq!(taken, expected.map(|(step, name)| (step, name.to_owned())));
        assert_eq!(progress.failed.as_deref(), Some("detach c: in use"));
        assert_eq!(progress.not_undone, ["attach b: no room"]);
    }

    #[test]
    fn a_reload_that_does_not_fit_changes_nothing() {
        let mut before = machine(&guest("a", ""));
        let first = before.live.as_ref().unwrap().first_slot;
        let driver = before.domains.first_mut().unwrap();
        let taken = end_of(driver);
        driver.window_slots = first + 2 * (taken - first) + config::live::RINGS_SLOTS;
        let before = spec_of(before);
        let [a, b, c] = ["a", "b", "c"].map(|name| guest(name, ""));
        assert_eq!(planned(&before, &format!("{a}{b}")).unwrap(), "+b");
        // A detached guest releases its slots.
        assert_eq!(planned(&before, &format!("{b}{c}")).unwrap(), "-a +b +c");
        let full = planned(&before, &format!("{a}{b}{c}")).unwrap_err();
        assert!(full.starts_with("guest c: the machine is full"), "{full}");
    }

    /// Returns the end of the window slots of a driver's only interface.
    fn end_of(driver: &abi::machine::DomainSpec) -> u32 {
        let public: config::domain::DriverConfig = serde_json::from_str(&driver.config).unwrap();
        public.vifs[0].tables_slot + abi::counted::table_slots(public.vifs[0].slots)
    }

    #[test]
    fn every_obstacle_to_a_reload_is_listed() {
        let wire = "[[nic]]\nname = \"wire\"\nkind = \"xdp\"\nqueues = \"vmq\"\n\
                    vmq_queues = 2\naddresses = [\"10.0.0.1/24\"]\n";
        let [a, b] = [("a", 1), ("b", 2)];
        let has = |(name, queue)| guest(name, &format!("pdev = \"wire:{queue}\""));
        let slower = guest("b", "pdev = \"wire:2\"\nmtu = 1400");
        let before = spec(&format!("{wire}{}{}", has(a), has(b)));
        let why = planned(&before, &format!("{wire}{slower}")).unwrap_err();
        let lines: Vec<&str> = why.lines().collect();
        assert!(lines[0].starts_with("guest a owns queue 1 of"), "{why}");
        assert!(lines[1].starts_with("guest b owns queue 2 of"), "{why}");
        let copies = "[driver]\ngrants = \"copy\"\n";
        let before = spec(copies);
        let why = planned(&before, &format!("{copies}{}", guest("a", ""))).unwrap_err();
        assert!(
            why.starts_with("guest a: the driver's `grants` is \"copy\""),
            "{why}"
        );
    }
}
