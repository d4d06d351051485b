//! `grantway reload`: applies an edited configuration to a running machine.

use crate::output::refused;
use crate::{files, host, output, restore};
use abi::reload::{ReloadReply, ReloadStep, SourceFile, StepKind, StepReason};
use anyhow::bail;
use client::Instance;
use serde_json::json;
use std::path::PathBuf;

/// Options of `grantway reload`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReloadArgs {
    /// The configuration; fragments in the folder FILE.d are read, too
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Print the steps without executing them
    #[arg(long)]
    dry_run: bool,
    /// Name of the machine [default: the file's]
    #[arg(long)]
    name: Option<String>,
}

/// Executes `grantway reload`.
pub(crate) fn reload(args: &ReloadArgs, as_json: bool) -> anyhow::Result<()> {
    let files = files::read(&args.file)?;
    let (config, source) = config::parse_with_source(&files)?;
    source.warnings().iter().for_each(|w| output::warn(w));
    let instance = Instance::connect(args.name.as_ref().unwrap_or(&config.name))?;
    let source_file = |file: &config::ConfigFile| SourceFile {
        name: file.name.clone(),
        text: file.text.clone(),
    };
    let sources: Vec<SourceFile> = files.iter().map(source_file).collect();
    let plan = instance.reload(sources.clone(), true).map_err(refused)?;
    // The manager cannot check namespaces, CPUs and files, so this process does. Guests that are
    // already attached have passed these checks.
    let will_attach = |name: &str| {
        let mut steps = plan.steps.iter();
        steps.any(|step| step.step == StepKind::Attach && step.domain == name)
    };
    let is_new = |step: &ReloadStep| matches!(step.step, StepKind::Attach | StepKind::Change);
    let new = plan.steps.iter().all(is_new);
    source.check(host::check_guests(&config, new, will_attach))?;
    restore::warn_of_rules(&config);
    let outcome = match args.dry_run {
        true => plan,
        false => restore::with_note(
            instance.name(),
            &config,
            || instance.reload(sources, false).map_err(refused),
            |outcome| outcome.failed.is_none(),
        )?,
    };
    outcome.warning.iter().for_each(|w| output::warn(w));
    if as_json {
        output::json(&json!(outcome))?;
    } else {
        output::print(&text(instance.name(), &outcome, args.dry_run))?;
    }
    match outcome.failed {
        None => Ok(()),
        Some(why) => bail!("{why}\nnothing is reloaded: the steps before this one were undone"),
    }
}

/// Returns the steps that were executed or planned, as text.
fn text(name: &str, outcome: &ReloadReply, dry_run: bool) -> String {
    let shown = match dry_run {
        true => outcome.steps.len(),
        false => outcome.done,
    };
    let mut text = String::new();
    for step in outcome.steps.iter().take(shown) {
        text += &line(step);
        text.push('\n');
    }
    for guest in &outcome.stays {
        text += &format!("{guest} stays: `grantway attach` added it\n");
    }
    let ms = outcome.took_ns as f64 / 1e6;
    match (outcome.steps.len(), &outcome.failed) {
        (0, _) => text += "nothing to change\n",
        (steps, None) if !dry_run => {
            let plural = if steps == 1 { "" } else { "s" };
            text += &format!("{name} is reloaded ({steps} step{plural}, {ms:.1} ms).\n");
        }
        _ => {}
    }
    text
}

/// Formats a step, such as ``detach web: changed: vif 1: `mtu` is 1400 instead of 1500``.
fn line(step: &ReloadStep) -> String {
    let (domain, changes) = (&step.domain, step.changes.join(", "));
    match (step.step, step.why) {
        (StepKind::Detach, StepReason::Changed) => {
            format!("detach {domain}: changed: {changes}")
        }
        (StepKind::Detach, _) => format!("detach {domain}: no longer in the file"),
        (StepKind::Change, _) => format!("change {domain} in place: {changes}"),
        (StepKind::Nics | StepKind::Restart, _) => format!("restart {domain}: {changes}"),
        (StepKind::Attach, StepReason::Changed) => format!("attach {domain} again"),
        (StepKind::Attach, _) => format!("attach {domain}: new"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: StepKind, domain: &str, why: StepReason) -> ReloadStep {
        let changes = match (step, why) {
            (StepKind::Detach, StepReason::Changed) => vec!["`a` is 1".into(), "`b` is 2".into()],
            _ => Vec::new(),
        };
        let domain = domain.to_owned();
        ReloadStep {
            step,
            domain,
            why,
            changes,
        }
    }

    #[test]
    fn planned_and_done_steps_become_lines() {
        let mut outcome = ReloadReply {
            steps: vec![
                step(StepKind::Detach, "old", StepReason::Gone),
                step(StepKind::Detach, "web", StepReason::Changed),
                step(StepKind::Attach, "web", StepReason::Changed),
                step(StepKind::Attach, "db", StepReason::New),
            ],
            stays: vec!["mine".into()],
            took_ns: 1_300_000,
            ..ReloadReply::default()
        };
        let old = "detach old: no longer in the file\n";
        let web = "detach web: changed: `a` is 1, `b` is 2\nattach web again\n";
        let new = "attach db: new\n";
        let stays = "mine stays: `grantway attach` added it\n";
        assert_eq!(text("m", &outcome, true), format!("{old}{web}{new}{stays}"));
        outcome.failed = Some("detach web: no".into());
        assert_eq!(text("m", &outcome, false), stays);
        outcome.done = 4;
        outcome.failed = None;
        let end = "m is reloaded (4 steps, 1.3 ms).\n";
        let all = format!("{old}{web}{new}{stays}{end}");
        assert_eq!(text("m", &outcome, false), all);
        outcome.steps.clear();
        let nothing = format!("{stays}nothing to change\n");
        assert_eq!(text("m", &outcome, true), nothing);
        assert_eq!(text("m", &outcome, false), nothing);
    }
}
