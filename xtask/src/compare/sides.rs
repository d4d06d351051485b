//! The two sides: a commit in a separate git worktree below `target/compare/`, and the tree.
//!
//! Each commit is built by its `cargo xtask build`, so this module need not know its packages.
//! Worktrees and their build folders remain, so that a second run is quick.

use super::aliases::{Aliases, NameKind};
use super::plans::Plans;
use super::{exp, halt};
use crate::{build, workspace};
use anyhow::{Context, Result, ensure};
use figures::Failure;
use std::fs::{self, FileTimes};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One of the two sides.
#[derive(Debug)]
pub(super) struct Side {
    /// The program that runs plans. The programs that it starts are in the same folder.
    pub(super) program: PathBuf,
    /// The workspace, and its build folder unless that is the default one.
    pub(super) workspace: PathBuf,
    pub(super) build: Option<PathBuf>,
    /// The plans that the program knows.
    plans: Vec<String>,
    /// Whether the program has the flag that lets cores halt. Otherwise its plans are changed.
    pub(super) halts: bool,
}

/// Both sides, and the folder of the results.
#[derive(Debug)]
pub(super) struct Sides {
    pub(super) old: Side,
    pub(super) new: Side,
    pub(super) folder: PathBuf,
    pub(super) commit: String,
    /// A hash of the tree's content, committed or not.
    pub(super) tree: String,
}

impl Sides {
    /// Builds both sides.
    pub(super) fn prepare(commit: &str, plans: &Plans, aliases: &Aliases) -> Result<Self> {
        let root = workspace::root();
        let revision = format!("{commit}^{{commit}}");
        let hash = git(&root, &["rev-parse", "--verify", "--quiet", &revision])
            .map_err(|_| Failure::Usage(format!("no such commit: {commit}")))?;
        let short: String = hash.chars().take(12).collect();
        let all = workspace::target_directory()?.join("compare");
        let folder = all.join(&short);
        let old = build_commit(&root, &folder, &hash, plans, aliases)?;
        let tree = tree_name(&root, &folder)?;
        let new = build_tree(root, &all.join("tree"), aliases)?;
        Ok(Self {
            old,
            new,
            folder,
            commit: short,
            tree,
        })
    }
}

#[cfg(test)]
impl Sides {
    /// Returns sides without programs.
    pub(super) fn for_tests(commit: &str, tree: &str) -> Self {
        let side = || Side {
            program: PathBuf::new(),
            workspace: PathBuf::new(),
            build: None,
            plans: Vec::new(),
            halts: false,
        };
        Self {
            old: side(),
            new: side(),
            folder: PathBuf::new(),
            commit: commit.to_owned(),
            tree: tree.to_owned(),
        }
    }
}

impl Side {
    fn new(folder: &Path, workspace: PathBuf, aliases: &Aliases) -> Result<Self> {
        let names = aliases.of(NameKind::Program, "grantway");
        let mut programs = names.iter().map(|name| folder.join(name));
        let program = programs
            .find(|program| program.is_file())
            .with_context(|| format!("no {} in {}", names.join(", "), folder.display()))?;
        Ok(Self {
            plans: exp::plans(&program)?,
            halts: halt::is_known(&program)?,
            program,
            workspace,
            build: None,
        })
    }

    /// Returns this side's name of a plan of the tree.
    pub(super) fn plan_name(&self, plan: &str, aliases: &Aliases) -> Result<String> {
        let names = aliases.of(NameKind::Plan, plan);
        let known = names.into_iter().find(|name| self.plans.contains(name));
        known.with_context(|| format!("{} has no plan {plan}", self.program.display()))
    }
}

fn build_commit(
    root: &Path,
    folder: &Path,
    hash: &str,
    plans: &Plans,
    aliases: &Aliases,
) -> Result<Side> {
    let (worktree, target) = (folder.join("tree"), folder.join("build"));
    // Removes worktrees whose folders no longer exist.
    git(root, &["worktree", "prune"])?;
    if !worktree.join(".git").exists() {
        fs::create_dir_all(folder)?;
        let path = worktree.to_str().context("a path that is not UTF-8")?;
        git(
            root,
            &["worktree", "add", "--force", "--detach", path, hash],
        )?;
    }
    // In the commit, plans may have older names.
    let paths = plans
        .names()
        .flat_map(|name| aliases.of(NameKind::Plan, name));
    let mut paths: Vec<String> = paths.map(|name| halt::path(&name)).collect();
    paths.retain(|path| worktree.join(path).exists());
    ensure!(
        is_whole(&worktree, hash, &paths)?,
        "{} has changed since its checkout: remove it",
        worktree.display()
    );
    warn_of_flags(root, &worktree);
    let mut side = build_in(&worktree, &target, aliases)?;
    let mut is_stale = false;
    if !side.halts {
        for path in paths {
            is_stale |= halt::change(&worktree.join(path))?;
        }
    }
    if is_stale {
        side = build_in(&worktree, &target, aliases)?;
    }
    side.build = Some(target);
    Ok(side)
}

/// Returns whether a worktree is unchanged, except for plans that let cores halt.
fn is_whole(worktree: &Path, hash: &str, plans: &[String]) -> Result<bool> {
    let git = |arguments: &[&str]| git(worktree, arguments);
    let is_halting = |name: &str| -> Result<bool> {
        if !plans.iter().any(|plan| plan == name) {
            return Ok(false);
        }
        let committed = git(&["show", &format!("HEAD:{name}")])?;
        let now = fs::read_to_string(worktree.join(name))?;
        Ok(now.trim() == halt::changed(&committed).trim())
    };
    let mut is_whole = git(&["rev-parse", "HEAD"])? == hash
        && git(&["ls-files", "--others", "--exclude-standard"])?.is_empty();
    for name in git(&["diff", "--name-only", "HEAD"])?.lines() {
        is_whole &= is_halting(name)?;
    }
    Ok(is_whole)
}

