//! What a reload does, step by step. All of it is tried before anything is done: on the
//! configuration, and on who has which slots of windows.
//!
//! A guest that is described otherwise stays, if only rules and rate limits are others. Else it is
//! away for as short as can be: it goes and comes again at once, unless it needs what one has that
//! goes later: its address, say.

use crate::shape::{Shape, ShapeChange};
use crate::windows::Windows;
use abi::machine::Setting;
use abi::reload::{ReloadStep, StepKind, StepReason};
use config::live::reload::{Coming, Difference};
use config::live::{LiveConfig, NicsStep};
use std::borrow::Cow;

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// What clients are told of it.
    pub(crate) told: ReloadStep,
    /// Who is attached, or what a guest becomes, if so.
    pub(crate) guest: Option<Setting>,
    /// Which NICs there are from then on, if that is what it is about.
    pub(crate) nics: Option<NicsStep>,
}

impl Step {
    fn detach(domain: &str, why: StepReason, changes: Vec<String>) -> Self {
        let told = ReloadStep {
            step: StepKind::Detach,
            domain: domain.to_owned(),
            why,
            changes,
        };
        Self {
            told,
            guest: None,
            nics: None,
        }
    }

    fn change(coming: Coming) -> Self {
        let told = ReloadStep {
            step: StepKind::Change,
            domain: coming.name,
            why: StepReason::Changed,
            changes: coming.changes.unwrap_or_default(),
        };
        Self {
            told,
            guest: Some(coming.guest),
            nics: None,
        }
    }

    fn nics(nics: NicsStep) -> Self {
        let told = ReloadStep {
            step: StepKind::Nics,
            domain: "driver".to_owned(),
            why: StepReason::Changed,
            changes: nics.changes.clone(),
        };
        Self {
            told,
            guest: None,
            nics: Some(nics),
        }
    }

    /// Starts a domain again, one of whose interfaces was removed.
    pub(crate) fn restart(domain: &str, changes: Vec<String>) -> Self {
        let told = ReloadStep {
            step: StepKind::Restart,
            domain: domain.to_owned(),
            why: StepReason::Changed,
            changes,
        };
        Self {
            told,
            guest: None,
            nics: None,
        }
    }

    fn attach(coming: Coming) -> Self {
        let told = ReloadStep {
            step: StepKind::Attach,
            domain: coming.name,
            why: match coming.changes {
                Some(_) => StepReason::Changed,
                None => StepReason::New,
            },
            changes: Vec::new(),
        };
        Self {
            told,
            guest: Some(coming.guest),
            nics: None,
        }
    }
}

/// The steps that make the machine what it is to be.
///
/// # Errors
/// Everything that stands against one of them, a line each.
pub(crate) fn steps(
    shape: &Shape,
    config: &LiveConfig,
    difference: Difference,
) -> Result<Vec<Step>, String> {
    let mut trial = Trial {
        config: config.clone(),
        windows: shape.windows()?,
        steps: Vec::new(),
        wrong: Vec::new(),
    };
    for name in difference.gone {
        trial.leave(&name, StepReason::Gone, Vec::new());
    }
    let mut becomes = Cow::Borrowed(shape);
    for step in difference.nics {
        let set = trial.config.set_nics(&step.nics);
        match set.and_then(|()| becomes.refits(&trial.config, &step)) {
            Ok(refits) => {
                becomes.to_mut().apply(ShapeChange::Refits(refits));
                trial.steps.push(Step::nics(step));
            }
            Err(wrong) => trial.wrong.push(wrong),
        }
    }
    let mut late = Vec::new();
    for coming in difference.coming {
        if coming.in_place {
            trial.change(coming);
            continue;
        }
        if let Some(changes) = &coming.changes
            && !trial.leave(&coming.name, StepReason::Changed, changes.clone())
        {
            continue;
        }
        match trial.come(&coming.guest) {
            Ok(()) => trial.steps.push(Step::attach(coming)),
            Err(_) => late.push(coming),
        }
    }
    // Everybody who goes has gone by now.
    for coming in late {
        match trial.come(&coming.guest) {
            Ok(()) => trial.steps.push(Step::attach(coming)),
            Err(why) => {
                let name = &coming.name;
                let lines = why.lines().map(|line| format!("guest {name}: {line}"));
                trial.wrong.extend(lines);
            }
        }
    }
    match trial.wrong.is_empty() {
        true => Ok(trial.steps),
        false => Err(trial.wrong.join("\n")),
    }
}

/// The machine as it would become.
struct Trial<'a> {
    config: LiveConfig,
    windows: Windows<'a>,
    steps: Vec<Step>,
    wrong: Vec<String>,
}

