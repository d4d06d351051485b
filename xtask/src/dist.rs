//! Builds the Debian packages with programs, manual pages, completions and a systemd unit.
//! `cargo-deb` builds `grantway` from the list in `cli/Cargo.toml`, and `grantway-lab` from the
//! list in `lab/program/Cargo.toml`.

mod upgrade;

use crate::workspace::{self, output};
use crate::{build, source};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// dpkg's records, which remain after a purge.
const RECORDS: &str = "var/lib/dpkg";

/// Builds the packages. `--built` uses existing programs. `--check` also checks, installs and
/// purges the packages.
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
    let package = package(&dist.join("debian"), "cli")?;
    let lab = self::package(&dist.join("debian-lab"), "lab")?;
    println!("dist: {}\ndist: {}", package.display(), lab.display());
    if check {
        let strict = ["--fail-on", "error,warning", "--info"];
        tool("lintian", &strict, &package)?;
        tool("lintian", &strict, &lab)?;
        install_and_purge(&package, &lab, &dist.join("root"))?;
    }
    Ok(())
}

/// Runs `grantway` to write its manual pages and completions.
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

/// Builds the package that a crate's manifest describes, in a separate folder.
fn package(folder: &Path, of: &str) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let mut command = workspace::cargo();
    command
        .args(["deb", "--no-build", "--strip", "--locked", "--package", of])
        .arg("--output")
        .arg(folder);
    let status = command.status().context("cannot run cargo")?;
    ensure!(
        status.success(),
        "cargo deb has failed; `cargo install --locked cargo-deb` installs it"
    );
    let made = fs::read_dir(folder)?
        .next()
        .context("cargo deb has made nothing")?;
    Ok(made?.path())
}

/// Runs a system tool that checks the package.
fn tool(name: &str, args: &[&str], package: &Path) -> Result<()> {
    let status = Command::new(name).args(args).arg(package).status();
    let status = status.with_context(|| format!("cannot run {name} (Debian has it)"))?;
    ensure!(status.success(), "{name} reports errors");
    println!("dist: {name} reports no errors");
    Ok(())
}

/// Installs `package` into a separate root, runs its programs there, upgrades it under traffic,
/// purges it, and checks that no file remains. Also installs and purges `lab` before the upgrade.
fn install_and_purge(package: &Path, lab: &Path, root: &Path) -> Result<()> {
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
        "usr/libexec/grantway/grantway-docker",
        "usr/lib/systemd/system/grantway-docker.socket",
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
    let plans = || output(Command::new(root.join("usr/bin/grantway")).args(["exp", "--list"]));
    ensure!(plans().is_err(), "`grantway exp` runs without grantway-lab");
    dpkg("--install", lab)?;
    plans()?;
    dpkg("--purge", Path::new("grantway-lab"))?;
    ensure!(files(root)? == there, "grantway-lab leaves files");
    upgrade::under_streams(package, root, &options)?;
    // These files belong to an administrator and to a machine.
    fs::write(root.join("etc/grantway/grantway.conf"), "")?;
    fs::create_dir_all(root.join("var/lib/grantway/captures"))?;
    dpkg("--purge", Path::new("grantway"))?;
    let left = files(root)?;
    ensure!(left.is_empty(), "files remain after the purge: {left:?}");
    println!(
        "dist: {} files of {} installed and purged",
        there.len(),
        version.trim()
    );
    Ok(())
}

/// Returns dpkg's options for a root. The package's scripts run outside the root, because it has no
/// shell. They receive its path.
fn dpkg_options(root: &Path) -> Vec<String> {
    let mut options = vec![format!("--root={}", root.display())];
    options.extend(["not-root", "depends", "script-chrootless"].map(|f| format!("--force-{f}")));
    options
}

/// Returns every file below a root except for dpkg's records.
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

    /// The folder and the name of the crate that describes each package.
    const CRATES: [(&str, &str); 2] = [("cli", "grantway"), ("lab/program", "grantway-lab")];

    /// Returns the package description in a crate's manifest.
    fn deb(folder: &str) -> toml::Value {
        let manifest = workspace::root().join(folder).join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
        manifest["package"]["metadata"]["deb"].clone()
    }

    /// Returns the package's files, as source and destination.
    fn assets(folder: &str) -> Vec<[String; 2]> {
        let deb = deb(folder);
        let list = deb["assets"].as_array().unwrap();
        let text = |asset: &toml::Value, n: usize| asset[n].as_str().unwrap().to_owned();
        list.iter()
            .map(|asset| [text(asset, 0), text(asset, 1)])
            .collect()
    }

    #[test]
    fn every_program_is_in_its_packaged_place() {
        let [product, lab] = CRATES.map(|(folder, _)| assets(folder));
        for (_, program, purpose) in build::PROGRAMS {
            let folder = match program {
                "grantway" => "usr/bin/",
                "grantway-cni" => "usr/lib/cni/",
                _ => "usr/libexec/grantway/",
            };
            let asset = [format!("target/release/{program}"), folder.to_owned()];
            let installed_by = [&product, &lab].map(|assets| assets.contains(&asset));
            let expected = [purpose == Purpose::Use, purpose == Purpose::Lab];
            assert_eq!(installed_by, expected, "{asset:?}");
        }
    }

    #[test]
    fn packaged_repository_files_exist() {
        for (folder, least) in [("cli", 6), ("lab/program", 2)] {
            let mut seen = 0;
            for [from, _] in assets(folder) {
                if from.starts_with("target/") || from.starts_with("../target/") {
                    continue;
                }
                let path = workspace::root().join(folder).join(
                    from.replace("*.md", "README.md")
                        .replace("*.toml", "two-guests.toml"),
                );
                assert!(path.is_file(), "{}", path.display());
                seen += 1;
            }
            assert!(seen >= least, "{folder}: {seen}");
        }
    }

    #[test]
    fn the_packages_version_is_the_workspaces() {
        let read = |name: &str| fs::read_to_string(workspace::root().join(name)).unwrap();
        let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
        let version = manifest["workspace"]["package"]["version"]
            .as_str()
            .unwrap();
        for (folder, name) in CRATES {
            let changelog = deb(folder)["changelog"].as_str().unwrap().to_owned();
            let changelog = read(&format!("{folder}/{changelog}"));
            assert!(
                changelog.starts_with(&format!("{name} ({version}-1) ")),
                "{changelog}"
            );
        }
        let depends = deb("lab/program")["depends"].as_str().unwrap().to_owned();
        assert_eq!(depends, format!("grantway (= {version}-1)"));
    }
}