/// Lets a commit build itself.
fn build_in(worktree: &Path, target: &Path, aliases: &Aliases) -> Result<Side> {
    eprintln!("building {}", worktree.display());
    let status = workspace::cargo_in(worktree)
        .args(["xtask", "build"])
        .env("CARGO_TARGET_DIR", target)
        .status()?;
    ensure!(status.success(), "{}: the build failed", worktree.display());
    Side::new(&target.join("release"), worktree.to_owned(), aliases)
}

/// Warns if the flags differ. Cargo also reads the settings of folders above the worktree, which
/// belong to the tree.
fn warn_of_flags(root: &Path, worktree: &Path) {
    let settings = |folder: &Path| fs::read(folder.join(".cargo/config.toml")).ok();
    if settings(root) != settings(worktree) {
        eprintln!(
            "the commit has another .cargo/config.toml: \
             it is built with the tree's flags and its flags"
        );
    }
}

/// Builds the tree and copies its programs, so that the tree can be rebuilt during the measurement.
fn build_tree(root: PathBuf, copies: &Path, aliases: &Aliases) -> Result<Side> {
    eprintln!("building {}", root.display());
    let built = build::build()?;
    let folder = built.parent().context("a program without a folder")?;
    fs::create_dir_all(copies)?;
    for (_, program, _) in build::PROGRAMS {
        build::place(&folder.join(program), copies)?;
    }
    Side::new(copies, root, aliases)
}

/// Returns the hash that git would give to the tree, including new files that are not ignored.
fn tree_name(root: &Path, folder: &Path) -> Result<String> {
    let index = folder.join("index");
    let path = root.join(git(root, &["rev-parse", "--git-path", "index"])?);
    fs::copy(&path, &index)?;
    // The copy keeps the index's time, because git rehashes files that are not older than the
    // index.
    let age = FileTimes::new().set_modified(fs::metadata(&path)?.modified()?);
    fs::OpenOptions::new()
        .write(true)
        .open(&index)?
        .set_times(age)?;
    let with_index = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.env("GIT_INDEX_FILE", &index);
        output(command.current_dir(root).args(arguments))
    };
    with_index(&["add", "--all"])?;
    let name = with_index(&["write-tree"])?;
    fs::remove_file(&index)?;
    Ok(name)
}

fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    output(Command::new("git").current_dir(folder).args(arguments))
}

fn output(command: &mut Command) -> Result<String> {
    Ok(workspace::output(command)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_identifies_a_trees_contents() {
        let folder = tempfile::tempdir().unwrap();
        let (root, other) = (folder.path().join("root"), folder.path());
        fs::create_dir(&root).unwrap();
        git(&root, &["init", "--quiet"]).unwrap();
        fs::write(root.join("a"), "1").unwrap();
        git(&root, &["add", "a"]).unwrap();
        let name = || tree_name(&root, other).unwrap();
        let first = name();
        assert_eq!(name(), first);
        fs::write(root.join("b"), "new and not ignored").unwrap();
        let second = name();
        assert_ne!(second, first);
        fs::write(root.join("a"), "2").unwrap();
        assert_ne!(name(), second);
        fs::write(root.join("a"), "1").unwrap();
        assert_eq!(name(), second);
        let staged = git(&root, &["ls-files"]).unwrap();
        assert_eq!(staged, "a", "the user's index is unchanged");
    }

    #[test]
    fn a_worktree_may_differ_only_in_halting_plans() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let plan = halt::path("base");
        let file = root.join(&plan);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let text = "name = \"base\"\n\n[[column]]\nname = \"grantway\"\n";
        fs::write(&file, text).unwrap();
        fs::write(root.join("code"), "1").unwrap();
        git(root, &["init", "--quiet"]).unwrap();
        git(root, &["add", "--all"]).unwrap();
        let author = ["-c", "user.name=x", "-c", "user.email=x@example.org"];
        let commit = ["commit", "--quiet", "--message", "x"];
        git(root, &[author.as_slice(), &commit].concat()).unwrap();
        let hash = git(root, &["rev-parse", "HEAD"]).unwrap();
        let plans = [plan];
        let is_whole = || is_whole(root, &hash, &plans).unwrap();
        assert!(is_whole());
        assert!(halt::change(&file).unwrap() && is_whole());
        assert!(!halt::change(&file).unwrap(), "the plan was changed before");
        fs::write(&file, text.replace("base", "bass")).unwrap();
        assert!(!is_whole(), "changed in another way");
        fs::write(&file, text).unwrap();
        fs::write(root.join("code"), "2").unwrap();
        assert!(!is_whole(), "no plan");
        fs::write(root.join("code"), "1").unwrap();
        fs::write(root.join("more"), "1").unwrap();
        assert!(!is_whole(), "a new file");
        fs::remove_file(root.join("more")).unwrap();
        assert!(is_whole());
    }

    #[test]
    fn each_side_may_use_other_names() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("gw");
        testing::place_script(&program, "echo base\necho alone");
        let text = "program: gw -> grantway\nplan: alone -> isolation";
        let aliases = Aliases::parse(text).unwrap();
        let side = Side::new(folder.path(), "nowhere".into(), &aliases).unwrap();
        let name = |plan| side.plan_name(plan, &aliases);
        assert_eq!(name("base").unwrap(), "base");
        assert_eq!(name("isolation").unwrap(), "alone");
        assert!(name("tcp").unwrap_err().to_string().contains("no plan tcp"));
    }
}
