//! `hostile`: measures how much a hostile guest, a hostile driver domain, the hostile monitor of a
//! virtual machine, a SYN flood, and forced revocations of a device's pages disturb innocent
//! guests.

use crate::{build, workspace};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The package and name of each program, and the names under which it runs.
const PROGRAMS: [(&str, &str, &[&str]); 7] = [
    ("hostile", "hostile-run", &["hostile-run"]),
    ("hostile", "hostile-vm", &["hostile-vm"]),
    ("grantwayd", "grantwayd", &["grantwayd"]),
    ("netd", "grantway-netd", &["grantway-netd"]),
    ("manager", "grantway-manager", &["grantway-manager"]),
    ("device", "device", &["device"]),
    ("hostile", "hostile-domain", &["driver", "guest"]),
];

/// The roles of the attacker.
const ROLES: [&str; 5] = ["guest", "driver", "vm", "flow", "queue"];

/// Runs `hostile [--minutes N] [--only ROLE]`: ten machines for N minutes each, or the two
/// machines of one role.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut minutes, mut only) = (10_u64, Vec::new());
    for pair in args.chunks(2) {
        match pair {
            [option, value] if option == "--minutes" => {
                minutes = value.parse().context("--minutes")?;
            }
            [option, role] if option == "--only" && ROLES.contains(&&**role) => {
                only = vec![option, role];
            }
            _ => bail!(
                "usage: cargo xtask hostile [--minutes N] [--only guest|driver|vm|flow|queue]"
            ),
        }
    }
    let folder = programs()?;
    let status = Command::new(folder.join("hostile-run"))
        .args(["--seconds", &(minutes * 60).to_string()])
        .args(only)
        .status()
        .context("hostile-run")?;
    ensure!(status.success(), "innocent domains were disturbed too much");
    Ok(())
}

/// Builds the programs and places them in a separate folder, under the names in [`PROGRAMS`].
fn programs() -> Result<PathBuf> {
    let target = workspace::target_directory()?;
    let mut command = workspace::cargo();
    command.args(["build", "--release"]);
    for (package, program, _) in PROGRAMS {
        command.args(["--package", package, "--bin", program]);
    }
    let built = build::executables_of(&mut command)?;
    let folder = target.join("hostile");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for (_, program, names) in PROGRAMS {
        let from = built.iter().find(|path| path.ends_with(program));
        let from = from.with_context(|| format!("cargo built no {program}"))?;
        for name in names {
            build::place_as(from, &folder.join(name))?;
        }
    }
    Ok(folder)
}