impl Trial<'_> {
    /// A guest stays, and is described otherwise.
    fn change(&mut self, coming: Coming) {
        // One that has a queue of a NIC stays as it is.
        let may = self.config.may_leave(&coming.name);
        match may.and_then(|()| self.config.change(&coming.guest)) {
            Ok(_) => self.steps.push(Step::change(coming)),
            Err(wrong) => self.wrong.push(wrong),
        }
    }

    /// A guest goes; whether it may.
    fn leave(&mut self, name: &str, why: StepReason, changes: Vec<String>) -> bool {
        if let Err(wrong) = self.config.may_leave(name) {
            self.wrong.push(wrong);
            return false;
        }
        self.config.remove(name);
        self.windows.free(name);
        self.steps.push(Step::detach(name, why, changes));
        true
    }

    /// A guest comes.
    fn come(&mut self, guest: &Setting) -> Result<(), String> {
        let came = self.config.add(guest)?;
        match self.windows.place(&came.vifs) {
            Ok(placed) => {
                self.windows.take(placed);
                Ok(())
            }
            Err(full) => {
                self.config.remove(&came.domain.name);
                Err(full)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::machine::{Live, Machine};
    use config::live::{self, reload};
    use config::{File, parse};

    /// A guest that has no addresses of its own unless `more` says so.
    fn guest(name: &str, more: &str) -> String {
        let endpoint = if more.contains("addresses") {
            "stack"
        } else {
            "echo"
        };
        format!("[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"{endpoint}\"\n{more}\n")
    }

    fn file(text: &str) -> [File; 1] {
        let (name, text) = ("f".to_owned(), text.to_owned());
        [File { name, text }]
    }

    fn machine(text: &str) -> Machine {
        let config = parse("f", text).unwrap();
        live::machine(&config, &file(text)).unwrap()
    }

    fn shape(text: &str) -> Shape {
        shape_of(machine(text))
    }

    fn shape_of(machine: Machine) -> Shape {
        Shape::new(
            machine.domains.into_iter().enumerate().collect(),
            machine.live,
        )
    }

    /// `-NAME` and `+NAME`, step by step.
    fn planned(shape: &Shape, text: &str) -> Result<String, String> {
        let config = shape.config()?;
        let live: &Live = shape.live().unwrap();
        let steps = steps(
            shape,
            &config,
            reload::difference(live, &config, &file(text))?,
        )?;
        let sign = |step: &Step| match step.told.step {
            StepKind::Detach => format!("-{}", step.told.domain),
            StepKind::Attach => format!("+{}", step.told.domain),
            StepKind::Change => format!("={}", step.told.domain),
            StepKind::Nics | StepKind::Restart => {
                format!("nics {}", step.told.changes.join("; "))
            }
        };
        Ok(steps.iter().map(sign).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn who_changes_is_away_for_as_short_as_can_be() {
        let own = |n: u8| format!("addresses = [\"10.0.0.{n}/24\"]");
        let all = |of: &[(&str, String)]| -> String {
            of.iter().map(|(name, more)| guest(name, more)).collect()
        };
        let before = shape(&all(&[("a", own(1)), ("b", own(2)), ("c", own(3))]));
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
            // One that waits for another's address.
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
    fn what_does_not_fit_is_known_before_anything_is_done() {
        let mut before = machine(&guest("a", ""));
        let first = before.live.as_ref().unwrap().first_slot;
        let driver = before.domains.first_mut().unwrap();
        let taken = end_of(driver);
        driver.window_slots = first + 2 * (taken - first) + config::live::RINGS_SLOTS;
        let before = shape_of(before);
        let [a, b, c] = ["a", "b", "c"].map(|name| guest(name, ""));
        assert_eq!(planned(&before, &format!("{a}{b}")).unwrap(), "+b");
        // One that goes makes room.
        assert_eq!(planned(&before, &format!("{b}{c}")).unwrap(), "-a +b +c");
        let full = planned(&before, &format!("{a}{b}{c}")).unwrap_err();
        assert!(full.starts_with("guest c: the machine is full"), "{full}");
    }

    /// Where the slots of a driver's only interface end.
    fn end_of(driver: &abi::machine::Domain) -> u32 {
        let told: config::domain::DriverConfig = serde_json::from_str(&driver.config).unwrap();
        told.vifs[0].tables_slot + abi::counted::table_slots(told.vifs[0].slots)
    }

    #[test]
    fn everybody_who_must_stay_or_cannot_come_is_told() {
        let wire = "[[nic]]\nname = \"wire\"\nkind = \"xdp\"\nqueues = \"vmq\"\n\
                    vmq_queues = 2\naddresses = [\"10.0.0.1/24\"]\n";
        let [a, b] = [("a", 1), ("b", 2)];
        let has = |(name, queue)| guest(name, &format!("pdev = \"wire:{queue}\""));
        let slower = guest("b", "pdev = \"wire:2\"\nmtu = 1400");
        let before = shape(&format!("{wire}{}{}", has(a), has(b)));
        let why = planned(&before, &format!("{wire}{slower}")).unwrap_err();
        let lines: Vec<&str> = why.lines().collect();
        assert!(lines[0].starts_with("guest a has queue 1 of"), "{why}");
        assert!(lines[1].starts_with("guest b has queue 2 of"), "{why}");
        let copies = "[driver]\ngrants = \"copy\"\n";
        let before = shape(copies);
        let why = planned(&before, &format!("{copies}{}", guest("a", ""))).unwrap_err();
        assert!(
            why.starts_with("guest a: the driver's `grants` is \"copy\""),
            "{why}"
        );
    }
}
