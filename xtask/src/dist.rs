//! The Debian package: programs, manual pages, completions, unit. `cargo-deb` puts it together from
//! the list in `cli/Cargo.toml`.

mod upgrade;

use crate::workspace::{self, output};
use crate::{build, source};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a package that is purged may leave: dpkg's own records, and folders.
const RECORDS: &str = "var/lib/dpkg";

/// Builds the package, of what is built already with `--built`; with `--check` also looks at it,
/// installs it and purges it.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut is_built, mut check) = (false, false);
    for arg in args {
        match arg.as_str() {
            "--built" => is_built = true,
            "--check" => check = true,
            other => bail!("dist: no such argument: {other}"),
        }
    }
    let root = workspace::root();
    if !is_built {
        build::build()?;
    }
    let dist = root.join("target/dist");
    pages(&root.join("target/release/grantway"), &dist)?;
    let package = package(&dist)?;
    println!("dist: {}", package.display());
    if check {
        let strict = ["--fail-on", "error,warning", "--info"];
        tool("lintian", &strict, &package)?;
        install_and_purge(&package, &dist.join("root"))?;
    }
    Ok(())
}

/// Has `grantway` write its manual pages and completions.
fn pages(grantway: &Path, dist: &Path) -> Result<()> {
    let man = dist.join("man");
    if man.exists() {
        fs::remove_dir_all(&man)?;
    }
    let completions = dist.join("completions");
    fs::create_dir_all(&completions)?;
    output(Command::new(grantway).arg("manual").arg(&man))?;
    for (shell, file) in [
        ("bash", "grantway"),
        ("zsh", "_grantway"),
        ("fish", "grantway.fish"),
    ] {
        let text = output(Command::new(grantway).args(["completions", shell]))?;
        fs::write(completions.join(file), text)?;
    }
    Ok(())
}

/// The package, in a folder of its own.
fn package(dist: &Path) -> Result<PathBuf> {
    let folder = dist.join("debian");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let mut command = workspace::cargo();
    command
        .args([
            "deb",
            "--no-build",
            "--strip",
            "--locked",
            "--package",
            "cli",
        ])
        .arg("--output")
        .arg(&folder);
    let status = command.status().context("cannot run cargo")?;
    ensure!(
        status.success(),
        "cargo deb has failed; `cargo install --locked cargo-deb` installs it"
    );
    let made = fs::read_dir(&folder)?
        .next()
        .context("cargo deb has made nothing")?;
    Ok(made?.path())
}

/// Runs a program of the system over the package.
fn tool(name: &str, args: &[&str], package: &Path) -> Result<()> {
    let status = Command::new(name).args(args).arg(package).status();
    let status = status.with_context(|| format!("cannot run {name} (Debian has it)"))?;
    ensure!(status.success(), "{name} is not content");
    println!("dist: {name} is content");
    Ok(())
}

/// Installs the package into a root of its own, where the program runs, upgrades it under traffic
/// and purges it, after which nothing is left.
fn install_and_purge(package: &Path, root: &Path) -> Result<()> {
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    for folder in ["updates", "info", "triggers"] {
        fs::create_dir_all(root.join(RECORDS).join(folder))?;
    }
    fs::write(root.join(RECORDS).join("status"), "")?;
    let options = dpkg_options(root);
    let dpkg = |what: &str, of: &Path| -> Result<()> {
        let mut command = Command::new("dpkg");
        output(command.args(&options).arg(what).arg(of)).map(drop)
    };
    dpkg("--install", package)?;
    let there = files(root)?;
    for needed in [
        "usr/bin/grantway",
        "usr/libexec/grantway/grantwayd",
        "usr/lib/cni/grantway-cni",
        "usr/libexec/netavark/grantway",
        "usr/share/man/man1/grantway-up.1.gz",
        "etc/grantway/grantway.conf.d/README",
    ] {
        ensure!(
            there.contains(Path::new(needed)),
            "{needed} is not installed"
        );
    }
    let unit = there
        .iter()
        .any(|file| file.ends_with("systemd/system/grantway.service"));
    ensure!(unit, "the unit is not installed");
    let version = output(Command::new(root.join("usr/bin/grantway")).arg("--version"))?;
    upgrade::under_streams(package, root, &options)?;
    // What an administrator and a machine leave.
    fs::write(root.join("etc/grantway/grantway.conf"), "")?;
    fs::create_dir_all(root.join("var/lib/grantway/captures"))?;
    dpkg("--purge", Path::new("grantway"))?;
    let left = files(root)?;
    ensure!(left.is_empty(), "left after purge: {left:?}");
    println!(
        "dist: {} files of {} installed and purged",
        there.len(),
        version.trim()
    );
    Ok(())
}

/// How dpkg works on a root. The scripts run outside, and are told the root: there is no shell in
/// it.
fn dpkg_options(root: &Path) -> Vec<String> {
    let mut options = vec![format!("--root={}", root.display())];
    options.extend(["not-root", "depends", "script-chrootless"].map(|f| format!("--force-{f}")));
    options
}

/// Every file below a root but dpkg's records.
fn files(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let records = root.join(RECORDS);
    let found = source::walk(root, |folder| folder != records)?;
    let below_root = |path: PathBuf| Ok(path.strip_prefix(root)?.to_path_buf());
    found.into_iter().map(below_root).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Purpose;

    /// The list of what the package has, as source and destination.
    fn assets() -> Vec<[String; 2]> {
        let manifest = fs::read_to_string(workspace::root().join("cli/Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let list = manifest["package"]["metadata"]["deb"]["assets"]
            .as_array()
            .unwrap();
        let text = |asset: &toml::Value, n: usize| asset[n].as_str().unwrap().to_owned();
        list.iter()
            .map(|asset| [text(asset, 0), text(asset, 1)])
            .collect()
    }

    #[test]
    fn every_program_is_in_the_package_where_it_is_looked_for() {
        let assets = assets();
        for (_, program, purpose) in build::PROGRAMS {
            let folder = match program {
                "grantway" => "usr/bin/",
                "grantway-cni" => "usr/lib/cni/",
                _ => "usr/libexec/grantway/",
            };
            let asset = [format!("target/release/{program}"), folder.to_owned()];
            let is_installed = assets.contains(&asset);
            assert_eq!(is_installed, purpose == Purpose::Use, "{asset:?}");
        }
    }

    #[test]
    fn what_the_package_takes_from_the_repository_is_there() {
        let cli = workspace::root().join("cli");
        let mut seen = 0;
        for [from, _] in assets() {
            if from.starts_with("target/") || from.starts_with("../target/") {
                continue;
            }
            let path = cli.join(
                from.replace("*.md", "README.md")
                    .replace("*.toml", "two-guests.toml"),
            );
            assert!(path.is_file(), "{}", path.display());
            seen += 1;
        }
        assert!(seen > 5, "{seen}");
    }

    #[test]
    fn the_packages_version_is_the_workspaces() {
        let read = |name: &str| fs::read_to_string(workspace::root().join(name)).unwrap();
        let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
        let version = manifest["workspace"]["package"]["version"]
            .as_str()
            .unwrap();
        let changelog = read("contrib/debian/changelog");
        assert!(
            changelog.starts_with(&format!("grantway ({version}-1) ")),
            "{changelog}"
        );
    }
}
