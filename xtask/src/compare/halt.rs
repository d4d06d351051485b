//! Lets idle cores halt on both sides. Older commits kept idle cores awake with spinning threads of
//! the idle class. Newer kernels preempt these threads too late, so domains do not answer in time
//! and whole plans fail.
//!
//! A program whose `exp` has `--halt` gets that flag. For an older commit, this module changes the
//! plans in the worktree before the commit is built.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The flag of `exp`.
pub(super) const FLAG: &str = "--halt";

/// Returns whether a program's `exp` has the flag.
pub(super) fn is_known(program: &Path) -> Result<bool> {
    let output = Command::new(program)
        .args(["exp", "--help"])
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).contains(FLAG))
}

/// Returns a plan's path in a worktree.
pub(super) fn path(plan: &str) -> String {
    format!("lab/experiments/plans/{plan}.toml")
}

/// Changes a plan's file. Returns false if an earlier call has changed the file.
pub(super) fn change(file: &Path) -> Result<bool> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let changed = changed(&text);
    let is_new = changed != text;
    if is_new {
        fs::write(file, changed).with_context(|| file.display().to_string())?;
    }
    Ok(is_new)
}

/// Returns the plan with idle cores that halt. Only columns (streams and requests) leave cores
/// idle, so a plan without columns is unchanged.
pub(super) fn changed(plan: &str) -> String {
    if !plan.contains("\n[[column]]") {
        return plan.to_owned();
    }
    // Keys of the plan itself precede its first table.
    let tables = plan.find("\n[").map_or(plan.len(), |at| at + 1);
    let (own, tables) = plan.split_at(tables);
    let is_wake = |line: &&str| {
        line.split('=')
            .next()
            .is_some_and(|key| key.trim() == "wake")
    };
    let mut text: String = own.split_inclusive('\n').filter(|l| !is_wake(l)).collect();
    text.push_str("wake = [\"halt\"]\n");
    text.push_str(tables);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_let_cores_halt() {
        let of = |wake: &str| format!("name = \"x\"\n{wake}\n[full]\nn = 1\n\n[[column]]\na = 2\n");
        for wake in ["", "wake = [\"awake\"]\n", "wake=[\"awake\", \"halt\"]\n"] {
            let plan = changed(&of(wake));
            assert_eq!(plan, of("\nwake = [\"halt\"]"), "{wake}");
            let read: toml::Table = toml::from_str(&plan).unwrap();
            assert_eq!(read["wake"].as_array().unwrap().len(), 1);
            assert_eq!(changed(&plan), plan, "once");
        }
        let frames = "name = \"y\"\n\n[[frames]]\nsize = [64]\n";
        assert_eq!(changed(frames), frames);
    }

    #[test]
    fn the_trees_plans_can_be_changed() {
        let root = crate::workspace::root();
        for plan in ["base", "tcp", "lro"] {
            let text = fs::read_to_string(root.join(path(plan))).unwrap();
            let read: toml::Table = toml::from_str(&changed(&text)).unwrap();
            assert_eq!(read["wake"].as_array().unwrap()[0].as_str(), Some("halt"));
        }
    }

    #[test]
    fn the_flag_is_found_in_the_help() {
        let folder = tempfile::tempdir().unwrap();
        let knows = |help: &str| {
            let program = folder.path().join("grantway");
            testing::place_script(&program, &format!("echo '{help}'"));
            is_known(&program).unwrap()
        };
        assert!(knows("      --halt  Let idle cores halt"));
        assert!(!knows("      --quick  A short run"));
    }
}
