//! Runs each fuzz target briefly.

use crate::{build, workspace};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Default duration of each target, seconds.
const SECONDS: u32 = 5;

/// Properties that need more than memory, and are therefore tests of their crates: name and test.
/// This one checks that the kernel's filter program decides as the bridge does.
const PROPERTIES: [(&str, &str); 1] = [(
    "xdp-rules",
    "xdp::rules::tests::the_kernel_decides_like_the_bridge",
)];

/// Runs `fuzz-smoke [--guided] [--seconds N] [BODY…]`: every target, or the named ones. Fails if a
/// target has a finding.
pub(crate) fn smoke(args: &[String]) -> Result<()> {
    let (mut seconds, mut is_guided, mut bodies) = (SECONDS, false, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--guided" => is_guided = true,
            "--seconds" => {
                let number = args.next().context("--seconds needs a number")?;
                seconds = number
                    .parse()
                    .with_context(|| format!("--seconds {number}"))?;
            }
            option if option.starts_with('-') => bail!("fuzz-smoke has no option {option}"),
            body => bodies.push(body.to_owned()),
        }
    }
    match is_guided {
        true => guided(seconds, &bodies),
        false => plain(seconds, &bodies),
    }
}

/// Runs the program of the fuzz bodies, which uses changed corpus inputs and random inputs.
fn plain(seconds: u32, named: &[String]) -> Result<()> {
    for (name, test) in PROPERTIES {
        if named.is_empty() || named.iter().any(|one| one == name) {
            let run = workspace::cargo()
                // Uses the same test programs as `cargo xtask test`. Building one package alone
                // would yield different programs: see `build::as_tested`.
                .args(["test", "--quiet", "--workspace", "--lib", "--"])
                .args(["--exact", test])
                .env("GRANTWAY_FUZZ_SECONDS", seconds.to_string())
                .stderr(Stdio::inherit())
                .output()
                .context("cannot run cargo")?;
            let output = String::from_utf8_lossy(&run.stdout);
            ensure!(run.status.success(), "{name} has a finding:\n{output}");
            ensure!(output.contains("1 passed"), "no test is named {test}");
        }
    }
    let is_body = |name: &&String| PROPERTIES.iter().all(|(property, _)| property != name);
    let bodies: Vec<&String> = named.iter().filter(is_body).collect();
    if bodies.is_empty() && !named.is_empty() {
        return Ok(());
    }
    let folder = build::as_tested(&["--bin", "smoke"])?;
    let status = Command::new(folder.join("smoke"))
        .arg(seconds.to_string())
        .args(bodies)
        .status()
        .context("cannot run smoke")?;
    ensure!(status.success(), "a fuzz target has a finding");
    Ok(())
}

/// Runs libFuzzer, which keeps inputs that reach new code.
fn guided(seconds: u32, bodies: &[String]) -> Result<()> {
    let folder = workspace::root().join("fuzz");
    let present = workspace::cargo().args(["fuzz", "--version"]).output()?;
    ensure!(
        present.status.success(),
        "cargo-fuzz is not installed: cargo install --locked cargo-fuzz"
    );
    let mut targets = Vec::new();
    for entry in fs::read_dir(folder.join("fuzz_targets")).context("no fuzz targets")? {
        let path = entry?.path();
        targets.extend(path.file_stem().map(|stem| stem.to_os_string()));
    }
    targets.sort();
    let is_meant = |target: &std::ffi::OsString| {
        bodies.is_empty() || bodies.iter().any(|body| target == body.as_str())
    };
    for target in targets.into_iter().filter(is_meant) {
        println!("fuzz: {} for {seconds} s", target.display());
        add_kept_inputs(&folder, &target.to_string_lossy())?;
        // Coverage guidance without a sanitizer works on a stable compiler. The crates under test
        // contain no `unsafe`, so a sanitizer would find little.
        let status = workspace::cargo()
            .args(["fuzz", "run", "--sanitizer", "none"])
            .arg(&target)
            .args(["--", &format!("-max_total_time={seconds}")])
            .status()?;
        ensure!(status.success(), "{} found something", target.display());
    }
    Ok(())
}

/// Copies a target's seeds and regressions to its corpus, so that libFuzzer starts from them.
fn add_kept_inputs(folder: &Path, target: &str) -> Result<()> {
    let corpus = folder.join("corpus").join(target);
    fs::create_dir_all(&corpus).with_context(|| format!("cannot create {}", corpus.display()))?;
    for kept in ["bodies/seeds", "bodies/regressions"] {
        for entry in fs::read_dir(folder.join(kept)).with_context(|| format!("no {kept}"))? {
            let entry = entry?;
            let name = entry.file_name();
            let is_of_target = name
                .to_str()
                .is_some_and(|name| name.split_once('-').is_some_and(|(body, _)| body == target));
            if is_of_target {
                fs::copy(entry.path(), corpus.join(&name))
                    .with_context(|| format!("cannot copy {}", entry.path().display()))?;
            }
        }
    }
    Ok(())
}
